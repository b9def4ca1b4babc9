//! Sandboxes by an address: whoever speaks the line protocol there, which published clients speak at 10.42.0.2:8888.
//!
//! ```text
//! forkd fork --settle-secs    holds the address in the network it runs in, and leads it through the daemon to its sandbox
//! forkd exec, ping, eval      ask whoever answers at an address, in this network or in a sandbox's namespace
//! ```

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use client::{Client, path};
use engine::{Door, Namespaces};
use rustix::stdio::{stderr, stdout};
use serde_json::{Value, json};
use session::lines;

use crate::run::ProcessArgs;
use crate::stream::{self, Ended};
use crate::{output, port};

/// Where published clients look.
pub(crate) const USUAL: &str = "10.42.0.2:8888";
/// What says that they look elsewhere.
pub(crate) const VARIABLE: &str = "FORKD_TARGET";
/// How long a sandbox may take to answer a ping, and how much longer than what it was asked to do.
const PING: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(5);
/// What a command may take when nobody says.
const LIMIT: Duration = Duration::from_secs(30);

/// Who is asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked<'a> {
    /// The sandbox with this id, or the network namespace of this name, through the daemon.
    Sandbox(&'a str),
    /// Whoever answers there.
    Address(Address<'a>),
}

/// Somewhere in a network.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Address<'a> {
    at: String,
    /// Not in ours, but in the one of this name.
    namespace: Option<&'a str>,
}

/// What the words of a verb mean: an id, `--child` and `--target`.
pub(crate) fn asked<'a>(id: Option<&'a str>, child: Option<&'a str>, target: Option<&str>) -> Asked<'a> {
    match (id.or(child), target) {
        (Some(sandbox), None) => Asked::Sandbox(sandbox),
        (namespace, Some(at)) => Asked::Address(Address { at: at.into(), namespace }),
        (None, None) => {
            let at = std::env::var(VARIABLE).unwrap_or_else(|_| USUAL.into());
            Asked::Address(Address { at, namespace: None })
        }
    }
}

impl Address<'_> {
    fn ask(&self, question: &Value, patience: Duration) -> anyhow::Result<Value> {
        let mut addresses = self.at.to_socket_addrs().with_context(|| format!("`{}` is no HOST:PORT", self.at))?;
        let address = addresses.next().with_context(|| format!("`{}` stands for no address", self.at))?;
        let answer = match self.namespace {
            None => lines::ask(address, question, patience),
            Some(name) => Namespaces::default()
                .enter(name, || Ok(lines::ask(address, question, patience)))
                .with_context(|| format!("cannot enter the network namespace `{name}`; `forkd ls` lists them"))?,
        };
        answer.context(
            "there is no sandbox; name one of `forkd ls`, or hold the address: `forkd fork -n 1 --settle-secs 3600`",
        )
    }

    pub(crate) fn ping(&self) -> anyhow::Result<ExitCode> {
        output::line(&self.ask(&json!({ "action": "ping" }), PING)?.to_string())?;
        Ok(ExitCode::SUCCESS)
    }

    /// The answer in the shape that the daemon has for it.
    pub(crate) fn eval(&self, code: &str, timeout: Duration) -> anyhow::Result<api::EvalResult> {
        let question = json!({ "action": "eval", "code": code, "timeout": timeout.as_secs_f64() });
        let mut answer = self.ask(&question, timeout + GRACE)?;
        for text in ["stdout", "stderr"] {
            if answer[text].is_null() {
                answer[text] = "".into();
            }
        }
        let answer: api::EvalResult = serde_json::from_value(answer).context("it answers something else")?;
        // Interpreters that answer in JSON have no other result.
        let result = answer.result.clone().or_else(|| answer.result_json.clone());
        Ok(api::EvalResult { result, ..answer })
    }

    pub(crate) fn exec(&self, command: &[String], process: &ProcessArgs) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            process.env.is_empty() && process.user.is_none() && process.cwd.is_none() && !process.tty,
            "who answers at an address is asked for a command and nothing besides; name a sandbox for the rest"
        );
        let timeout = process.timeout.unwrap_or(LIMIT);
        let question = json!({ "action": "exec", "args": command, "timeout": timeout.as_secs_f64() });
        let answer = self.ask(&question, timeout + GRACE)?;
        let Some(code) = answer["exit_code"].as_i64().filter(|_| answer["stdout"].is_string()) else {
            eprintln!("forkd: {}", answer["error"].as_str().unwrap_or("it answers something else"));
            let ended = if answer["timed_out"] == true { Ended::TimedOut } else { Ended::Code(1) };
            return Ok(ended.exit_code());
        };
        for (to, name) in [(stdout(), "stdout"), (stderr(), "stderr")] {
            stream::write(to, answer[name].as_str().unwrap_or_default().as_bytes(), name)?;
        }
        if answer["stdout_truncated"] == true || answer["stderr_truncated"] == true {
            eprintln!("forkd: there was more than is shown");
        }
        // A negative number is a signal's.
        let code = if code < 0 { 128 - code } else { code };
        Ok(Ended::Code(stream::shell_byte(i32::try_from(code).unwrap_or(i32::MAX))).exit_code())
    }
}

/// Where the only sandbox of a fork answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answering {
    At(SocketAddr),
    Nowhere,
}

impl FromStr for Answering {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::Nowhere),
            text => text.parse().map(Self::At).map_err(|_| format!("write ADDRESS:PORT, such as {USUAL}, or none")),
        }
    }
}

impl Answering {
    /// Holds the address; who comes waits until there is somebody to be led to.
    pub(crate) fn open(self) -> anyhow::Result<Option<Door>> {
        let Self::At(at) = self else { return Ok(None) };
        let door = Door::open(at).with_context(|| {
            format!(
                "the sandbox cannot answer at {at}; say where instead with --target or {VARIABLE}, such as \
                 127.0.0.1:8888, or --target none"
            )
        })?;
        Ok(Some(door))
    }
}

/// Leads whoever comes to that sandbox, until we end.
pub(crate) fn lead(door: Door, client: &Client, id: &str) -> io::Result<()> {
    let (client, path) = (client.clone(), path(&["sandboxes", id, "lines"], &[]));
    let leading = thread::Builder::new().name("door".into()).spawn(move || {
        if let Err(error) = port::serve(door.listener(), &client, &path, &Arc::default()) {
            eprintln!("forkd: nobody is let in any more: {error:#}");
        }
    });
    leading.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_or_an_address_is_meant() {
        assert_eq!(asked(Some("sb-1"), None, None), Asked::Sandbox("sb-1"));
        assert_eq!(asked(None, Some("forkd-child-7"), None), Asked::Sandbox("forkd-child-7"));
        let at = |at: &str, namespace| Asked::Address(Address { at: at.into(), namespace });
        assert_eq!(asked(None, None, Some("[::1]:9")), at("[::1]:9", None));
        assert_eq!(asked(None, Some("forkd-child-7"), Some(USUAL)), at(USUAL, Some("forkd-child-7")));
    }

    #[test]
    fn where_a_sandbox_answers_is_an_address_or_nowhere() {
        assert_eq!("none".parse(), Ok(Answering::Nowhere));
        assert_eq!(USUAL.parse(), Ok(Answering::At(([10, 42, 0, 2], lines::PORT).into())));
        for bad in ["", "8888", "localhost:8888", "10.42.0.2"] {
            assert!(bad.parse::<Answering>().unwrap_err().contains(USUAL), "{bad}");
        }
        assert!(Answering::Nowhere.open().unwrap().is_none());
    }
}
