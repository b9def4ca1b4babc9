//! The program that runs in a guest while the guest is branched, and that notices by itself whether what it wakes up in
//! was ever one instant of it. Small, because it becomes part of every branch.
//!
//! ```text
//! pages     4 threads, each with 64 pages that hold one number: before a page gets round r it must hold r - 1
//! synced    a file that gets number n and is synced before the memory says n: read past the page cache it is n or n + 1
//! cached    a file that gets number n unsynced before the memory says n: read through the page cache it is n or n + 1
//! direct    a buffer that the disk itself reads and writes: what comes back is what went out
//! stamps    a thread that looks at the clock all the time, and before all others: the longest time it did not run
//! ```
//!
//! How it goes is in the file that its argument names, renewed many times a second: a line `rounds N stall_us N`, or
//! `torn` and what is wrong. Whoever makes a file of that name with `.mark` behind it has the stall measured anew from
//! the moment when that file is gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: usize = 4;
const PAGES: usize = 64;
const PAGE: usize = 4096;
const WORDS_PER_PAGE: usize = PAGE / size_of::<u64>();
const DIR: &str = "/root/torture";
/// Between two rounds: long enough for others to get a turn on few and slow CPUs, short enough that there is always one
/// in the middle of something.
const REST: Duration = Duration::from_millis(5);
const STAMP_EVERY: Duration = Duration::from_millis(2);
/// How far everything steps back behind the thread that stamps: it shall see when the guest did not run, and not when
/// another of its threads did.
const NICENESS: i32 = 19;
const TELL_EVERY: Duration = Duration::from_millis(10);

static ROUNDS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
static DISK_ROUNDS: AtomicU64 = AtomicU64::new(0);
static LONGEST_STALL_US: AtomicU64 = AtomicU64::new(0);
static TORN: Mutex<Option<String>> = Mutex::new(None);

/// Runs until something is wrong, or somebody ends it.
fn main() -> ExitCode {
    let Some(status) = std::env::args().nth(1) else { return ExitCode::FAILURE };
    let started = fs::create_dir_all(DIR).and_then(|()| {
        for thread in 0..THREADS {
            thread::Builder::new().spawn(move || step_back().and_then(|()| pages(thread)).unwrap_or_else(torn))?;
        }
        thread::Builder::new().spawn(stamp)?;
        thread::Builder::new().spawn(|| step_back().and_then(|()| files()).unwrap_or_else(torn))
    });
    if started.is_err() {
        return ExitCode::FAILURE;
    }
    let mark = format!("{status}.mark");
    loop {
        thread::sleep(TELL_EVERY);
        // Before the file is gone: what is seen after that belongs to whoever made it.
        if Path::new(&mark).exists() {
            LONGEST_STALL_US.store(0, Ordering::SeqCst);
            if fs::remove_file(&mark).is_err() {
                return ExitCode::FAILURE;
            }
        }
        let torn = TORN.lock().ok().and_then(|torn| torn.clone());
        let rounds = ROUNDS.iter().chain([&DISK_ROUNDS]).map(|rounds| rounds.load(Ordering::SeqCst)).min();
        let line = torn.as_ref().map_or_else(
            || format!("rounds {} stall_us {}", rounds.unwrap_or(0), LONGEST_STALL_US.load(Ordering::SeqCst)),
            |why| format!("torn {why}"),
        );
        if tell(&status, &line).is_err() || torn.is_some() {
            return ExitCode::FAILURE;
        }
    }
}

