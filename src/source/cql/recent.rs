//! Blobs of which several requests want something at about the same time: all of them share one request to the server.
//!
//! No server sends a part of a blob, so all parts share its bytes. If the size of a blob is not listed, who asks for it
//! and who reads the blob share them, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use super::rows::Listed;
use crate::source::ReadError;
use crate::sync::Mutex;

/// Bytes of blobs that are kept. One blob is kept in any case.
const BYTES: u64 = 64 << 20;

/// What a blob counts at least, so that there are not too many.
const LEAST: u64 = 64 << 10;

/// How long a blob is kept after it was asked for.
const IDLE: Duration = Duration::from_secs(10);

/// All bytes of a blob, or why they cannot be read, as soon as that is known.
pub(super) type Whole = Arc<OnceCell<Result<Vec<u8>, ReadError>>>;

struct Kept {
    listed: Listed,
    used: Instant,
    whole: Whole,
}

impl Kept {
    fn weight(&self) -> u64 {
        let arrived = self.whole.get().and_then(|whole| whole.as_ref().ok());
        let size = self.listed.size.or(arrived.map(|bytes| bytes.len() as u64));
        size.unwrap_or_default().max(LEAST)
    }
}

/// The blobs that were asked for last.
#[derive(Default)]
pub(super) struct Recent {
    /// The one that was used last comes last.
    kept: Mutex<VecDeque<Kept>>,
}

impl Recent {
    /// The place of a version's bytes. Whoever finds it empty reads them.
    pub(super) fn place(&self, listed: &Listed) -> Whole {
        let mut kept = self.kept.lock();
        let known = kept.iter().position(|blob| blob.listed == *listed);
        let whole = match known.and_then(|nth| kept.remove(nth)) {
            Some(blob) => blob.whole,
            None => Whole::default(),
        };
        let (listed, used) = (listed.clone(), Instant::now());
        kept.push_back(Kept { listed, used, whole: Arc::clone(&whole) });
        let mut bytes: u64 = kept.iter().map(Kept::weight).sum();
        while bytes > BYTES && kept.len() > 1 {
            bytes -= kept.pop_front().map_or(0, |blob| blob.weight());
        }
        whole
    }

    /// Forgets a blob. Whoever wants it next asks for it anew.
    pub(super) fn forget(&self, whole: &Whole) {
        self.kept.lock().retain(|blob| !Arc::ptr_eq(&blob.whole, whole));
    }

    /// Forgets the blobs that nobody has asked for in a while.
    pub(super) fn forget_idle(&self) {
        self.kept.lock().retain(|blob| blob.used.elapsed() < IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(nth: u64, size: u64) -> Listed {
        Listed { id: Box::default(), digest: nth, size: Some(size), written: 0 }
    }

    #[test]
    fn parts_of_one_version_share_its_bytes() {
        let recent = Recent::default();
        let place = recent.place(&listed(1, 1 << 20));
        assert!(Arc::ptr_eq(&place, &recent.place(&listed(1, 1 << 20))));
        let later = Listed { written: 1, ..listed(1, 1 << 20) };
        assert!(!Arc::ptr_eq(&place, &recent.place(&later)), "another version");
        recent.forget(&place);
        assert!(!Arc::ptr_eq(&place, &recent.place(&listed(1, 1 << 20))));
        recent.forget_idle();
        assert_eq!(recent.kept.lock().len(), 2, "they were used just now");
    }

    #[test]
    fn the_last_blobs_are_kept() {
        let recent = Recent::default();
        let places: Vec<Whole> = (0..5).map(|nth| recent.place(&listed(nth, 16 << 20))).collect();
        assert_eq!(recent.kept.lock().len(), 4);
        assert!(Arc::ptr_eq(&places[4], &recent.place(&listed(4, 16 << 20))));
        assert!(!Arc::ptr_eq(&places[0], &recent.place(&listed(0, 16 << 20))));
        recent.place(&listed(9, 1 << 30));
        assert_eq!(recent.kept.lock().len(), 1, "one that is larger than all that is kept");
        (0..5000).for_each(|nth| drop(recent.place(&listed(nth, 1))));
        assert_eq!(recent.kept.lock().len() as u64, BYTES / LEAST);
    }
}
