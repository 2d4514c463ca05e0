//! The history of the source: every state that each file has had, and which states may be read.
//!
//! Goal: whatever was done to a file, any bytes of it can be judged. Method: the code that changes a file
//! notes the time before and after. So each state has a time before which no reader can have seen it, and a
//! time after which the source does not have it. A descriptor is right if all bytes that it has read are of
//! one state that was permitted at the time. This module does not know what the source is and how it is
//! mounted.

pub(crate) mod content;
mod staleness;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Nanos;
pub(crate) use staleness::Staleness;

/// Size from which on a file may become stale though its bytes stay.
const LARGE: u64 = 1 << 20;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    /// Number of the content, from 1. The bytes follow from it.
    pub(crate) content: u16,
    /// In bytes.
    pub(crate) size: u64,
}

/// The state of a file in a span of time.
#[derive(Clone, Copy, Debug)]
struct State {
    /// What it held. `None`: there was no such file.
    body: Option<Body>,
    /// Whether it was being written. Then any shorter size is right, too.
    is_growing: bool,
    /// No reader has seen it before.
    from: Nanos,
    /// The source does not have it after this.
    until: Nanos,
}

/// A file of the source.
#[derive(Debug)]
pub(crate) struct File {
    /// Its path in the source.
    pub(crate) name: String,
    number: u16,
    states: Mutex<Vec<State>>,
}

/// All files of a source.
#[derive(Debug)]
pub(crate) struct History {
    /// By number.
    pub(crate) files: Vec<File>,
    /// How stale the mounts may be.
    pub(crate) staleness: Staleness,
}

/// What one descriptor has read.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Offsets and bytes.
    pub(crate) pieces: Vec<(u64, Vec<u8>)>,
    /// Where a read found no more bytes.
    pub(crate) ends: Vec<End>,
}

/// An end of the file that a read found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// Nothing was read at this offset.
    pub(crate) at: u64,
    /// Whether the byte before it was read, so that the file is not shorter either.
    pub(crate) is_exact: bool,
}

/// The states that were permitted during an operation.
#[derive(Clone, Debug)]
pub(crate) struct Permitted(Vec<State>);

