//! Slots: fixed names, behind which each opening finds a fresh sample.
//!
//! A lookup deals a sample and gives it a node of its own, whose size and content are fixed; the
//! opening of the node takes the sample; a node that the kernel forgets without having opened it
//! gives it back. So who only lists or stats takes nothing. The kernel may know such a node for as
//! long as it likes; so after a while its sample comes back without that.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::place::DEALT;
use super::{Display, Exhibit, Sample, Upcoming};
use crate::cache::Shelf;
use crate::rehearsal::{Deal, SampleId, Supply};

/// After so many dealt samples what the buffer holds is looked at again, and after a share of it: so
/// a dealt sample costs the same however many are held.
const RENEW_AFTER: usize = 64;
const RENEW_SHARE: usize = 16;

/// After so long whoever looked a name up will not open what it found: that comes right after it, and
/// who waits for the processor waits less.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who may be dealt: any sample, or those of a class.
pub(super) type Class = Option<usize>;

/// A buffer, as it is served.
#[derive(Clone)]
pub struct BufferView {
    /// Its name.
    pub name: String,
    /// Where the chance of its slots and streams comes from.
    pub seed: u64,
    /// How far it was when the mount began: what was drawn before is not drawn again in the same order.
    pub drawn: u64,
    /// Openings that follow each other and find different samples.
    pub distance: usize,
    /// How many slots it has, and each of its classes.
    pub slots: u32,
    /// Counts the changes of what it holds.
    pub changes: Arc<AtomicU64>,
    /// The codes beside it, if it has any.
    pub latent: Option<Arc<Shelf>>,
}

/// The supplies of one buffer.
struct Deck {
    view: BufferView,
    /// Names of classes; one that was met keeps its place.
    classes: Vec<String>,
    by_class: Vec<Supply>,
    any: Supply,
    samples: HashMap<SampleId, (usize, Arc<Sample>)>,
    extension: String,
    /// Those of whose supplies others know what comes next.
    told: HashSet<Class>,
    /// How often it was told what comes next.
    tellings: u64,
    /// Samples that may be dealt before it is looked again what is held.
    left: usize,
    /// How many changes there had been when it was looked last.
    changes: Option<u64>,
}

/// A sample behind a node.
pub(super) struct Dealt {
    pub(super) buffer: usize,
    pub(super) label: String,
    pub(super) sample: Arc<Sample>,
    class: Class,
    deal: Deal,
    stage: Stage,
}

/// What has become of a sample behind a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Dealt,
    /// It is dealt to others again.
    Back,
    Taken,
}

/// The slots of all buffers.
pub(super) struct Slots {
    decks: Vec<Deck>,
    dealt: HashMap<u64, Dealt>,
    next: u64,
    /// Nodes in the order in which they were dealt, with the time. The first one waits to be taken, or
    /// did so when it was looked at last.
    waiting: VecDeque<(u64, Instant)>,
}

/// The number of the supply of any sample; those of classes have their place.
const ANY: u64 = (1 << CLASS_BITS) - 1;
const CLASS_BITS: u32 = 20;

/// The number of a supply: each of a buffer has another one, in each mount.
fn number(view: &BufferView, supply: u64) -> u64 {
    view.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15) << CLASS_BITS | supply
}

impl Deck {
    fn new(view: BufferView) -> Deck {
        let any = Supply::new(view.seed, number(&view, ANY), view.distance);
        let (classes, by_class, samples, extension, told) = Default::default();
        let (tellings, left, changes) = Default::default();
        Deck { view, classes, by_class, any, samples, extension, told, tellings, left, changes }
    }

    fn is_current(&self) -> bool {
        self.changes == Some(self.view.changes.load(Ordering::Acquire))
    }

    fn place(&mut self, class: &str) -> usize {
        self.classes.iter().position(|known| known == class).unwrap_or_else(|| {
            let place = self.classes.len();
            self.classes.push(class.to_owned());
            let number = number(&self.view, place as u64);
            self.by_class.push(Supply::new(self.view.seed, number, self.view.distance));
            place
        })
    }

