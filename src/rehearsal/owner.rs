//! The owner: the thread that decides about the buffers and writes them. After each batch of notes it decides
//! offers, fetches bytes for further offers, and writes to the journals.

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

/// How often the journals are synced, if there is anything to sync.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How many further notes are taken before the journals are written.
const BATCH: usize = 256;

/// A buffer with its offers.
pub(super) struct Place {
    pub(super) held: Held,
    /// Its codes, if it has any.
    pub(super) latent: Option<Latent>,
    pub(super) queue: Queue,
    /// Whether it takes any file of the dataset, and the dataset's totals when this was found out.
    pub(super) fits: Cell<Option<((u64, u64), bool)>>,
}

impl Place {
    fn sync(&mut self) -> Result<(), Error> {
        let held = self.held.sync();
        let latent = self.latent.as_mut().map_or(Ok(()), Latent::sync);
        held.and(latent)
    }

    /// Makes room for offers. Returns whether everything is synced and no offer waits for room.
    fn settle(&mut self) -> bool {
        let lasts = self.held.lasts() && self.latent.as_ref().is_none_or(Latent::lasts);
        lasts && (self.queue.len() == 0 || self.held.make_room())
    }
}

pub(super) struct Around {
    pub(super) cache: Arc<Cache>,
    pub(super) views: Arc<Views>,
    /// For notes to itself.
    pub(super) notes: Notes,
    /// Receives files whose bytes could not be read.
    pub(super) failed: SyncSender<NodeId>,
    pub(super) points: Arc<Mutex<Vec<PathBuf>>>,
    /// Why the views cannot be seen, if that is so.
    pub(super) hidden: Arc<OnceLock<String>>,
    /// How many bytes all buffers together may have on the cache disk.
    pub(super) buffers_bytes: u64,
}

pub(super) struct Owner {
    pub(super) places: Vec<Place>,
    pub(super) around: Around,
    /// How many sleep sets were made in this mount.
    pub(super) nights: u64,
}

impl Owner {
    pub(super) fn new(places: Vec<Place>, around: Around) -> Self {
        Owner { places, around, nights: 0 }
    }

    /// Takes notes until `closed` is set.
    pub(super) fn run(mut self, notes: &Arriving, closed: &AtomicBool) {
        self.say_doubts();
        // A sync is due at once: records may wait since a buffer was opened.
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
                // Records and offers may wait for the disk.
                let settled = self.places.iter_mut().all(Place::settle);
                due = (!settled).then(|| Instant::now() + SYNC_EVERY);
            }
        }
        // Files that were read last are offered, too.
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

    /// Makes the view of an epoch that begins, unless a reader has looked at that view.
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

    /// A buffer after its records were written: only written samples are shown.
    fn on_disk(&mut self, buffer: usize) -> Option<&mut Held> {
        let held = &mut self.places.get_mut(buffer)?.held;
        let _ = held.write();
        Some(held)
    }

    /// Makes the display of a view.
    fn display(&mut self, buffer: usize, view: View) -> Option<Display> {
        let cache = Arc::clone(&self.around.cache);
        let held = self.on_disk(buffer)?;
        match view {
            View::Epoch(_) => Some(displays::all(held)),
            View::Stream(epoch) => Some(displays::stream(held, epoch)),
            View::Mix(epoch) => Some(displays::mix(held, cache.catalog(), epoch)),
            View::TaskMix => Some(displays::mix(held, cache.catalog(), held.task().into())),
            // A sleep set is made when it is chosen.
            View::Sleep(_) => None,
        }
    }

    /// Offers a file that was read to each buffer.
    fn read(&mut self, node: NodeId, bytes: Option<&Arc<Waiting>>) {
        let Ok(path) = self.catalog().path(node) else { return };
        for buffer in 0..self.places.len() {
            let bytes = bytes.map_or(Bytes::Away, |bytes| Bytes::Here(Arc::clone(bytes)));
            self.offer(buffer, &path, node, bytes, false);
        }
    }

    /// Offers a file to a buffer. Returns whether the offer was added to the queue.
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

    /// Decides as many offers as possible in their order, and fetches bytes for the next ones.
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
                    // Its bytes are not there yet.
                    (Some(sample), None) if held.may_keep(&sample, 0) => break,
                    (Some(sample), None) => held.offer(sample, &[]),
                    (Some(sample), Some(Some(bytes))) if bytes.len() as u64 == sample.bytes => {
                        held.offer(sample, bytes);
                    }
                    // The file has changed, or it cannot be read.
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

/// The offered sample as the catalog knows it. None if it has changed, or if it has no class.
fn sample(catalog: &Catalog, held: &Held, offer: &Offer) -> Option<Newcomer> {
    let (path, stat) = (catalog.path(offer.node).ok()?, catalog.getattr(offer.node).ok()?.stat);
    let class = held.class_of(&path)?;
    let access = access(catalog, offer.node, &stat);
    let origin = Origin { path: path.to_string_lossy().into_owned(), access };
    Some(Newcomer { hash: offer.hash, class, bytes: stat.size, origin })
}

/// Who may read a file, by its mode and those of the directories above.
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

/// Begins fetches for the first offers in the queue that may be kept. More than one are fetched at once only
/// if their bytes fit in a limit.
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
