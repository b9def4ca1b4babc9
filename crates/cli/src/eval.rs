//! `forkd eval`: code in a sandbox's warm interpreter.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use api::{EvalRequest, EvalResult, Loss};
use clap::Args;
use client::path;
use serde_json::{Value, json};

use crate::daemon::DaemonArgs;
use crate::output::{self, Raw, reader_left};
use crate::{sandbox, seconds};

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
    #[command(flatten)]
    daemon: DaemonArgs,
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
    let client = args.daemon.running()?.ok_or_else(|| sandbox::none(id))?;
    let id = sandbox::find(&client, id)?;
    let request = EvalRequest { code: code.into(), timeout_secs: Some(args.timeout.as_secs_f64()) };
    let evaluation: EvalResult = client.post(&path(&["sandboxes", &id, "eval"], &[]), &request)?;
    if args.json {
        output::line(&as_json(&evaluation).to_string())?;
    } else {
        show(&evaluation)?;
    }
    Ok(if evaluation.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(evaluation: &EvalResult) -> anyhow::Result<()> {
    for (stream, text) in [(rustix::stdio::stdout(), &evaluation.stdout), (rustix::stdio::stderr(), &evaluation.stderr)]
    {
        match Raw(stream).write_all(text.as_bytes()) {
            Err(error) if !reader_left(&error) => return Err(error).context("cannot show what the code wrote"),
            _ => {}
        }
    }
    if let Some(value) = &evaluation.result {
        output::line(value)?;
    }
    if let Some(error) = &evaluation.error {
        let traceback = evaluation.traceback.as_deref().unwrap_or_default().trim_end();
        if !traceback.is_empty() {
            eprintln!("{traceback}");
        }
        // A traceback ends with the exception, if that is what it was.
        if !traceback.ends_with(error.as_str()) {
            eprintln!("forkd: {error}");
        }
    }
    if evaluation.truncated {
        eprintln!("forkd: there was more than is shown");
    }
    match evaluation.interpreter {
        None => {}
        Some(Loss::Restarted) => eprintln!("forkd: the interpreter was started again; what it held is lost"),
        Some(Loss::Lost) => eprintln!("forkd: the interpreter is gone; the next eval starts another"),
    }
    Ok(())
}

/// What earlier code left is there unless something else is said.
fn as_json(evaluation: &EvalResult) -> Value {
    let mut value = serde_json::to_value(evaluation).unwrap_or_default();
    let left = evaluation.interpreter.map_or_else(|| json!("alive"), |loss| json!(loss));
    value["interpreter"] = left;
    value["truncated"] = evaluation.truncated.into();
    value
}

#[cfg(test)]
mod tests {
    use clap::Parser;

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
        let value = as_json(&EvalResult {
            error: Some("KeyError: 'x'".into()),
            traceback: Some("Traceback: KeyError: 'x'".into()),
            stdout: "seen".into(),
            exit_code: 1,
            ..EvalResult::default()
        });
        assert_eq!((value["exit_code"].as_i64(), value["error"].as_str()), (Some(1), Some("KeyError: 'x'")));
        assert_eq!((value["stdout"].as_str(), value["interpreter"].as_str()), (Some("seen"), Some("alive")));
        let lost = as_json(&EvalResult { interpreter: Some(Loss::Lost), ..EvalResult::default() });
        assert_eq!((&lost["interpreter"], &lost["truncated"]), (&json!("lost"), &json!(false)));
    }
}
