//! The published command line, row by row.

use clap::Parser as _;

use super::*;
use crate::{Cli, Verb, run};

/// Every verb and flag of the published command line, with what becomes of it. `~` stands for the daemon that is asked.
const LINES: &[(&str, Answer)] = &[
    ("quickstart", Taken),
    ("quickstart -n 3 --image python:3.12-slim -y", Taken),
    ("quickstart --n 3 --yes", Taken),
    ("snapshot --tag t --kernel k --rootfs r.ext4", Taken),
    ("snapshot --tag t --kernel k --rootfs r --rw --tap forkd-tap0 --boot-wait-secs 10 --mem-size-mib 512", Taken),
    ("snapshot --tag t --kernel k --rootfs r --keep-workdir", Taken),
    ("snapshot --tag t --volume /srv:/data:ro", Refused("volumes are not offered")),
    ("snapshot --from-sandbox sb-1 ~", Taken),
    ("snapshot --from-sandbox sb-1 --tag t --diff ~", Taken),
    ("snapshot --from-sandbox sb-1 --live --no-wait ~", Taken),
    ("snapshot --from-sandbox sb-1 --diff --live", Refused("cannot be used with")),
    ("snapshot-diff --from a --tag b --exec true --exec-timeout-secs 600 ~", Taken),
    ("fork --tag t -n 100", Taken),
    ("fork --tag t --n 100 --settle-secs 2 --per-child-netns --memory-limit-mib 256 --live-fork --keep-workdir", Taken),
    ("fork --tag t -n 1 --live-fork --hugepages", Refused("--hugepages is not offered")),
    ("fork --tag t", Refused("--n")),
    ("spawn --tag t ~", Taken),
    ("spawn --tag t -n 4 --per-child-netns --memory-limit-mib 256 --prewarm --live-fork ~", Taken),
    ("spawn --tag t --live-fork --hugepages", Refused("--hugepages is not offered")),
    ("ls ~", Taken),
    ("kill sb-1 sb-2 ~", Taken),
    ("kill --all ~", Taken),
    ("kill --tag t ~", Taken),
    ("kill --all --tag t", Refused("cannot be used with")),
    ("exec -- uname -a", Taken),
    ("exec --target 10.42.0.2:8888 --child forkd-child-7 --timeout-secs 30 -- uname -a", Taken),
    ("ping --target 10.42.0.2:8888 --child forkd-child-7", Taken),
    ("eval --target 10.42.0.2:8888 --child forkd-child-7 -- 1+1", Taken),
    ("parent build python:3.12-slim", Taken),
    ("parent build python:3.12-slim -o p.ext4 --size-mib 1536 --extra git --extra jq", Taken),
    ("from-image python:3.12-slim --tag py", Taken),
    ("from-image python:3.12-slim --tag py --extra git --size-mib 1536 --cache /var/cache/forkd", Taken),
    ("from-image python:3.12-slim --tag py --kernel k --tap t --boot-wait-secs 10 --mem-size-mib 1024", Taken),
    ("run --image python:3.12-slim --kernel k -- python3 -V", Taken),
    ("run --image python:3.12-slim --extra git --cache /var/cache/forkd --kernel k --tap t -- git --version", Taken),
    ("rmi a b ~", Taken),
    ("rmi a --cascade ~", Taken),
    ("rmi a --force", Taken),
    ("rmi a --cascade --force", Refused("cannot be used with")),
    ("snapshot-info a --json ~", Taken),
    ("snapshot-compact --from a --to b ~", Taken),
    ("pack --tag t -o x.tar.zst --description d --base-image b", Taken),
    ("pack --tag t --out x.tar.zst", Taken),
    ("unpack x.tar.zst --tag t --force", Taken),
    ("pull me/pyagent@v1 --tag t --force --hub http://localhost/registry.json", Taken),
    ("push http://localhost/x --tag t --description d --base-image b", Taken),
    ("images", Taken),
    ("where", Taken),
    ("doctor ~", Taken),
    ("bench ~", Taken),
    ("bench --tag t --n 5 --per-child-netns false ~", Taken),
    ("cleanup", Taken),
    ("cleanup -y", Taken),
    ("cleanup --yes", Taken),
    ("workspace create w --snapshot t --per-child-netns --memory-limit-mib 256 ~", Taken),
    ("workspace suspend w --diff ~", Taken),
    ("workspace resume w ~", Taken),
    ("workspace list ~", Taken),
    ("workspace delete w ~", Taken),
    ("wp-bench --region-mib 64 --snapshot /tmp/x", Refused("wp-bench is not offered")),
    ("serve --bind 127.0.0.1:8889 --state s --snapshot-root r --audit-log l --token-file f", Taken),
    ("serve --tls-cert c --tls-key k --prewarm-scratch-dir d --branch-concurrency 4", Taken),
];

/// What becomes of a line.
#[derive(Debug)]
enum Answer {
    /// It is understood.
    Taken,
    /// It is refused, before anything is done, with these words.
    Refused(&'static str),
}
use Answer::{Refused, Taken};

fn parsed(line: &str) -> Result<Verb, clap::Error> {
    let line =
        format!("forkd {}", line.replace('~', "--daemon-url http://127.0.0.1:8889 --daemon-token 0123456789abcdef"));
    Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.verb)
}

#[test]
fn every_published_line_is_taken_or_refused_in_words() {
    for (line, answer) in LINES {
        match (answer, parsed(line)) {
            (Taken, Ok(_)) => {}
            (Refused(words), Err(error)) => {
                assert!(error.exit_code() == 2 && error.to_string().contains(words), "{line}: {error}");
            }
            // What is no matter of grammar is refused first of all.
            (Refused(words), Ok(verb)) => {
                let error = run(verb).expect_err(line).to_string();
                assert!(error.contains(words), "{line}: {error}");
            }
            (Taken, Err(error)) => panic!("{line}: {error}"),
        }
    }
}

#[test]
fn a_kernel_in_the_environment_is_in_nobodys_way() {
    // A variable that counted as a flag would conflict with these.
    let command = <Cli as clap::CommandFactory>::command();
    for verb in ["snapshot", "run", "from-image"] {
        let verb = command.find_subcommand(verb).unwrap();
        let by_variable: Vec<_> = verb.get_arguments().filter_map(clap::Arg::get_env).collect();
        assert!(by_variable.iter().all(|name| *name == "FORKD_URL" || *name == "FORKD_TOKEN"), "{by_variable:?}");
    }
}

#[test]
fn each_is_answered_by_its_name() {
    let build =
        BuildFlags { rw: true, keep_workdir: true, tap: Some("t".into()), cache: Some("c".into()), volume: Vec::new() };
    let begins = |notes: Vec<&'static str>| notes.into_iter().filter_map(|note| note.split(' ').next()).collect();
    let words: Vec<&str> = begins(build.notes());
    assert_eq!(words, ["--rw", "--keep-workdir", "--tap", "--cache"]);
    let all = ForkFlags { live_fork: true, prewarm: true, per_child_netns: true, keep_workdir: true, hugepages: false };
    let words: Vec<&str> = begins(all.notes());
    assert_eq!(words, ["--live-fork", "--prewarm", "--per-child-netns", "--keep-workdir"]);
    assert!(BuildFlags::default().notes().is_empty() && ForkFlags::default().notes().is_empty());
}
