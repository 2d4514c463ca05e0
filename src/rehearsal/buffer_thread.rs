//! The thread that decides about the buffers and writes them. After each batch of notes it decides offers,
//! fetches bytes for further offers, and writes to the journals.

use std::io::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::notes::{Note, NoteReceiver, Notes};
use super::open_buffer::OpenBuffer;
use super::paths::Paths;
use super::queue::OfferBytes;
use super::read_observer::WaitingBytes;
use super::scores::take_scores;
use super::snapshots;
use crate::buffer::Capacity;
use crate::catalog::NodeId;
use crate::config::Bytes;
use crate::rehearsal::views::{Snapshot, View};

/// How often the journals are synced, if there is anything to sync.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How many further notes are taken before the journals are written.
const BATCH: usize = 256;

pub(super) struct BufferThread {
    pub(super) buffers: Vec<OpenBuffer>,
    pub(super) paths: Paths,
    /// For notes to itself.
    pub(super) notes: Notes,
    /// Receives files whose bytes could not be read.
    pub(super) failed: SyncSender<NodeId>,
    /// Why the views cannot be seen, if that is so.
    pub(super) hidden: Arc<OnceLock<String>>,
    /// How many bytes all buffers together may have on the cache disk.
    pub(super) buffers_bytes: u64,
    pub(super) sleep_sets_made: u64,
}

