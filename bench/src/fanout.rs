//! The figure that matters: n children of a warm Linux with Python and numpy have each answered, and what their memory
//! costs after they did work.
//!
//! It is measured where VMs run ([`Site`]); numbers of the emulated host are never numbers of hardware.

mod measure;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use types::Tag;

use crate::forkd::host;
use crate::site::Site;

/// What the snapshot is called for as long as it is there.
const OWN_TAG: &str = "bench-fanout";

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
    let site = Site::find()?;
    let words = ["fanout", "--here", "--tag", tag.as_str(), "-n", &args.n.to_string()];
    let measured: Value = if args.tag.is_none() {
        site.with_snapshot(&tag, &["--recipe", &args.recipe], || site.ask(&words))?
    } else {
        site.ask(&words)?
    };
    let report = json!({"bench": "fanout", "kvm": site.kvm(), "emulated": site.is_emulated(), "recipe": args.recipe,
        "host": host(), "measured": measured});
    println!("{report:#}");
    let answered = (measured["eval"]["answered"].as_u64(), measured["exec"]["answered"].as_u64());
    let all = u64::try_from(args.n).ok();
    ensure!(answered == (all, all), "not all of {} children answered; see `failures` in the report", args.n);
    Ok(())
}
