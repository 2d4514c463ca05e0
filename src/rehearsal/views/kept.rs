//! The displays that were made: how long each is kept, and under which name.
//!
//! A display has a slot in a list, whose index is a part of its nodes. (It has nothing to do with the view
//! `slots/`.) It stays there while its name leads to it, and while it is among the last eight of its kind
//! that were looked at.
//!
//! When a task begins, the names of mixes lead to new displays, and so may those of streams. Readers of the
//! old ones can go on in them until a later task that was looked at ends, too.

use std::collections::HashMap;
use std::sync::Arc;

use nix::errno::Errno;

use super::display::STREAMS;
use super::place::Place;
use super::streams::{self, Stream};
use super::{Display, Lapse, Upcoming, View, Views};

/// How many displays of a kind and a buffer are kept. Open files of older ones can still be read.
const DISPLAYS_MAX: usize = 8;

pub(super) struct Slot {
    pub(super) buffer: usize,
    view: View,
    /// None once it is given up.
    display: Option<Arc<Display>>,
    /// Gives out the ordinals, if this is a stream.
    stream: Option<Arc<Stream>>,
    /// Whether a reader has looked at it.
    seen: bool,
    /// Whether a task has begun since, so that no name leads to it.
    ended: bool,
    /// When it was last looked at, counted in [`State::looks`].
    looked: u64,
}

#[derive(Default)]
pub(super) struct State {
    looks: u64,
    pub(super) slots: Vec<Slot>,
    /// The slot of each view of a buffer.
    pub(super) places: HashMap<(usize, View), usize>,
    /// Names that lead to other displays than before, with the nodes of their directories.
    lapsed: Vec<(u64, String)>,
}

impl Slot {
    /// Frees the display. Returns its stream, which must be ended.
    fn give_up(&mut self) -> Option<Arc<Stream>> {
        self.display = None;
        self.stream.take()
    }
}

impl State {
    /// A reader looks at a display.
    pub(super) fn look(&mut self, slot: usize) -> Option<&Slot> {
        self.looks += 1;
        let slot = self.slots.get_mut(slot)?;
        (slot.seen, slot.looked) = (true, self.looks);
        Some(slot)
    }
}

/// Streams that are over, with their slots.
type Over = Vec<(usize, Arc<Stream>)>;

/// Ends displays that lose their names. If one of them was looked at, those that ended earlier are given up.
/// Those that were never looked at are given up at once. Returns the streams among those that are given up.
fn end(slots: &mut [Slot], buffer: usize, ending: &[usize]) -> Over {
    let is_seen = ending.iter().any(|at| slots.get(*at).is_some_and(|slot| slot.seen));
    let before = |slot: &Slot| is_seen && slot.buffer == buffer && slot.ended;
    let before = slots.iter_mut().enumerate().filter(|(_, slot)| before(slot));
    let mut over: Over = before.filter_map(|(at, slot)| Some((at, slot.give_up()?))).collect();
    for at in ending {
        if let Some(slot) = slots.get_mut(*at) {
            slot.ended = true;
            if !slot.seen {
                over.extend(slot.give_up().map(|stream| (*at, stream)));
            }
        }
    }
    over
}

impl Views {
    /// The display of a slot, for a reader.
    ///
    /// # Errors
    /// `ESTALE` if it was given up.
    pub(super) fn display(&self, slot: usize) -> Result<Arc<Display>, Errno> {
        let mut state = self.state.lock();
        let slot = state.look(slot).ok_or(Errno::ENOENT)?;
        slot.display.clone().ok_or(Errno::ESTALE)
    }

    pub(super) fn stream(&self, slot: usize) -> Option<Arc<Stream>> {
        self.state.lock().slots.get(slot)?.stream.clone()
    }

    /// Keeps a display for a reader, and returns its slot. An earlier display of the view stays.
    pub fn keep(&self, buffer: usize, view: View, display: Display) -> usize {
        self.keep_as(buffer, view, display, true)
    }

