//! Tells whether the cache disk can be used now.
//!
//! 1. Errors in a row make it unstable, and then down. A disk that is down is bypassed, and tried again
//!    from time to time.
//! 2. If other programs need its space, it is full. Nothing more is written until clearly more space is
//!    free than has to stay free, so that the state does not flip at the edge.
//! 3. A quota and a limit on the size of files do not show in the free space. If one of them refuses a
//!    write, the disk is full until a write is taken. A write is tried from time to time.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

use nix::libc;

use super::{Disk, DiskState, Space};
use crate::sync::{Mutex, MutexGuard};

/// Errors in a row after which the disk is down.
const DOWN: u32 = 3;

/// How long a disk that is down is not used.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Bytes written between two looks at the space.
const LOOK_BYTES: u64 = 64 << 20;

/// How long a full disk is taken to stay full.
const FULL_FOR: Duration = Duration::from_secs(1);

/// Free space beyond the required one, before a full disk is written to again.
const MARGIN_BYTES: u64 = 64 << 20;

/// A limit that has refused a write and does not show in the space.
struct Refusal {
    state: DiskState,
    /// When a write is tried again.
    again: Instant,
}

impl Refusal {
    /// The limit behind a write error. None for other errors.
    fn of(error: &Error) -> Option<Self> {
        let state = match error.raw_os_error() {
            Some(libc::EDQUOT) => DiskState::OverQuota,
            Some(libc::EFBIG) => DiskState::OverFileLimit,
            _ => return None,
        };
        Some(Refusal { state, again: Instant::now() + RETRY_AFTER })
    }
}

struct State {
    errors: u32,
    retry: Instant,
    full: bool,
    refusal: Option<Refusal>,
    /// Whether our directory on the disk was deleted.
    gone: bool,
    looked: Option<Instant>,
    written: u64,
}

impl State {
    fn is_full(&self) -> bool {
        self.full || self.refusal.is_some()
    }
}

pub(crate) struct Health {
    state: Mutex<State>,
    free_min: u64,
    files_min: u64,
}

