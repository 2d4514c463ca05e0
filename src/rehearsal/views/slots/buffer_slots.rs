//! The slots of one buffer: a supply of all its samples, and one of each class.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::node::{FILES_MAX, Node};
use super::super::{KeptSample, ServedBuffer, Snapshot, SnapshotFile, Upcoming};
use crate::buffer::{SampleId, Supply};

/// After this many reservations, or a [share](RENEW_SHARE) of the held samples if that is more, the held
/// samples are looked up again. So a reservation costs the same however many are held.
const RENEW_AFTER: usize = 64;
const RENEW_SHARE: usize = 16;

/// The class whose samples a slot shows. None: any.
pub(in crate::rehearsal::views) type ClassOrAny = Option<usize>;

pub(in crate::rehearsal::views) struct BufferSlots {
    /// The number of the buffer.
    buffer: usize,
    served: ServedBuffer,
    /// The names of classes. A class keeps its number, which is its index here.
    classes: Vec<String>,
    /// Their numbers. There may be as many classes as samples.
    class_numbers: HashMap<String, usize>,
    /// The supply of all samples, and those of the classes.
    supplies: Vec<Supply>,
    samples: HashMap<SampleId, (usize, Arc<KeptSample>)>,
    extension: String,
    /// Supplies whose upcoming samples were reported.
    reported: HashSet<ClassOrAny>,
    /// How many samples may be reserved before the held ones are looked up again.
    pub(super) until_renewal: usize,
    /// The count of changes at the last look, and when that was.
    changes: Option<u64>,
    renewed: Option<Instant>,
}

/// The samples of other nodes are not looked up again sooner for a name that is not there.
const YOUNG: Duration = Duration::from_secs(1);

/// The number of the supply of all samples. That of a class is the number of the class.
const ANY: u64 = (1 << CLASS_BITS) - 1;
const CLASS_BITS: u32 = 20;

/// The number of a supply for the random generator. It differs by supply and by mount.
fn number(served: &ServedBuffer, supply: u64) -> u64 {
    served.progress.wrapping_mul(0x9e37_79b9_7f4a_7c15) << CLASS_BITS | supply
}

impl BufferSlots {
    pub(super) fn new(buffer: usize, served: ServedBuffer) -> BufferSlots {
        let supplies = vec![Supply::new(served.seed, number(&served, ANY), served.distance)];
        let (classes, class_numbers, samples, extension) = Default::default();
        let (reported, until_renewal, changes, renewed) = Default::default();
        BufferSlots {
            buffer,
            served,
            classes,
            class_numbers,
            supplies,
            samples,
            extension,
            reported,
            until_renewal,
            changes,
            renewed,
        }
    }

