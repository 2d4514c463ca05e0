//! The blocks that this node's disk holds for the cluster, if the shards of all nodes cannot hold all.
//!
//! 1. A block that a member gives to this node's shard is copied to the disk ([`Event::Given`]), if it has its home here
//!    and the disk has room.
//! 2. When the shard gets full, blocks leave it that the disk has. A mark stays in the place of each.
//! 3. A member that finds the mark asks for the block. It is read from the disk and lent to the shard for a moment.
//! 4. A mark of a block that the disk does not have is removed, at the latest when somebody asks for the block.
//!
//! Notes of members may be lost, and members may store other blocks. So what the shard has is listed now and then, and at
//! once when homes change or the shard is full ([`Draining::list`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Core;
use crate::cache::{Lending, Lent};
use crate::cluster::BESIDE_DISK;
use crate::disk::DiskState;
use crate::ids::BlockId;
use crate::peers::{Key, Listed, Note, Shards};
use crate::plan::Event;
use crate::sync::{Condvar, Mutex, lower_priority};

/// How long the thread waits for notes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Notes that wait at most.
const NOTES_MOST: usize = 1 << 16;

/// Blocks that are lent at once: their bytes are in memory.
const LENT_AT_ONCE: usize = 8;

/// How long a block that was lent stays in the shard, so that whoever asked for it finds it.
const LENT_FOR: Duration = Duration::from_millis(200);

/// Blocks leave the shard when they take this part of its room, until they take [`BESIDE_DISK`] of it.
const FULL: (u64, u64) = (13, 16);

/// Blocks that are looked at when some are to leave the shard, and the pause if none could.
const LOOKED_AT: usize = 1 << 12;
const REST: Duration = Duration::from_secs(1);

/// How often the shard is listed, and how often while it is full. Either is at least this multiple of the time that it takes.
const LIST_EVERY: Duration = Duration::from_secs(30);
const LIST_FULL_EVERY: Duration = Duration::from_secs(2);
const LIST_REST: u32 = 20;

/// A block that members may ask this node for.
#[derive(Clone, Copy)]
pub(super) struct OwnBlock {
    pub(super) block: BlockId,
    /// Whether it has its home here. Else it had before.
    pub(super) is_at_home: bool,
}

/// The blocks that members may ask this node for.
pub(super) struct OwnBlocks {
    pub(super) blocks: HashMap<Key, OwnBlock>,
    /// Bytes of blocks that the shard holds at most.
    pub(super) room: u64,
}

/// What the thread is told.
#[derive(Default)]
struct Inbox {
    /// What members may ask for has changed; `Some(None)` if they ask for nothing any more.
    own: Option<Option<OwnBlocks>>,
    notes: Vec<Note>,
    /// Blocks that were to be lent, and what has come of it.
    lent: Vec<(Key, Lent)>,
}

/// Tells the thread what the disk is to hold.
pub(super) struct Drain(Arc<Shared>);

#[derive(Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    news: Condvar,
}

impl Shared {
    fn tell(&self, tell: impl FnOnce(&mut Inbox)) {
        tell(&mut self.inbox.lock());
        self.news.notify_one();
    }
}

impl Drain {
    /// Starts the thread. It ends with the engine.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(
        core: Arc<Core>,
        shards: Arc<dyn Shards>,
        nice: u32,
    ) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let noted = Arc::clone(&shared);
        shards.take_notes(Box::new(move |note| {
            noted.tell(|inbox| {
                if inbox.notes.len() < NOTES_MOST {
                    inbox.notes.push(note);
                }
            });
        }));
        let drain = Drain(Arc::clone(&shared));
        let run = move || {
            lower_priority(nice);
            let mut draining = Draining::new(core, shards, shared);
            while !draining.core.stop.is_set() {
                draining.look();
            }
        };
        thread::Builder::new().name("belady-drain".into()).spawn(run)?;
        Ok(drain)
    }

    /// From now on members may ask for these blocks. `None`: for none.
    pub(super) fn set_own(&self, own: Option<OwnBlocks>) {
        self.0.tell(|inbox| inbox.own = Some(own));
    }
}

