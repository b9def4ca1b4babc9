//! The one who listens: to the template, to children until their vCPUs run, to those who make them ready, to the clock.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use proto::control::{ChildSpec, ControlSocket, FromVmm, MAX_FDS, Outfit, ToVmm};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;

use super::error::{ChildError, ForkError};
use super::ready::{Bell, Finished, Job, died};
use super::slot::{Slot, State};
use super::source::Source;
use super::{ForkSpec, ForkTimings, Forked, Results, micros};
use crate::cancel::Cancel;
use crate::cgroup::mib_to_bytes;
use crate::console;
use crate::cores::Cores;
use crate::hearing::{Waited, hear};
use crate::pidfd::Alleged;
use crate::process::timespec;
use crate::template::Template;

/// Children of one message: enough that messages cost nothing, few enough that one fits in a packet; fewer, if the
/// descriptors of so many do not fit beside it.
const BATCH: usize = 100;
/// The longest the system can wait in one go; the loop goes around.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A message, and what was heard of it.
#[derive(Debug)]
struct Batch {
    control: ControlSocket,
    slots: Range<usize>,
    forked: bool,
}

#[derive(Debug)]
pub(super) struct Fanout<'a> {
    pub(super) spec: &'a ForkSpec,
    pub(super) begun: Instant,
    pub(super) until: Instant,
    pub(super) bell: Bell,
    pub(super) over: Cancel,
    template: Template,
    slots: Vec<Slot>,
    by_id: HashMap<String, usize>,
    batches: Vec<Batch>,
    epoll: OwnedFd,
    timings: ForkTimings,
    /// How many are neither ready nor have failed.
    open: usize,
    failed: usize,
    /// Those whose process is over and who have said nothing yet: what they said last may still be on its way.
    suspects: Vec<usize>,
    /// Somebody is over of whom not everything may have been heard.
    in_doubt: bool,
    template_died: bool,
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> ForkError {
    move |source| ForkError::Io { action, source }
}

