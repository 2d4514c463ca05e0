//! Rewrites a journal with its live part, and decides whether it may grow.
//!
//! 1. A journal is rewritten if most of it is dead and there is room for the live part. It is also rewritten
//!    if its disk has lost something, so that the live part is durable.
//! 2. It grows as long as other programs do not need the space of its disk. The local store gives space
//!    back before less than 7/8 of `min_free` is free. A journal grows until only 3/4 of it is free, since
//!    its samples may be nowhere else.
//! 3. A journal that may not grow may still be rewritten until only 1/4 of `min_free` is free. That gives
//!    back more space than it takes, except for what views still show of the old journal.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use super::Journal;
use crate::disk::Health;

/// The dead bytes that a journal may have beyond its live bytes before it is rewritten.
const DEAD_BYTES: u64 = 64 << 20;

/// The time between two checks of the dead bytes of a journal without room, and between two rewrites for
/// lost bytes.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// The state that results from the records of a journal.
pub trait LiveState {
    /// The places of what [`save`](Self::save) has added.
    type Saved;

    /// The live bytes.
    fn bytes(&self) -> u64;

    /// Adds the whole state to a journal that begins with it.
    fn save(&self, journal: &mut Journal) -> Result<Self::Saved>;
}

/// A journal that is rewritten now and then.
pub struct CompactingJournal {
    pub journal: Journal,
    min_free: u64,
    /// The length from which the dead bytes are checked.
    length_max: u64,
    /// Its length after the last rewrite, and at the last attempt at one.
    length_after_rewrite: u64,
    length_at_attempt: u64,
    health: Health,
    /// Its length when it was last asked for room.
    length_asked: Option<u64>,
    /// Since when it has had no room, or when its dead bytes were last checked for that reason.
    no_room_since: Option<Instant>,
    /// When it was last rewritten for what its disk has lost.
    rewritten_for_loss: Option<Instant>,
}

impl CompactingJournal {
    /// A journal and its state. `min_free` bytes of its disk are for other programs.
    pub fn new(journal: Journal, live: &impl LiveState, min_free: u64) -> CompactingJournal {
        CompactingJournal {
            journal,
            min_free,
            length_max: 2 * live.bytes() + DEAD_BYTES,
            length_after_rewrite: 0,
            length_at_attempt: 0,
            health: Health::new(min_free - min_free / 4, 0),
            length_asked: None,
            no_room_since: None,
            rewritten_for_loss: None,
        }
    }

    /// Claims room for `bytes`. Returns whether the journal may grow by them: it may not if other programs need
    /// the space of its disk.
    pub fn claim_room(&mut self, bytes: u64) -> bool {
        let length = self.journal.length();
        let added = length.saturating_sub(self.length_asked.replace(length).unwrap_or(length));
        let has_room = self.health.claim_room(&*self.journal.disk, bytes.saturating_add(added));
        if has_room {
            self.no_room_since = None;
        } else if self.no_room_since.is_none_or(|since| since.elapsed() >= CHECK_EVERY) {
            self.no_room_since = Some(Instant::now());
            // A second attempt at the same length would give nothing.
            if self.length_at_attempt < length {
                self.length_max = 0;
            }
        }
        has_room
    }

    /// Rewrites it with its live part if most of it is dead. Nothing may be pending.
    ///
    /// # Errors
    /// The disk's, and `StorageFull` if it has no room for the live part.
    pub fn rewrite_if_mostly_dead<L: LiveState>(&mut self, live: &L) -> Result<Option<L::Saved>> {
        let is_long = self.journal.length() > self.length_max;
        let is_due = is_long && self.check_rewrite_due(live.bytes())?;
        is_due.then(|| self.rewrite(live)).transpose()
    }

    /// Makes what was written durable. If the disk has lost some of it, the journal is rewritten with its live
    /// part, and must be synced again. Nothing may be pending.
    ///
    /// # Errors
    /// As of [`Journal::sync`].
    pub fn sync<L: LiveState>(&mut self, live: &L) -> Result<Option<L::Saved>> {
        let is_due = self.rewritten_for_loss.is_none_or(|since| since.elapsed() >= CHECK_EVERY);
        match self.journal.sync() {
            Err(error) if error.kind() == ErrorKind::InvalidData && is_due => {
                self.rewritten_for_loss = Some(Instant::now());
                self.rewrite(live).map(Some)
            }
            synced => synced.map(|()| None),
        }
    }