struct Draining {
    core: Arc<Core>,
    shards: Arc<dyn Shards>,
    shared: Arc<Shared>,
    own: Option<OwnBlocks>,
    held: Held,
    /// Blocks that somebody has asked for, as long as they are not lent.
    asked: HashSet<Key>,
    /// Of these, those that wait, and how many are being read.
    waiting: VecDeque<Key>,
    reading: usize,
    /// When the shard was listed last, how long that took, and whether it is to be listed at once.
    listed: Instant,
    took: Duration,
    is_due: bool,
    /// Until when nothing can leave the shard.
    rests_until: Instant,
}

impl Draining {
    fn new(core: Arc<Core>, shards: Arc<dyn Shards>, shared: Arc<Shared>) -> Self {
        Draining {
            core,
            shards,
            shared,
            own: None,
            held: Held::default(),
            asked: HashSet::new(),
            waiting: VecDeque::new(),
            reading: 0,
            listed: Instant::now(),
            took: Duration::ZERO,
            is_due: false,
            rests_until: Instant::now(),
        }
    }

    /// Does what the thread has been told.
    fn look(&mut self) {
        let Inbox { own, notes, lent } = self.wait();
        if let Some(own) = own {
            (self.own, self.is_due) = (own, true);
        }
        lent.into_iter().for_each(|(key, lent)| self.lent(key, lent));
        let (mut given, mut asked) = (Vec::new(), Vec::new());
        for note in notes {
            match note {
                Note::Given(key) => given.push(key),
                Note::Asked(key) => asked.push(key),
            }
        }
        self.given(given);
        self.asked(asked);
        self.lend();
        if self.is_listing_due() {
            self.list();
        }
        self.make_room();
    }

    fn wait(&self) -> Inbox {
        let mut inbox = self.shared.inbox.lock();
        if inbox.own.is_none() && inbox.notes.is_empty() && inbox.lent.is_empty() {
            inbox = self.shared.news.wait_timeout(inbox, LOOK_EVERY);
        }
        std::mem::take(&mut *inbox)
    }

    /// A block that members may ask for.
    fn own_block(&self, key: Key) -> Option<OwnBlock> {
        self.own.as_ref().and_then(|own| own.blocks.get(&key)).copied()
    }

    /// Whether the disk has a block, and is to be used.
    fn is_on_disk(&self, block: BlockId) -> bool {
        let is_up = self.core.cache.disk_state().is_some_and(|state| !DiskState::is_down(state));
        is_up && self.core.cache.stores(block)
    }

    /// The shard has been given blocks: the disk may take them, too.
    fn given(&mut self, keys: Vec<Key>) {
        let mut lacking = Vec::new();
        for key in keys {
            let Some(own) = self.own_block(key).filter(|own| own.is_at_home) else { continue };
            self.held.add(key, self.core.catalog.layout().range(own.block).1 as u32);
            if !self.core.cache.stores(own.block) {
                lacking.push(own.block);
            }
        }
        self.give_to_disk(lacking);
    }

    fn give_to_disk(&self, blocks: Vec<BlockId>) {
        if !blocks.is_empty() {
            self.core.inbox.put(Event::Given { blocks }, None);
        }
    }

    /// Members have found marks.
    fn asked(&mut self, keys: Vec<Key>) {
        if self.own.is_none() {
            // Homes are not known yet, or the next list removes all marks.
            return;
        }
        let (own, others): (Vec<Key>, Vec<Key>) =
            keys.into_iter().partition(|key| self.own_block(*key).is_some());
        self.remove_marks(&others);
        for key in own {
            if !self.held.is_lent(key) && self.asked.insert(key) {
                self.waiting.push_back(key);
            }
        }
    }

    /// Lends blocks that are asked for.
    fn lend(&mut self) {
        while self.reading < LENT_AT_ONCE
            && let Some(key) = self.waiting.pop_front()
        {
            self.reading += 1;
            let shared = Arc::clone(&self.shared);
            let lending =
                Lending::new(move |lent| shared.tell(|inbox| inbox.lent.push((key, lent))));
            match self.own_block(key) {
                Some(own) => self.core.cache.lend(own.block, key, lending),
                // Homes have changed meanwhile.
                None => drop(lending),
            }
        }
    }

