//! The buffers of all nodes of a cluster, shown as one.
//!
//! Each node keeps the samples that its own readers were first to read. Views of epochs, mixes and slots show the samples of
//! all nodes.
//!
//! 1. A view is made by one node, its *maker*: all nodes compute the same one from the name of the view. It asks the others
//!    what they hold ([`Maker::joined`]), joins that ([`join`](crate::buffer::join)), and draws. Each node that looks at the
//!    view gets the same list from it, the [`Draft`]. So a sampler can share the files of a view among ranks.
//! 2. A draft becomes a snapshot (`snapshots`). What this node keeps is read from its own disk. The bytes of other samples
//!    come from the nodes that keep them, or from the source ([`RemoteSample`]).
//! 3. If the maker does not answer, the node makes the view by itself. A node that does not say what it holds is left out.
//!
//! Each node has slots of its own, over the samples of all nodes.

mod asking;
mod maker;
mod messages;
mod own_buffers;
mod provider;
mod remote_sample;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde_json::Value;
use siphasher::sip::SipHasher24;

use super::buffer_thread::BufferThread;
use super::journaled::JournaledBuffer;
use super::notes::{Note, Notes};
use super::reports::JointReport;
use super::snapshots;
use super::views::{KeptSample, SampleBytes, SnapshotReply, View};
use crate::buffer::{EpochDraws, SampleId};
use crate::cache::Cache;
use crate::peers::{Answering, Wants};
use crate::source::{Pool, Urgency};
use crate::sync::Mutex;
use asking::{begin, wait};
use maker::Maker;
use messages::{Counts, Drawn, Question, parse};
pub(super) use messages::{Draft, Joined, Listed, Task};
use own_buffers::{Numbers, OwnBuffers};
use provider::Provider;
pub use remote_sample::RemoteSample;
use remote_sample::RemoteSamples;

/// The name of these questions among those of a cluster.
const TOPIC: &str = "rehearsal";

/// How long the maker of a view may take. After that the view is made here.
const MAKER_WAIT: Duration = Duration::from_secs(10);

/// How long the maker is given to begin the task of this node, and how often it is asked.
const TASK_WAIT: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How many views may be waited for at once.
const ASKERS: usize = 4;

pub(super) struct JointBuffers {
    own: Arc<OwnBuffers>,
    wants: Weak<dyn Wants>,
    maker: Arc<Maker>,
    remote: Arc<RemoteSamples>,
    numbers: Mutex<Numbers>,
    /// The counts of the view that was shown last, by buffer.
    counts: Mutex<HashMap<usize, Counts>>,
    notes: Notes,
    askers: Pool,
}

impl JointBuffers {
    /// Joins the buffers of this node with those of the others. `names` has the names of those that are shared, by number.
    pub(super) fn new(
        names: Vec<Option<Arc<str>>>,
        notes: Notes,
        cache: &Arc<Cache>,
        wants: &Arc<dyn Wants>,
    ) -> Arc<Self> {
        let own = Arc::new(OwnBuffers::new(notes.clone(), names));
        // Wants hold the provider.
        let weak = Arc::downgrade(wants);
        let maker = Arc::new(Maker::new(Arc::clone(&own), Weak::clone(&weak)));
        let provider = Provider::new(&own, &maker);
        let provide = move |question: String, answering: Answering| {
            provider.answer(&question, answering);
        };
        wants.provide(TOPIC, Arc::new(provide));
        Arc::new(JointBuffers {
            remote: Arc::new(RemoteSamples::new(Weak::clone(&weak), Arc::clone(cache))),
            own,
            wants: weak,
            maker,
            numbers: Mutex::default(),
            counts: Mutex::default(),
            notes,
            askers: Pool::new("belady-joint", 0, ASKERS),
        })
    }

    /// Whether a buffer is shared and there are other nodes.
    pub(super) fn shares(&self, buffer: usize) -> bool {
        self.own.is_shared(buffer) && self.members().1.len() > 1
    }

    fn members(&self) -> (u64, Vec<u64>) {
        self.wants.upgrade().and_then(|wants| wants.members()).unwrap_or_default()
    }

    /// A number that no other node has.
    pub(super) fn own_number(&self) -> u64 {
        self.members().0
    }

    /// Makes a view. Never blocks. `made` is called by the buffer thread, at most once, or dropped.
    pub(super) fn make(self: &Arc<Self>, buffer: usize, view: View, made: SnapshotReply) {
        let joint = Arc::clone(self);
        self.askers.submit(Urgency::Demand, move || joint.make_now(buffer, view, made));
    }

    /// Has a view made, if this node is its maker, so that nodes which look at it later find what was held now.
    pub(super) fn prepare(self: &Arc<Self>, buffer: usize, view: View) {
        if self.maker_of(buffer, view) != self.own_number() {
            return;
        }
        let joint = Arc::clone(self);
        self.askers.submit(Urgency::Demand, move || {
            if let Some(task) = joint.own.task(buffer) {
                joint.maker.draw(buffer, view, task);
            }
        });
    }

    fn make_now(self: &Arc<Self>, buffer: usize, view: View, made: SnapshotReply) {
        let begun = Instant::now();
        let mut made = made;
        loop {
            let Some(task) = self.own.task(buffer) else { return made(Err(Errno::EIO)) };
            if view.is_mix() && !task.has_files() {
                // Its new samples are all that the own buffer does not hold.
                let _ = self.notes.send(Note::Make { buffer, view, made });
                return;
            }
            let drawn = match begun.elapsed() < TASK_WAIT {
                true => self.drawn(buffer, view, task),
                false => {
                    let name = view.name();
                    tracing::warn!(
                        name,
                        "the node that makes a mix has another task: it is made here"
                    );
                    self.maker.draw(buffer, view, task)
                }
            };
            match drawn {
                Drawn::Refused(refused) => return made(Err(Errno::from_raw(refused))),
                Drawn::OtherTask => thread::sleep(ASK_AGAIN),
                Drawn::Draft(draft) => match self.show(buffer, view, draft, made) {
                    Some(again) => made = again,
                    None => return,
                },
            }
        }
    }