    fn renew(&mut self, held: &Display) {
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

    /// What comes next of a supply, of which a sample was opened perhaps.
    fn upcoming(
        &mut self,
        buffer: usize,
        class: Class,
        opened: Option<SampleId>,
    ) -> Option<Upcoming> {
        self.tellings += 1;
        let telling = self.tellings;
        let supply = class.map_or(Some(&self.any), |class| self.by_class.get(class))?;
        let sample = |id: SampleId| self.samples.get(&id).map(|(_, sample)| Arc::clone(sample));
        let next = supply.upcoming().filter_map(sample).collect();
        let by = (buffer as u64) << CLASS_BITS | class.map_or(ANY, |class| class as u64);
        Some(Upcoming { by, telling, buffer, opened, next })
    }

    fn supply(&mut self, class: Class) -> Option<&mut Supply> {
        match class {
            Some(class) => self.by_class.get_mut(class),
            None => Some(&mut self.any),
        }
    }
}

impl Slots {
    pub(super) fn new(buffers: &[BufferView]) -> Slots {
        let decks = buffers.iter().cloned().map(Deck::new).collect();
        Slots { decks, dealt: HashMap::new(), next: DEALT, waiting: VecDeque::new() }
    }

    /// Whether what the buffer holds is what was looked at.
    pub(super) fn is_current(&self, buffer: usize) -> bool {
        self.decks.get(buffer).is_none_or(Deck::is_current)
    }

    /// Whether what the buffer holds is to be looked at again, by the one who is told so.
    pub(super) fn is_due(&mut self, buffer: usize) -> bool {
        let Some(deck) = self.decks.get_mut(buffer) else { return false };
        let due = deck.left == 0 && !deck.is_current();
        if due {
            // Until that has come nobody else looks.
            deck.left = usize::MAX;
        }
        due
    }

    /// Takes what the buffer holds after so many changes, or more; where that could not be said, it
    /// is looked again later.
    pub(super) fn renew(&mut self, buffer: usize, changes: Option<u64>, held: Option<&Display>) {
        match (self.decks.get_mut(buffer), held) {
            (Some(deck), Some(held)) => {
                deck.renew(held);
                deck.changes = changes;
            }
            (Some(deck), None) => deck.left = RENEW_AFTER,
            (None, _) => {}
        }
    }

    /// The place of a class that something is held of.
    pub(super) fn class(&self, buffer: usize, name: &str) -> Option<usize> {
        let deck = self.decks.get(buffer)?;
        let place = deck.classes.iter().position(|class| class == name)?;
        (!deck.by_class[place].is_empty()).then_some(place)
    }

    /// The names of classes that something is held of, with their places.
    pub(super) fn classes(&self, buffer: usize) -> Vec<(String, usize)> {
        let Some(deck) = self.decks.get(buffer) else { return Vec::new() };
        let named = deck.classes.iter().cloned().zip(0..);
        named.filter(|(_, place)| !deck.by_class[*place].is_empty()).collect()
    }

    /// The names of the slots, if anything can be dealt.
    pub(super) fn names(&mut self, buffer: usize, class: Class) -> Vec<String> {
        let Some(deck) = self.decks.get_mut(buffer) else { return Vec::new() };
        if deck.supply(class).is_none_or(|supply| supply.is_empty()) {
            return Vec::new();
        }
        (0..deck.view.slots).map(|slot| format!("{slot:04}{}", deck.extension)).collect()
    }

    /// Whether a slot has this name. Its extension may be any: which samples will be held is not
    /// known when names are.
    pub(super) fn has(&self, buffer: usize, name: &str) -> bool {
        let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
        let number = stem.parse::<u32>().ok().filter(|number| stem == format!("{number:04}"));
        let deck = self.decks.get(buffer);
        deck.zip(number).is_some_and(|(deck, number)| number < deck.view.slots)
    }

    /// Deals a sample at this time, and says its node; none where nothing is held.
    pub(super) fn deal(
        &mut self,
        buffer: usize,
        class: Class,
        now: Instant,
    ) -> Option<(u64, &Dealt)> {
        self.take_back(now);
        let deck = self.decks.get_mut(buffer)?;
        let deal = deck.supply(class)?.deal()?;
        deck.left = deck.left.saturating_sub(1);
        let (place, sample) = deck.samples.get(&deal.sample)?;
        let (label, sample) = (deck.classes.get(*place)?.clone(), Arc::clone(sample));
        let node = self.next;
        self.next += 1;
        self.waiting.push_back((node, now));
        let dealt = Dealt { buffer, label, sample, class, deal, stage: Stage::Dealt };
        Some((node, self.dealt.entry(node).insert_entry(dealt).into_mut()))
    }