    fn lent(&mut self, key: Key, lent: Lent) {
        self.asked.remove(&key);
        self.reading -= 1;
        match (lent, self.own_block(key)) {
            (Lent::Given, Some(own)) => {
                let bytes = self.core.catalog.layout().range(own.block).1 as u32;
                self.held.add_lent(key, bytes, Instant::now());
            }
            (Lent::Missing, _) => self.remove_marks(&[key]),
            (Lent::Given | Lent::Refused, _) => {}
        }
    }

    /// The disk does not have these blocks: whoever asks for them is to know that.
    fn remove_marks(&self, keys: &[Key]) {
        if !keys.is_empty()
            && let Err(why) = self.shards.forget(keys)
        {
            tracing::debug!(%why, "marks stay in the shard");
        }
    }

    fn is_listing_due(&self) -> bool {
        let (since, rest) = (self.listed.elapsed(), LIST_REST * self.took);
        let is_full = || self.shards.is_full() && since >= LIST_FULL_EVERY.max(rest);
        let is_over = || since >= LIST_EVERY.max(rest) || is_full();
        self.is_due && since >= REST.min(rest) || self.own.is_some() && is_over()
    }

    /// Lists what the shard has. Marks are removed if the disk does not have their blocks, and made for blocks that only the
    /// disk has. The disk is given what it lacks.
    fn list(&mut self) {
        let (begun, mut found) = (Instant::now(), HashMap::new());
        let listed = self.shards.list(&mut |key, what| _ = found.insert(key, what));
        if let Err(why) = listed {
            tracing::debug!(%why, "it is not known what the shard has");
            (self.listed, self.took, self.is_due) = (Instant::now(), REST, true);
            return;
        }
        self.is_due = false;
        let (mut held, mut stale, mut lacking) = (Held::default(), Vec::new(), Vec::new());
        for (key, what) in &found {
            match (*what, self.own_block(*key)) {
                (Listed::Mark, Some(own)) if self.is_on_disk(own.block) => {}
                (Listed::Mark, _) => stale.push(*key),
                (Listed::Bytes(bytes), own) => {
                    held.add(*key, bytes);
                    let own = own.filter(|own| own.is_at_home);
                    lacking
                        .extend(own.map(|own| own.block).filter(|it| !self.core.cache.stores(*it)));
                }
            }
        }
        held.take_over(std::mem::take(&mut self.held));
        self.held = held;
        self.remove_marks(&stale);
        let own = self.own.iter().flat_map(|own| &own.blocks);
        let is_unmarked = |(key, own): &(&Key, &OwnBlock)| {
            !found.contains_key(*key) && self.is_on_disk(own.block)
        };
        let unmarked: Vec<Key> = own.filter(is_unmarked).map(|(key, _)| *key).collect();
        if !unmarked.is_empty()
            && let Err(why) = self.shards.mark_on_disk(&unmarked, true)
        {
            tracing::debug!(%why, "blocks of the disk have no marks");
        }
        self.give_to_disk(lacking);
        (self.listed, self.took) = (Instant::now(), begun.elapsed());
    }

    /// If the shard is full, has blocks leave it that the disk has.
    fn make_room(&mut self) {
        let Some(own) = &self.own else { return };
        let now = Instant::now();
        if self.held.bytes <= own.room / FULL.1 * FULL.0 || now < self.rests_until {
            return;
        }
        let most = own.room / BESIDE_DISK.1 * BESIDE_DISK.0;
        let mut held = std::mem::take(&mut self.held);
        let left = held.leave(most, now, |key| {
            self.own_block(key).is_some_and(|own| self.is_on_disk(own.block))
        });
        self.held = held;
        if left.is_empty() {
            self.rests_until = now + REST;
        } else if let Err(why) = self.shards.mark_on_disk(&left, false) {
            tracing::debug!(%why, "blocks stay in the shard");
            (self.is_due, self.rests_until) = (true, now + REST);
        }
    }
}

/// The blocks that the shard holds.
#[derive(Default)]
struct Held {
    /// The bytes of each, and whether it was lent.
    blocks: HashMap<Key, (u32, bool)>,
    bytes: u64,
    /// Those that were lent, and when. The first one was first.
    lent: VecDeque<(Key, Instant)>,
    /// The others. Those that the disk may have are in front.
    others: VecDeque<Key>,
}