impl File {
    /// A file that has been there since `from`.
    pub(crate) fn new(number: u16, name: String, body: Body, from: Nanos) -> Self {
        let state = State { body: Some(body), is_growing: false, from, until: Nanos::MAX };
        File { name, number, states: Mutex::new(vec![state]) }
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a body.
    pub(crate) fn bytes(&self, body: Body) -> Vec<u8> {
        content::bytes(self.number, body.content, 0, body.size as usize)
    }

    /// What the source has now.
    pub(crate) fn body(&self) -> Option<Body> {
        self.states().last().and_then(|state| state.body)
    }

    /// The number of a content that the file has not had yet.
    pub(crate) fn next_content(&self) -> u16 {
        let contents = |state: &State| state.body.map_or(0, |body| body.content);
        self.states().iter().map(contents).max().unwrap_or(0) + 1
    }

    /// Records a change from one body to another at once, which is over when `change` returns.
    pub(crate) fn replace<E>(
        &self,
        body: Option<Body>,
        clock: impl Fn() -> Nanos,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.states().push(State { body, is_growing: false, from: clock(), until: Nanos::MAX });
        let result = change();
        self.end_states(clock());
        result
    }

    /// Records a change in place: the file is empty first, then grows.
    pub(crate) fn rewrite<E>(
        &self,
        body: Body,
        clock: impl Fn() -> Nanos,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let from = clock();
        let state = |body: Body, is_growing| State {
            body: Some(body),
            is_growing,
            from,
            until: Nanos::MAX,
        };
        self.states().extend([state(body, true), state(body, false)]);
        let result = change();
        self.end_states(clock());
        result
    }

    /// Ends all states except the last.
    fn end_states(&self, now: Nanos) {
        let mut states = self.states();
        let ended = states.len() - 1;
        states[..ended].iter_mut().for_each(|state| state.until = state.until.min(now));
    }

    /// The states that an operation between the two times may see.
    pub(crate) fn permitted(&self, staleness: &Staleness, began: Nanos, ended: Nanos) -> Permitted {
        let may = |state: &&State| state.from <= ended && staleness.permits(state.until, began);
        Permitted(self.states().iter().filter(may).copied().collect())
    }

    /// Whether the file may be missing for ever, because it was missing when a mount last looked.
    pub(crate) fn may_stay_absent(&self, staleness: &Staleness) -> bool {
        let was_absent =
            |state: &State| state.body.is_none() && state.until >= staleness.mounted_at();
        !staleness.shows_changes() && self.states().iter().any(was_absent)
    }

    /// Only what the source has now.
    pub(crate) fn current(&self) -> Permitted {
        Permitted(self.states().last().into_iter().copied().collect())
    }

    /// Checks that the bytes are of one permitted state. The error tells what they are.
    pub(crate) fn check(&self, permitted: &Permitted, read: &Pieces) -> Result<(), String> {
        if permitted.0.iter().any(|state| self.agrees(state, read)) {
            return Ok(());
        }
        Err(format!(
            "{}: read {}, permitted are {}",
            self.name,
            self.describe(read),
            permitted.describe()
        ))
    }

    fn agrees(&self, state: &State, read: &Pieces) -> bool {
        let Some(body) = state.body else { return false };
        let may_end = |end: &End| match end.at {
            at if at == body.size => true,
            at if at < body.size => state.is_growing,
            _ => !end.is_exact,
        };
        read.ends.iter().all(may_end)
            && read.pieces.iter().all(|(offset, bytes)| {
                offset + bytes.len() as u64 <= body.size
                    && *bytes == content::bytes(self.number, body.content, *offset, bytes.len())
            })
    }

    /// The sequence of contents in what was read.
    fn describe(&self, read: &Pieces) -> String {
        const RUNS: usize = 8;
        let mut runs: Vec<String> = Vec::new();
        for (offset, bytes) in &read.pieces {
            let mut last = None;
            for at in (0..bytes.len()).step_by(8) {
                let place = offset + at as u64;
                let origin = content::origin(&bytes[at..], place);
                let is_here =
                    |origin: &content::Origin| u64::from(origin.word) == place.div_ceil(8);
                let kind = match origin {
                    Some(origin) if is_here(&origin) => {
                        (origin.file != self.number).then_some(origin.file).map_or_else(
                            || format!("content {}", origin.content),
                            |file| format!("content {} of file {file}", origin.content),
                        )
                    }
                    Some(_) if bytes[at..].iter().take(8).all(|byte| *byte == 0) => "zeros".into(),
                    Some(_) => "nothing known".into(),
                    None => continue,
                };
                if last.as_ref() != Some(&kind) {
                    runs.push(format!("{kind} from {place}"));
                    last = Some(kind);
                }
            }
            runs.push(format!("up to {}", offset + bytes.len() as u64));
        }
        let more = runs.len().saturating_sub(RUNS);
        runs.truncate(RUNS);
        let end: String =
            read.ends.iter().map(|end| format!(", end of file at {}", end.at)).collect();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        runs.join(", ") + &more + &end
    }
}

impl Pieces {
    /// Whether neither a byte nor an end was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.ends.is_empty()
    }

    /// How many bytes were read.
    pub(crate) fn length(&self) -> u64 {
        self.pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

impl Permitted {
    /// Whether the file may be missing.
    pub(crate) fn may_be_absent(&self) -> bool {
        self.0.iter().any(|state| state.body.is_none())
    }

    /// Whether it must be missing.
    pub(crate) fn must_be_absent(&self) -> bool {
        self.0.iter().all(|state| state.body.is_none())
    }

    /// Whether the file has changed so that a descriptor may be stale. A change of only times, links or
    /// attributes does not count, unless the file is so large that it may be read in parts or passed through.
    pub(crate) fn has_changed(&self) -> bool {
        let may_be_stale = |pair: &[State]| match [pair[0].body, pair[1].body] {
            [Some(was), Some(is)] if was == is => {
                is.size >= LARGE || pair.iter().any(|state| state.is_growing)
            }
            _ => true,
        };
        self.0.windows(2).any(may_be_stale)
    }

    /// Whether it may have this size.
    pub(crate) fn may_have_size(&self, size: u64) -> bool {
        let may = |state: &State| {
            let body = state.body;
            body.is_some_and(|body| size == body.size || state.is_growing && size <= body.size)
        };
        self.0.iter().any(may)
    }

    /// All permitted states, for people.
    pub(crate) fn describe(&self) -> String {
        let state = |state: &State| match state.body {
            None => "no file".to_owned(),
            Some(Body { content, size }) => {
                let most = if state.is_growing { "at most " } else { "" };
                format!("content {content} of {most}{size} bytes")
            }
        };
        self.0.iter().map(state).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests;