    /// What was dealt long ago and not taken comes back.
    fn take_back(&mut self, now: Instant) {
        while let Some((node, dealt_at)) = self.waiting.front() {
            if let Some(dealt) = self.dealt.get_mut(node).filter(|of| of.stage == Stage::Dealt) {
                if now.saturating_duration_since(*dealt_at) < PATIENCE {
                    break;
                }
                dealt.stage = Stage::Back;
                if let Some(deck) = self.decks.get_mut(dealt.buffer)
                    && let Some(supply) = deck.supply(dealt.class)
                {
                    supply.give_back(dealt.deal);
                }
            }
            self.waiting.pop_front();
        }
    }

    /// The sample behind a node.
    pub(super) fn get(&self, node: u64) -> Option<&Dealt> {
        self.dealt.get(&node)
    }

    /// What comes next of a supply, where nobody has been told of it.
    pub(super) fn first_upcoming(&mut self, buffer: usize, class: Class) -> Option<Upcoming> {
        let deck = self.decks.get_mut(buffer)?;
        deck.told.insert(class).then(|| deck.upcoming(buffer, class, None)).flatten()
    }

    /// Takes the sample behind a node: its buffer, the sample, and what comes next. Who opens it again
    /// finds the same one, and takes none.
    pub(super) fn take(&mut self, node: u64) -> Option<(usize, Arc<Sample>, Option<Upcoming>)> {
        let dealt = self.dealt.get_mut(&node)?;
        let (buffer, sample, class) = (dealt.buffer, Arc::clone(&dealt.sample), dealt.class);
        let deck = self.decks.get_mut(buffer)?;
        let mut upcoming = None;
        if std::mem::replace(&mut dealt.stage, Stage::Taken) != Stage::Taken
            && let Some(supply) = deck.supply(class)
        {
            supply.take(dealt.deal);
            upcoming = deck.upcoming(buffer, class, Some(sample.id));
        }
        Some((buffer, sample, upcoming))
    }

