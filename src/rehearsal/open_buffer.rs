//! One open buffer: its journal, its undecided offers, and its codes.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::CodeStore;
use super::buffer_codes::BufferCodes;
use super::journaled::{JournaledBuffer, OfferedSample, hash_of};
use super::notes::Notes;
use super::queue::{Delivery, FETCHED_BYTES_MAX, Fetched, Offer, OfferBytes, Queue};
use super::record::Origin;
use super::scores::ScoreCounts;
use crate::buffer::{Classes, Labels};
use crate::cache::{Cache, read_whole};
use crate::catalog::{Catalog, NodeId};
use crate::config::{DiskSettings, RehearsalSettings, hanging_disk_error};
use crate::disk::{Directory, Disk, unless_it_hangs};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Access;
use crate::input::{self, Limits};
use crate::rehearsal::views::ServedBuffer;
use crate::source::{Kind, Stat};

/// Why a buffer takes no changes.
pub(super) const FULL: &str = "the cache directory's disk takes nothing";

pub(crate) struct BufferToOpen {
    pub(crate) settings: RehearsalSettings,
    pub(crate) directory: PathBuf,
    /// The directory of its codes, if it has any.
    pub(crate) latent: Option<PathBuf>,
    /// The limit for a file of labels, by the memory that there is.
    pub(crate) memory: usize,
}

pub(super) struct OpenBuffer {
    /// The number by which views and notes know it.
    pub(super) number: usize,
    pub(super) journaled: JournaledBuffer,
    pub(super) codes: Option<BufferCodes>,
    pub(super) queue: Queue,
    /// Counts of the scores of this mount.
    pub(super) scores: ScoreCounts,
    /// Whether its classes fit any file, and the dataset's totals when this was found out.
    fits: Cell<Option<((u64, u64), bool)>>,
}

/// The labels of a buffer's classes, if a file gives them.
fn labels(buffer: &BufferToOpen) -> Result<Labels> {
    let Classes::Labels(file) = &buffer.settings.classes else { return Ok(Labels::default()) };
    let text = input::read(file, &Limits::LABELS.for_daemon(buffer.memory));
    let parsed =
        text.and_then(|text| Labels::parse(&text).map_err(|error| error.context(file.display())));
    parsed.map_err(|error| error.context(format!("rehearsal.{}", buffer.settings.name)))
}

impl OpenBuffer {
    /// Opens all buffers and their codes. It is an error if their disk hangs. Later calls of the disk are
    /// watched together with the store's.
    pub(super) fn open_all(
        buffers: Vec<BufferToOpen>,
        cache: &Cache,
        disk: &DiskSettings,
    ) -> Result<Vec<OpenBuffer>> {
        let (min_free, store) = (disk.min_free_bytes, cache.store().cloned());
        // Files of labels may be on any disk, so they are not read under the watch for the cache disk.
        let labels = buffers.iter().map(labels).collect::<Result<Vec<Labels>>>()?;
        let open_all = move || {
            let watched = |directory: Directory| -> Arc<dyn Disk> {
                let directory = Arc::new(directory);
                match &store {
                    Some(store) => store.watch_directory(directory),
                    None => directory,
                }
            };
            let all = buffers.into_iter().zip(labels).enumerate();
            all.map(|(at, (buffer, labels))| Self::open(at, buffer, labels, &watched, min_free))
                .collect()
        };
        unless_it_hangs(open_all)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?
            .unwrap_or_else(|| Err(hanging_disk_error(&disk.dir)))
    }

    fn open(
        number: usize,
        buffer: BufferToOpen,
        labels: Labels,
        watched: &dyn Fn(Directory) -> Arc<dyn Disk>,
        min_free: u64,
    ) -> Result<OpenBuffer> {
        let BufferToOpen { settings, directory, latent, .. } = buffer;
        let name = format!("rehearsal.{}", settings.name);
        let cannot = |directory: &Path, error: io::Error| {
            let message = format!("{name}: {}: {error}", directory.display());
            Error::new(ErrorKind::Cache, message)
                .hint("move the directory away to begin what is in it anew")
        };
        let disk = |directory: &Path| Directory::open(directory, false).map(watched);
        let codes = latent.map(|directory| {
            let codes = disk(&directory);
            let codes = codes.and_then(|disk| CodeStore::open(disk, settings.latent, min_free));
            codes.map(BufferCodes::new).map_err(|error| cannot(&directory, error))
        });
        let codes = codes.transpose()?;
        let open = |disk| JournaledBuffer::open(settings, labels, disk, min_free);
        let journaled =
            disk(&directory).and_then(open).map_err(|error| cannot(&directory, error))?;
        let (queue, scores, fits) = Default::default();
        Ok(OpenBuffer { number, journaled, codes, queue, scores, fits })
    }

    pub(super) fn served(&self) -> ServedBuffer {
        let settings = &self.journaled.settings;
        ServedBuffer {
            name: settings.name.clone(),
            seed: settings.rules.seed,
            distance: settings.distance,
            slots: settings.slots,
            changes: Arc::clone(&self.journaled.changes),
            progress: self.journaled.progress(),
            codes: self.codes.as_ref().map(|codes| Arc::clone(codes.reader())),
        }
    }

    /// Its name, if other nodes show its samples, too.
    pub(super) fn shared_name(&self) -> Option<Arc<str>> {
        let settings = &self.journaled.settings;
        settings.shared.then(|| settings.name.as_str().into())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        let journaled = self.journaled.sync();
        let codes = self.codes.as_mut().map_or(Ok(()), BufferCodes::sync);
        journaled.and(codes)
    }

