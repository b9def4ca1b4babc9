//! The daemon as a process of its own, for this crate's tests: they kill it.

use clap::Parser;
use daemon::ServeArgs;
use types::Dirs;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    serve: ServeArgs,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    Ok(daemon::serve(&Line::parse().serve, Dirs::from_env()?)?)
}