    /// Whether samples were looked up a moment ago.
    pub(in super::super) fn is_young(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|renewed| now.saturating_duration_since(renewed) < YOUNG)
    }

    /// Whether the known samples are still those that are held.
    pub(in super::super) fn is_current(&self) -> bool {
        self.changes == Some(self.served.changes.load(Ordering::Acquire))
    }

    /// Gives this node of a cluster another order of slots than the others have. To be called before samples are known:
    /// later it does nothing.
    pub(in super::super) fn begin_at(&mut self, node: u64) {
        if self.changes.is_none() && self.supplies.iter().all(Supply::is_empty) {
            let mut served = self.served.clone();
            served.progress ^= node;
            *self = BufferSlots::new(self.buffer, served);
        }
    }

    /// Returns whether the held samples are to be looked up again. If so, the caller has to do it, and no
    /// other caller until [`renew`](Self::renew). Samples of other nodes may change unnoticed.
    pub(in super::super) fn claim_renewal(&mut self, may_change: bool) -> bool {
        let is_due = self.until_renewal == 0 && (may_change || !self.is_current());
        if is_due {
            self.until_renewal = usize::MAX;
        }
        is_due
    }

    /// Takes the samples that were held after at least `changes` changes. If there is no answer, they are
    /// looked up again later.
    pub(in super::super) fn renew(&mut self, changes: Option<u64>, held: Option<&Snapshot>) {
        self.until_renewal = RENEW_AFTER;
        let Some(held) = held else { return };
        (self.changes, self.renewed) = (changes, Some(Instant::now()));
        self.samples.clear();
        let mut own = vec![Vec::new(); self.classes.len()];
        for (class, files) in &held.classes {
            let class = self.add_class(class);
            own.resize(self.classes.len(), Vec::new());
            for sample in files.iter().filter_map(SnapshotFile::sample) {
                own[class].push(sample.id);
                self.samples.insert(sample.id, (class, Arc::clone(sample)));
            }
        }
        for (supply, own) in self.supplies.iter_mut().skip(1).zip(own) {
            supply.renew(own);
        }
        self.supplies[0].renew(self.samples.keys().copied());
        if let Some((_, sample)) = self.samples.values().min_by_key(|(_, sample)| sample.id) {
            let name = sample.source.rsplit('/').next().unwrap_or_default();
            self.extension = name.rfind('.').map_or("", |at| &name[at..]).to_owned();
        }
        self.until_renewal = RENEW_AFTER.max(self.samples.len() / RENEW_SHARE);
    }

    fn add_class(&mut self, name: &str) -> usize {
        if let Some(class) = self.class_numbers.get(name) {
            return *class;
        }
        let class = self.classes.len();
        self.classes.push(name.to_owned());
        self.class_numbers.insert(name.to_owned(), class);
        let number = number(&self.served, class as u64);
        self.supplies.push(Supply::new(self.served.seed, number, self.served.distance));
        class
    }

    /// The number of a class of which samples are held.
    pub(in super::super) fn class(&self, name: &str) -> Option<usize> {
        self.class_numbers.get(name).copied().filter(|class| self.has_directory(*class))
    }

    /// Names and numbers of classes of which samples are held.
    pub(in super::super) fn classes(&self) -> impl Iterator<Item = (&String, usize)> {
        self.classes.iter().zip(0..).filter(|(_, class)| self.has_directory(*class))
    }

    /// Whether samples of a class are held, and its number fits in that of a node.
    fn has_directory(&self, class: usize) -> bool {
        let supply = self.supplies.get(class + 1).filter(|_| (class as u64) < FILES_MAX);
        supply.is_some_and(|supply| !supply.is_empty())
    }

    /// The names of the slots, if samples are held.
    pub(in super::super) fn names(&mut self, class: ClassOrAny) -> impl Iterator<Item = String> {
        let is_empty = self.supply(class).is_none_or(|supply| supply.is_empty());
        let count = if is_empty { 0 } else { self.served.slots };
        (0..count).map(|slot| format!("{slot:04}{}", self.extension))
    }

    /// Whether a slot has this name, with any extension: the name may be older than the samples.
    pub(in super::super) fn has(&self, name: &str) -> bool {
        let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
        let number = stem.parse().ok().filter(|number: &u32| stem == format!("{number:04}"));
        number.is_some_and(|number| number < self.served.slots)
    }

    /// A sample with the name of its class.
    pub(super) fn sample(&self, id: SampleId) -> Option<(String, Arc<KeptSample>)> {
        let (class, sample) = self.samples.get(&id)?;
        Some((self.classes.get(*class)?.clone(), Arc::clone(sample)))
    }

    pub(super) fn supply(&mut self, class: ClassOrAny) -> Option<&mut Supply> {
        self.supplies.get_mut(class.map_or(0, |class| class + 1))
    }

    /// The samples that a supply shows next.
    pub(super) fn upcoming(&self, class: ClassOrAny) -> Option<Upcoming> {
        let supply = self.supplies.get(class.map_or(0, |class| class + 1))?;
        let sample = |id: SampleId| self.samples.get(&id).map(|(_, sample)| Arc::clone(sample));
        let next = supply.upcoming().filter_map(sample).collect();
        let any = Node::Slots(self.buffer);
        let node = class.map_or(any, |class| Node::SlotClass(self.buffer, class));
        Some(Upcoming { directory: node.number(), next })
    }

    /// The same, if it was never reported.
    pub(in super::super) fn first_upcoming(&mut self, class: ClassOrAny) -> Option<Upcoming> {
        self.reported.insert(class).then(|| self.upcoming(class)).flatten()
    }
}
