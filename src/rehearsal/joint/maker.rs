//! Makes views of the buffers of all nodes.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use lru::LruCache;
use nix::libc::EIO;

use super::asking::{begin, wait};
use super::messages::{Drawn, Joined, Listed, Listing, Question, Task, parse};
use super::own_buffers::OwnBuffers;
use crate::buffer::join;
use crate::peers::Wants;
use crate::rehearsal::views::View;
use crate::sync::Mutex;

/// How long a node may take to say what it holds. One that does not is left out.
const HOLDINGS_WAIT: Duration = Duration::from_secs(5);

/// How many views are remembered for nodes that look at them later.
const DRAWN_MAX: NonZeroUsize = NonZeroUsize::new(8).expect("more than none");

/// A view. What it shows depends on the task if it is a mix.
type ViewOfTask = (usize, View, Option<Task>);

/// What a node's buffer held after so many changes.
type Known = (u64, Vec<Listed>);

pub(super) struct Maker {
    own: Arc<OwnBuffers>,
    wants: Weak<dyn Wants>,
    /// The last answers of other nodes, by node and buffer.
    known: Mutex<HashMap<(u64, usize), Known>>,
    drawn: Mutex<LruCache<ViewOfTask, Arc<OnceLock<Drawn>>>>,
}

impl Maker {
    pub(super) fn new(own: Arc<OwnBuffers>, wants: Weak<dyn Wants>) -> Self {
        Maker { own, wants, known: Mutex::default(), drawn: Mutex::new(LruCache::new(DRAWN_MAX)) }
    }

    /// What all nodes hold. Blocks.
    pub(super) fn joined(&self, buffer: usize) -> Joined {
        let members = self.wants.upgrade().and_then(|wants| wants.members());
        let (own, members) = members.unwrap_or_default();
        self.known.lock().retain(|(member, _), _| members.contains(member));
        let others = members.into_iter().filter(|member| *member != own);
        let asked: Vec<_> = others.map(|member| (member, self.ask(member, buffer))).collect();
        let begun = Instant::now();
        let mut held = self.own.listed(buffer).unwrap_or_default();
        // The others leave the same samples out.
        held.retain(Listed::can_be_shown);
        let mut parts = vec![(own, held)];
        for (member, answer) in asked {
            let left = HOLDINGS_WAIT.saturating_sub(begun.elapsed());
            match wait(&answer, left).and_then(|text| self.take(member, buffer, &text)) {
                Some(samples) => parts.push((member, samples)),
                None => tracing::warn!(
                    member = format!("{member:016x}"),
                    "a node does not say what its rehearsal buffer holds, and is left out"
                ),
            }
        }
        Joined { nodes: parts.len(), samples: join(parts, |listed| listed.hash) }
    }

    fn ask(&self, member: u64, buffer: usize) -> Receiver<Option<Vec<u8>>> {
        let known = self.known.lock().get(&(member, buffer)).map(|(changes, _)| *changes);
        let question = Question::Holds { buffer: self.own.name(buffer).to_string(), known };
        begin(&self.wants, member, &question, HOLDINGS_WAIT)
    }

    /// Takes what a node holds. Samples that no view can show are left out.
    fn take(&self, member: u64, buffer: usize, text: &[u8]) -> Option<Vec<Listed>> {
        let Listing { changes, samples } = parse(text)?;
        let mut known = self.known.lock();
        match samples {
            Some(mut samples) => {
                samples.retain(Listed::can_be_shown);
                known.insert((member, buffer), (changes, samples.clone()));
                Some(samples)
            }
            None => {
                let (of, samples) = known.get(&(member, buffer))?;
                (*of == changes).then(|| samples.clone())
            }
        }
    }

    /// The samples of a view, the same at each call. Blocks. If another thread makes them, this waits for it.
    pub(super) fn draw(&self, buffer: usize, view: View, task: Task) -> Drawn {
        // It need not ask the others for a mix that it cannot make yet.
        if view.is_mix() && self.own.task(buffer) != Some(task) {
            return Drawn::OtherTask;
        }
        let of = (buffer, view, view.is_mix().then_some(task));
        let cell = Arc::clone(self.drawn.lock().get_or_insert(of, Arc::default));
        let drawn = cell.get_or_init(|| {
            let joined = self.joined(buffer);
            self.own.draft(buffer, view, task, joined).unwrap_or(Drawn::Refused(EIO))
        });
        if !matches!(drawn, Drawn::Draft(_)) {
            // It may be made later.
            let mut all = self.drawn.lock();
            if all.peek(&of).is_some_and(|kept| Arc::ptr_eq(kept, &cell)) {
                all.pop(&of);
            }
        }
        drawn.clone()
    }
}
