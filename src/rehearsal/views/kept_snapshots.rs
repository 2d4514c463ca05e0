//! The snapshots that were made: how long each is kept, and under which name.
//!
//! A snapshot has an ID, which is a part of its nodes. It is kept while its name leads to it, and while it is
//! among the last eight of its kind that were looked at.
//!
//! When a task begins, the names of mixes lead to new snapshots, and so may those of streams. Readers of the
//! old ones can go on in them until a later task that was looked at ends, too.

use std::collections::HashMap;
use std::sync::Arc;

use nix::errno::Errno;

use super::node::Node;
use super::sample_stream::SampleStream;
use super::snapshot::STREAMS;
use super::{InvalidateName, ServedBuffer, Snapshot, Upcoming, View};
use crate::rehearsal::read_ahead::ReadAhead;
use crate::sync::Mutex;

/// How many snapshots of a kind and a buffer are kept. Open files of older ones can still be read.
const SNAPSHOTS_MAX: usize = 8;

struct KeptSnapshot {
    buffer: usize,
    view: View,
    /// None once it is given up.
    snapshot: Option<Arc<Snapshot>>,
    /// Gives out the ordinals, if this is a stream.
    stream: Option<Arc<SampleStream>>,
    /// Whether a reader has looked at it.
    seen: bool,
    /// Whether a task has begun since, so that no name leads to it.
    ended: bool,
    /// When it was last looked at, counted in [`State::looks`].
    looked: u64,
}

#[derive(Default)]
struct State {
    looks: u64,
    /// The index is the ID.
    all: Vec<KeptSnapshot>,
    /// The ID of each view of a buffer.
    ids: HashMap<(usize, View), usize>,
    /// Names that lead to other snapshots than before, with the nodes of their directories.
    stale_names: Vec<(u64, String)>,
}

pub struct KeptSnapshots {
    /// The seed of each buffer, for its streams.
    seeds: Vec<u64>,
    state: Mutex<State>,
    invalidate: Mutex<Option<InvalidateName>>,
    ahead: Arc<ReadAhead>,
}

/// Streams that have ended, with the IDs of their snapshots.
type EndedStreams = Vec<(usize, Arc<SampleStream>)>;

impl KeptSnapshot {
    /// Frees the snapshot. Returns its stream, which must be ended.
    fn give_up(&mut self) -> Option<Arc<SampleStream>> {
        self.snapshot = None;
        self.stream.take()
    }
}

impl State {
    /// Keeps a snapshot, and returns its ID. An earlier snapshot of the view stays. None if its files cannot
    /// all have nodes.
    fn insert(&mut self, new: KeptSnapshot) -> Option<usize> {
        self.looks += 1;
        let id = self.ids.get(&(new.buffer, new.view)).copied().unwrap_or(self.all.len());
        match self.all.get_mut(id) {
            // It may have been frozen while it was made for a reader.
            Some(kept) => kept.seen |= new.seen,
            None => {
                new.snapshot.as_ref().filter(|snapshot| snapshot.has_nodes(id))?;
                self.ids.insert((new.buffer, new.view), id);
                self.all.push(KeptSnapshot { looked: self.looks, ..new });
            }
        }
        Some(id)
    }

    /// A reader looks at a snapshot.
    fn look(&mut self, id: usize) -> Option<&KeptSnapshot> {
        self.looks += 1;
        let kept = self.all.get_mut(id)?;
        (kept.seen, kept.looked) = (true, self.looks);
        Some(kept)
    }

    /// Gives up the snapshots of this kind that were looked at longest ago, if there are too many.
    fn give_up_oldest(&mut self, buffer: usize, view: View) -> EndedStreams {
        let own = |kept: &KeptSnapshot| {
            kept.buffer == buffer && kept.view.is_like(view) && kept.snapshot.is_some()
        };
        let mut ended = EndedStreams::new();
        while self.all.iter().filter(|kept| own(kept)).count() > SNAPSHOTS_MAX {
            let kept = self.all.iter_mut().enumerate().filter(|(_, kept)| own(kept));
            let Some((id, oldest)) = kept.min_by_key(|(_, kept)| kept.looked) else { break };
            ended.extend(oldest.give_up().map(|stream| (id, stream)));
            // The name of a mix may have a new snapshot.
            self.ids.retain(|_, of| *of != id);
        }
        ended
    }