    /// Makes room for offers. Returns whether everything is synced and no offer waits for room.
    pub(super) fn settle(&mut self) -> bool {
        let lasts = self.journaled.lasts() && self.codes.as_ref().is_none_or(BufferCodes::lasts);
        lasts && (self.queue.len() == 0 || self.journaled.ensure_room())
    }

    /// The buffer after its records were written: only written samples are shown.
    pub(super) fn written(&mut self) -> &mut JournaledBuffer {
        let _ = self.journaled.write();
        &mut self.journaled
    }

    /// Writes the records, so that an answered change survives the process.
    pub(super) fn write_answered(&mut self) -> Result<()> {
        self.journaled.write().map_err(|error| {
            Error::new(ErrorKind::Cache, format!("{FULL} yet, so it may not last: {error}"))
                .hint("make room in the cache directory; what was said is written then")
        })
    }

    /// The buffer, for further records.
    ///
    /// # Errors
    /// If its disk takes none.
    pub(super) fn writable(&mut self) -> Result<&mut JournaledBuffer> {
        let full = || Error::new(ErrorKind::Cache, FULL).hint("make room in the cache directory");
        self.journaled.ensure_room().then_some(&mut self.journaled).ok_or_else(full)
    }

    /// Whether its classes fit any file of the dataset. Looks at all files, and again only when the dataset's
    /// totals have changed.
    pub(super) fn fits(&self, catalog: &Catalog) -> bool {
        let totals = catalog.totals();
        if let Some((of, fits)) = self.fits.get()
            && of == totals
        {
            return fits;
        }
        let mut fits = false;
        catalog.for_each_file(|path, _, stat| {
            fits = fits
                || stat.kind == Kind::File
                    && path.starts_with(&self.journaled.settings.root)
                    && self.journaled.class_of(path).is_some();
        });
        self.fits.set(Some((totals, fits)));
        fits
    }

    /// Adds the offer of a file to the queue, if the buffer accepts it. Returns whether it was added.
    pub(super) fn enqueue(
        &mut self,
        catalog: &Catalog,
        path: &Path,
        node: NodeId,
        bytes: OfferBytes,
        named: bool,
    ) -> bool {
        let Ok(attr) = catalog.getattr(node) else { return false };
        let size = attr.stat.size;
        let is_accepted = attr.stat.kind == Kind::File && self.journaled.accepts(path, size, named);
        let hash = hash_of(path.as_os_str().as_encoded_bytes());
        is_accepted && self.queue.push(Offer { node, hash, bytes })
    }

    /// Decides as many offers as possible in their order, and fetches bytes for the next ones. `failed`
    /// receives files whose bytes could not be read.
    pub(super) fn decide(
        &mut self,
        cache: &Arc<Cache>,
        notes: &Notes,
        failed: &SyncSender<NodeId>,
    ) {
        while self.journaled.ensure_room()
            && let Some(offer) = self.queue.first()
        {
            let bytes = match &offer.bytes {
                OfferBytes::NotRequested => None,
                OfferBytes::Present(waiting) => Some(Some(&**waiting.bytes)),
                OfferBytes::Requested(fetched) => match fetched.get() {
                    Some(bytes) => Some(bytes.as_deref()),
                    None => break,
                },
            };
            match (offered_sample(cache.catalog(), &self.journaled, offer), bytes) {
                // Its bytes are not there yet.
                (Some(sample), None) if self.journaled.may_keep(&sample, 0) => break,
                (Some(sample), None) => self.journaled.record_offer(sample, &[]),
                (Some(sample), Some(Some(bytes))) if bytes.len() as u64 == sample.bytes => {
                    self.journaled.record_offer(sample, bytes);
                }
                // The file has changed, or it cannot be read.
                _ => drop(failed.try_send(offer.node)),
            }
            self.queue.pop();
        }
        self.fetch(cache, notes);
    }

    /// Begins fetches for the first offers in the queue that may be kept. More than one are fetched at once
    /// only if their bytes fit in a limit.
    fn fetch(&mut self, cache: &Arc<Cache>, notes: &Notes) {
        let mut requested_bytes = 0;
        let may_fetch = self.journaled.ensure_room();
        let most = FETCHED_BYTES_MAX.min(cache.memory().capacity() as u64 / 8);
        for (ahead, offer) in self.queue.fetchable().enumerate() {
            let sample = offered_sample(cache.catalog(), &self.journaled, offer);
            let Some(sample) = sample else { continue };
            let fits = ahead == 0 || requested_bytes + sample.bytes <= most;
            if matches!(offer.bytes, OfferBytes::NotRequested)
                && may_fetch
                && fits
                && self.journaled.may_keep(&sample, ahead as u32)
            {
                let fetched = Arc::<Fetched>::default();
                let delivery = Delivery { fetched: Arc::clone(&fetched), notes: notes.clone() };
                offer.bytes = OfferBytes::Requested(fetched);
                read_whole(cache, offer.node, Box::new(|bytes| delivery.deliver(bytes)));
            }
            if matches!(offer.bytes, OfferBytes::Requested(_)) {
                requested_bytes += sample.bytes;
            }
        }
    }
}

/// The offered sample as the catalog knows it. None if it has changed, or if it has no class.
fn offered_sample(
    catalog: &Catalog,
    journaled: &JournaledBuffer,
    offer: &Offer,
) -> Option<OfferedSample> {
    let (path, stat) = (catalog.path(offer.node).ok()?, catalog.getattr(offer.node).ok()?.stat);
    let class = journaled.class_of(&path)?;
    let access = access(catalog, offer.node, &stat);
    let origin = Origin { path: path.to_string_lossy().into_owned(), access };
    Some(OfferedSample { hash: offer.hash, class, bytes: stat.size, origin })
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
