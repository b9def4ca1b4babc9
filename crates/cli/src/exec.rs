//! `forkd exec`: a command in a child.

use std::process::ExitCode;

use clap::Args;

use crate::daemon::DaemonArgs;
use crate::interrupts::Interrupts;
use crate::run::ProcessArgs;
use crate::stream::{self, Ended};
use crate::target::{self, Asked};
use crate::{joined, sandbox};

const EXAMPLES: &str = "\
Examples:
  forkd exec sb-66f0a1b2-9c3d -- uname -a
  forkd exec 66f0 --user nobody --cwd /tmp -- id
  tar c src | forkd exec 66f0 -- tar x -C /root
  forkd exec 66f0 -t -- bash
  forkd exec --target 10.42.0.2:8888 -- uname -a        whoever answers there, as published clients ask
  forkd exec 66f0                       the ENTRYPOINT and CMD of the container image it was made of

Exit code: the command's own; 128 and the signal's number if a signal ended it;
124 if its time was up; 126 or 127 if it could not be started; 1 if there is no such sandbox.";

/// Runs a command in a sandbox
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ExecArgs {
    /// Which sandbox
    #[arg(value_name = "ID", conflicts_with_all = ["child", "target"])]
    id: Option<String>,
    /// Which sandbox, by its id or its network namespace
    #[arg(long, value_name = "ID|NETNS")]
    child: Option<String>,
    /// Whoever answers there, in this network or in the namespace --child [default without a sandbox: 10.42.0.2:8888]
    #[arg(long, value_name = "HOST:PORT")]
    target: Option<String>,
    /// The command and its arguments; for a snapshot of a container image, its own unless given
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    daemon: DaemonArgs,
    #[command(flatten)]
    process: ProcessArgs,
}

pub(crate) fn exec(args: &ExecArgs) -> anyhow::Result<ExitCode> {
    let id = match target::asked(args.id.as_deref(), args.child.as_deref(), args.target.as_deref()) {
        Asked::Sandbox(id) => id,
        Asked::Address(address) => return address.exec(&args.command, &args.process),
    };
    let request = args.process.asked(&args.command, stream::stdio(args.process.tty)?);
    let client = args.daemon.running()?.ok_or_else(|| sandbox::none(id))?;
    let id = sandbox::find(&client, id)?;
    let interrupts = Interrupts::catch()?;
    let ended = joined::exec(&client, &id, &request, &interrupts);
    if let Some(signal) = interrupts.fatal() {
        return Ok(stream::killed_by(signal));
    }
    let ended = ended?;
    if let (Ended::TimedOut, Some(limit)) = (ended, args.process.timeout) {
        eprintln!("forkd: the command did not end within {} s and was killed", limit.as_secs_f64());
    }
    Ok(ended.exit_code())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        exec: ExecArgs,
    }

    fn parse(words: &[&str]) -> Result<ExecArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("exec").chain(words.iter().copied())).map(|line| line.exec)
    }

    #[test]
    fn the_sandbox_is_named_once_in_either_way() {
        let plain = parse(&["sb-1", "--timeout", "3", "--", "sh", "-c", "--child"]).unwrap();
        assert_eq!((plain.id.as_deref(), plain.child.as_deref()), (Some("sb-1"), None));
        assert_eq!(plain.command, ["sh", "-c", "--child"]);
        let flagged = parse(&["--child", "sb-2", "--", "id"]).unwrap();
        assert_eq!((flagged.id, flagged.child.as_deref()), (None, Some("sb-2")));
        assert_eq!(parse(&["sb-1"]).unwrap().command, [""; 0], "what the image says");
        let addressed =
            parse(&["--child", "forkd-child-2", "--target", "10.42.0.2:8888", "--timeout-secs", "5", "--", "id"]);
        assert_eq!(addressed.unwrap().process.timeout, Some(std::time::Duration::from_secs(5)));
        for bad in [&["sb-1", "--target", "h:1", "--", "id"][..], &["sb-1", "--child", "sb-2", "--", "id"]] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
