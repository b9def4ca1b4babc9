//! What is asked of each recipe, warm and cold.

use anyhow::Result;
use types::Tag;

/// What a recipe is there for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) recipe: &'static str,
    /// The question to what is warm.
    pub(super) question: Question,
    /// What ends it, so that it can be started cold; nothing where another can be started beside it.
    pub(super) end: Option<&'static str>,
    /// Starts it, and asks the same: a script.
    pub(super) cold: &'static str,
    /// What both say.
    pub(super) answer: &'static str,
}

/// How something is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// Code for the warm interpreter.
    Eval(&'static str),
    /// A script for a shell.
    Exec(&'static str),
}

impl Service {
    /// What its snapshot is called for as long as it is there.
    pub(super) fn tag(&self) -> Result<Tag> {
        Ok(format!("bench-{}", self.recipe).parse()?)
    }
}

pub(super) const SERVICES: [Service; 6] = [
    Service {
        recipe: "python-numpy",
        question: Question::Eval("int(numpy.arange(6).sum())"),
        end: None,
        cold: "python3 -c 'import numpy; print(numpy.arange(6).sum())'",
        answer: "15",
    },
    Service {
        recipe: "nodejs",
        question: Question::Eval("[1, 2, 3].map((n) => 2 * n).length"),
        end: None,
        cold: r#"node -e '
            for (const name of ["fs", "path", "os", "util", "http", "child_process"]) require("node:" + name);
            console.log([1, 2, 3].map((n) => 2 * n).length)'"#,
        answer: "3",
    },
    Service {
        recipe: "coding-agent",
        question: Question::Eval("len(json.dumps([1, 2, 3]))"),
        end: None,
        cold: "python3 -c 'import json, pathlib, re, subprocess; print(len(json.dumps([1, 2, 3])))'",
        answer: "9",
    },
    Service {
        recipe: "postgres-fixture",
        question: Question::Exec("psql -U postgres -qAtc 'select 6 * 7'"),
        end: Some("pg_ctlcluster 15 main stop -m fast"),
        cold: "pg_ctlcluster 15 main start && psql -U postgres -qAtc 'select 6 * 7'",
        answer: "42",
    },
    Service {
        recipe: "jupyter-kernel",
        question: Question::Eval("int(pd.DataFrame({'n': [1, 2]}).n.sum())"),
        end: None,
        cold: r#"python3 -c '
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=600)
code = "import numpy, pandas as pd, matplotlib.pyplot; print(pd.DataFrame({\"n\": [1, 2]}).n.sum())"
client.execute_interactive(code, timeout=600)
manager.shutdown_kernel(now=True)'"#,
        answer: "3",
    },
    Service {
        recipe: "playwright-browser",
        question: Question::Eval("(await page.title()).length"),
        end: None,
        cold: r#"node -e '
            require("/opt/forkd/browser.js").then(async (browser) => {
                console.log((await page.title()).length);
                await browser.close();
            })'"#,
        answer: "4",
    },
];
