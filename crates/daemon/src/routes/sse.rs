//! What a command or a process does, as server-sent events.

use std::convert::Infallible;

use api::{Chunk, Encoding, Exit, Skipped, Started};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::error::ApiError;
use crate::guests::CallError;
use crate::running::{Heard, Running, exit_code, not_started, signal_of};

/// How many events may wait for a client.
const BACKLOG: usize = 1;

/// What it does, as it does it. A command goes with the stream; one that comes to its end is over.
pub(super) fn events(
    first: Option<Result<Heard, CallError>>,
    mut running: Running,
    over: impl FnOnce() + Send + 'static,
) -> impl IntoResponse {
    let (say, events) = tokio::sync::mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        let (mut stdout, mut stderr) = (Text::default(), Text::default());
        let (mut heard, mut over) = (first, Some(over));
        while let Some(next) = heard {
            if let Some(over) = over.take_if(|_| is_end(&next)) {
                over();
            }
            for event in told(next, &mut stdout, &mut stderr) {
                if say.send(event).await.is_err() {
                    return;
                }
            }
            // Whoever stops reading may have left while the command says nothing.
            heard = tokio::select! {
                heard = running.next() => heard,
                () = say.closed() => None,
            };
        }
    });
    Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default())
}

fn is_end(heard: &Result<Heard, CallError>) -> bool {
    match heard {
        Ok(heard) => matches!(heard, Heard::Exited { .. }),
        Err(error) => not_started(error).is_some(),
    }
}

fn told(heard: Result<Heard, CallError>, stdout: &mut Text, stderr: &mut Text) -> Vec<Event> {
    match heard {
        Ok(Heard::Started { process, session }) => {
            vec![event("started", &Started { process_id: process, session })]
        }
        Ok(Heard::Stdout(bytes)) => stdout.take(bytes).map(|chunk| event("stdout", &chunk)).into_iter().collect(),
        Ok(Heard::Stderr(bytes)) => stderr.take(bytes).map(|chunk| event("stderr", &chunk)).into_iter().collect(),
        Ok(Heard::Skipped(bytes)) => with_rest(stdout, stderr, event("skipped", &Skipped { bytes })),
        Ok(Heard::Exited { status, timed_out }) => {
            let exit = Exit { exit_code: exit_code(status), signal: signal_of(status), timed_out };
            with_rest(stdout, stderr, event("exit", &exit))
        }
        Err(error) => match not_started(&error) {
            // As a shell does it.
            Some((exit_code, message)) => {
                let why = Chunk { data: format!("{message}\n"), encoding: Encoding::Utf8 };
                let exit = Exit { exit_code, signal: None, timed_out: false };
                vec![event("stderr", &why), event("exit", &exit)]
            }
            None => with_rest(stdout, stderr, event("error", &ApiError::from(error).body())),
        },
    }
}

/// What still waited for the rest of a character, and then this.
fn with_rest(stdout: &mut Text, stderr: &mut Text, last: Event) -> Vec<Event> {
    let rest = [("stdout", stdout.rest()), ("stderr", stderr.rest())];
    let rest = rest.into_iter().filter_map(|(name, chunk)| Some(event(name, &chunk?)));
    rest.chain([last]).collect()
}

fn event<T: serde::Serialize>(name: &str, data: &T) -> Event {
    Event::default().event(name).json_data(data).expect("what we say can be written as JSON")
}

/// Output in pieces, cut where a character may be cut, too.
#[derive(Debug, Default)]
struct Text {
    /// The beginning of a character that is still to come.
    open: Vec<u8>,
}

impl Text {
    fn take(&mut self, bytes: Vec<u8>) -> Option<Chunk> {
        let mut all = std::mem::take(&mut self.open);
        all.extend(bytes);
        if let Err(error) = std::str::from_utf8(&all)
            && error.error_len().is_none()
        {
            self.open = all.split_off(error.valid_up_to());
        }
        (!all.is_empty()).then(|| chunk(all))
    }

    fn rest(&mut self) -> Option<Chunk> {
        let rest = std::mem::take(&mut self.open);
        (!rest.is_empty()).then(|| chunk(rest))
    }
}

fn chunk(bytes: Vec<u8>) -> Chunk {
    match String::from_utf8(bytes) {
        Ok(data) => Chunk { data, encoding: Encoding::Utf8 },
        Err(error) => Chunk { data: STANDARD.encode(error.as_bytes()), encoding: Encoding::Base64 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_comes_in_two_pieces_stays_text() {
        let mut text = Text::default();
        let bytes = "aé€".as_bytes();
        let first = text.take(bytes[..2].to_vec()).unwrap();
        let second = text.take(bytes[2..4].to_vec()).unwrap();
        let third = text.take(bytes[4..].to_vec()).unwrap();
        assert_eq!([&first.data, &second.data, &third.data], ["a", "é", "€"]);
        let binary = text.take(vec![0xff, b'a']).unwrap();
        assert_eq!((binary.encoding, binary.data.as_str()), (Encoding::Base64, "/2E="));
        assert_eq!(text.take(vec![0xc3]), None);
        assert_eq!(text.rest().unwrap().encoding, Encoding::Base64);
    }
}
