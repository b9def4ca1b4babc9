//! Code in a sandbox's warm interpreter.

use std::time::Instant;

use api::{EvalOutput, EvalOutputKind, EvalRequest, EvalResult, Loss};
use axum::extract::State;
use axum::response::Response;
use session::{Bundle, EvalError, Evaluation, InterpreterState, ShownKind};

use super::Failures;
use super::exec::{answer, limit, milliseconds};
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::state::App;

/// Runs code in the sandbox's warm interpreter. What it leaves there, the next one finds.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/eval", tag = "sandboxes", params(("id" = String, Path)),
    request_body = EvalRequest, responses((status = 200, body = EvalResult), Failures))]
pub(super) async fn eval(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(asked): ApiJson<EvalRequest>,
) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let limit = limit(asked.timeout_secs)?;
    let request = session::EvalRequest { code: asked.code, timeout_ms: milliseconds(limit) };
    let evaluation = app.ask(&id, move |mut connection| connection.eval(&request)).await?;
    app.metrics.eval.record(begun.elapsed().as_secs_f64());
    answer(&result(evaluation), app.outputs.share())
}

/// The form of a value that has a field of its own.
const JSON: &str = "application/json";

fn result(mut evaluation: Evaluation) -> EvalResult {
    let traceback = match &evaluation.error {
        Some(EvalError::Exception(exception)) => Some(exception.traceback.clone()),
        Some(EvalError::Timeout { traceback }) => traceback.clone(),
        Some(EvalError::Died { .. }) | None => None,
    };
    EvalResult {
        result: evaluation.value,
        result_json: take_json(&mut evaluation.shown),
        outputs: evaluation.shown.into_iter().filter(|bundle| !bundle.data.is_empty()).map(output).collect(),
        exit_code: i32::from(evaluation.error.is_some()),
        error: evaluation.error.as_ref().map(ToString::to_string),
        traceback,
        stdout: String::from_utf8_lossy(&evaluation.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&evaluation.stderr).into_owned(),
        interpreter: match evaluation.interpreter {
            InterpreterState::Alive => None,
            InterpreterState::Restarted => Some(Loss::Restarted),
            InterpreterState::Lost => Some(Loss::Lost),
        },
        truncated: evaluation.truncated,
    }
}

/// Takes the JSON out of what the value is shown as.
fn take_json(shown: &mut [Bundle]) -> Option<String> {
    shown.iter_mut().filter(|bundle| bundle.kind == ShownKind::Result).find_map(|bundle| bundle.data.remove(JSON))
}

fn output(Bundle { kind, data }: Bundle) -> EvalOutput {
    let kind = match kind {
        ShownKind::Result => EvalOutputKind::Result,
        ShownKind::Display => EvalOutputKind::Display,
    };
    EvalOutput { kind, data }
}

#[cfg(test)]
mod tests {
    use session::Exception;

    use super::*;

    #[test]
    fn an_exception_is_an_error_with_a_traceback() {
        let exception = Exception { class: "KeyError".into(), message: "'x'".into(), traceback: "Traceback".into() };
        let told = result(Evaluation {
            value: None,
            error: Some(EvalError::Exception(exception)),
            stdout: b"seen".to_vec(),
            stderr: Vec::new(),
            shown: Vec::new(),
            truncated: true,
            interpreter: InterpreterState::Lost,
        });
        assert_eq!((told.error.as_deref(), told.exit_code), (Some("KeyError: 'x'"), 1));
        assert_eq!((told.interpreter, told.truncated), (Some(Loss::Lost), true));
        assert_eq!((told.traceback.as_deref(), told.stdout.as_str()), (Some("Traceback"), "seen"));
    }

    #[test]
    fn a_value_as_json_has_its_own_field_and_the_rest_is_output() {
        let bundle = |kind, forms: &[(&str, &str)]| Bundle {
            kind,
            data: forms.iter().map(|(mime, text)| ((*mime).into(), (*text).into())).collect(),
        };
        let shown = vec![
            bundle(ShownKind::Display, &[(JSON, "1"), ("image/png", "iVBO")]),
            bundle(ShownKind::Result, &[(JSON, "[2]")]),
        ];
        let told = result(Evaluation {
            value: Some("[ 2 ]".into()),
            error: None,
            stdout: Vec::new(),
            stderr: Vec::new(),
            shown,
            truncated: false,
            interpreter: InterpreterState::Alive,
        });
        assert_eq!((told.result.as_deref(), told.result_json.as_deref()), (Some("[ 2 ]"), Some("[2]")));
        let [output] = &told.outputs[..] else { panic!("{:?}", told.outputs) };
        assert_eq!((output.kind, output.data.len()), (EvalOutputKind::Display, 2));
    }
}
