//! `forkd eval`: code in a child's warm interpreter.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use engine::find;
use serde_json::{Value, json};
use session::{EvalError, Evaluation, InterpreterState};
use types::Dirs;

use crate::forward::{Forward, Need};
use crate::output::{self, Raw, reader_left};
use crate::{joined, seconds};

const EXAMPLES: &str = "\
Examples:
  forkd eval sb-66f0a1b2-9c3d 'numpy.zeros(5).tolist()'
  forkd eval --child 66f0 -- 'x = 41'
  forkd eval 66f0 'x + 1'

What one call leaves in the interpreter, the next one to the same sandbox finds.
Exit code: 0 when the code ended by itself, 1 when it raised an exception or was cut short.";

/// Evaluates code in a sandbox's warm interpreter
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct EvalArgs {
    /// Which sandbox; otherwise the first of the words
    #[arg(long, value_name = "ID")]
    child: Option<String>,
    /// Interrupts the code after so long
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds::parse)]
    timeout: Duration,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// The sandbox, unless --child says it, and the code
    #[arg(required = true, num_args = 1..=2, value_name = "[ID] CODE")]
    words: Vec<String>,
}

impl EvalArgs {
    /// The sandbox and the code.
    fn meant(&self) -> Result<(&str, &str), String> {
        match (&self.child, &self.words[..]) {
            (Some(id), [code]) | (None, [id, code]) => Ok((id, code)),
            (Some(_), _) => Err("--child names the sandbox; give only the code besides, in quotes".into()),
            (None, _) => Err("give the sandbox's id and the code; `forkd ls` lists the ids".into()),
        }
    }
}

pub(crate) fn eval(args: &EvalArgs) -> anyhow::Result<ExitCode> {
    let (id, code) = match args.meant() {
        Ok(meant) => meant,
        Err(words) => {
            eprintln!("error: {words}\n\nFor more information, try '--help'.");
            return Ok(ExitCode::from(2));
        }
    };
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Running).away(&dirs)? {
        return Ok(code);
    }
    let child = find(id, &dirs)?;
    let evaluation = child.eval(code, args.timeout).map_err(|error| joined::explain(error.into(), &child))?;
    if args.json {
        output::line(&as_json(&evaluation).to_string())?;
    } else {
        show(&evaluation)?;
    }
    Ok(if evaluation.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(evaluation: &Evaluation) -> anyhow::Result<()> {
    for (stream, bytes) in
        [(rustix::stdio::stdout(), &evaluation.stdout), (rustix::stdio::stderr(), &evaluation.stderr)]
    {
        match Raw(stream).write_all(bytes) {
            Err(error) if !reader_left(&error) => return Err(error).context("cannot show what the code wrote"),
            _ => {}
        }
    }
    if let Some(value) = &evaluation.value {
        output::line(value)?;
    }
    match &evaluation.error {
        Some(EvalError::Exception(exception)) => eprintln!("{}", exception.traceback.trim_end()),
        Some(EvalError::Timeout { traceback }) => {
            eprintln!("{}forkd: the code did not end in time", traceback.as_deref().unwrap_or_default());
        }
        Some(error @ EvalError::Died { .. }) => eprintln!("forkd: {error}"),
        None => {}
    }
    if evaluation.truncated {
        eprintln!("forkd: there was more than is shown");
    }
    match evaluation.interpreter {
        InterpreterState::Alive => {}
        InterpreterState::Restarted => eprintln!("forkd: the interpreter was started again; what it held is lost"),
        InterpreterState::Lost => eprintln!("forkd: the interpreter is gone; the next eval starts another"),
    }
    Ok(())
}

fn as_json(evaluation: &Evaluation) -> Value {
    let exit_code = i32::from(evaluation.error.is_some());
    json!({
        "result": evaluation.value,
        "error": evaluation.error.as_ref().map(ToString::to_string),
        "traceback": evaluation.error.as_ref().and_then(traceback),
        "stdout": String::from_utf8_lossy(&evaluation.stdout),
        "stderr": String::from_utf8_lossy(&evaluation.stderr),
        "truncated": evaluation.truncated,
        "interpreter": evaluation.interpreter,
        "exit_code": exit_code,
    })
}

fn traceback(error: &EvalError) -> Option<&str> {
    match error {
        EvalError::Exception(exception) => Some(&exception.traceback),
        EvalError::Timeout { traceback } => traceback.as_deref(),
        EvalError::Died { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use session::Exception;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        eval: EvalArgs,
    }

    fn parse(words: &[&str]) -> EvalArgs {
        Line::try_parse_from(std::iter::once("eval").chain(words.iter().copied())).unwrap().eval
    }

    #[test]
    fn the_sandbox_is_the_flag_or_the_first_word() {
        assert_eq!(parse(&["--child", "sb-1", "--", "-1 + 2"]).meant(), Ok(("sb-1", "-1 + 2")));
        assert_eq!(parse(&["sb-1", "--", "x"]).meant(), Ok(("sb-1", "x")));
        assert_eq!(parse(&["sb-1", "x"]).meant(), Ok(("sb-1", "x")));
        assert!(parse(&["x"]).meant().unwrap_err().contains("forkd ls"));
        assert!(parse(&["--child", "sb-1", "x", "y"]).meant().unwrap_err().contains("quotes"));
    }

    #[test]
    fn an_exception_is_told_to_programs_too() {
        let exception =
            Exception { class: "KeyError".into(), message: "'x'".into(), traceback: "Traceback: KeyError".into() };
        let value = as_json(&Evaluation {
            value: None,
            error: Some(EvalError::Exception(exception)),
            stdout: b"seen".to_vec(),
            stderr: Vec::new(),
            truncated: false,
            interpreter: InterpreterState::Alive,
        });
        assert_eq!((value["exit_code"].as_i64(), value["error"].as_str()), (Some(1), Some("KeyError: 'x'")));
        assert_eq!((value["stdout"].as_str(), value["interpreter"].as_str()), (Some("seen"), Some("alive")));
    }
}
