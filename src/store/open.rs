//! Opening a store, and what it turns out to have lost.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::log::{Entries, Key, Location, Log, is_index};
use super::segments::{LeftOut, Segments, is_segment};
use super::{Index, Limits, Store, Writer, large, stored};
use crate::disk::Disk;
use crate::disk::Health;
use crate::disk::Watch;
use crate::disk::unguessable;
use crate::sync::{Mutex, RwLock};

/// What the disk has lost of a store, as its opening shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Where the samples were that are left out: what their records lead to is gone, cut, or of others.
    pub samples: Vec<String>,
    /// Records of the index that cannot be read.
    pub records: u64,
    /// Indexes that cannot be read, with an older one in their place.
    pub indexes: Vec<String>,
    /// Segments that cannot be opened at this moment, and how many samples are in each. Nothing is lost.
    pub closed: Vec<(String, u64)>,
}

impl Losses {
    /// Whether something is lost.
    pub fn is_some(&self) -> bool {
        !self.samples.is_empty() || self.records > 0 || !self.indexes.is_empty()
    }
}

/// A secret for a store that is new, which nobody can guess.
pub fn fresh_secret() -> u128 {
    u128::from(unguessable()) << 64 | u128::from(unguessable())
}

impl Store {
    /// Opens what the disk holds, and mends its index. `fresh` becomes the secret of a store that is new; nobody should
    /// be able to guess it.
    ///
    /// # Errors
    /// The disk's, where it cannot be read or an index cannot be made.
    pub fn open(disk: Arc<dyn Disk>, limits: Limits, fresh: u128) -> Result<Self> {
        let (watch, disk, names) = begin(disk)?;
        let (log, entries) = match Log::open(&*disk, &names)? {
            Some(found) => found,
            None => (Log::begin(&*disk, &names, fresh)?, Entries::default()),
        };
        let (store, _) = Self::with(watch, disk, &names, limits, log, entries);
        store.mend_index();
        Ok(store)
    }

    /// Leaves behind what cannot be read of the index, which a machine that went down may have left.
    fn mend_index(&self) {
        let mut writer = self.writer();
        let records = writer.log.torn_records;
        if records > 0 {
            tracing::warn!(
                records,
                "the index of the store was damaged; what is missing is fetched again"
            );
            // It can be read as it is.
            let _ = self.rewrite(&mut writer).inspect_err(|error| self.health.bad(error));
        }
    }

    /// Opens what the disk holds and says what of it is lost; none where there is no store. Where one
    /// has no index any more nothing is changed.
    ///
    /// # Errors
    /// The disk's, and [`ErrorKind::InvalidData`] where all is lost with the index.
    pub fn open_found(disk: Arc<dyn Disk>, limits: Limits) -> Result<Option<(Self, Losses)>> {
        let (watch, disk, names) = begin(disk)?;
        if let Some((log, entries)) = Log::open(&*disk, &names)? {
            let (store, left_out) = Self::with(watch, disk, &names, limits, log, entries);
            let losses = store.losses(&left_out);
            return Ok(Some((store, losses)));
        }
        let is_ours =
            |name: &str| is_index(name) || is_segment(name) || large::parse(name).is_some();
        if names.iter().any(|(name, _)| is_ours(name)) {
            let message = "its index is gone or damaged, and all that was stored is lost with it";
            return Err(Error::new(ErrorKind::InvalidData, message));
        }
        Ok(None)
    }

    fn with(
        watch: Arc<Watch>,
        disk: Arc<dyn Disk>,
        names: &[(String, u64)],
        limits: Limits,
        mut log: Log,
        mut entries: Entries,
    ) -> (Self, Vec<(Key, Location)>) {
        let (segments, files, LeftOut { lost, closed }) =
            Segments::open(&disk, names, &mut entries, limits.segment_bytes);
        // Their places will be others', who must not be left out for them at the next open.
        log.owe(lost.iter().map(|(key, _)| *key));
        let used = entries.values().map(|at| stored(at.length as usize)).sum();
        let store = Store {
            secret: log.secret().to_le_bytes(),
            limits,
            index: RwLock::new(Index { entries, files, ..Index::default() }),
            writer: Mutex::new(Writer {
                log,
                segments,
                closed,
                unsynced: 0,
                dead_records: limits.dead_records,
            }),
            used: AtomicU64::new(used),
            budget: AtomicU64::new(limits.bytes),
            health: Health::new(limits.min_free, limits.min_free_files),
            watch,
            disk,
        };
        (store, lost)
    }

    /// The losses, beside samples whose records lead nowhere.
    fn losses(&self, lost: &[(Key, Location)]) -> Losses {
        let writer = self.writer();
        let mut closed: BTreeMap<String, u64> = BTreeMap::new();
        for at in writer.closed.values() {
            *closed.entry(writer.segments.name(at.segment)).or_default() += 1;
        }
        Losses {
            samples: lost.iter().map(|(_, at)| writer.segments.describe(at)).collect(),
            records: writer.log.torn_records,
            indexes: writer.log.skipped.clone(),
            closed: closed.into_iter().collect(),
        }
    }
}

type Begun = (Arc<Watch>, Arc<dyn Disk>, Vec<(String, u64)>);

fn begin(disk: Arc<dyn Disk>) -> Result<Begun> {
    let watch = Arc::new(Watch::default());
    let disk = watch.over(disk);
    let names = disk.names()?;
    Ok((watch, disk, names))
}
