//! Code for the guest's warm interpreter, and what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::codec::{Channel, read_frame};
use proto::guest::{
    EvalError, EvalRequest, Evaluated, InterpreterState, MAX_EVAL_OUTPUT, MAX_SHOWN, Reply, Request, Shown, ShownKind,
};

use crate::connection::{send, warm_patience};
use crate::transport::Until;
use crate::{Connection, SessionError};

/// What code returned, wrote and did to the interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The `repr` of the last expression, unless that was `None`.
    pub value: Option<String>,
    /// Why there is no value.
    pub error: Option<EvalError>,
    /// What was written to standard output meanwhile, by the code or whatever it started.
    pub stdout: Vec<u8>,
    /// What was written to standard error.
    pub stderr: Vec<u8>,
    /// What it showed in richer forms than text, in its order.
    pub shown: Vec<Bundle>,
    /// Something of the above was too long and is not all there.
    pub truncated: bool,
    /// Whether what earlier code left is still there.
    pub interpreter: InterpreterState,
}

/// One thing that was shown, in all forms it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// What it is.
    pub kind: ShownKind,
    /// Its forms by media type; base64 where a form is not text.
    pub data: BTreeMap<String, String>,
}

/// What is shown, put together of its pieces.
#[derive(Default)]
struct Shelf {
    bundles: Vec<Bundle>,
    cost: usize,
}

impl Shelf {
    fn put(&mut self, piece: Shown) -> Result<(), SessionError> {
        self.cost += piece.cost();
        if self.cost > MAX_SHOWN {
            return Err(SessionError::Protocol { what: format!("more than {MAX_SHOWN} bytes are shown") });
        }
        let Shown { output, kind, mime, text } = piece;
        let place = usize::try_from(output).unwrap_or(usize::MAX);
        if place == self.bundles.len() {
            self.bundles.push(Bundle { kind, data: BTreeMap::new() });
        }
        let is_last = place == self.bundles.len().wrapping_sub(1);
        match self.bundles.last_mut().filter(|bundle| is_last && bundle.kind == kind) {
            Some(bundle) => bundle.data.entry(mime).or_default().push_str(&text),
            None => return Err(SessionError::Protocol { what: format!("output {output} out of its turn") }),
        }
        Ok(())
    }
}

impl Connection {
    /// Runs code in the warm interpreter, which is started if there is none. An exception, a timeout and the
    /// interpreter's end are results: see [`Evaluation::error`].
    ///
    /// # Errors
    /// [`SessionError::Refused`] when the code was not run: `NotFound` when the guest has no interpreter, `Timeout` when
    /// the code of others took all the time, `ImportFailed` when a lost interpreter could not be warmed again.
    pub fn eval(&mut self, request: &EvalRequest) -> Result<Evaluation, SessionError> {
        let patience = warm_patience(request.timeout_ms);
        let transport = self.transport();
        let mut until = Until::new(transport, patience);
        let sent = send(&mut until, &Request::Eval(request.clone()), patience)?;
        let received = receive(&mut until, patience);
        until.lift().map_err(|source| SessionError::Lost { source })?;
        match received {
            // What the agent says explains a request that could not be sent; a broken pipe does not.
            Ok(_) | Err(SessionError::Refused { .. }) => received,
            Err(error) => {
                // The rest of the answer may still come, and must not be taken for that of another request. Hanging up
                // fails when the agent is gone already, which is as good.
                drop(transport.hang_up());
                sent.and(Err(error))
            }
        }
    }
}

