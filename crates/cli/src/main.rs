//! `forkd`, the command line: reads what a person asks for, calls the verb, shows what came of it.
//!
//! Standard output carries results only; progress, notices and errors go to standard error. The exit code is the
//! guest command's where one ran, 1 for an error of ours, 2 for a command line that makes no sense.

#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a command line tells its user things")]

mod attached;
mod bench;
mod branch;
mod cp;
mod daemon;
mod doctor;
mod egress;
mod errors;
mod eval;
mod exec;
mod fork;
mod from_image;
mod gc;
mod images;
mod interrupted;
mod interrupts;
mod joined;
mod kill;
mod limits;
mod logs;
mod ls;
mod machine;
mod net;
mod output;
mod pack;
mod parts;
mod pause;
mod ping;
mod port;
mod progress;
mod published;
mod pull;
mod push;
mod quickstart;
mod recipe;
mod remote;
mod rmi;
mod run;
mod sandbox;
mod seconds;
mod serve;
mod shell;
mod snapshot;
mod snapshot_compact;
mod snapshot_diff;
mod snapshot_info;
mod spawn;
mod stream;
mod table;
mod target;
mod terminal;
mod timings;
mod tree;
mod unpack;
mod verify;
mod watched;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use types::Dirs;

use crate::pause::Pace;

const ABOUT: &str = "Boots microVMs, forks them and runs commands in them";
const LONG_ABOUT: &str = "\
forkd boots microVMs, each with its own kernel, and runs commands in them. A VM that was warmed up once can be forked \
many times: each fork is a VM of its own, ready in milliseconds, and shares with the others what it does not change.

On a machine with a usable KVM the VMs run right there. On others they run in an emulated host that forkd sets up by \
itself with QEMU; everything works the same there, only slower. `forkd doctor` tells which it is, and why.";
const EXAMPLES: &str = "\
Examples:
  forkd doctor                          what this machine can do
  forkd quickstart                      from nothing to ten forks that calculate
  forkd run -- uname -a                 boot a VM, run a command in it, throw the VM away
  forkd snapshot --recipe python-numpy --tag pyagent      boot and warm up a VM once
  forkd from-image python:3.12-slim --tag py              or one of a container image, without docker
  forkd recipe init mine                a recipe of your own
  forkd fork --tag pyagent -n 10        ten of them at once
  forkd ls                              which run
  forkd eval ID 'numpy.zeros(5)'        in its warm Python
  forkd exec ID -- uname -a             or a command
  forkd snapshot --from-sandbox ID --tag later            keep it as it is now; it runs on
  forkd kill --all                      end them
  forkd cp data.csv ID:/root/           a file into it, or out of it
  forkd workspace create mine --snapshot pyagent          one that can be suspended, and outlives a restart
  forkd serve                           the same over HTTP, for programs

Environment:
  FORKD_HOME     keep everything below this directory, and have a daemon of its own (default: the XDG directories)
  FORKD_PLACE    where VMs run: local, machine, or auto (default)
  FORKD_URL      the daemon that commands ask; otherwise the one at http://127.0.0.1:8889 if root or you run it and
                 FORKD_HOME is not set, else this computer's own, which is started when it is needed
  FORKD_TOKEN    the token that it wants
  FORKD_KERNEL   the kernel that VMs boot; FORKD_ROOTFS the disk that `forkd snapshot` takes when nothing else is said
  FORKD_TARGET   where `forkd fork -n 1 --settle-secs` lets its sandbox answer (default: 10.42.0.2:8888)
  FORKD_HUB_URL  where `forkd pull OWNER/NAME` looks names up
  RUST_LOG       more to read on standard error, such as debug";