impl BufferThread {
    /// Takes notes until `closed` is set.
    pub(super) fn run(mut self, notes: &NoteReceiver, closed: &AtomicBool) {
        self.log_warnings();
        // A sync is due at once: records may wait since a buffer was opened.
        let mut due = Some(Instant::now());
        while !closed.load(Ordering::Relaxed) {
            let patience = due.map_or(Duration::from_secs(3600), |due| {
                due.saturating_duration_since(Instant::now())
            });
            match notes.next(patience) {
                Ok(note) => {
                    self.handle(note);
                    notes.waiting(BATCH).for_each(|note| self.handle(note));
                    self.decide();
                    self.buffers.iter_mut().for_each(|buffer| drop(buffer.journaled.write()));
                    due.get_or_insert_with(|| Instant::now() + SYNC_EVERY);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                self.buffers.iter_mut().for_each(|buffer| drop(buffer.sync()));
                self.decide();
                // Records and offers may wait for the disk.
                let settled = self.buffers.iter_mut().all(OpenBuffer::settle);
                due = (!settled).then(|| Instant::now() + SYNC_EVERY);
            }
        }
        // Files that were read last are offered, too.
        notes.waiting(usize::MAX).for_each(|note| self.handle(note));
        self.decide();
        self.buffers.iter_mut().for_each(|buffer| drop(buffer.sync()));
    }

    fn handle(&mut self, note: Note) {
        match note {
            Note::Read { node, bytes } => self.enqueue_offers(node, bytes.map(Arc::new).as_ref()),
            Note::Began { epoch } => self.freeze(epoch),
            Note::Make { buffer, view, made } => {
                self.decide();
                made(self.snapshot(buffer, view));
            }
            Note::Show { buffer, shown } => {
                self.decide();
                let buffer = self.buffers.get_mut(buffer).ok_or(Errno::ENOENT);
                shown(buffer.map(|buffer| snapshots::all(buffer.written())));
            }
            Note::Shown { buffer, sample } => {
                if let Some(buffer) = self.buffers.get_mut(buffer) {
                    buffer.journaled.count_replay(sample);
                }
            }
            Note::ShownElsewhere { buffer, hash } => {
                if let Some(buffer) = self.buffers.get_mut(buffer)
                    && let Some(sample) = buffer.journaled.sample_of(hash)
                {
                    buffer.journaled.count_replay(sample.id);
                }
            }
            Note::Damaged { buffer, sample } => {
                if let Some(buffer) = self.buffers.get_mut(buffer) {
                    buffer.journaled.check_sample(sample);
                }
            }
            Note::Scored { buffer, lines, done } => {
                let Some(buffer) = self.buffers.get_mut(buffer) else { return done(None) };
                let lines = String::from_utf8_lossy(&lines);
                let refused = take_scores(buffer, &self.paths, &lines).errno();
                done(refused.or(buffer.journaled.write().err().map(errno)));
            }
            Note::Appended { buffer, bytes, done } => {
                let codes = self.buffers.get_mut(buffer).and_then(|buffer| buffer.codes.as_mut());
                done(codes.map_or(Err(Errno::ENOENT), |codes| codes.append(&bytes)));
            }
            Note::Sync { buffer, done } => {
                let buffer = self.buffers.get_mut(buffer).ok_or(Errno::ENOENT);
                done(buffer.and_then(|buffer| buffer.sync().map_err(errno)));
            }
            Note::Ask { ask } => ask(self),
            Note::Wake => {}
        }
    }

    /// Makes the view of an epoch that begins, unless a reader has looked at that view.
    fn freeze(&mut self, epoch: u32) {
        self.decide();
        let view = View::Epoch(epoch.into());
        for buffer in 0..self.buffers.len() {
            if let Some(joint) = self.paths.views.joint(buffer) {
                joint.prepare(buffer, view);
            } else if !self.paths.views.snapshots.is_seen(buffer, view)
                && let Ok(snapshot) = self.snapshot(buffer, view)
            {
                self.paths.views.snapshots.freeze(buffer, view, snapshot);
            }
        }
    }

    fn snapshot(&mut self, buffer: usize, view: View) -> Result<Snapshot, Errno> {
        let buffer = self.buffers.get_mut(buffer).ok_or(Errno::ENOENT)?.written();
        let catalog = self.paths.catalog();
        match view {
            View::Epoch(_) => Ok(snapshots::all(buffer)),
            View::Stream(epoch) => Ok(snapshots::stream(buffer, epoch)),
            View::Mix(epoch) => snapshots::mix(buffer, catalog, epoch),
            View::TaskMix => snapshots::mix(buffer, catalog, buffer.task().into()),
            // A sleep set is made when it is chosen.
            View::Sleep(_) => Err(Errno::ENOENT),
        }
    }

    /// Offers a file that was read to each buffer, which decides later.
    fn enqueue_offers(&mut self, node: NodeId, bytes: Option<&Arc<WaitingBytes>>) {
        let catalog = self.paths.catalog();
        let Ok(path) = catalog.path(node) else { return };
        for buffer in &mut self.buffers {
            let present = |bytes| OfferBytes::Present(Arc::clone(bytes));
            let bytes = bytes.map_or(OfferBytes::NotRequested, present);
            buffer.enqueue(catalog, &path, node, bytes, false);
        }
    }

    pub(super) fn decide(&mut self) {
        for buffer in &mut self.buffers {
            buffer.decide(&self.paths.cache, &self.notes, &self.failed);
        }
    }

    fn log_warnings(&self) {
        for buffer in &self.buffers {
            let name = &buffer.journaled.settings.name;
            for warning in self.warnings(buffer) {
                tracing::warn!(name, "rehearsal: {warning}");
            }
        }
    }

    /// Warnings about a buffer's settings that need the dataset or the mount to be known.
    pub(super) fn warnings(&self, buffer: &OpenBuffer) -> Vec<String> {
        let settings = &buffer.journaled.settings;
        let catalog = self.paths.catalog();
        let mut warnings = Vec::new();
        // If something was offered, the classes fit.
        let is_empty = buffer.journaled.buffer().offers() == 0 && catalog.totals().0 > 0;
        if settings.rules.capacity.limit() > 0 && is_empty && !buffer.fits(catalog) {
            let root = settings.root.display();
            let classes = &settings.classes;
            warnings.push(match settings.root.as_os_str().is_empty() {
                true => format!("classes: `{classes}` fits no file of the dataset"),
                false => format!("classes: `{classes}` fits no file below root `{root}`"),
            });
        }
        warnings.extend(self.size_warning(buffer));
        warnings.extend(self.hidden.get().cloned());
        warnings
    }

    /// If all buffers need more than the disk has for them: how large this one may be. Sizes in bytes were
    /// compared when the settings were read. The size of a number of samples depends on the dataset.
    fn size_warning(&self, buffer: &OpenBuffer) -> Option<String> {
        let capacity = |buffer: &OpenBuffer| buffer.journaled.settings.rules.capacity;
        let Capacity::Samples(samples) = capacity(buffer) else { return None };
        let (files, bytes) = self.paths.catalog().totals();
        let each = bytes.checked_div(files)?.max(1);
        let need = |buffer: &OpenBuffer| match capacity(buffer) {
            Capacity::Samples(samples) => samples.min(files).saturating_mul(each),
            Capacity::Bytes(bytes) => bytes,
        };
        let all = self.buffers.iter().fold(0, |all: u64, of| all.saturating_add(need(of)));
        let has = self.buffers_bytes;
        if all <= has {
            return None;
        }
        let others = all - need(buffer);
        let fit = has.saturating_sub(others) / each;
        let (all, each, has) = (Bytes(all).human(), Bytes(each).human(), Bytes(has).human());
        Some(format!(
            "size: with {samples} samples of {each} on average buffers come to {all}, and cache.disk \
             has {has} for them: make it {fit} samples at most, or make room for more on the disk of \
             cache.dir and in cache.disk"
        ))
    }
}

fn errno(error: Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