fn receive(until: &mut Until<'_>, patience: Duration) -> Result<Evaluation, SessionError> {
    let codec = |error| SessionError::from_codec(error, patience);
    let (mut stdout, mut stderr, mut shelf) = (Vec::new(), Vec::new(), Shelf::default());
    loop {
        let frame = read_frame(until).map_err(codec)?.ok_or_else(SessionError::closed)?;
        let kept = match frame.channel {
            Channel::Stdout => &mut stdout,
            Channel::Stderr => &mut stderr,
            Channel::Stdin => return Err(SessionError::unexpected(&frame.channel)),
            Channel::Message => {
                return match frame.message().map_err(codec)? {
                    Reply::Shown(piece) => {
                        shelf.put(piece)?;
                        continue;
                    }
                    Reply::Evaluated(Evaluated { value, error, truncated, interpreter }) => {
                        Ok(Evaluation { value, error, stdout, stderr, shown: shelf.bundles, truncated, interpreter })
                    }
                    Reply::Error { code, message } => Err(SessionError::Refused { code, message }),
                    reply => Err(SessionError::unexpected(&reply)),
                };
            }
        };
        kept.extend_from_slice(&frame.payload);
        if kept.len() > MAX_EVAL_OUTPUT {
            return Err(SessionError::Protocol { what: format!("more than {MAX_EVAL_OUTPUT} bytes of output") });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proto::codec::{read_frame, write_frame, write_message};
    use proto::guest::{AgentHello, ErrorCode, GENERATION};

    use super::*;

    /// What an eval comes to when the agent says this.
    fn answered(say: impl FnOnce(&mut UnixStream) + Send) -> Result<Evaluation, SessionError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let hello = AgentHello { generation: GENERATION, agent: "x".into(), kernel: "x".into(), boot_ms: 0 };
        write_message(&mut theirs, &Reply::Hello(hello)).unwrap();
        let mut connection = Connection::open(ours, None, Duration::from_secs(10)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Who leaves before having heard the question is another case.
                for _hello_and_eval in 0..2 {
                    read_frame(&mut theirs).unwrap();
                }
                say(&mut theirs);
            });
            connection.eval(&EvalRequest { code: "1".into(), timeout_ms: 0 })
        })
    }

    fn done(interpreter: InterpreterState) -> Reply {
        Reply::Evaluated(Evaluated { value: Some("1".into()), error: None, truncated: false, interpreter })
    }

    #[test]
    fn the_output_is_put_together() {
        let evaluation = answered(|agent| {
            for (channel, bytes) in [(Channel::Stdout, "a"), (Channel::Stderr, "x"), (Channel::Stdout, "b")] {
                write_frame(agent, channel, bytes.as_bytes()).unwrap();
            }
            write_message(agent, &done(InterpreterState::Restarted)).unwrap();
        })
        .unwrap();
        assert_eq!((evaluation.stdout.as_slice(), evaluation.stderr.as_slice()), (&b"ab"[..], &b"x"[..]));
        assert_eq!((evaluation.value.as_deref(), evaluation.interpreter), (Some("1"), InterpreterState::Restarted));
    }

    fn piece(output: u32, kind: ShownKind, mime: &str, text: &str) -> Reply {
        Reply::Shown(Shown { output, kind, mime: mime.into(), text: text.into() })
    }

    #[test]
    fn what_is_shown_is_put_together() {
        let evaluation = answered(|agent| {
            for (output, kind, mime, text) in [
                (0, ShownKind::Display, "image/png", "iVBO"),
                (0, ShownKind::Display, "image/png", "Rw0K"),
                (0, ShownKind::Display, "text/plain", "<Figure>"),
                (1, ShownKind::Result, "text/html", "<table>"),
            ] {
                write_message(agent, &piece(output, kind, mime, text)).unwrap();
            }
            write_message(agent, &done(InterpreterState::Alive)).unwrap();
        });
        let [figure, table] = &evaluation.unwrap().shown[..] else { panic!("two things were shown") };
        assert_eq!((figure.kind, figure.data["image/png"].as_str()), (ShownKind::Display, "iVBORw0K"));
        assert_eq!(figure.data["text/plain"], "<Figure>");
        assert_eq!((table.kind, table.data["text/html"].as_str()), (ShownKind::Result, "<table>"));
    }

    #[test]
    fn an_agent_cannot_show_without_end_or_out_of_turn() {
        let large = "x".repeat(200 << 10);
        let endless =
            answered(|agent| while write_message(agent, &piece(0, ShownKind::Display, "text/html", &large)).is_ok() {});
        assert!(matches!(endless, Err(SessionError::Protocol { .. })), "{endless:?}");
        let many = answered(|agent| {
            for output in 0.. {
                if write_message(agent, &piece(output, ShownKind::Display, "", "")).is_err() {
                    return;
                }
            }
        });
        assert!(matches!(many, Err(SessionError::Protocol { .. })), "{many:?}");
        let early = answered(|agent| write_message(agent, &piece(1, ShownKind::Display, "a", "b")).unwrap());
        assert!(matches!(early, Err(SessionError::Protocol { .. })), "{early:?}");
        let changed = answered(|agent| {
            for kind in [ShownKind::Display, ShownKind::Result] {
                write_message(agent, &piece(0, kind, "a", "b")).unwrap();
            }
        });
        assert!(matches!(changed, Err(SessionError::Protocol { .. })), "{changed:?}");
    }

    #[test]
    fn an_agent_cannot_send_without_end_or_out_of_place() {
        let endless = answered(|agent| while write_frame(agent, Channel::Stdout, &[0; 65_536]).is_ok() {});
        assert!(matches!(endless, Err(SessionError::Protocol { .. })), "{endless:?}");
        let stdin = answered(|agent| write_frame(agent, Channel::Stdin, b"x").unwrap());
        assert!(matches!(stdin, Err(SessionError::Protocol { .. })), "{stdin:?}");
        let lost = answered(|agent| write_frame(agent, Channel::Stdout, b"x").unwrap());
        assert!(matches!(lost, Err(SessionError::Lost { .. })), "{lost:?}");
    }

    #[test]
    fn a_refusal_keeps_its_code() {
        let refused = answered(|agent| {
            let message = "there is no program `python3`".into();
            write_message(agent, &Reply::Error { code: ErrorCode::NotFound, message }).unwrap();
        });
        assert!(matches!(refused, Err(SessionError::Refused { code: ErrorCode::NotFound, .. })), "{refused:?}");
    }
}
