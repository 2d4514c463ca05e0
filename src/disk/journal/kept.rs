//! Rewrites a journal with what is alive of it, and decides whether it may grow.
//!
//! 1. A journal is rewritten if most of it is dead and there is room for the rest. It is also rewritten if
//!    its disk has lost something, so that the rest is durable.
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

/// The time between two looks at the dead bytes of a journal without room, and between two rewrites for
/// lost bytes.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The state that results from the records of a journal.
pub trait Alive {
    /// The places of what [`save`](Self::save) has added.
    type Saved;

    /// The bytes that are alive.
    fn bytes(&self) -> u64;

    /// Adds the whole state to a journal that begins with it.
    fn save(&self, journal: &mut Journal) -> Result<Self::Saved>;
}

pub struct Kept {
    pub journal: Journal,
    min_free: u64,
    /// The length from which the dead bytes are checked.
    length_max: u64,
    /// Its length after the last rewrite, and at the last attempt at one.
    begun: u64,
    tried: u64,
    health: Health,
    /// Its length when it was last asked for room.
    length: Option<u64>,
    /// Since when it has had no room, or when its dead bytes were last checked for that reason.
    without: Option<Instant>,
    /// When it was last rewritten for what its disk has lost.
    mended: Option<Instant>,
}

impl Kept {
    /// A journal and its state. `min_free` bytes of its disk are for other programs.
    pub fn new(journal: Journal, alive: &impl Alive, min_free: u64) -> Kept {
        let (begun, tried, length, without, mended) = Default::default();
        let length_max = 2 * alive.bytes() + DEAD_BYTES;
        let health = Health::new(min_free - min_free / 4, 0);
        Kept { journal, min_free, length_max, begun, tried, health, length, without, mended }
    }

    /// Checks whether it may grow by `bytes`: it may not if other programs need the space of its disk.
    pub fn check_room(&mut self, bytes: u64) -> bool {
        let length = self.journal.length();
        let added = length.saturating_sub(self.length.replace(length).unwrap_or(length));
        let has_room = self.health.has_room(&*self.journal.disk, bytes.saturating_add(added));
        if has_room {
            self.without = None;
        } else if self.without.is_none_or(|since| since.elapsed() >= LOOK_EVERY) {
            self.without = Some(Instant::now());
            // If a rewrite was tried at this length, another try would give nothing.
            if self.tried < length {
                self.length_max = 0;
            }
        }
        has_room
    }

    /// Rewrites it with what is alive if most of it is dead. Nothing may be pending.
    ///
    /// # Errors
    /// The disk's, and `StorageFull` if it has no room for what is alive.
    pub fn leave_dead_bytes<A: Alive>(&mut self, alive: &A) -> Result<Option<A::Saved>> {
        let is_due = self.journal.length() > self.length_max && self.is_dead(alive.bytes())?;
        is_due.then(|| self.begin_anew(alive)).transpose()
    }

    /// Makes what was written durable. If the disk has lost some of it, the journal is rewritten with what
    /// is alive, and must be synced again. Nothing may be pending.
    ///
    /// # Errors
    /// As of [`Journal::sync`].
    pub fn sync<A: Alive>(&mut self, alive: &A) -> Result<Option<A::Saved>> {
        let is_due = self.mended.is_none_or(|since| since.elapsed() >= LOOK_EVERY);
        match self.journal.sync() {
            Err(error) if error.kind() == ErrorKind::InvalidData && is_due => {
                self.mended = Some(Instant::now());
                self.begin_anew(alive).map(Some)
            }
            synced => synced.map(|()| None),
        }
    }

