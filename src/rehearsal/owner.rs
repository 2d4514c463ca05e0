//! The thread that owns the buffers.

use std::cell::Cell;
use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::displays;
use super::held::{Held, Newcomer, hash_of};
use super::latent::Latent;
use super::notes::{Arriving, Note, Notes};
use super::offers::Waiting;
use super::queue::{Bytes, Delivery, FETCHED_BYTES_MAX, Offer, Queue};
use super::record::Origin;
use crate::cache::Cache;
use crate::catalog::{Catalog, NodeId};
use crate::fs::Access;
use crate::rehearsal::views::{Display, View, Views};
use crate::source::{Kind, Stat};
use crate::sync::Mutex;

/// How often what was written is made to last, while anything is.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Notes that are taken before what came of them is written.
const BATCH: usize = 256;

/// A buffer, and what is offered to it.
pub(super) struct Place {
    pub(super) held: Held,
    /// The codes beside it, if it has any.
    pub(super) latent: Option<Latent>,
    pub(super) queue: Queue,
    /// Whether it takes any file of the dataset, with the totals of the dataset that were looked at.
    pub(super) fits: Cell<Option<((u64, u64), bool)>>,
}

impl Place {
    /// Writes what happened, and makes what was written last.
    fn sync(&mut self) -> Result<(), Error> {
        let held = self.held.sync();
        let latent = self.latent.as_mut().map_or(Ok(()), Latent::sync);
        held.and(latent)
    }

    /// Makes room for offers that wait. Says whether everything that happened has been written and lasts,
    /// and no offer waits any more.
    fn settle(&mut self) -> bool {
        let lasts = self.held.lasts() && self.latent.as_ref().is_none_or(Latent::lasts);
        lasts && (self.queue.len() == 0 || self.held.make_room())
    }
}

/// What the owner works with.
pub(super) struct Around {
    pub(super) cache: Arc<Cache>,
    pub(super) views: Arc<Views>,
    /// Where it leaves notes for itself.
    pub(super) notes: Notes,
    /// Hears of files whose bytes could not be had.
    pub(super) failed: SyncSender<NodeId>,
    /// Where the dataset is seen at.
    pub(super) points: Arc<Mutex<Vec<PathBuf>>>,
    /// Why nobody sees the views, where that is so.
    pub(super) hidden: Arc<OnceLock<String>>,
    /// Bytes that all buffers may hold on their disk.
    pub(super) buffers_bytes: u64,
}

/// Owner of the buffers.
pub(super) struct Owner {
    pub(super) places: Vec<Place>,
    pub(super) around: Around,
    /// Sleep sets that were made.
    pub(super) nights: u64,
}

impl Owner {
    pub(super) fn new(places: Vec<Place>, around: Around) -> Self {
        Owner { places, around, nights: 0 }
    }

    /// Takes notes until `closed`.
    pub(super) fn run(mut self, notes: &Arriving, closed: &AtomicBool) {
        self.say_doubts();
        // What could not be written when a buffer was opened is tried again as well.
        let mut due = Some(Instant::now());
        while !closed.load(Ordering::Relaxed) {
            let patience = due.map_or(Duration::from_secs(3600), |due| {
                due.saturating_duration_since(Instant::now())
            });
            match notes.next(patience) {
                Ok(note) => {
                    self.take(note);
                    notes.there(BATCH).for_each(|note| self.take(note));
                    self.decide();
                    self.places.iter_mut().for_each(|place| drop(place.held.write()));
                    due.get_or_insert_with(|| Instant::now() + SYNC_EVERY);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                self.places.iter_mut().for_each(|place| drop(place.sync()));
                self.decide();
                // What waits for the disk is tried again.
                let settled = self.places.iter_mut().all(Place::settle);
                due = (!settled).then(|| Instant::now() + SYNC_EVERY);
            }
        }
        // What was read last is offered, too.
        notes.there(usize::MAX).for_each(|note| self.take(note));
        self.decide();
        self.places.iter_mut().for_each(|place| drop(place.sync()));
    }

    pub(super) fn catalog(&self) -> &Catalog {
        self.around.cache.catalog()
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Read { node, bytes } => self.read(node, bytes.map(Arc::new).as_ref()),
            Note::Began { epoch } => self.freeze(epoch),
            Note::Make { buffer, view, made } => {
                self.decide();
                made(self.display(buffer, view));
            }
            Note::Show { buffer, shown } => {
                self.decide();
                shown(self.on_disk(buffer).map(|held| displays::all(held)));
            }
            Note::Shown { buffer, sample } => {
                if let Some(place) = self.places.get_mut(buffer) {
                    place.held.shown(sample);
                }
            }
            Note::Damaged { buffer, sample } => {
                if let Some(place) = self.places.get_mut(buffer) {
                    place.held.examine(sample);
                }
            }
            Note::Scored { buffer, lines, done } => {
                let lines = String::from_utf8_lossy(&lines);
                let why = self.score(buffer, &lines).why();
                let written = self.places.get_mut(buffer).map_or(Ok(()), |of| of.held.write());
                done(why.or(written.err().map(errno)));
            }
            Note::Appended { buffer, bytes, done } => {
                let latent = self.places.get_mut(buffer).and_then(|place| place.latent.as_mut());
                done(latent.map_or(Err(Errno::ENOENT), |latent| latent.append(&bytes)));
            }
            Note::Sync { buffer, done } => {
                let place = self.places.get_mut(buffer).ok_or(Errno::ENOENT);
                done(place.and_then(|place| place.sync().map_err(errno)));
            }
            Note::Asked { ask } => ask(self),
            Note::Wake => {}
        }
    }