    /// Ends snapshots that lose their names. If one of them was looked at, those that ended earlier are given
    /// up. Those that were never looked at are given up at once.
    fn end(&mut self, buffer: usize, ending: &[usize]) -> EndedStreams {
        let is_seen = ending.iter().any(|id| self.all.get(*id).is_some_and(|kept| kept.seen));
        let before = |kept: &KeptSnapshot| is_seen && kept.buffer == buffer && kept.ended;
        let before = self.all.iter_mut().enumerate().filter(|(_, kept)| before(kept));
        let given_up = before.filter_map(|(id, kept)| Some((id, kept.give_up()?)));
        let mut ended: EndedStreams = given_up.collect();
        for id in ending {
            if let Some(kept) = self.all.get_mut(*id) {
                kept.ended = true;
                if !kept.seen {
                    ended.extend(kept.give_up().map(|stream| (*id, stream)));
                }
            }
        }
        ended
    }
}

impl KeptSnapshots {
    pub(super) fn new(buffers: &[ServedBuffer], ahead: Arc<ReadAhead>) -> Self {
        let seeds = buffers.iter().map(|buffer| buffer.seed).collect();
        let (state, invalidate) = Default::default();
        KeptSnapshots { seeds, state, invalidate, ahead }
    }

    /// A snapshot and its buffer, for a reader.
    ///
    /// # Errors
    /// `ESTALE` if it was given up.
    pub(super) fn get(&self, id: usize) -> Result<(usize, Arc<Snapshot>), Errno> {
        let mut state = self.state.lock();
        let kept = state.look(id).ok_or(Errno::ENOENT)?;
        Ok((kept.buffer, kept.snapshot.clone().ok_or(Errno::ESTALE)?))
    }

    pub(super) fn stream(&self, id: usize) -> Option<Arc<SampleStream>> {
        self.state.lock().all.get(id)?.stream.clone()
    }

    /// The ID of a view's snapshot, if it is kept.
    pub(super) fn id(&self, buffer: usize, view: View) -> Option<usize> {
        self.state.lock().ids.get(&(buffer, view)).copied()
    }

    /// The same for a lookup, which counts as a look.
    pub(super) fn look_up(&self, buffer: usize, view: View) -> Option<usize> {
        let mut state = self.state.lock();
        let id = state.ids.get(&(buffer, view)).copied();
        id.filter(|id| state.look(*id).is_some())
    }

    /// The names of a buffer's views, with the IDs of their snapshots.
    pub(super) fn names(&self, buffer: usize) -> Vec<(String, usize)> {
        let state = self.state.lock();
        let own = state.ids.iter().filter(|((of, _), _)| *of == buffer);
        own.map(|((_, view), id)| (view.name(), *id)).collect()
    }

    /// The snapshot of a view, for a reader, if it is kept.
    pub fn of_view(&self, buffer: usize, view: View) -> Option<Arc<Snapshot>> {
        Some(self.get(self.id(buffer, view)?).ok()?.1)
    }

    /// Whether a reader has looked at the view: then it does not change.
    pub fn is_seen(&self, buffer: usize, view: View) -> bool {
        let state = self.state.lock();
        let id = state.ids.get(&(buffer, view));
        id.and_then(|id| state.all.get(*id)).is_some_and(|kept| kept.seen)
    }

    /// Keeps a snapshot for a reader, and returns its ID. An earlier snapshot of the view stays.
    ///
    /// # Errors
    /// `EOVERFLOW` if its files cannot all have nodes. The log says so.
    pub fn keep(&self, buffer: usize, view: View, snapshot: Snapshot) -> Result<usize, Errno> {
        self.keep_as(buffer, view, snapshot, true)
    }

    fn keep_as(
        &self,
        buffer: usize,
        view: View,
        snapshot: Snapshot,
        seen: bool,
    ) -> Result<usize, Errno> {
        let snapshot = Arc::new(snapshot);
        let stream = self.seeds.get(buffer).and_then(|seed| match view {
            View::Stream(epoch) => Some(Arc::new(SampleStream::new(*seed, epoch, &snapshot))),
            _ => None,
        });
        let (snapshot, ended, looked) = (Some(snapshot), false, 0);
        let new = KeptSnapshot { buffer, view, snapshot, stream, seen, ended, looked };
        let (id, ended) = {
            let mut state = self.state.lock();
            (state.insert(new), state.give_up_oldest(buffer, view))
        };
        self.end_streams(ended);
        let Some(id) = id else {
            let view = view.name();
            tracing::warn!(view, "too many classes or files, or too many views in this mount");
            return Err(Errno::EOVERFLOW);
        };
        self.read_ahead_of_stream(id);
        Ok(id)
    }

