//! Benchmarks: programs that print numbers as JSON, with the environment they were made in. They keep nothing.
//!
//! Numbers from the emulated host say so; they are never numbers of hardware.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's output is its purpose")]

mod api;
mod boot;
mod branch;
mod chain;
mod demo;
mod fanout;
mod forkd;
mod neighbours;
mod net;
mod prefault;
mod process;
mod program;
mod recipes;
mod site;
mod spawn;
mod spread;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measures forkd and prints JSON")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Cold boot to the first exec, wherever VMs can run here
    Boot(boot::BootArgs),
    /// A spawn beside what the kernel alone charges for it, on this host's KVM
    Spawn(spawn::SpawnArgs),
    /// A branch of a running VM beside what the kernel alone charges for it, on this host's KVM; or one of Linux
    Branch(branch::BranchArgs),
    /// A spawn at the end of a chain of snapshots, short and long, on this host's KVM
    Chain(chain::ChainArgs),
    /// Whether it pays that a template faults in what its children touch first, on this host's KVM
    Prefault(prefault::PrefaultArgs),
    /// Children of a warm Python, each of which has answered, wherever VMs can run here
    Fanout(fanout::FanoutArgs),
    /// What the daemon adds to a spawn and a command, and how many requests it serves, on this host's KVM or without one
    Api(api::ApiArgs),
    /// What a network adds to a spawn, on this host's KVM, and its rules to every packet, wherever VMs can run here
    Net(net::NetArgs),
    /// How sandboxes answer beside one that takes all it can get, and what stops that, wherever VMs can run here
    Neighbours(neighbours::NeighboursArgs),
    /// How long each recipe takes to build, and to answer: forked, and started cold, wherever VMs can run here
    Recipes(recipes::RecipesArgs),
    /// What forkd does, shown once with the time of each stage
    Demo,
}

fn main() -> ExitCode {
    let done = match Args::parse().bench {
        Bench::Boot(args) => boot::run(&args),
        Bench::Spawn(args) => spawn::run(&args),
        Bench::Branch(args) => branch::run(&args),
        Bench::Chain(args) => chain::run(&args),
        Bench::Prefault(args) => prefault::run(&args),
        Bench::Fanout(args) => fanout::run(&args),
        Bench::Api(args) => api::run(&args),
        Bench::Net(args) => net::run(&args),
        Bench::Neighbours(args) => neighbours::run(&args),
        Bench::Recipes(args) => recipes::run(&args),
        Bench::Demo => demo::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
