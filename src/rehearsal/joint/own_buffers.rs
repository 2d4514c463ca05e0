//! What the other nodes ask this node's buffer thread for.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::sync::{Arc, Weak};

use super::messages::{Draft, Drawn, Joined, Listed, Listing, Task};
use crate::buffer::SampleId;
use crate::rehearsal::buffer_thread::BufferThread;
use crate::rehearsal::journaled::JournaledBuffer;
use crate::rehearsal::notes::{Note, Notes};
use crate::rehearsal::views::{KeptSample, View};
use crate::rehearsal::{PATIENCE, answering, snapshots};
use crate::sync::Mutex;

pub(in crate::rehearsal) struct OwnBuffers {
    notes: Notes,
    /// Tells what was held in this mount from what was held in earlier ones.
    mount: u64,
    /// By number. `None` if the buffer is not shared with other nodes.
    names: Vec<Option<Arc<str>>>,
    /// The samples that this node told of last, by buffer and hash. A sample that has moved since is asked of the buffer
    /// thread.
    told: Mutex<HashMap<usize, HashMap<u64, Weak<KeptSample>>>>,
}

impl OwnBuffers {
    pub(super) fn new(notes: Notes, names: Vec<Option<Arc<str>>>) -> Self {
        let mount = RandomState::new().build_hasher().finish();
        OwnBuffers { notes, mount, names, told: Mutex::default() }
    }

    /// The number of a buffer that is shared.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| own.as_deref() == Some(name))
    }

    pub(super) fn is_shared(&self, buffer: usize) -> bool {
        self.names.get(buffer).is_some_and(Option::is_some)
    }

    pub(super) fn name(&self, buffer: usize) -> Arc<str> {
        self.names.get(buffer).cloned().flatten().unwrap_or_default()
    }

    /// Has the buffer thread do something, and waits for the result. None if it has ended, or does not answer.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut BufferThread) -> T + Send + 'static,
    ) -> Option<T> {
        let (ask, answered) = answering(what, || ());
        self.notes.send(Note::Ask { ask: Box::new(ask) }).ok()?;
        answered.recv_timeout(PATIENCE).ok()
    }

    /// The written samples of a buffer.
    pub(super) fn listed(&self, buffer: usize) -> Option<Vec<Listed>> {
        self.holdings(buffer, None)?.samples
    }

    /// The same for a node that knows what was held after so many changes.
    pub(super) fn holdings(&self, buffer: usize, known: Option<u64>) -> Option<Listing> {
        let mount = self.mount;
        let (changes, kept) = self.ask(move |thread| {
            thread.decide();
            let buffer = thread.buffers.get_mut(buffer)?.written();
            let changes = mount.wrapping_add(buffer.changes());
            Some((changes, (Some(changes) != known).then(|| written(buffer))))
        })??;
        let Some(kept) = kept else { return Some(Listing { changes, samples: None }) };
        let by_hash = kept.iter().map(|(_, sample)| (sample.hash, Arc::downgrade(sample)));
        self.told.lock().insert(buffer, by_hash.collect());
        let listed = kept.iter().filter_map(|(class, sample)| Listed::of(class, sample));
        Some(Listing { changes, samples: Some(listed.collect()) })
    }

    /// Reads a sample that this node keeps. Blocks.
    pub(super) fn read(&self, buffer: usize, hash: u64, checksum: u32) -> Option<Vec<u8>> {
        let told = self.told.lock().get(&buffer)?.get(&hash).and_then(Weak::upgrade);
        let sample = told.or_else(|| {
            self.ask(move |thread| thread.buffers.get(buffer)?.journaled.sample_of(hash))?
        })?;
        let pinned = sample.bytes.pinned().filter(|pinned| pinned.checksum() == checksum)?;
        let read = pinned.read();
        if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidData) {
            self.notes.try_send(Note::Damaged { buffer, sample: sample.id });
        }
        read.ok()
    }

    /// Counts that a sample was shown at another node.
    pub(super) fn count_replay(&self, buffer: usize, hash: u64) {
        self.notes.try_send(Note::ShownElsewhere { buffer, hash });
    }

    /// The task of a buffer.
    pub(super) fn task(&self, buffer: usize) -> Option<Task> {
        self.ask(move |thread| Some(thread.buffers.get(buffer)?.journaled.task_of_cluster()))?
    }

    /// Makes a view of the samples of all nodes, for a node with this task.
    pub(super) fn draft(
        &self,
        buffer: usize,
        view: View,
        task: Task,
        joined: Joined,
    ) -> Option<Drawn> {
        self.ask(move |thread| {
            let buffer = thread.buffers.get_mut(buffer)?.written();
            let own = buffer.task_of_cluster();
            Some(match view {
                _ if !view.is_mix() => Drawn::Draft(Draft::of_all(task, joined)),
                _ if own != task => Drawn::OtherTask,
                _ => {
                    let epoch = view.epoch_of_mix(buffer.task());
                    let draft =
                        snapshots::draft_of_mix(buffer, thread.paths.catalog(), epoch, joined);
                    draft.map_or_else(|errno| Drawn::Refused(errno as i32), Drawn::Draft)
                }
            })
        })?
    }
}

/// The written samples, with their classes.
fn written(buffer: &JournaledBuffer) -> Vec<(String, Arc<KeptSample>)> {
    let members = buffer.buffer().members();
    let kept = members.filter_map(|member| {
        let class = buffer.class_name(member.class).to_owned();
        Some((class, buffer.written_sample(member.sample)?))
    });
    kept.collect()
}

/// So many numbers of samples that are gone are kept at least.
const FORGOTTEN_LATE: usize = 1 << 12;

/// Numbers for samples of other nodes. This node's own ones count upwards, these downwards.
#[derive(Default)]
pub(super) struct Numbers {
    given: u32,
    of: HashMap<(usize, u64), SampleId>,
}

impl Numbers {
    pub(super) fn of(&mut self, buffer: usize, hash: u64) -> SampleId {
        let given = &mut self.given;
        *self.of.entry((buffer, hash)).or_insert_with(|| {
            *given += 1;
            SampleId(u32::MAX - *given)
        })
    }

    /// Forgets the numbers of a buffer's other samples, once these are many. A number is never given twice.
    pub(super) fn keep(&mut self, buffer: usize, joined: &[(u64, Listed)]) {
        if self.of.len() > 2 * joined.len() + FORGOTTEN_LATE {
            let there: HashSet<u64> = joined.iter().map(|(_, listed)| listed.hash).collect();
            self.of.retain(|(of, hash), _| *of != buffer || there.contains(hash));
        }
    }
}