    /// Checks whether most of it is dead, if `live` bytes are alive. If it is not rewritten then, the next
    /// check comes when as much has been added, or half a minute later if it has no room.
    fn is_dead(&mut self, live: u64) -> Result<bool> {
        let length = self.journal.length();
        // The records of small samples take more bytes than the samples.
        let live = live.max(self.begun);
        let is_short = self.without.is_some() && length.saturating_sub(live) > live / 4;
        if length <= 2 * live + DEAD_BYTES && !is_short {
            self.length_max = 2 * live + DEAD_BYTES;
            return Ok(false);
        }
        (self.length_max, self.tried) = (length + DEAD_BYTES, length);
        if live > self.journal.space()?.bytes.saturating_sub(self.min_free / 4) {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        Ok(true)
    }

    fn begin_anew<A: Alive>(&mut self, alive: &A) -> Result<A::Saved> {
        let saved = self.journal.rewrite(|journal| alive.save(journal))?;
        // All of it is alive.
        self.begun = self.journal.length();
        (self.tried, self.length) = (0, None);
        self.health = Health::new(self.min_free - self.min_free / 4, 0);
        self.length_max = 2 * self.begun + DEAD_BYTES;
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

    impl Alive for Live {
        type Saved = Vec<Pinned>;

        fn bytes(&self) -> u64 {
            self.0.iter().map(|pinned| u64::from(pinned.length())).sum()
        }

        fn save(&self, journal: &mut Journal) -> Result<Vec<Pinned>> {
            let whole = self.0.iter().filter_map(|pinned| pinned.read().ok());
            whole.map(|bytes| journal.append(b"x", &bytes)).collect()
        }
    }

    fn open(disk: &Model) -> Kept {
        let journal = Journal::open(Arc::new(disk.clone()), |_, _| ()).unwrap();
        Kept::new(journal, &Live(Vec::new()), MIN_FREE)
    }

    fn add(kept: &mut Kept, bytes: usize) -> Pinned {
        let pinned = kept.journal.append(b"x", &vec![7; bytes]).unwrap();
        kept.journal.write().unwrap();
        pinned
    }

    fn leave(disk: &Model, bytes: u64) {
        disk.set_space(Some(Space { bytes, total: 1 << 40, files: None }));
    }

    #[test]
    fn what_is_left_lasts_if_the_disk_has_lost_something() {
        let disk = Model::default();
        let mut kept = open(&disk);
        let lose_last = || {
            let (name, _) = disk.names().unwrap().pop().unwrap();
            disk.edit(&name, |bytes| *bytes.last_mut().unwrap() ^= 1);
        };
        let mut live = Live((0..3).map(|_| add(&mut kept, 100)).collect());
        assert!(kept.sync(&live).unwrap().is_none() && kept.journal.lasts());
        live.0.extend((0..2).map(|_| add(&mut kept, 100)));
        disk.fail_syncs(Some(libc::EIO));
        assert_eq!(kept.sync(&live).err().unwrap().raw_os_error(), Some(libc::EIO));
        disk.fail_syncs(None);
        lose_last();
        live = Live(kept.sync(&live).unwrap().unwrap());
        assert_eq!(live.0.iter().map(|pinned| pinned.read().unwrap().len()).sum::<usize>(), 400);
        assert!(kept.sync(&live).unwrap().is_none() && kept.journal.lasts());
        // A journal that was just rewritten is not rewritten again for some time.
        live.0.push(add(&mut kept, 100));
        disk.fail_syncs(Some(libc::EIO));
        assert!(kept.sync(&live).is_err());
        disk.fail_syncs(None);
        lose_last();
        assert_eq!(kept.sync(&live).err().unwrap().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn what_is_dead_is_left_if_it_is_most() {
        let disk = Model::default();
        let mut kept = open(&disk);
        let large = 16 << 20;
        for _ in 0..2 {
            let is_anew = |_: &i32| {
                let live = Live(vec![add(&mut kept, large)]);
                kept.leave_dead_bytes(&live).unwrap().is_some()
            };
            assert!((0..20).find(is_anew).is_some_and(|count| count >= 4));
            let length = kept.journal.length();
            assert!(length < 2 * large as u64 && disk.names().unwrap()[0].1 == length);
        }
    }

    /// A journal that may not grow gives back its dead bytes if there is room for the rest.
    #[test]
    fn without_room_less_is_dead_before_it_is_left() {
        let large = 16 << 20;
        for (left, is_left) in [(1 << 28, false), ((1 << 28) + (20 << 20), true)] {
            let disk = Model::default();
            let mut kept = open(&disk);
            let live = Live((0..3).map(|_| add(&mut kept, large)).skip(2).collect());
            assert!(kept.leave_dead_bytes(&live).unwrap().is_none(), "it is not so long");
            leave(&disk, left);
            while kept.check_room(0) {
                add(&mut kept, large);
            }
            let left = kept.leave_dead_bytes(&live);
            assert_eq!(left.is_ok_and(|saved| saved.is_some()), is_left);
            assert_eq!(kept.journal.length() < 2 * large as u64, is_left);
            let ops = disk.ops();
            for _ in 0..3 {
                assert!(!kept.check_room(0));
                assert!(kept.leave_dead_bytes(&live).unwrap().is_none());
            }
            assert_eq!(disk.ops(), ops, "it is left alone");
        }
    }

    /// Space that is for other programs is not taken until there is more.
    #[test]
    fn space_that_is_for_others_is_not_taken() {
        let disk = Model::default();
        leave(&disk, MIN_FREE - 1);
        assert!(open(&disk).check_room(0), "the store gives way");
        leave(&disk, MIN_FREE / 4 * 3 - 1);
        assert!(!open(&disk).check_room(0));
        leave(&disk, 2 * MIN_FREE);
        let mut kept = open(&disk);
        assert!(kept.check_room(0));
        leave(&disk, MIN_FREE / 2);
        let taken = (0..20).take_while(|_| {
            add(&mut kept, 16 << 20);
            kept.check_room(0)
        });
        assert!(taken.count() < 19, "it is looked again while it grows");
        leave(&disk, 2 * MIN_FREE);
        let begun = Instant::now();
        while !kept.check_room(0) {
            assert!(begun.elapsed().as_secs() < 300);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