    /// The samples of a view, from its maker.
    fn drawn(&self, buffer: usize, view: View, task: Task) -> Drawn {
        let maker = self.maker_of(buffer, view);
        if maker != self.own_number() {
            let name = self.own.name(buffer).to_string();
            let question = Question::Draw { buffer: name, view: view.name(), task };
            let answer = begin(&self.wants, maker, &question, MAKER_WAIT);
            let drawn = wait(&answer, MAKER_WAIT);
            let can_be_shown = |drawn: &Drawn| match drawn {
                Drawn::Draft(draft) => draft.can_be_shown(),
                _ => true,
            };
            if let Some(drawn) = drawn.and_then(|text| parse(&text)).filter(can_be_shown) {
                return drawn;
            }
            let view = view.name();
            tracing::warn!(view, "the node that makes a view does not answer: it is made here");
        }
        self.maker.draw(buffer, view, task)
    }

    /// The node that makes a view, the same for all nodes that see the same members.
    fn maker_of(&self, buffer: usize, view: View) -> u64 {
        let name = self.own.name(buffer);
        let weight = |member: &u64| {
            let mut hasher = SipHasher24::new();
            hasher.write(name.as_bytes());
            hasher.write(&[0]);
            hasher.write(view.name().as_bytes());
            hasher.write_u64(*member);
            hasher.finish()
        };
        self.members().1.into_iter().max_by_key(weight).unwrap_or_default()
    }

    /// Makes a snapshot of a draft, and has it taken, unless another task has begun meanwhile: then `made` is returned.
    fn show(
        self: &Arc<Self>,
        buffer: usize,
        view: View,
        draft: Draft,
        made: SnapshotReply,
    ) -> Option<SnapshotReply> {
        let joint = Arc::clone(self);
        self.counts.lock().insert(buffer, draft.counts);
        self.own.ask(move |thread: &mut BufferThread| {
            let catalog = thread.paths.catalog();
            let own = thread.buffers.get_mut(buffer)?.written();
            if view.is_mix() && own.task_of_cluster() != draft.task {
                return Some(made);
            }
            let sample = |own: &JournaledBuffer, keeper, listed: &Listed| {
                joint.sample(buffer, own, keeper, listed)
            };
            made(snapshots::of_draft(own, catalog, &draft, &sample));
            None
        })?
    }

    /// A sample of a draft: this node's own one, if it keeps it.
    fn sample(
        &self,
        buffer: usize,
        own: &JournaledBuffer,
        keeper: u64,
        listed: &Listed,
    ) -> Arc<KeptSample> {
        let kept = own.sample_of(listed.hash).filter(|kept| listed.is(kept));
        kept.unwrap_or_else(|| {
            let name = self.own.name(buffer);
            let remote = RemoteSample::new(&self.remote, &name, keeper, listed);
            let id: SampleId = self.numbers.lock().of(buffer, listed.hash);
            let Listed { hash, source, access, .. } = listed.clone();
            Arc::new(KeptSample { id, hash, source, access, bytes: SampleBytes::Remote(remote) })
        })
    }

    /// All samples of all nodes, for slots. Never blocks.
    pub(super) fn all(self: &Arc<Self>, buffer: usize, shown: SnapshotReply) {
        let joint = Arc::clone(self);
        self.askers.submit(Urgency::Demand, move || {
            let Some(task) = joint.own.task(buffer) else { return shown(Err(Errno::EIO)) };
            let joined = joint.maker.joined(buffer);
            joint.numbers.lock().keep(buffer, &joined.samples);
            joint.show(buffer, View::Epoch(0), Draft::of_all(task, joined), shown);
        });
    }

    /// The paths of the first draws of an epoch. Blocks.
    ///
    /// # Errors
    /// If the buffer thread does not answer.
    pub(super) fn draw(&self, buffer: usize, epoch: u64, count: u64) -> Result<Value, Errno> {
        let rules = self.own.ask(move |thread| {
            let buffer = &thread.buffers.get(buffer)?.journaled;
            Some((buffer.buffer().rules().seed, buffer.settings.distance))
        });
        let (seed, distance) = rules.flatten().ok_or(Errno::EIO)?;
        let joined = self.maker.joined(buffer);
        self.counts.lock().insert(buffer, joined.counts());
        let numbers = (0..joined.samples.len() as u32).map(SampleId);
        let mut draws = EpochDraws::new(seed, epoch, numbers, distance);
        let path = |id: SampleId| Value::from(&*joined.samples[id.0 as usize].1.source);
        Ok((0..count).map_while(|k| draws.at(k)).map(path).collect())
    }

    pub(super) fn report(&self, buffer: usize) -> Option<JointReport> {
        if !self.own.is_shared(buffer) {
            return None;
        }
        let counts = self.counts.lock().get(&buffer).copied().unwrap_or_default();
        let remote = &self.remote;
        Some(JointReport {
            nodes: counts.nodes,
            samples: counts.samples,
            read: remote.read.load(Ordering::Relaxed),
            read_from_source: remote.read_from_source.load(Ordering::Relaxed),
        })
    }
}
