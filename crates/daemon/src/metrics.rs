//! What is counted and measured, in Prometheus' text format. The names are listed here and nowhere else.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// From a tenth of a millisecond, what a branch stops a guest for, to a minute.
const BUCKETS: &[f64] = &[
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
const METADATA: Metadata<'static> = Metadata::new("forkd", Level::INFO, None);

/// All that is counted.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// From a request for sandboxes until all were ready.
    pub(crate) spawn: Histogram,
    /// For how long a branch stopped its sandbox.
    pub(crate) branch_pause: Histogram,
    /// A command, from the request to its end.
    pub(crate) exec: Histogram,
    /// Code, in the same way.
    pub(crate) eval: Histogram,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), BUCKETS)
            .expect("there are buckets");
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        let histogram = |name: &'static str, help: &'static str| {
            recorder.describe_histogram(name.into(), None, help.into());
            recorder.register_histogram(&Key::from_static_name(name), &METADATA)
        };
        let spawn = histogram("forkd_spawn_ready_seconds", "From a request for sandboxes until all were ready");
        let branch_pause = histogram("forkd_branch_pause_seconds", "For how long a branch stopped its sandbox");
        let exec = histogram("forkd_exec_seconds", "Commands, from the request to their end");
        let eval = histogram("forkd_eval_seconds", "Code, from the request to its end");
        let metrics = Self { recorder, handle, spawn, branch_pause, exec, eval };
        metrics.gauge("forkd_build_info", &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        metrics
    }

    /// A number that goes up and down.
    pub(crate) fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    /// A number that goes up.
    pub(crate) fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.recorder.register_counter(&key(name, labels), &METADATA)
    }

    /// A request was answered. The route is one of ours, so there are not many.
    pub(crate) fn request(&self, method: &str, route: &str, status: u16, took: Duration) {
        let status = status.to_string();
        let labels = [("method", method), ("route", route), ("status", &status)];
        self.counter("forkd_http_requests_total", &labels).increment(1);
        let labels = [("method", method), ("route", route)];
        let histogram = self.recorder.register_histogram(&key("forkd_http_request_seconds", &labels), &METADATA);
        histogram.record(took.as_secs_f64());
    }

    /// Puts away what was recorded, which otherwise waits in memory until somebody asks.
    pub(crate) fn keep_up(&self) {
        self.handle.run_upkeep();
    }

    /// All of it.
    pub(crate) fn render(&self) -> String {
        self.keep_up();
        self.handle.render()
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let metrics = Metrics::new();
        metrics.gauge("forkd_sandboxes_active", &[]).set(3.0);
        metrics.request("GET", "/v1/x", 200, Duration::from_millis(2));
        metrics.branch_pause.record(0.002);
        let text = metrics.render();
        for line in [
            "forkd_sandboxes_active 3",
            "forkd_http_requests_total{method=\"GET\",route=\"/v1/x\",status=\"200\"} 1",
            "forkd_branch_pause_seconds_bucket{le=\"0.0025\"} 1",
            "forkd_build_info{version=",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