impl Held {
    fn is_lent(&self, key: Key) -> bool {
        self.blocks.get(&key).is_some_and(|(_, is_lent)| *is_lent)
    }

    fn add(&mut self, key: Key, bytes: u32) {
        if self.count(key, bytes, false) {
            self.others.push_back(key);
        }
    }

    fn add_lent(&mut self, key: Key, bytes: u32, now: Instant) {
        if self.count(key, bytes, true) {
            self.lent.push_back((key, now));
        }
    }

    /// Counts a block, unless it is counted. Returns whether it is new.
    fn count(&mut self, key: Key, bytes: u32, is_lent: bool) -> bool {
        let is_new = !self.blocks.contains_key(&key);
        if is_new {
            self.blocks.insert(key, (bytes, is_lent));
            self.bytes += u64::from(bytes);
        }
        is_new
    }

    /// Of what was held before, this is what is still there. Those that were lent still are.
    fn take_over(&mut self, before: Held) {
        for (key, since) in before.lent {
            if let Some((_, is_lent)) = self.blocks.get_mut(&key) {
                *is_lent = true;
                self.lent.push_back((key, since));
            }
        }
        self.others.retain(|key| self.blocks.get(key).is_some_and(|(_, is_lent)| !is_lent));
    }

    /// Takes out blocks that the disk has, until the rest has no more than so many bytes. Those that were lent a moment ago
    /// stay.
    fn leave(&mut self, most: u64, now: Instant, is_on_disk: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut left = Vec::new();
        while self.bytes > most
            && let Some((key, since)) = self.lent.front().copied()
            && now - since >= LENT_FOR
        {
            self.lent.pop_front();
            // The list of the shard shows the others again.
            let key = self.forget(key);
            left.extend(Some(key).filter(|key| is_on_disk(*key)));
        }
        for _ in 0..self.others.len().min(LOOKED_AT) {
            if self.bytes <= most {
                break;
            }
            let Some(key) = self.others.pop_front() else { break };
            match is_on_disk(key) {
                true => left.push(self.forget(key)),
                false => self.others.push_back(key),
            }
        }
        left
    }

    fn forget(&mut self, key: Key) -> Key {
        self.bytes -= self.blocks.remove(&key).map_or(0, |(bytes, _)| u64::from(bytes));
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Keys;

    fn key(number: u64) -> Key {
        Keys::new("secret").key(b"a", b"1", number)
    }

    #[test]
    fn what_was_lent_leaves_first_and_what_the_disk_lacks_stays() {
        let (mut held, start) = (Held::default(), Instant::now());
        (0..10).for_each(|number| held.add(key(number), 100));
        [3, 20, 21, 20].into_iter().for_each(|number| held.add_lent(key(number), 100, start));
        assert_eq!(held.bytes, 1200, "each counts once");
        assert!(held.is_lent(key(20)) && !held.is_lent(key(3)));
        let is_on_disk = |it: Key| ![key(0), key(2)].contains(&it);
        let left = held.leave(1100, start, is_on_disk);
        assert_eq!(left, [key(1)], "who has asked for the others may not have them yet");
        let later = start + LENT_FOR;
        assert_eq!(held.leave(800, later, is_on_disk), [20, 21, 3].map(key));
        assert_eq!(held.leave(0, later, is_on_disk).len(), 6);
        assert_eq!((held.bytes, held.leave(0, later, |_| true).len()), (200, 2));
    }

    #[test]
    fn a_list_of_the_shard_corrects_what_is_held() {
        let (mut before, start) = (Held::default(), Instant::now());
        (0..4).for_each(|number| before.add(key(number), 100));
        (4..8).for_each(|number| before.add_lent(key(number), 100, start));
        let mut held = Held::default();
        [1, 5, 7, 9].into_iter().for_each(|number| held.add(key(number), 50));
        held.take_over(before);
        assert_eq!((held.bytes, held.others.len(), held.lent.len()), (200, 2, 2));
        assert!(held.is_lent(key(5)) && held.is_lent(key(7)));
    }
}