    /// The kernel knows a node no more.
    pub(super) fn forget(&mut self, node: u64) {
        if let Some(dealt) = self.dealt.remove(&node).filter(|dealt| dealt.stage == Stage::Dealt)
            && let Some(deck) = self.decks.get_mut(dealt.buffer)
            && let Some(supply) = deck.supply(dealt.class)
        {
            supply.give_back(dealt.deal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::sync::atomic::AtomicUsize;

    use nix::errno::Errno;

    use super::super::place::Place;
    use super::super::{Access, Ask, Content, EntryKind, Made, Make, Views};
    use super::*;
    use crate::cache::Journal;
    use crate::cache::store::tests::model::Model;

    fn view(distance: usize, changes: Arc<AtomicU64>) -> BufferView {
        let (name, slots) = ("old".to_owned(), 64);
        BufferView { name, seed: 1, drawn: 0, distance, slots, changes, latent: None }
    }

    /// What a buffer of these samples shows, in two classes.
    fn holding(samples: std::ops::Range<u32>) -> Display {
        let mut journal = Journal::open(Arc::new(Model::default()), |_, _| ()).unwrap();
        let mut exhibit = |n: u32| {
            let pinned = journal.append(b"x", &[1]).unwrap();
            let (id, access, source) = (SampleId(n), Access::default(), format!("d/{n}.jpg"));
            let content = Content::Held(Arc::new(Sample { id, source, access, pinned }));
            Exhibit { name: format!("{n:04}.jpg"), content }
        };
        let mut class = |of| samples.clone().filter(|n| n % 2 == of).map(&mut exhibit).collect();
        let classes = vec![("even".to_owned(), class(0)), ("odd".to_owned(), class(1))];
        Display { classes, bindings: None }
    }

    /// Names that readers look up: as with the kernel, a node is forgotten when its name is looked up
    /// again.
    struct Names {
        slots: Slots,
        found: HashMap<usize, u64>,
        now: Instant,
    }

    impl Names {
        fn look(&mut self, name: usize) -> (u64, u32) {
            let (node, dealt) = self.slots.deal(0, None, self.now).expect("something is held");
            let sample = dealt.sample.id.0;
            if let Some(before) = self.found.insert(name, node) {
                self.slots.forget(before);
            }
            (node, sample)
        }

        fn open(&mut self, name: usize) -> u32 {
            let (node, sample) = self.look(name);
            self.slots.take(node);
            sample
        }
    }

    /// Names of which all are looked at, and few are opened; then half of the buffer is replaced.
    #[test]
    fn what_is_only_looked_at_comes_back_after_a_while() {
        let mut slots = Slots::new(&[view(20, Arc::default())]);
        slots.renew(0, Some(1), Some(&holding(0..100)));
        let mut names = Names { slots, found: HashMap::new(), now: Instant::now() };
        for held in [0..100, 50..150, 100..130] {
            names.slots.renew(0, Some(1), Some(&holding(held.clone())));
            (0..64).for_each(|name| _ = names.look(name));
            names.now += PATIENCE;
            let (mut counts, mut last) = (HashMap::<u32, u32>::new(), HashMap::new());
            for turn in 0..5000 {
                let sample = names.open(turn % 8);
                *counts.entry(sample).or_default() += 1;
                let gap = last.insert(sample, turn).map_or(usize::MAX, |before| turn - before);
                assert!(gap >= 20 && held.contains(&sample), "{sample} of {held:?} after {gap}");
            }
            let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
            assert!(counts.len() == held.len() && most - least <= 2, "{counts:?}");
        }
    }

    /// Whoever is on the way to open what it found is not robbed of it.
    #[test]
    fn what_is_about_to_be_opened_is_not_dealt_to_others() {
        let mut slots = Slots::new(&[view(20, Arc::default())]);
        slots.renew(0, Some(1), Some(&holding(0..50)));
        let mut names = Names { slots, found: HashMap::new(), now: Instant::now() };
        let (node, sample) = names.look(0);
        names.now += PATIENCE / 2;
        assert!((0..500).all(|turn| names.open(1 + turn % 8) != sample));
        names.slots.take(node);
        let (late, sample) = names.look(0);
        names.now += PATIENCE;
        assert!((0..50).any(|turn| names.open(1 + turn % 8) == sample), "it was given up on");
        assert_eq!(names.slots.take(late).unwrap().1.id.0, sample, "it is what was found");
        assert!((0..19).all(|turn| names.open(1 + turn % 8) != sample), "that counts as well");
    }

    /// Samples without extension, of a class that is called like a slot.
    #[test]
    fn a_class_goes_before_the_slot_of_its_name() {
        let make = |_, _, made: Made| {
            let Display { mut classes, .. } = holding(0..4);
            classes.truncate(1);
            let (class, files) = &mut classes[0];
            *class = "0001".to_owned();
            for Exhibit { content, .. } in files {
                let Content::Held(sample) = content else { continue };
                Arc::make_mut(sample).source = "0001/sample".to_owned();
            }
            made(Some(Display { classes, bindings: None }));
        };
        let changes = Arc::default();
        let views = Views::new(vec![view(4, changes)], asking(Box::new(make)));
        let slots = Place::Slots(0).node();
        views.list(slots, |listed| {
            let listed = listed.unwrap();
            assert_eq!((listed.len(), &*listed[0].0, &*listed[63].0), (64, "0000", "0063"));
            let kinds = listed.iter().map(|(_, entry)| entry.kind == EntryKind::Directory);
            assert!(kinds.eq((0..64).map(|slot| slot == 1)));
        });
        views.lookup(slots, OsStr::new("0001"), |found| {
            assert_eq!(found.unwrap().kind, EntryKind::Directory);
        });
        let class = Place::SlotClass(0, 0).node();
        views.lookup(class, OsStr::new("0001"), |found| {
            assert!(matches!(found.unwrap().kind, EntryKind::File(..)));
        });
    }

    /// What makes displays, and nobody who hears of anything.
    fn asking(make: Make) -> Ask {
        Ask {
            make,
            shown: Box::new(|_, _| ()),
            damaged: Box::new(|_, _| ()),
            drawn: Box::new(|_| ()),
            score: Box::new(|_, _, done| done(None)),
            sync: Box::new(|_, done| done(Ok(()))),
            append: Box::new(|_, _, done| done(Ok(0))),
        }
    }

    /// Who tries names that are not there, again and again, makes the owner look at its buffer only
    /// as often as that has changed.
    #[test]
    fn what_has_not_changed_is_not_looked_at_again() {
        let (changes, looks) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
        let view = view(4, Arc::clone(&changes));
        let looking = Arc::clone(&looks);
        let make = move |_, _, made: Made| {
            looking.fetch_add(1, Ordering::Relaxed);
            made(Some(Display::default()));
        };
        let views = Views::new(vec![view], asking(Box::new(make)));
        let slots = Place::Slots(0).node();
        for change in 1..4 {
            for name in ["0000", "class", "no slot"] {
                views.lookup(slots, OsStr::new(name), |found| {
                    assert_eq!(found, Err(Errno::ENOENT));
                });
            }
            assert_eq!(looks.load(Ordering::Relaxed), change);
            changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}