impl Health {
    /// Keeps `free_min` bytes free for other programs, and room for `files_min` files.
    pub(crate) fn new(free_min: u64, files_min: u64) -> Self {
        let state = State {
            errors: 0,
            retry: Instant::now(),
            full: false,
            refusal: None,
            gone: false,
            looked: None,
            written: 0,
        };
        Health { state: Mutex::new(state), free_min, files_min }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The disk's state, without whether it hangs.
    pub(crate) fn state(&self) -> DiskState {
        let state = self.lock();
        match (state.errors, &state.refusal) {
            _ if state.gone => DiskState::Gone,
            (DOWN.., _) => DiskState::Failing,
            (1.., _) => DiskState::Unstable,
            (0, Some(refusal)) => refusal.state,
            (0, None) if state.full => DiskState::Full,
            (0, None) => DiskState::Normal,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        let state = self.lock();
        state.errors < DOWN && !state.gone
    }

    /// Claims a try of the disk. If it is down, one caller may try it from time to time, and must do so.
    pub(crate) fn claim_try(&self) -> bool {
        let mut state = self.lock();
        if state.errors < DOWN || state.gone {
            return !state.gone;
        }
        let retry = Instant::now() >= state.retry;
        if retry {
            state.retry = Instant::now() + RETRY_AFTER;
        }
        retry
    }

    /// Whether `bytes` may be written.
    pub(crate) fn has_room(&self, disk: &dyn Disk, bytes: u64) -> bool {
        let mut state = self.lock();
        state.written += bytes;
        let due = match state.looked {
            None => true,
            Some(looked) if state.full => looked.elapsed() >= FULL_FOR,
            Some(_) => state.written >= LOOK_BYTES,
        };
        if due {
            // Readers ask for the state, and must not wait for a disk that hangs.
            drop(state);
            let space = disk.space();
            state = self.lock();
            if let Ok(space) = space {
                state.looked = Some(Instant::now());
                state.written = 0;
                state.gone = space.total == 0;
                state.full = self.leaves_little(space, bytes, state.full);
            }
        }
        !state.full && state.refusal.as_ref().is_none_or(|refusal| Instant::now() >= refusal.again)
    }

    pub(crate) fn look(&self, disk: &dyn Disk) -> Result<Space> {
        let space = disk.space()?;
        let mut state = self.lock();
        state.gone = space.total == 0;
        state.full = self.leaves_little(space, 0, state.full);
        Ok(space)
    }

    fn leaves_little(&self, space: Space, bytes: u64, was_full: bool) -> bool {
        let margin = if was_full { MARGIN_BYTES.min(self.free_min / 8).max(1 << 20) } else { 0 };
        let files_min = if was_full { self.files_min.saturating_mul(2) } else { self.files_min };
        let few_files = space.files.is_some_and(|files| files < files_min);
        space.bytes < self.free_min.saturating_add(bytes).saturating_add(margin) || few_files
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    pub(crate) fn good(&self) {
        let mut state = self.lock();
        state.errors = state.errors.saturating_sub(1);
    }

    /// Notes that the disk took a sample.
    pub(crate) fn stored(&self) {
        self.lock().refusal = None;
        self.good();
    }

    pub(crate) fn bad(&self, error: &Error) {
        let mut state = self.lock();
        if has_no_room(error) {
            if !state.is_full() {
                tracing::warn!(%error, "the cache disk is full; going on without storing");
            }
            (state.full, state.looked) = (true, Some(Instant::now()));
            if let Some(refusal) = Refusal::of(error) {
                state.refusal = Some(refusal);
            }
            return;
        }
        state.errors = (state.errors + 1).min(DOWN);
        if state.errors == 1 || state.errors == DOWN {
            tracing::warn!(%error, "the cache disk fails; samples come from the source");
        }
        if state.errors == DOWN {
            state.retry = Instant::now() + RETRY_AFTER;
        }
    }
}

#[cfg(test)]
impl Health {
    /// As if half a minute had passed.
    pub(crate) fn make_due(&self) {
        self.lock().retry = Instant::now();
    }
}

/// Whether the disk had no room for a call.
pub(crate) fn has_no_room(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::model::Model;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_full_disk_is_written_to_again_only_well_above_the_edge() {
        const FILES: u64 = 100;
        let health = Health::new(GIB, FILES);
        let space = |bytes| Space { bytes, total: 4 * GIB, files: None };
        assert!(!health.leaves_little(space(GIB + 10), 10, false));
        assert!(health.leaves_little(space(GIB + 9), 10, false));
        assert!(health.leaves_little(space(GIB + 20), 10, true));
        assert!(!health.leaves_little(space(GIB + MARGIN_BYTES + 10), 10, true));
        let few = Space { bytes: 2 * GIB, total: 4 * GIB, files: Some(FILES - 1) };
        assert!(health.leaves_little(few, 10, false));
        assert!(!health.leaves_little(Space { files: Some(FILES), ..few }, 10, false));
        assert!(health.leaves_little(Space { files: Some(2 * FILES - 1), ..few }, 10, true));
        assert!(!health.leaves_little(Space { files: Some(2 * FILES), ..few }, 10, true));
        assert!(!Health::new(GIB, 0).leaves_little(Space { files: Some(0), ..few }, 10, true));
    }

    #[test]
    fn a_limit_that_refuses_is_full_until_a_write_is_taken() {
        full_until_a_write_is_taken(libc::EDQUOT, DiskState::OverQuota);
        full_until_a_write_is_taken(libc::EFBIG, DiskState::OverFileLimit);
    }

    fn full_until_a_write_is_taken(errno: i32, state: DiskState) {
        let disk = Model::default();
        let health = Health::new(GIB, 0);
        health.bad(&Error::from_raw_os_error(errno));
        let no_more = || {
            // The free space shows nothing.
            health.look(&disk).unwrap();
            health.good();
            health.state() == state && health.is_full()
        };
        assert!(no_more() && !health.has_room(&disk, 1));
        health.lock().refusal.as_mut().unwrap().again = Instant::now();
        assert!(no_more() && health.has_room(&disk, 1), "it is tried again");
        health.bad(&Error::from_raw_os_error(errno));
        assert!(no_more() && !health.has_room(&disk, 1));
        health.stored();
        assert!(!no_more() && health.state() == DiskState::Normal && health.has_room(&disk, 1));
    }

    #[test]
    fn a_disk_that_fails_is_down_and_comes_back_step_by_step() {
        let health = Health::new(0, 0);
        let error = Error::from_raw_os_error(libc::EIO);
        health.bad(&error);
        assert!(health.state() == DiskState::Unstable && health.claim_try());
        health.good();
        assert_eq!(health.state(), DiskState::Normal);
        (0..5).for_each(|_| health.bad(&error));
        assert!(health.state() == DiskState::Failing && !health.claim_try());
        health.make_due();
        assert!(!health.is_up() && health.claim_try(), "one is let through");
        assert!(!health.claim_try(), "and no more for a while");
        health.good();
        assert!(health.state() == DiskState::Unstable && health.claim_try());
        health.bad(&Error::from_raw_os_error(libc::ENOSPC));
        (0..5).for_each(|_| health.good());
        assert_eq!(health.state(), DiskState::Full);
    }
}
