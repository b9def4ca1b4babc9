//! Counting: who made which system calls between a request to spawn and the children's first entry into their guests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc::Sender;

use anyhow::{Context, Result, bail};

use super::sys::{self, Stop};

/// `ioctl` with this request enters the guest.
const KVM_RUN: u64 = 0xae80;
const F_GETFD: u64 = 1;
/// Each child has a main thread and that of its vCPU.
const THREADS: usize = 2;

/// A system call: its number and second argument.
pub(super) type Call = (u64, u64);

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Traced {
    /// The template's, from hearing the request to waiting for the next.
    pub(super) template: Vec<Call>,
    /// Each child's, by process, of all its threads.
    pub(super) children: BTreeMap<i32, Vec<Call>>,
    /// Who executed a program.
    pub(super) executed: Vec<i32>,
}

/// Attaches to a template, says so, and counts until `children` of its children run. The tracees are let go when the
/// calling thread ends.
pub(super) fn spawn(template: u32, children: usize, attached: Sender<()>) -> Result<Traced> {
    let template = i32::try_from(template)?;
    sys::attach(template).context("attaching to the template")?;
    let (mut traced, mut settled) = (Traced::default(), BTreeSet::new());
    let mut attached = Some(attached);
    while settled.len() < 1 + THREADS * children {
        let Some((tid, stop)) = sys::next_stop()? else { bail!("all were gone before the children ran: {traced:?}") };
        match stop {
            Stop::Gone => bail!("{tid} was gone before the children ran: {traced:?}"),
            Stop::Executed => traced.executed.push(tid),
            Stop::Event => {
                if let Some(attached) = attached.take() {
                    attached.send(()).context("nobody waits for the tracer")?;
                }
            }
            Stop::Entry { number, second } if !settled.contains(&tid) => {
                if count(&mut traced, template, tid, (number, second))? {
                    settled.insert(tid);
                }
            }
            Stop::Entry { .. } | Stop::Exit | Stop::Signal(_) => {}
        }
        match stop {
            Stop::Signal(signal) => sys::resume(tid, signal)?,
            _ if settled.contains(&tid) => sys::release(tid)?,
            _ => sys::resume(tid, 0)?,
        }
    }
    Ok(traced)
}

/// Counts a call; true when it is the last of this thread's that counts.
fn count(traced: &mut Traced, template: i32, tid: i32, call: Call) -> Result<bool> {
    let number = i64::try_from(call.0)?;
    // With debug assertions, as these tests are built, each descriptor is looked at before it is closed.
    if cfg!(debug_assertions) && number == libc::SYS_fcntl && call.1 == F_GETFD {
        return Ok(false);
    }
    let waits = matches!(number, libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2);
    if tid == template {
        // Until it hears the request, it is only waiting.
        if traced.template.is_empty() && number != libc::SYS_recvmsg {
            return Ok(false);
        }
        traced.template.push(call);
        return Ok(waits);
    }
    traced.children.entry(process_of(tid)?).or_default().push(call);
    Ok(waits || (number == libc::SYS_ioctl && call.1 == KVM_RUN))
}

fn process_of(tid: i32) -> Result<i32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status"))?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")).context("a thread without a process")?;
    Ok(process.trim().parse()?)
}

/// The calls as a person looks them up: number, and how often.
pub(super) fn names(calls: &[Call]) -> String {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for (number, _) in calls {
        *counts.entry(*number).or_default() += 1;
    }
    let each = counts.iter().map(|(number, count)| format!("{count} x {}", name(*number)));
    each.collect::<Vec<_>>().join(", ")
}

fn name(number: u64) -> String {
    const NAMES: &[(i64, &str)] = &[
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_eventfd2, "eventfd2"),
        (libc::SYS_epoll_ctl, "epoll_ctl"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_close, "close"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_mprotect, "mprotect"),
        (libc::SYS_brk, "brk"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_clone3, "clone3"),
        (libc::SYS_socket, "socket"),
        (libc::SYS_bind, "bind"),
        (libc::SYS_sendmsg, "sendmsg"),
        (libc::SYS_rt_sigprocmask, "rt_sigprocmask"),
    ];
    let known = NAMES.iter().find(|(known, _)| i64::try_from(number) == Ok(*known));
    known.map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_owned())
}