    /// What is held at the beginning of an epoch is what the epoch shows.
    fn freeze(&mut self, epoch: u32) {
        self.decide();
        let view = View::Epoch(epoch.into());
        for buffer in 0..self.places.len() {
            if !self.around.views.is_seen(buffer, view)
                && let Some(display) = self.display(buffer, view)
            {
                self.around.views.freeze(buffer, view, display);
            }
        }
    }

    /// What a buffer holds, all of which is on the disk: what is shown is there before.
    fn on_disk(&mut self, buffer: usize) -> Option<&mut Held> {
        let held = &mut self.places.get_mut(buffer)?.held;
        let _ = held.write();
        Some(held)
    }

    /// What a view of a buffer shows from now on.
    fn display(&mut self, buffer: usize, view: View) -> Option<Display> {
        let cache = Arc::clone(&self.around.cache);
        let held = self.on_disk(buffer)?;
        match view {
            View::Epoch(_) => Some(displays::all(held)),
            View::Stream(epoch) => Some(displays::stream(held, epoch)),
            View::Mix(epoch) => Some(displays::mix(held, cache.catalog(), epoch)),
            View::TaskMix => Some(displays::mix(held, cache.catalog(), held.task().into())),
            // They are there from the beginning.
            View::Sleep(_) => None,
        }
    }

    /// A file was read: it is offered to each buffer.
    fn read(&mut self, node: NodeId, bytes: Option<&Arc<Waiting>>) {
        let Ok(path) = self.catalog().path(node) else { return };
        for buffer in 0..self.places.len() {
            let bytes = bytes.map_or(Bytes::Away, |bytes| Bytes::Here(Arc::clone(bytes)));
            self.offer(buffer, &path, node, bytes, false);
        }
    }

    /// Offers a file to a buffer. Says whether it is one that is to be offered, and was not.
    pub(super) fn offer(
        &mut self,
        buffer: usize,
        path: &Path,
        node: NodeId,
        bytes: Bytes,
        named: bool,
    ) -> bool {
        let Ok(attr) = self.catalog().getattr(node) else { return false };
        let Some(Place { held, queue, .. }) = self.places.get_mut(buffer) else { return false };
        let taken = attr.stat.kind == Kind::File && held.takes(path, attr.stat.size, named);
        taken
            && queue.push(Offer { node, hash: hash_of(path.as_os_str().as_encoded_bytes()), bytes })
    }

    /// Decides what can be decided, and fetches what the next decisions need.
    pub(super) fn decide(&mut self) {
        for Place { held, queue, .. } in &mut self.places {
            let catalog = self.around.cache.catalog();
            while held.make_room()
                && let Some(offer) = queue.first()
            {
                let bytes = match &offer.bytes {
                    Bytes::Away => None,
                    Bytes::Here(waiting) => Some(Some(&**waiting.bytes)),
                    Bytes::Asked(fetched) => match fetched.get() {
                        Some(bytes) => Some(bytes.as_deref()),
                        None => break,
                    },
                };
                let sample = sample(catalog, held, offer);
                match (sample, bytes) {
                    // It may be kept, and there are no bytes yet.
                    (Some(sample), None) if held.may_keep(&sample, 0) => break,
                    (Some(sample), None) => held.offer(sample, &[]),
                    (Some(sample), Some(Some(bytes))) if bytes.len() as u64 == sample.bytes => {
                        held.offer(sample, bytes);
                    }
                    // It is another version by now, or cannot be read.
                    _ => drop(self.around.failed.try_send(offer.node)),
                }
                queue.pop();
            }
            fetch(&self.around.cache, held, queue, &self.around.notes);
        }
    }
}

fn errno(error: Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// What is offered, by what is known of it now; none where that is another version.
fn sample(catalog: &Catalog, held: &Held, offer: &Offer) -> Option<Newcomer> {
    let (path, stat) = (catalog.path(offer.node).ok()?, catalog.getattr(offer.node).ok()?.stat);
    let class = held.class_of(&path)?;
    let access = access(catalog, offer.node, &stat);
    let origin = Origin { path: path.to_string_lossy().into_owned(), access };
    Some(Newcomer { hash: offer.hash, class, bytes: stat.size, origin })
}

/// Who may read a file: whom its mode lets read it and the directories above let reach it.
fn access(catalog: &Catalog, node: NodeId, stat: &Stat) -> Access {
    let (mut access, mut at) = (Access::of(stat), node);
    while at != NodeId::ROOT {
        let parent = catalog.parent(at).and_then(|parent| Ok((parent, catalog.getattr(parent)?)));
        let Ok((parent, attr)) = parent else { return Access { mode: 0, ..access } };
        access = access.below(&attr.stat);
        at = parent;
    }
    access
}

/// Begins fetches of what the next decisions need.
fn fetch(cache: &Arc<Cache>, held: &mut Held, queue: &mut Queue, notes: &Notes) {
    let mut asked_bytes = 0;
    let may_fetch = held.make_room();
    let most = FETCHED_BYTES_MAX.min(cache.memory().capacity() as u64 / 8);
    for (ahead, offer) in queue.firsts().enumerate() {
        let Some(sample) = sample(cache.catalog(), held, offer) else { continue };
        let fits = ahead == 0 || asked_bytes + sample.bytes <= most;
        if matches!(offer.bytes, Bytes::Away)
            && may_fetch
            && fits
            && held.may_keep(&sample, ahead as u32)
        {
            let fetched = Arc::default();
            let delivery = Delivery::new(&fetched, notes);
            offer.bytes = Bytes::Asked(fetched);
            cache.whole(offer.node, Box::new(|bytes| delivery.bring(bytes)));
        }
        if matches!(offer.bytes, Bytes::Asked(_)) {
            asked_bytes += sample.bytes;
        }
    }
}
