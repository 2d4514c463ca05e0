//! Displays that were made: how long each is kept, and under which name.
//!
//! A display stays in its slot as long as its name leads to it and it is among the last of its kind that
//! were looked at. The names of mixes, and of streams perhaps, stand for others when a task begins:
//! whoever is in the middle of those of the task before goes on, until it is the task before the last.

use std::collections::HashMap;
use std::sync::Arc;

use nix::errno::Errno;

use super::display::STREAMS;
use super::place::Place;
use super::streams::{self, Stream};
use super::{Display, Lapse, Upcoming, View, Views};

/// Displays of a kind and a buffer that are kept; of older ones files that are open can still be read.
const DISPLAYS_MAX: usize = 8;

/// A display that was made.
pub(super) struct Slot {
    pub(super) buffer: usize,
    view: View,
    /// None once it is over.
    display: Option<Arc<Display>>,
    /// What gives ordinals to its samples, where it is a stream.
    stream: Option<Arc<Stream>>,
    /// Whether somebody has looked at it.
    seen: bool,
    /// Whether a task has begun since, so that no name leads to it.
    ended: bool,
    /// When it was looked at last, in looks at all of them.
    looked: u64,
}

/// All of them.
#[derive(Default)]
pub(super) struct State {
    looks: u64,
    pub(super) slots: Vec<Slot>,
    /// By buffer and view.
    pub(super) places: HashMap<(usize, View), usize>,
    /// Names that stand for other displays from now on, in the directories of their buffers.
    lapsed: Vec<(u64, String)>,
}

impl Slot {
    /// Shows nothing any more. Gives the stream that it was, which is to be ended.
    fn give_up(&mut self) -> Option<Arc<Stream>> {
        self.display = None;
        self.stream.take()
    }
}

impl State {
    /// Somebody looks at a display.
    pub(super) fn look(&mut self, slot: usize) -> Option<&Slot> {
        self.looks += 1;
        let slot = self.slots.get_mut(slot)?;
        (slot.seen, slot.looked) = (true, self.looks);
        Some(slot)
    }
}

/// Streams that are over, by their slots.
type Over = Vec<(usize, Arc<Stream>)>;

/// Ends what no name leads to any more. If somebody has looked at it, what ended before that is given
/// up; so is what nobody has looked at. Gives the streams among it.
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
    /// The display of a slot, at which somebody looks.
    ///
    /// # Errors
    /// `ESTALE` where it is over.
    pub(super) fn display(&self, slot: usize) -> Result<Arc<Display>, Errno> {
        let mut state = self.state.lock();
        let slot = state.look(slot).ok_or(Errno::ENOENT)?;
        slot.display.clone().ok_or(Errno::ESTALE)
    }

    /// What gives ordinals to the samples of a display, where it is a stream.
    pub(super) fn stream(&self, slot: usize) -> Option<Arc<Stream>> {
        self.state.lock().slots.get(slot)?.stream.clone()
    }

    /// Keeps a display, unless there is one, and says its place.
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
            // It may have been frozen while it was made for who looks at it.
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
            // A mix may have a successor of its name.
            places.retain(|_, place| *place != oldest);
        }
        drop(state);
        self.tell_over(over);
        self.tell_stream(slot);
        slot
    }

    /// Ends these streams. Waits for who lists one, so not under the lock of all.
    fn tell_over(&self, over: Over) {
        for (slot, stream) in over {
            stream.end();
            self.ahead.end(streams::shown_by(slot));
        }
    }

    /// Has what a stream shows next read ahead, if the display is a stream's.
    pub(super) fn tell_stream(&self, slot: usize) {
        let stream = self.state.lock().slots.get(slot).and_then(|of| of.stream.clone());
        if let Some(stream) = stream {
            let (by, next) = (streams::shown_by(slot), stream.upcoming());
            self.ahead.read(&Upcoming { by, next });
        }
    }

    /// A display that is kept, for whoever looks at it.
    pub fn kept(&self, buffer: usize, view: View) -> Option<Arc<Display>> {
        let slot = self.state.lock().places.get(&(buffer, view)).copied()?;
        self.display(slot).ok()
    }

    /// Whether there is such a display and somebody has looked at it: it stays what it is.
    pub fn is_seen(&self, buffer: usize, view: View) -> bool {
        let state = self.state.lock();
        let slot = state.places.get(&(buffer, view));
        slot.and_then(|slot| state.slots.get(*slot)).is_some_and(|slot| slot.seen)
    }

    /// Keeps a display that nobody has asked for yet, in place of another one that nobody has.
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

    /// A task has begun: its mixes are others, as are epochs that nobody has looked at. Streams are others
    /// where it `is_other` than the one before. What is open of them can still be read, but for that of
    /// a task before the last one that was looked at.
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

    /// Has names that lapse looked up again like this. The last one counts.
    pub fn lapse_by(&self, lapse: Lapse) {
        *self.lapse.lock() = Some(lapse);
    }

    /// Has names looked up again that stand for others than before. Blocks where such a lookup waits
    /// for the owner of the buffers: never call it from there, nor from a request thread.
    pub fn lapse(&self) {
        let lapsed = std::mem::take(&mut self.state.lock().lapsed);
        let lapse = self.lapse.lock().clone();
        if let Some(lapse) = lapse {
            lapsed.iter().for_each(|(directory, name)| lapse(*directory, name));
        }
    }
}
