//! `forkd eval`: code in a sandbox's warm interpreter.

mod outputs;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use api::{EvalRequest, EvalResult, Loss};
use clap::Args;
use client::path;
use serde_json::{Value, json};

use crate::daemon::DaemonArgs;
use crate::output::{self, Raw, reader_left};
use crate::target::{self, Asked};
use crate::{sandbox, seconds};

const EXAMPLES: &str = "\
Examples:
  forkd eval sb-66f0a1b2-9c3d 'numpy.zeros(5).tolist()'
  forkd eval --child 66f0 -- 'x = 41'
  forkd eval 66f0 'x + 1'
  forkd eval --outputs plots 66f0 'frame.plot()'     # of a Jupyter kernel: plots/1.png
  forkd eval --target 10.42.0.2:8888 -- 'x'     whoever answers there, as published clients ask

What one call leaves in the interpreter, the next one to the same sandbox finds.
Exit code: 0 when the code ended by itself, 1 when it raised an exception or was cut short.";

/// Evaluates code in a sandbox's warm interpreter
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct EvalArgs {
    /// Which sandbox, by its id or its network namespace; otherwise the first of the words
    #[arg(long, value_name = "ID|NETNS")]
    child: Option<String>,
    /// Whoever answers there, in this network or in the namespace --child [default without a sandbox: 10.42.0.2:8888]
    #[arg(long, value_name = "HOST:PORT")]
    target: Option<String>,
    /// Interrupts the code after so long
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds::parse)]
    timeout: Duration,
    /// Writes plots and tables that the code shows to files in this directory
    #[arg(long, value_name = "DIR")]
    outputs: Option<PathBuf>,
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
    /// Who is asked, and the code.
    fn meant(&self) -> Result<(Asked<'_>, &str), &'static str> {
        let (id, code) = match &self.words[..] {
            [code] => (None, code),
            [id, code] => (Some(id.as_str()), code),
            _ => (None, &self.words[0]),
        };
        match (id, &self.child, &self.target) {
            (Some(_), Some(_), _) => Err("--child names the sandbox; give only the code besides, in quotes"),
            (Some(_), _, Some(_)) => Err("--target says who is asked; give only the code besides, in quotes"),
            (id, child, target) => Ok((target::asked(id, child.as_deref(), target.as_deref()), code)),
        }
    }
}

pub(crate) fn eval(args: &EvalArgs) -> anyhow::Result<ExitCode> {
    let (asked, code) = match args.meant() {
        Ok(meant) => meant,
        Err(words) => {
            eprintln!("error: {words}\n\nFor more information, try '--help'.");
            return Ok(ExitCode::from(2));
        }
    };
    let evaluation = match asked {
        Asked::Sandbox(id) => args.ask(id, code)?,
        Asked::Address(address) => address.eval(code, args.timeout)?,
    };
    let written = args.outputs.as_deref().map(|dir| outputs::write(&evaluation.outputs, dir)).transpose()?;
    if args.json {
        output::line(&as_json(&evaluation).to_string())?;
    } else {
        show(&evaluation)?;
        tell_outputs(&evaluation, written.as_deref());
    }
    Ok(if evaluation.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl EvalArgs {
    fn ask(&self, id: &str, code: &str) -> anyhow::Result<EvalResult> {
        let client = self.daemon.running()?.ok_or_else(|| sandbox::none(id))?;
        let id = sandbox::find(&client, id)?;
        let request = EvalRequest { code: code.into(), timeout_secs: Some(self.timeout.as_secs_f64()) };
        Ok(client.post(&path(&["sandboxes", &id, "eval"], &[]), &request)?)
    }
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
        // A traceback names the exception, if that is what it was.
        if !traceback.contains(error.as_str()) {
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

/// Says where the outputs are, or that there are some.
fn tell_outputs(evaluation: &EvalResult, written: Option<&[PathBuf]>) {
    match written {
        Some(written) => written.iter().for_each(|file| eprintln!("forkd: written: {}", file.display())),
        None if evaluation.outputs.iter().any(|output| output.data.keys().any(|mime| mime != outputs::TEXT)) => {
            eprintln!("forkd: more than text was shown; --outputs DIR writes it to files, --json prints it");
        }
        None => {}
    }
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
        let one = Asked::Sandbox("sb-1");
        assert_eq!(parse(&["--child", "sb-1", "--", "-1 + 2"]).meant(), Ok((one, "-1 + 2")));
        for words in [&["sb-1", "--", "x"][..], &["sb-1", "x"]] {
            assert_eq!(parse(words).meant(), Ok((Asked::Sandbox("sb-1"), "x")));
        }
        assert_eq!(parse(&["--target", "h:1", "--", "x"]).meant(), Ok((target::asked(None, None, Some("h:1")), "x")));
        assert!(parse(&["--target", "h:1", "sb-1", "x"]).meant().unwrap_err().contains("quotes"));
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