/// Whoever reads sees a whole line.
fn tell(status: &str, line: &str) -> io::Result<()> {
    let new = format!("{status}.new");
    fs::write(&new, line)?;
    fs::rename(new, status)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what threads end with")]
fn torn(why: io::Error) {
    if let Ok(mut torn) = TORN.lock() {
        torn.get_or_insert(why.to_string());
    }
}

/// This thread only.
fn step_back() -> io::Result<()> {
    rustix::process::nice(NICENESS)?;
    Ok(())
}

fn pages(thread: usize) -> io::Result<()> {
    let words: Vec<AtomicU64> = (0..PAGES * WORDS_PER_PAGE).map(|_| AtomicU64::new(0)).collect();
    for round in 1.. {
        for page in words.chunks(WORDS_PER_PAGE) {
            // The first and the last word: a page has no half of another instant.
            for word in [&page[0], &page[WORDS_PER_PAGE - 1]] {
                let before = word.swap(round, Ordering::SeqCst);
                if before != round - 1 {
                    return Err(io::Error::other(format!(
                        "thread {thread}: a page held {before} before round {round}"
                    )));
                }
            }
        }
        ROUNDS[thread].store(round, Ordering::SeqCst);
        thread::sleep(REST);
    }
    Ok(())
}

/// All files in turn, so that the disk is never at rest.
fn files() -> io::Result<()> {
    let (synced, cached) = (Numbered::create("synced")?, Numbered::create("cached")?);
    let mut direct = Direct::create()?;
    for number in 1.. {
        synced.write(number)?;
        synced.file.sync_data()?;
        synced.memory.store(number, Ordering::SeqCst);
        synced.check(direct.read_number(&synced.past_cache)?)?;
        cached.write(number)?;
        cached.memory.store(number, Ordering::SeqCst);
        cached.check(cached.read()?)?;
        direct.round_trip(number)?;
        DISK_ROUNDS.store(number, Ordering::SeqCst);
        thread::sleep(REST);
    }
    Ok(())
}

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn open_direct(name: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT).open(path(name))
}

/// A file and a word of memory that say the same number.
struct Numbered {
    name: &'static str,
    file: File,
    past_cache: File,
    memory: AtomicU64,
}

impl Numbered {
    fn create(name: &'static str) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path(name))?;
        file.write_all_at(&[0; PAGE], 0)?;
        file.sync_all()?;
        Ok(Self { name, file, past_cache: open_direct(name)?, memory: AtomicU64::new(0) })
    }

    fn write(&self, number: u64) -> io::Result<()> {
        self.file.write_all_at(&number.to_le_bytes(), 0)
    }

    fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn check(&self, found: u64) -> io::Result<()> {
        let memory = self.memory.load(Ordering::SeqCst);
        if found == memory || found == memory + 1 {
            return Ok(());
        }
        Err(io::Error::other(format!("{} holds {found} where the memory says {memory}", self.name)))
    }
}

/// Buffers that the disk itself reads and writes.
struct Direct {
    file: File,
    bytes: Vec<u8>,
}

impl Direct {
    fn create() -> io::Result<Self> {
        let file = open_direct("direct")?;
        let mut made = Self { file, bytes: vec![0; 3 * PAGE] };
        made.round_trip(0)?;
        Ok(made)
    }

    /// A page of the buffer where a page begins.
    fn page(&mut self) -> &mut [u8] {
        let start = self.bytes.as_ptr().addr().next_multiple_of(PAGE) - self.bytes.as_ptr().addr();
        &mut self.bytes[start..start + PAGE]
    }

    fn read_number(&mut self, from: &File) -> io::Result<u64> {
        let page = self.page();
        from.read_exact_at(page, 0)?;
        let number = page.first_chunk().copied().map(u64::from_le_bytes);
        number.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn round_trip(&mut self, number: u64) -> io::Result<()> {
        let page = self.page();
        page.chunks_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
        let sent = page.to_vec();
        let file = self.file.try_clone()?;
        file.write_all_at(self.page(), 0)?;
        self.page().fill(0xff);
        file.read_exact_at(self.page(), 0)?;
        if self.page() == sent { Ok(()) } else { Err(io::Error::other(format!("the disk lost {number}"))) }
    }
}

fn stamp() {
    let mut last = Instant::now();
    loop {
        thread::sleep(STAMP_EVERY);
        let now = Instant::now();
        let gap = u64::try_from((now - last).as_micros()).unwrap_or(u64::MAX);
        LONGEST_STALL_US.fetch_max(gap, Ordering::SeqCst);
        last = now;
    }
}
