//! The supplies that a buffer's slots deal from: of all samples, and of each class.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::{Display, Exhibit, Sample, Upcoming};
use crate::buffer::{SampleId, Supply};
use crate::rehearsal::Shelf;

/// After this many deals, or a [share](RENEW_SHARE) of the held samples if that is more, the held samples are
/// looked up again. So a deal costs the same however many are held.
pub(super) const RENEW_AFTER: usize = 64;
const RENEW_SHARE: usize = 16;

/// The class that a slot deals from. None: any.
pub(in crate::rehearsal::views) type Class = Option<usize>;

/// A buffer as views serve it.
#[derive(Clone)]
pub struct BufferView {
    pub name: String,
    /// The seed of the random order of slots and streams.
    pub seed: u64,
    /// How far the buffer was when the mount began, so that each mount deals in another order.
    pub drawn: u64,
    /// How many openings in a row find different samples.
    pub distance: usize,
    /// How many slots the buffer has, and each of its classes.
    pub slots: u32,
    /// Counts the changes of the samples that it shows.
    pub changes: Arc<AtomicU64>,
    /// Its codes, if it has any.
    pub latent: Option<Arc<Shelf>>,
}

pub(super) struct Deck {
    pub(super) view: BufferView,
    /// The names of classes. A class keeps its place here.
    pub(super) classes: Vec<String>,
    /// Their places. There may be as many classes as samples.
    places: HashMap<String, usize>,
    by_class: Vec<Supply>,
    any: Supply,
    pub(super) samples: HashMap<SampleId, (usize, Arc<Sample>)>,
    pub(super) extension: String,
    /// Supplies whose upcoming samples were reported.
    pub(super) told: HashSet<Class>,
    /// How many samples may be dealt before the held ones are looked up again.
    pub(super) left: usize,
    /// The count of changes at the last look.
    pub(super) changes: Option<u64>,
}

/// The number of the supply of all samples. That of a class is its place.
const ANY: u64 = (1 << CLASS_BITS) - 1;
const CLASS_BITS: u32 = 20;

/// The number of a supply for the random generator. It differs by supply and by mount.
fn number(view: &BufferView, supply: u64) -> u64 {
    view.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15) << CLASS_BITS | supply
}

impl Deck {
    pub(super) fn new(view: BufferView) -> Deck {
        let any = Supply::new(view.seed, number(&view, ANY), view.distance);
        let (classes, places, by_class, samples, extension) = Default::default();
        let (told, left, changes) = Default::default();
        Deck { view, classes, places, by_class, any, samples, extension, told, left, changes }
    }

    pub(super) fn is_current(&self) -> bool {
        self.changes == Some(self.view.changes.load(Ordering::Acquire))
    }

    pub(super) fn class(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied().filter(|place| self.holds(*place))
    }

    /// Whether samples of a class are held.
    pub(super) fn holds(&self, place: usize) -> bool {
        self.by_class.get(place).is_some_and(|supply| !supply.is_empty())
    }

    fn place(&mut self, class: &str) -> usize {
        if let Some(place) = self.places.get(class) {
            return *place;
        }
        let place = self.classes.len();
        self.classes.push(class.to_owned());
        self.places.insert(class.to_owned(), place);
        let number = number(&self.view, place as u64);
        self.by_class.push(Supply::new(self.view.seed, number, self.view.distance));
        place
    }

    /// Deals the samples of this display after this.
    pub(super) fn renew(&mut self, held: &Display) {
        self.samples.clear();
        let mut own = vec![Vec::new(); self.classes.len()];
        for (class, exhibits) in &held.classes {
            let place = self.place(class);
            own.resize(self.classes.len(), Vec::new());
            for sample in exhibits.iter().filter_map(Exhibit::sample) {
                own[place].push(sample.id);
                self.samples.insert(sample.id, (place, Arc::clone(sample)));
            }
        }
        for (supply, own) in self.by_class.iter_mut().zip(own) {
            supply.renew(own);
        }
        self.any.renew(self.samples.keys().copied());
        if let Some((_, sample)) = self.samples.values().min_by_key(|(_, sample)| sample.id) {
            let name = sample.source.rsplit('/').next().unwrap_or_default();
            self.extension = name.rfind('.').map_or("", |at| &name[at..]).to_owned();
        }
        self.left = RENEW_AFTER.max(self.samples.len() / RENEW_SHARE);
    }

    pub(super) fn upcoming(&self, buffer: usize, class: Class) -> Option<Upcoming> {
        let supply = class.map_or(Some(&self.any), |class| self.by_class.get(class))?;
        let sample = |id: SampleId| self.samples.get(&id).map(|(_, sample)| Arc::clone(sample));
        let next = supply.upcoming().filter_map(sample).collect();
        let by = (buffer as u64) << CLASS_BITS | class.map_or(ANY, |class| class as u64);
        Some(Upcoming { by, next })
    }

    pub(super) fn supply(&mut self, class: Class) -> Option<&mut Supply> {
        match class {
            Some(class) => self.by_class.get_mut(class),
            None => Some(&mut self.any),
        }
    }
}
