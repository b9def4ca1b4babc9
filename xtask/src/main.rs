//! The project's own tools: `cargo xtask <task>`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod deps;
mod setup;
mod shape;

#[derive(Parser)]
#[command(about = "The project's own tools")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the Debian packages that are missing
    Setup,
    /// Check that crates depend on each other only in the allowed direction
    Deps,
    /// Check the shape of the sources: file length, module documentation, where `unsafe` lives
    Shape,
}

#[expect(clippy::print_stderr, reason = "a tool talks to whoever runs it")]
fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Setup => setup::run(),
        Task::Deps => deps::run(),
        Task::Shape => shape::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