/// A number that an event carries; there are never more things than [`super::MAX_CHILDREN`].
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl<'a> Fanout<'a> {
    pub(super) fn new(
        spec: &'a ForkSpec,
        template: Template,
        slots: Vec<Slot>,
        begun: Instant,
        timings: ForkTimings,
    ) -> Result<Self, ForkError> {
        let by_id = slots.iter().enumerate().map(|(index, slot)| (slot.dir.child().id().into(), index)).collect();
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| failed("make an epoll")(error.into()))?;
        let fanout = Self {
            spec,
            begun,
            until: begun + spec.limit,
            bell: Bell::new().map_err(failed("make an event descriptor"))?,
            over: Cancel::new().map_err(failed("make an event descriptor"))?,
            template,
            open: slots.len(),
            failed: 0,
            slots,
            by_id,
            batches: Vec::new(),
            epoll,
            timings,
            suspects: Vec::new(),
            in_doubt: false,
            template_died: false,
        };
        fanout.watch(&fanout.bell, Source::Bell)?;
        fanout.watch(&fanout.template.process, Source::Template)?;
        if let Some(cancel) = &spec.cancel {
            fanout.watch(cancel, Source::Cancel)?;
        }
        Ok(fanout)
    }

    fn watch(&self, fd: impl AsFd, source: Source) -> Result<(), ForkError> {
        epoll::add(&self.epoll, fd, source.to_data(), EventFlags::IN)
            .map_err(|error| failed("watch a descriptor")(error.into()))
    }

    fn forget(&self, fd: impl AsFd) {
        if let Err(error) = epoll::delete(&self.epoll, fd) {
            log::debug!("a descriptor was not watched: {error}");
        }
    }

    /// Asks for all of them.
    pub(super) fn ask(&mut self) -> Result<(), ForkError> {
        // All children have the same.
        let descriptors = self.slots.first().and_then(|slot| slot.outfit.as_ref()).map_or_else(Vec::new, Outfit::kinds);
        let batch = BATCH.min(MAX_FDS / descriptors.len().max(1));
        for first in (0..self.slots.len()).step_by(batch) {
            let range = first..self.slots.len().min(first + batch);
            let options = &self.spec.children[range.clone()];
            let specs = self.slots[range.clone()].iter().zip(options).map(|(slot, options)| ChildSpec {
                id: slot.dir.child().id().into(),
                lifetime: self.spec.lifetime,
                disk_limit: slot.dir.child().limits().disk.map(|limit| mib_to_bytes(limit.get())),
                // A template that cannot be another user has children who are what it is.
                uid: slot.dir.child().uid().filter(|_| self.template.uid.is_none()),
                own_cores: options.cores == Cores::Own,
            });
            let children = specs.collect();
            let own = self.slots[range.clone()].iter_mut().filter_map(|slot| slot.outfit.take());
            let own: Vec<OwnedFd> = own.flat_map(Outfit::into_fds).collect();
            let control = self.template.another_connection()?;
            let fds: Vec<_> = own.iter().map(AsFd::as_fd).collect();
            control.send(&ToVmm::Spawn { children, descriptors: descriptors.clone() }, &fds)?;
            self.watch(&control, Source::Batch(number(self.batches.len())))?;
            self.batches.push(Batch { control, slots: range, forked: false });
        }
        Ok(())
    }

    /// Listens until every child is ready or has failed, or the rest is not worth waiting for.
    pub(super) fn listen(&mut self, jobs: &Sender<Job>, finished: &Receiver<Finished>) -> Result<(), ForkError> {
        let mut events = Vec::with_capacity(BATCH);
        while self.open > 0 && !self.is_lost() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.time_is_up();
                break;
            }
            events.clear();
            // Who is to be judged is so as soon as nothing more is heard; no event may come to wait for.
            let patience = if self.in_doubt { Duration::ZERO } else { left.min(LONGEST_WAIT) };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timespec(patience))) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed("wait for the children")(error.into())),
            }
            let mut quiet = events.len() < events.capacity();
            for event in &events {
                match Source::from_data(event.data) {
                    Source::Cancel => return Err(ForkError::Cancelled),
                    Source::Batch(batch) => {
                        quiet = false;
                        self.hear(batch as usize, jobs)?;
                    }
                    Source::Child(index) => self.suspect(index as usize),
                    Source::Template => self.template_is_over(),
                    Source::Bell => self.take_finished(finished),
                }
            }
            if quiet {
                self.judge();
            }
        }
        Ok(())
    }

    /// Whether one failure was one too many.
    fn is_lost(&self) -> bool {
        self.failed > 0 && self.spec.results == Results::AllOrNothing
    }

    fn hear(&mut self, batch: usize, jobs: &Sender<Job>) -> Result<(), ForkError> {
        match hear(&self.batches[batch].control, Instant::now(), None)? {
            Waited::Event(FromVmm::Forked { children }) => {
                self.batches[batch].forked = true;
                self.timings.forked_us = micros(self.begun);
                for child in children {
                    self.has_process(batch, &child.id, child.pid)?;
                }
            }
            Waited::Event(FromVmm::Started { id, setup_us }) => self.started(batch, &id, setup_us, jobs),
            Waited::Event(FromVmm::NotStarted { id, code, message }) => {
                if let Some(index) = self.of_batch(batch, &id).filter(|index| self.slots[*index].is_asked()) {
                    self.fail(index, ChildError::NotStarted { code, message });
                }
            }
            // Of children whose lives hang on this connection; their other connections tell as much.
            Waited::Event(_) | Waited::TimedOut | Waited::Cancelled => {}
            Waited::Gone => {
                self.forget(&self.batches[batch].control);
                self.suspects.extend(self.batches[batch].slots.clone());
                self.in_doubt = true;
            }
        }
        Ok(())
    }

    /// The child of that name, if it was asked for by this message.
    fn of_batch(&self, batch: usize, id: &str) -> Option<usize> {
        let index = self.by_id.get(id).copied().filter(|index| self.batches[batch].slots.contains(index));
        if index.is_none() {
            log::warn!("the template speaks of a child `{id}` that it was not asked for");
        }
        index
    }

    fn has_process(&mut self, batch: usize, id: &str, pid: i32) -> Result<(), ForkError> {
        let Some(index) = self.of_batch(batch, id) else { return Ok(()) };
        let uid = self.slots[index].dir.child().uid();
        let alleged = Alleged::open(pid, self.template.process.pid(), uid);
        match alleged.map_err(failed("watch a child's process"))? {
            Some(process) => {
                if self.slots[index].is_asked() {
                    self.watch(&process, Source::Child(number(index)))?;
                }
                self.slots[index].process = Some(process);
            }
            None => {
                self.suspects.push(index);
                self.in_doubt = true;
            }
        }
        Ok(())
    }

    fn started(&mut self, batch: usize, id: &str, setup_us: u64, jobs: &Sender<Job>) {
        let Some(index) = self.of_batch(batch, id).filter(|index| self.slots[*index].is_asked()) else { return };
        self.timings.started_us = micros(self.begun);
        self.slots[index].state = State::Started { setup_us };
        // From here on its connection tells when it dies.
        if let Some(process) = &self.slots[index].process {
            self.forget(process);
        }
        let child = self.slots[index].dir.child().clone();
        if jobs.send(Job { index, child }).is_err() {
            log::error!("nobody is there to make {id} ready");
        }
    }

    fn suspect(&mut self, index: usize) {
        if let Some(process) = &self.slots[index].process {
            self.forget(process);
        }
        self.suspects.push(index);
        self.in_doubt = true;
    }

    fn template_is_over(&mut self) {
        self.forget(&self.template.process);
        self.template_died = true;
        self.in_doubt = true;
    }

    fn take_finished(&mut self, finished: &Receiver<Finished>) {
        self.bell.answer();
        for (index, result) in finished.try_iter() {
            let State::Started { setup_us } = self.slots[index].state else { continue };
            match result {
                Ok(ready) => {
                    self.timings.ready_us = self.timings.ready_us.max(ready.ready_us);
                    self.slots[index].state = State::Ready { setup_us, ready };
                    self.open -= 1;
                }
                Err(error) => self.fail(index, error),
            }
        }
    }

    /// Everything that was said has been heard: who is over and said nothing has died.
    fn judge(&mut self) {
        self.in_doubt = false;
        for index in std::mem::take(&mut self.suspects) {
            if self.slots[index].is_asked() {
                let error = self.death_of(index);
                self.fail(index, error);
            }
        }
        if self.template_died {
            let unheard = self.batches.iter().filter(|batch| !batch.forked).flat_map(|batch| batch.slots.clone());
            for index in unheard.collect::<Vec<_>>() {
                if self.slots[index].is_asked() {
                    let error = self.death_of(index);
                    self.fail(index, error);
                }
            }
        }
    }

    /// Whose connection ended before its template spoke of any process has a template that died: the kernel closes a
    /// connection a moment before it says that the process is over.
    fn death_of(&self, index: usize) -> ChildError {
        let unheard = self.batches.iter().any(|batch| !batch.forked && batch.slots.contains(&index));
        if unheard || self.template_died && self.slots[index].process.is_none() {
            ChildError::TemplateDied { log: console::tail(&self.template.place.log()) }
        } else {
            died(self.slots[index].dir.child())
        }
    }

    fn fail(&mut self, index: usize, error: ChildError) {
        self.slots[index].kill();
        self.slots[index].state = State::Failed(error);
        self.open -= 1;
        self.failed += 1;
    }

    fn time_is_up(&mut self) {
        for index in 0..self.slots.len() {
            if !self.slots[index].is_settled() {
                let console = self.slots[index].dir.child().console_tail();
                self.fail(index, ChildError::Silent { limit: self.spec.limit, console });
            }
        }
    }

    /// Ends what shall not live, so that those who are still busy with it notice.
    pub(super) fn end_the_lost(&self, outcome: &Result<(), ForkError>) {
        let all = outcome.is_err() || self.is_lost();
        self.slots.iter().filter(|slot| all || slot.has_failed()).for_each(Slot::kill);
    }

    /// Keeps the directories of those that live and removes all others, when nobody works on them any more.
    pub(super) fn conclude(self, outcome: Result<(), ForkError>) -> Result<Forked, ForkError> {
        let (failed, asked) = (self.failed, self.slots.len());
        let may_live = outcome.is_ok() && !self.is_lost();
        let ids: Vec<String> = self.slots.iter().map(|slot| slot.dir.child().id().into()).collect();
        let children: Vec<_> = self.slots.into_iter().map(|slot| slot.conclude(may_live)).collect();
        outcome?;
        if !may_live {
            let by_itself = |child: &_| !matches!(child, Ok(_) | Err(ChildError::Ended));
            let first = ids.into_iter().zip(children).find(|(_, child)| by_itself(child));
            if let Some((id, Err(source))) = first {
                return Err(ForkError::Child { id, failed, asked, source });
            }
            return Err(ForkError::Cancelled);
        }
        let connections = self.batches.into_iter().map(|batch| batch.control).collect();
        Ok(Forked { children, timings: self.timings, _connections: connections })
    }
}