    /// Checks whether most of it is dead, if `live` bytes are alive. If not, the next check comes when as much
    /// has been added, or half a minute later if it has no room.
    fn check_rewrite_due(&mut self, live: u64) -> Result<bool> {
        let length = self.journal.length();
        // The records of small samples take more bytes than the samples.
        let live = live.max(self.length_after_rewrite);
        let is_short = self.no_room_since.is_some() && length.saturating_sub(live) > live / 4;
        if length <= 2 * live + DEAD_BYTES && !is_short {
            self.length_max = 2 * live + DEAD_BYTES;
            return Ok(false);
        }
        (self.length_max, self.length_at_attempt) = (length + DEAD_BYTES, length);
        if live > self.journal.space()?.bytes.saturating_sub(self.min_free / 4) {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        Ok(true)
    }

    fn rewrite<L: LiveState>(&mut self, live: &L) -> Result<L::Saved> {
        let saved = self.journal.rewrite(|journal| live.save(journal))?;
        // All of it is alive.
        self.length_after_rewrite = self.journal.length();
        (self.length_at_attempt, self.length_asked) = (0, None);
        self.health = Health::new(self.min_free - self.min_free / 4, 0);
        self.length_max = 2 * self.length_after_rewrite + DEAD_BYTES;
        Ok(saved)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nix::libc;

    use super::*;
    use crate::disk::journal::Pinned;
    use crate::disk::tests::model::Model;
    use crate::disk::{Disk, Space};

    const MIN_FREE: u64 = 1 << 30;

    /// Live bytes, by their places. Damaged bytes are not alive.
    struct Live(Vec<Pinned>);

    impl LiveState for Live {
        type Saved = Vec<Pinned>;

        fn bytes(&self) -> u64 {
            self.0.iter().map(|pinned| u64::from(pinned.length())).sum()
        }

        fn save(&self, journal: &mut Journal) -> Result<Vec<Pinned>> {
            let whole = self.0.iter().filter_map(|pinned| pinned.read().ok());
            whole.map(|bytes| journal.append(b"x", &bytes)).collect()
        }
    }

    fn open(disk: &Model) -> CompactingJournal {
        let journal = Journal::open(Arc::new(disk.clone()), |_, _| ()).unwrap();
        CompactingJournal::new(journal, &Live(Vec::new()), MIN_FREE)
    }

    fn add(kept: &mut CompactingJournal, bytes: usize) -> Pinned {
        let pinned = kept.journal.append(b"x", &vec![7; bytes]).unwrap();
        kept.journal.write().unwrap();
        pinned
    }

    fn leave(disk: &Model, bytes: u64) {
        disk.set_space(Some(Space { bytes, total: 1 << 40, files: None }));
    }

    #[test]
    fn what_is_rewritten_lasts_if_the_disk_has_lost_something() {
        let disk = Model::default();
        let mut kept = open(&disk);
        let lose_last = || {
            let (name, _) = disk.names().unwrap().pop().unwrap();
            disk.edit(&name, |bytes| *bytes.last_mut().unwrap() ^= 1);
        };
        let mut live = Live((0..3).map(|_| add(&mut kept, 100)).collect());
        assert!(kept.sync(&live).unwrap().is_none() && kept.journal.is_durable());
        live.0.extend((0..2).map(|_| add(&mut kept, 100)));
        disk.fail_syncs(Some(libc::EIO));
        assert_eq!(kept.sync(&live).err().unwrap().raw_os_error(), Some(libc::EIO));
        disk.fail_syncs(None);
        lose_last();
        live = Live(kept.sync(&live).unwrap().unwrap());
        assert_eq!(live.0.iter().map(|pinned| pinned.read().unwrap().len()).sum::<usize>(), 400);
        assert!(kept.sync(&live).unwrap().is_none() && kept.journal.is_durable());
        // A journal that was just rewritten is not rewritten again for some time.
        live.0.push(add(&mut kept, 100));
        disk.fail_syncs(Some(libc::EIO));
        assert!(kept.sync(&live).is_err());
        disk.fail_syncs(None);
        lose_last();
        assert_eq!(kept.sync(&live).err().unwrap().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_journal_of_mostly_dead_bytes_is_rewritten() {
        let disk = Model::default();
        let mut kept = open(&disk);
        let large = 16 << 20;
        for _ in 0..2 {
            let is_anew = |_: &i32| {
                let live = Live(vec![add(&mut kept, large)]);
                kept.rewrite_if_mostly_dead(&live).unwrap().is_some()
            };
            assert!((0..20).find(is_anew).is_some_and(|count| count >= 4));
            let length = kept.journal.length();
            assert!(length < 2 * large as u64 && disk.names().unwrap()[0].1 == length);
        }
    }

    /// A journal that may not grow gives back its dead bytes if there is room for the rest.
    #[test]
    fn without_room_a_journal_is_rewritten_earlier() {
        let large = 16 << 20;
        for (left, is_rewritten) in [(1 << 28, false), ((1 << 28) + (20 << 20), true)] {
            let disk = Model::default();
            let mut kept = open(&disk);
            let live = Live((0..3).map(|_| add(&mut kept, large)).skip(2).collect());
            assert!(kept.rewrite_if_mostly_dead(&live).unwrap().is_none(), "it is not so long");
            leave(&disk, left);
            while kept.claim_room(0) {
                add(&mut kept, large);
            }
            let left = kept.rewrite_if_mostly_dead(&live);
            assert_eq!(left.is_ok_and(|saved| saved.is_some()), is_rewritten);
            assert_eq!(kept.journal.length() < 2 * large as u64, is_rewritten);
            let ops = disk.ops();
            for _ in 0..3 {
                assert!(!kept.claim_room(0));
                assert!(kept.rewrite_if_mostly_dead(&live).unwrap().is_none());
            }
            assert_eq!(disk.ops(), ops, "it is left alone");
        }
    }

    /// Space that is for other programs is not taken until there is more.
    #[test]
    fn space_that_is_for_others_is_not_taken() {
        let disk = Model::default();
        leave(&disk, MIN_FREE - 1);
        assert!(open(&disk).claim_room(0), "the store gives way");
        leave(&disk, MIN_FREE / 4 * 3 - 1);
        assert!(!open(&disk).claim_room(0));
        leave(&disk, 2 * MIN_FREE);
        let mut kept = open(&disk);
        assert!(kept.claim_room(0));
        leave(&disk, MIN_FREE / 2);
        let taken = (0..20).take_while(|_| {
            add(&mut kept, 16 << 20);
            kept.claim_room(0)
        });
        assert!(taken.count() < 19, "it is looked again while it grows");
        leave(&disk, 2 * MIN_FREE);
        let begun = Instant::now();
        while !kept.claim_room(0) {
            assert!(begun.elapsed().as_secs() < 300);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
