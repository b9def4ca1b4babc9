//! Which system calls each kind of thread may make, and what for. Everything else ends the process.
//!
//! What is not here says as much: nothing opens a path, makes, binds or connects a socket, executes a program, traces or
//! signals another process, mounts, or makes a namespace. A copy inherits its filters, so the main table has what a child,
//! a branch and the children of that need, too; but nothing that is of use without being root, or that reaches beyond the
//! descriptors a process was given.

use libc::c_long;

use super::kvm;

/// A system call that is allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: c_long,
    pub(super) only: Only,
    /// What it is needed for.
    #[cfg_attr(not(test), expect(dead_code, reason = "for who reads the table, and for the test that there is one"))]
    pub(super) why: &'static str,
}

/// With which arguments it is allowed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Only {
    /// With any.
    Any,
    /// When the argument of this index is one of these.
    Is(u8, &'static [u64]),
    /// When each argument of these indices is this.
    Are(&'static [(u8, u64)]),
    /// When the argument of this index has none of these bits.
    Without(u8, u64),
    /// An `ioctl` of which these bits are one of these.
    Ioctl(u64, &'static [u64]),
}

const fn any(number: c_long, why: &'static str) -> Call {
    Call { number, only: Only::Any, why }
}

const fn only(number: c_long, only: Only, why: &'static str) -> Call {
    Call { number, only, why }
}

/// What the C library asks for first and need not have. Nobody is ever let do it, and asking is no crime.
pub(super) const ABSENT: &[Call] = &[
    any(libc::SYS_clone3, "its arguments lie in memory, where no filter can look; `clone` does as well"),
    only(
        libc::SYS_tgkill,
        Only::Is(2, &[SIG_ABORT]),
        "aborting; a filter cannot tell one's own number from another's. Who cannot signal itself crashes instead",
    ),
];

const EXECUTABLE: u64 = libc::PROT_EXEC.unsigned_abs() as u64;
/// All that `clone` could make of namespaces.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .unsigned_abs() as u64;
const SIG_ABORT: u64 = libc::SIGABRT.unsigned_abs() as u64;
/// What a process is ended by that touches what it must not, or gives up.
const FATAL: &[u64] = &[libc::SIGBUS.unsigned_abs() as u64, libc::SIGSEGV.unsigned_abs() as u64, SIG_ABORT];
/// This process, as the calls about priorities name it.
const ITSELF: &[(u8, u64)] = &[(0, libc::PRIO_PROCESS as u64), (1, 0)];
const CLOCK_MONOTONIC: u64 = libc::CLOCK_MONOTONIC.unsigned_abs() as u64;
/// Type and number of an `ioctl`, without the size of its argument.
const REQUEST: u64 = 0xffff;
const FIONBIO: u64 = 0x5421;
const TUNSETOFFLOAD: u64 = 0x54d0;
const FICLONE: u64 = 0x9409;
const F_DUPFD_CLOEXEC: u64 = 1030;
const F_GETFD: u64 = 1;

/// The main thread of a template and of everything that is forked from it.
pub(super) const MAIN: &[Call] = &[
    // Memory.
    only(libc::SYS_mmap, Only::Without(2, EXECUTABLE), "memory of the heap, stacks, guests and vCPUs; never code"),
    only(libc::SYS_mprotect, Only::Without(2, EXECUTABLE), "the guard page of a thread's stack, a growing heap"),
    any(libc::SYS_munmap, "the heap, a vCPU's page"),
    any(libc::SYS_mremap, "the heap"),
    any(libc::SYS_madvise, "a vCPU's page is kept out of copies; the heap gives memory back"),
    any(libc::SYS_brk, "the heap"),
    // What it was handed: files of disks and logs, sockets, events.
    any(libc::SYS_read, "events, the tap"),
    any(libc::SYS_readv, "the tap, a vsock's connection"),
    any(libc::SYS_pread64, "disks, layers, the page map"),
    any(libc::SYS_preadv, "disks"),
    any(libc::SYS_write, "events, the tap, logs, joining a control group"),
    any(libc::SYS_writev, "the tap, logs"),
    any(libc::SYS_pwrite64, "disks, layers, the VM's state"),
    any(libc::SYS_pwritev, "disks"),
    any(libc::SYS_lseek, "where a file has holes; the console's log"),
    any(libc::SYS_ftruncate, "a new top is as large as its disk; the console's log"),
    any(libc::SYS_fallocate, "a hole for what a guest discards"),
    any(libc::SYS_copy_file_range, "layers of memory laid over each other"),
    any(libc::SYS_fstat, "how large a file is"),
    any(libc::SYS_statx, "the same, as the standard library asks it of a descriptor"),
    only(
        libc::SYS_fcntl,
        Only::Is(1, &[F_DUPFD_CLOEXEC, F_GETFD]),
        "another descriptor of a file; a build that checks itself looks before it closes",
    ),
    any(libc::SYS_close, "what is no longer needed"),
    any(libc::SYS_close_range, "a branch lets go of what is its source's"),
    any(libc::SYS_dup2, "a log of its own as standard error"),
    any(libc::SYS_dup3, "the same"),
    any(libc::SYS_listen, "a child lets its callers come, who so see that it is it"),
    any(libc::SYS_accept4, "callers of the control socket and of the vsock"),
    any(libc::SYS_recvmsg, "orders, with their descriptors"),
    any(libc::SYS_sendmsg, "answers; data for the vsock's clients"),
    any(libc::SYS_recvfrom, "what the vsock's clients say"),
    any(libc::SYS_sendto, "what the guest says to them"),
    any(libc::SYS_shutdown, "the guest closed one direction of a connection"),
    any(libc::SYS_epoll_create1, "the loop"),
    any(libc::SYS_epoll_ctl, "the loop"),
    any(libc::SYS_epoll_wait, "the loop"),
    any(libc::SYS_epoll_pwait, "the loop"),
    any(libc::SYS_epoll_pwait2, "the loop"),
    any(libc::SYS_poll, "the loop of a paused VM; room in a connection"),
    any(libc::SYS_ppoll, "the same"),
    any(libc::SYS_eventfd2, "interrupts and notifications of devices"),
    only(libc::SYS_ioctl, Only::Ioctl(REQUEST, kvm::MAIN), "KVM: a VM, its vCPUs and their state"),
    only(
        libc::SYS_ioctl,
        Only::Ioctl(REQUEST, &[FIONBIO, TUNSETOFFLOAD, FICLONE]),
        "sockets that do not wait, the tap's offloads, layers of memory laid over a copy of the lowest",
    ),
    // Processes and threads.
    only(
        libc::SYS_clone,
        Only::Without(0, NAMESPACES),
        "children, branches and writers, vCPUs' threads; no namespaces",
    ),
    any(libc::SYS_clone3, "asked for first, and answered by another filter that there is none"),
    only(
        libc::SYS_unshare,
        Only::Is(0, &[libc::CLONE_THREAD.unsigned_abs() as u64]),
        "fails for a process with other threads, and does nothing",
    ),
    any(libc::SYS_futex, "locks, and waiting for vCPUs"),
    any(libc::SYS_set_robust_list, "each new thread"),
    any(libc::SYS_rseq, "each new thread"),
    any(libc::SYS_sigaltstack, "each new thread, for overflows of its stack"),
    any(libc::SYS_rt_sigprocmask, "a thread is begun, a process forked"),
    only(
        libc::SYS_rt_sigaction,
        Only::Is(0, FATAL),
        "the standard library lets a fault that is none of its own end it; aborting",
    ),
    any(libc::SYS_rt_sigreturn, "the end of a kick"),
    any(libc::SYS_sched_getaffinity, "each new thread, to find its stack"),
    any(libc::SYS_sched_yield, "a lock that is free in a moment"),
    any(libc::SYS_set_tid_address, "a forked process"),
    any(libc::SYS_gettid, "aborting"),
    any(libc::SYS_getpid, "aborting"),
    only(libc::SYS_tgkill, Only::Is(2, &[SIG_ABORT]), "aborting, and answered by another filter that there is none"),
    only(
        libc::SYS_timer_create,
        Only::Is(0, &[CLOCK_MONOTONIC]),
        "kicks a vCPU; a timer's signal goes to threads of its own process only",
    ),
    any(libc::SYS_timer_settime, "the same"),
    any(libc::SYS_timer_delete, "the same"),
    only(
        libc::SYS_prctl,
        Only::Is(
            0,
            &[libc::PR_SET_NAME.unsigned_abs() as u64, libc::PR_SET_NO_NEW_PRIVS.unsigned_abs() as u64, PR_SCHED_CORE],
        ),
        "names of threads, more filters, cores that are not shared",
    ),
    only(libc::SYS_seccomp, Only::Is(0, &[libc::SECCOMP_SET_MODE_FILTER as u64]), "more filters"),
    only(libc::SYS_setpriority, Only::Are(ITSELF), "a writer steps back"),
    only(libc::SYS_getpriority, Only::Are(ITSELF), "the same"),
    any(libc::SYS_geteuid, "whether it is root"),
    any(libc::SYS_setgroups, "a child becomes a user of its own; needs a capability that only a template has"),
    any(libc::SYS_setresgid, "the same"),
    any(libc::SYS_setresuid, "the same"),
    any(libc::SYS_restart_syscall, "waiting was interrupted"),
    any(libc::SYS_clock_gettime, "time, where the kernel does not give it away"),
    any(libc::SYS_clock_nanosleep, "a pause"),
    any(libc::SYS_getrandom, "the guest's randomness"),
    any(libc::SYS_exit, "the end of a thread"),
    any(libc::SYS_exit_group, "the end"),
];

const PR_SCHED_CORE: u64 = 62;

/// A vCPU's thread.
pub(super) const VCPU: &[Call] = &[
    only(libc::SYS_ioctl, Only::Ioctl(REQUEST, kvm::VCPU), "runs the guest, takes its state"),
    any(libc::SYS_futex, "a device's lock, parking"),
    any(libc::SYS_write, "interrupts, the console, the log"),
    any(libc::SYS_pwrite64, "what ended it"),
    any(libc::SYS_lseek, "the console's log keeps its end"),
    any(libc::SYS_read, "the same"),
    any(libc::SYS_ftruncate, "the same"),
    any(libc::SYS_epoll_ctl, "a driver activates or resets a device"),
    any(libc::SYS_eventfd2, "a driver activates a device"),
    only(libc::SYS_ioctl, Only::Ioctl(REQUEST, &[TUNSETOFFLOAD]), "a driver says what its card can take"),
    any(libc::SYS_getrandom, "tables of a device that is activated"),
    only(libc::SYS_fcntl, Only::Is(1, &[F_GETFD]), "a build that checks itself looks before it closes"),
    any(libc::SYS_close, "a reset device lets go of its connections"),
    any(libc::SYS_mmap, "the heap"),
    any(libc::SYS_munmap, "the heap"),
    any(libc::SYS_mprotect, "the heap"),
    any(libc::SYS_mremap, "the heap"),
    any(libc::SYS_madvise, "the heap, the thread's end"),
    any(libc::SYS_brk, "the heap"),
    any(libc::SYS_rt_sigreturn, "the end of a kick"),
    any(libc::SYS_rt_sigprocmask, "the thread's end"),
    only(
        libc::SYS_rt_sigaction,
        Only::Is(0, FATAL),
        "the standard library lets a fault that is none of its own end it; aborting",
    ),
    any(libc::SYS_sigaltstack, "the thread's end"),
    any(libc::SYS_restart_syscall, "waiting was interrupted"),
    any(libc::SYS_clock_gettime, "time, where the kernel does not give it away"),
    any(libc::SYS_sched_yield, "a lock that is free in a moment"),
    any(libc::SYS_gettid, "aborting"),
    any(libc::SYS_getpid, "aborting"),
    only(libc::SYS_tgkill, Only::Is(2, &[SIG_ABORT]), "aborting, and answered by another filter that there is none"),
    any(libc::SYS_exit, "the thread's end"),
    any(libc::SYS_exit_group, "the end"),
];

/// The main thread of a process that writes a template down.
pub(super) const WRITER: &[Call] = &[
    any(libc::SYS_read, "layers of the parent"),
    any(libc::SYS_pread64, "the page map, layers, disks"),
    any(libc::SYS_preadv, "disks"),
    any(libc::SYS_write, "what is written, the log"),
    any(libc::SYS_writev, "the log"),
    any(libc::SYS_pwrite64, "what is written"),
    any(libc::SYS_pwritev, "what is written"),
    any(libc::SYS_lseek, "where a file has holes"),
    any(libc::SYS_ftruncate, "a layer is as long as what it describes"),
    any(libc::SYS_fallocate, "the same"),
    any(libc::SYS_copy_file_range, "what is kept of other layers"),
    any(libc::SYS_fstat, "how large a file is"),
    any(libc::SYS_statx, "the same"),
    only(
        libc::SYS_fcntl,
        Only::Is(1, &[F_DUPFD_CLOEXEC, F_GETFD]),
        "another descriptor of a file; a build that checks itself looks before it closes",
    ),
    any(libc::SYS_close, "what is no longer needed"),
    only(libc::SYS_setpriority, Only::Are(ITSELF), "it steps back"),
    only(libc::SYS_getpriority, Only::Are(ITSELF), "the same"),
    any(libc::SYS_sendmsg, "what it says to who asked"),
    any(libc::SYS_poll, "room in the connection"),
    any(libc::SYS_ppoll, "the same"),
    any(libc::SYS_mmap, "the heap"),
    any(libc::SYS_mprotect, "the heap"),
    any(libc::SYS_munmap, "the heap"),
    any(libc::SYS_mremap, "the heap"),
    any(libc::SYS_madvise, "the heap"),
    any(libc::SYS_brk, "the heap"),
    any(libc::SYS_futex, "locks of the standard library"),
    any(libc::SYS_rt_sigreturn, "a signal's end"),
    any(libc::SYS_rt_sigprocmask, "aborting"),
    only(
        libc::SYS_rt_sigaction,
        Only::Is(0, FATAL),
        "the standard library lets a fault that is none of its own end it; aborting",
    ),
    any(libc::SYS_clock_gettime, "time, where the kernel does not give it away"),
    any(libc::SYS_getrandom, "tables of the standard library"),
    any(libc::SYS_gettid, "aborting"),
    any(libc::SYS_getpid, "aborting"),
    only(libc::SYS_tgkill, Only::Is(2, &[SIG_ABORT]), "aborting, and answered by another filter that there is none"),
    any(libc::SYS_sigaltstack, "the end"),
    any(libc::SYS_restart_syscall, "waiting was interrupted"),
    any(libc::SYS_exit, "the end"),
    any(libc::SYS_exit_group, "the end"),
];