    /// Keeps a snapshot that no reader has looked at, in place of an earlier such one.
    pub fn freeze(&self, buffer: usize, view: View, snapshot: Snapshot) {
        {
            let State { all, ids, .. } = &mut *self.state.lock();
            for (id, kept) in all.iter_mut().enumerate() {
                if kept.buffer == buffer && !kept.seen && kept.snapshot.is_some() {
                    kept.snapshot = None;
                    ids.retain(|_, of| *of != id);
                }
            }
        }
        let _ = self.keep_as(buffer, view, snapshot, false);
    }

    /// Begins a task. Names of mixes lead to new snapshots, as do those of epochs that no reader has looked
    /// at. Names of streams do so if the task `is_other` than the one before. Snapshots of the last task that
    /// was looked at stay readable, and older ones do not.
    pub fn begin_task(&self, buffer: usize, is_other: bool) {
        let ended = {
            let mut state = self.state.lock();
            let State { all, ids, stale_names, .. } = &mut *state;
            let mut ending = Vec::new();
            ids.retain(|(of, view), id| {
                let stays = match view {
                    View::Mix(_) | View::TaskMix => false,
                    View::Epoch(_) => all.get(*id).is_some_and(|kept| kept.seen),
                    View::Stream(_) => !is_other,
                    View::Sleep(_) => true,
                };
                if *of != buffer || stays {
                    return true;
                }
                let name = view.name();
                stale_names.push(match name.strip_prefix(STREAMS) {
                    Some(epoch) => (Node::Streams(buffer).number(), epoch.to_owned()),
                    None => (Node::Buffer(buffer).number(), name),
                });
                ending.push(*id);
                false
            });
            state.end(buffer, &ending)
        };
        self.end_streams(ended);
    }

    /// Ends streams. This waits for threads that list one, so the lock of all snapshots is not held.
    fn end_streams(&self, ended: EndedStreams) {
        for (id, stream) in ended {
            stream.end();
            self.ahead.forget(Node::Snapshot(id).number());
        }
    }

    /// Has the next samples of a stream read ahead, if the snapshot is a stream's.
    pub(super) fn read_ahead_of_stream(&self, id: usize) {
        if let Some(stream) = self.stream(id) {
            let (directory, next) = (Node::Snapshot(id).number(), stream.upcoming());
            self.ahead.read(&Upcoming { directory, next });
        }
    }

    /// Sets how names are looked up again. The last call counts.
    pub fn set_invalidate(&self, invalidate: InvalidateName) {
        *self.invalidate.lock() = Some(invalidate);
    }

    /// Has names looked up again that lead to other snapshots. A lookup may wait for the buffer thread, and
    /// this waits for it: neither the buffer thread nor a request thread may call it.
    pub fn invalidate_names(&self) {
        let stale = std::mem::take(&mut self.state.lock().stale_names);
        let invalidate = self.invalidate.lock().clone();
        if let Some(invalidate) = invalidate {
            stale.iter().for_each(|(directory, name)| invalidate(*directory, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::{CLASSES_MAX, IDS_MAX};
    use super::*;

    fn kept(view: View, classes: usize) -> KeptSnapshot {
        let classes = vec![(String::new(), Vec::new()); classes];
        let snapshot = Some(Arc::new(Snapshot { classes, bindings: None }));
        let (stream, seen, ended, looked) = (None, true, false, 0);
        KeptSnapshot { buffer: 0, view, snapshot, stream, seen, ended, looked }
    }

    /// Without this, nodes of one snapshot would be those of another one.
    #[test]
    fn a_snapshot_whose_nodes_have_no_numbers_is_not_kept() {
        let mut state = State::default();
        assert_eq!(state.insert(kept(View::Epoch(0), CLASSES_MAX)), Some(0));
        assert_eq!(state.insert(kept(View::Epoch(1), CLASSES_MAX + 1)), None);
        let given_up = || KeptSnapshot { snapshot: None, ..kept(View::TaskMix, 0) };
        state.all.resize_with(IDS_MAX - 1, given_up);
        assert_eq!(state.insert(kept(View::Epoch(2), 0)), Some(IDS_MAX - 1));
        assert_eq!(state.insert(kept(View::Epoch(3), 0)), None);
        assert_eq!(state.insert(kept(View::Epoch(2), 0)), Some(IDS_MAX - 1));
    }
}