    fn keep_as(&self, buffer: usize, view: View, display: Display, seen: bool) -> usize {
        let display = Arc::new(display);
        let stream = self.buffers.get(buffer).and_then(|of| match view {
            View::Stream(epoch) => Some(Arc::new(Stream::new(of.seed, epoch, &display))),
            _ => None,
        });
        let mut state = self.state.lock();
        state.looks += 1;
        let State { slots, places, looks, .. } = &mut *state;
        let slot = *places.entry((buffer, view)).or_insert(slots.len());
        match slots.get_mut(slot) {
            // It may have been frozen while it was made for a reader.
            Some(there) => there.seen |= seen,
            None => {
                let (display, looked) = (Some(display), *looks);
                let ended = false;
                slots.push(Slot { buffer, view, display, stream, seen, ended, looked });
            }
        }
        let own = |slot: &Slot| {
            slot.buffer == buffer && slot.view.is_like(view) && slot.display.is_some()
        };
        let mut over = Over::new();
        while slots.iter().filter(|slot| own(slot)).count() > DISPLAYS_MAX {
            let kept = (0..slots.len()).filter(|at| own(&slots[*at]));
            let Some(oldest) = kept.min_by_key(|at| slots[*at].looked) else { break };
            over.extend(slots[oldest].give_up().map(|stream| (oldest, stream)));
            // The name of a mix may have a new display.
            places.retain(|_, place| *place != oldest);
        }
        drop(state);
        self.tell_over(over);
        self.tell_stream(slot);
        slot
    }

    /// Ends streams. This waits for threads that list one, so the lock of all displays is not held.
    fn tell_over(&self, over: Over) {
        for (slot, stream) in over {
            stream.end();
            self.ahead.end(streams::shown_by(slot));
        }
    }

    /// Has the next samples of a stream read ahead, if the display is a stream's.
    pub(super) fn tell_stream(&self, slot: usize) {
        let stream = self.state.lock().slots.get(slot).and_then(|of| of.stream.clone());
        if let Some(stream) = stream {
            let (by, next) = (streams::shown_by(slot), stream.upcoming());
            self.ahead.read(&Upcoming { by, next });
        }
    }

    /// The display of a view, for a reader, if it is kept.
    pub fn kept(&self, buffer: usize, view: View) -> Option<Arc<Display>> {
        let slot = self.state.lock().places.get(&(buffer, view)).copied()?;
        self.display(slot).ok()
    }

    /// Whether a reader has looked at the view: then it does not change.
    pub fn is_seen(&self, buffer: usize, view: View) -> bool {
        let state = self.state.lock();
        let slot = state.places.get(&(buffer, view));
        slot.and_then(|slot| state.slots.get(*slot)).is_some_and(|slot| slot.seen)
    }

    /// Keeps a display that no reader has looked at, in place of an earlier such one.
    pub fn freeze(&self, buffer: usize, view: View, display: Display) {
        {
            let State { slots, places, .. } = &mut *self.state.lock();
            for (at, slot) in slots.iter_mut().enumerate() {
                if slot.buffer == buffer && !slot.seen && slot.display.is_some() {
                    slot.display = None;
                    places.retain(|_, place| *place != at);
                }
            }
        }
        self.keep_as(buffer, view, display, false);
    }

    /// Begins a task. Names of mixes lead to new displays, as do those of epochs that no reader has looked
    /// at. Names of streams do so if the task `is_other` than the one before. Displays of the last task that
    /// was looked at stay readable, and older ones do not.
    pub fn begin_task(&self, buffer: usize, is_other: bool) {
        let over = {
            let State { slots, places, lapsed, .. } = &mut *self.state.lock();
            let mut ending = Vec::new();
            places.retain(|(of, view), slot| {
                let stays = match view {
                    View::Mix(_) | View::TaskMix => false,
                    View::Epoch(_) => slots.get(*slot).is_some_and(|slot| slot.seen),
                    View::Stream(_) => !is_other,
                    View::Sleep(_) => true,
                };
                if *of != buffer || stays {
                    return true;
                }
                let name = view.name();
                lapsed.push(match name.strip_prefix(STREAMS) {
                    Some(epoch) => (Place::Streams(buffer).node(), epoch.to_owned()),
                    None => (Place::Buffer(buffer).node(), name),
                });
                ending.push(*slot);
                false
            });
            end(slots, buffer, &ending)
        };
        self.tell_over(over);
    }

    /// Sets how names are looked up again. The last call counts.
    pub fn lapse_by(&self, lapse: Lapse) {
        *self.lapse.lock() = Some(lapse);
    }

    /// Has names looked up again that lead to other displays. A lookup may wait for the owner, and this waits
    /// for it: neither the owner nor a request thread may call it.
    pub fn lapse(&self) {
        let lapsed = std::mem::take(&mut self.state.lock().lapsed);
        let lapse = self.lapse.lock().clone();
        if let Some(lapse) = lapse {
            lapsed.iter().for_each(|(directory, name)| lapse(*directory, name));
        }
    }
}