#[derive(Debug, Parser)]
#[command(name = "forkd", version, about = ABOUT, long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Doctor(doctor::DoctorArgs),
    Quickstart(quickstart::QuickstartArgs),
    Run(Box<run::RunArgs>),
    Snapshot(Box<snapshot::SnapshotArgs>),
    SnapshotDiff(snapshot_diff::SnapshotDiffArgs),
    FromImage(Box<from_image::FromImageArgs>),
    Parent(from_image::ParentArgs),
    Recipe(recipe::RecipeArgs),
    Fork(fork::ForkArgs),
    Ls(ls::LsArgs),
    Exec(exec::ExecArgs),
    Eval(eval::EvalArgs),
    Ping(ping::PingArgs),
    Kill(kill::KillArgs),
    Images(images::ImagesArgs),
    Tree(tree::TreeArgs),
    SnapshotInfo(snapshot_info::SnapshotInfoArgs),
    SnapshotCompact(snapshot_compact::SnapshotCompactArgs),
    Rmi(rmi::RmiArgs),
    #[command(alias = "cleanup")]
    Gc(gc::GcArgs),
    Verify(verify::VerifyArgs),
    Pack(pack::PackArgs),
    Unpack(unpack::UnpackArgs),
    Pull(pull::PullArgs),
    Push(push::PushArgs),
    Spawn(Box<spawn::SpawnArgs>),
    /// Has sandboxes stand still, with all that runs in them
    Pause(pause::PauseArgs),
    /// Has sandboxes that stand still go on
    Resume(pause::PauseArgs),
    Net(net::NetArgs),
    Port(port::PortArgs),
    Cp(cp::CpArgs),
    Logs(logs::LogsArgs),
    Workspace(workspace::WorkspaceArgs),
    Serve(Box<serve::Serve>),
    Daemon(daemon::DaemonVerbArgs),
    Machine(machine::MachineArgs),
    Bench(bench::BenchArgs),
    #[command(hide = true)]
    WpBench(bench::WpBenchArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
    /// Prints the directory that snapshots are kept in
    Where,
    /// Prints the version
    Version,
}

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let is_controller = Path::new(&name).file_name().is_some_and(|name| name == serve::CONTROLLER);
    let verb = if is_controller { serve::Controller::parse().into_verb() } else { Cli::parse().verb };
    // A daemon says when it listens, and where.
    let level = if matches!(verb, Verb::Serve(_)) { "info" } else { "warn" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format_timestamp(None)
        .format_target(false)
        .init();
    let done = run(verb);
    done.unwrap_or_else(|error| {
        eprintln!("forkd: error: {}{}", errors::chain(&error), errors::advice(&error));
        ExitCode::FAILURE
    })
}

fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Doctor(args) => doctor::doctor(&args),
        Verb::Quickstart(args) => quickstart::quickstart(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Snapshot(args) => snapshot::snapshot(*args),
        Verb::SnapshotDiff(args) => snapshot_diff::snapshot_diff(&args),
        Verb::FromImage(args) => from_image::from_image(&args),
        Verb::Parent(args) => from_image::parent(&args),
        Verb::Recipe(args) => recipe::recipe(&args),
        Verb::Fork(args) => fork::fork(&args),
        Verb::Ls(args) => ls::ls(&args),
        Verb::Exec(args) => exec::exec(&args),
        Verb::Eval(args) => eval::eval(&args),
        Verb::Ping(args) => ping::ping(&args),
        Verb::Kill(args) => kill::kill(&args),
        Verb::Images(args) => images::images(&args),
        Verb::Tree(args) => tree::tree(&args),
        Verb::SnapshotInfo(args) => snapshot_info::snapshot_info(&args),
        Verb::SnapshotCompact(args) => snapshot_compact::snapshot_compact(&args),
        Verb::Rmi(args) => rmi::rmi(&args),
        Verb::Gc(args) => gc::gc(&args),
        Verb::Verify(args) => verify::verify(&args),
        Verb::Pack(args) => pack::pack(&args),
        Verb::Unpack(args) => unpack::unpack(&args),
        Verb::Pull(args) => pull::pull(&args),
        Verb::Push(args) => push::push(&args),
        Verb::Spawn(args) => spawn::spawn(&args),
        Verb::Pause(args) => pause::pause(&args, Pace::Pause),
        Verb::Resume(args) => pause::pause(&args, Pace::Resume),
        Verb::Net(args) => net::net(&args),
        Verb::Port(args) => port::port(&args),
        Verb::Cp(args) => cp::cp(&args),
        Verb::Logs(args) => logs::logs(&args),
        Verb::Workspace(args) => workspace::workspace(&args),
        Verb::Serve(args) => serve::serve(&args),
        Verb::Daemon(args) => daemon::daemon(&args),
        Verb::Machine(args) => machine::machine(&args),
        Verb::Bench(args) => bench::bench(&args),
        Verb::WpBench(args) => bench::wp_bench(&args),
        Verb::Completions(args) => shell::completions(&args, Cli::command()),
        Verb::Man(args) => shell::man(&args, Cli::command()),
        Verb::Where => output::line(&Dirs::from_env()?.data.display().to_string()).map(|()| ExitCode::SUCCESS),
        Verb::Version => output::line(concat!("forkd ", env!("CARGO_PKG_VERSION"))).map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_in_one_line_what_it_does() {
        fn check(command: &clap::Command) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(
                !about.is_empty() && !about.contains('\n') && !about.ends_with('.'),
                "{}: {about}",
                command.get_name()
            );
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
