//! The figure that matters: n children of a warm Linux with Python and numpy have each answered, and what their memory
//! costs after they did work.
//!
//! Where VMs run in the emulated host, this very program is brought in and measures there, so that no child pays for a
//! process or a connection from out here. The report says so: such numbers are never numbers of hardware.

mod measure;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use engine::Program;
use engine::place::{Place, place};
use machine::Push;
use serde_json::{Value, json};
use session::ExecRequest;
use types::progress::Silent;
use types::{Dirs, Tag};

use crate::forkd::{binary, host};

/// What the snapshot is called for as long as it is there.
const OWN_TAG: &str = "bench-fanout";
/// Where the forkd in the emulated host keeps its things.
const HOME_INSIDE: &str = "/var/lib/forkd";
/// More than a report of the most children has.
const MAX_REPORT: usize = 16 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct FanoutArgs {
    /// How many children
    #[arg(short, default_value_t = 100)]
    n: usize,
    /// What the snapshot is made of; it needs a warm Python with numpy
    #[arg(long, default_value = "python-numpy")]
    recipe: String,
    /// A snapshot that is there already, and stays
    #[arg(long)]
    tag: Option<Tag>,
    /// Measures right here, and prints only that
    #[arg(long, hide = true)]
    here: bool,
}

/// Prints the report; an error when a child did not answer.
pub(crate) fn run(args: &FanoutArgs) -> Result<()> {
    let tag = args.tag.clone().map_or_else(|| OWN_TAG.parse(), Ok)?;
    if args.here {
        println!("{}", measure::run(&tag, args.n)?);
        return Ok(());
    }
    let dirs = Dirs::from_env()?;
    let place = place(&dirs)?;
    if args.tag.is_none() {
        forkd(&["snapshot", "--force", "--quiet", "--recipe", &args.recipe, "--tag", tag.as_str()])?;
    }
    let measured = match &place {
        Place::Local => measure::run(&tag, args.n),
        Place::Machine { .. } => measure_inside(&dirs, &tag, args.n),
    };
    if args.tag.is_none() {
        forkd(&["rmi", tag.as_str()])?;
    }
    let measured = measured?;
    let emulated = matches!(place, Place::Machine { .. });
    let where_it_ran = if emulated { "emulated" } else { "hardware" };
    let report = json!({"bench": "fanout", "kvm": where_it_ran, "emulated": emulated, "recipe": args.recipe,
        "host": host(), "measured": measured});
    println!("{report:#}");
    let answered = (measured["eval"]["answered"].as_u64(), measured["exec"]["answered"].as_u64());
    let all = u64::try_from(args.n).ok();
    ensure!(answered == (all, all), "not all of {} children answered; see `failures` in the report", args.n);
    Ok(())
}

fn forkd(words: &[&str]) -> Result<()> {
    // What it prints is not the report.
    let status = Command::new(binary()?).args(words).stdout(std::io::stderr()).status()?;
    ensure!(status.success(), "forkd {} ended with {status}", words.join(" "));
    Ok(())
}

/// Brings this program into the emulated host and lets it measure there.
fn measure_inside(dirs: &Dirs, tag: &Tag, n: usize) -> Result<Value> {
    let machine = machine::start(dirs, &Program::Agent.find()?, &Silent).context("the emulated host")?;
    let files = [std::env::current_exe()?, Program::Vmm.find()?];
    let push = |local: &PathBuf| -> Result<Push> {
        let name = local.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
        Ok(Push { local: local.clone(), remote_name: name.into() })
    };
    let pushes = files.iter().map(push).collect::<Result<Vec<_>>>()?;
    let [bench, vmm] = &machine.push(&pushes, &Silent).context("pushing into the emulated host")?[..] else {
        bail!("the emulated host took another number of files than it was given")
    };
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let words = ["fanout".into(), "--here".into(), "--tag".into(), tag.to_string(), "-n".into(), n.to_string()];
    let variables = [("FORKD_HOME", HOME_INSIDE.into()), ("FORKD_PLACE", "local".into()), ("FORKD_VMM", text(vmm))];
    let request = ExecRequest {
        argv: std::iter::once(text(bench)).chain(words).collect(),
        env: variables.map(|(name, value)| (name.to_owned(), value)).into(),
        ..ExecRequest::default()
    };
    let output = machine.output(&request, &[], MAX_REPORT)?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.shell_code() == 0, "inside the emulated host: {}", complaints.trim());
    serde_json::from_slice(&output.stdout).context("the report from the emulated host")
}
