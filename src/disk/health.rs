//! Tells whether the cache disk can be used now.
//!
//! 1. Errors in a row make it unstable, and then down. A disk that is down is bypassed, and tried again
//!    from time to time.
//! 2. If other programs need its space, it is full. Nothing more is written until clearly more space is
//!    free than has to stay free, so that the state does not flip at the edge.
//! 3. Some limits do not show in the free space: a quota, a limit on the size of files, and whatever makes
//!    the disk say that no space is left while there is some. If one of them refuses a write, the disk is
//!    full until a write succeeds. A write is tried each half minute.
//!
//! What follows from a full disk: the store stores nothing (`Store::put_all`), offers to rehearsal buffers wait
//! (`rehearsal/journaled`). If the free space shows it, `engine/budgets` lowers the store's budget, upon which the
//! planner evicts. For a limit that does not show, nothing is evicted.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

use nix::libc;

use super::{Disk, DiskState, Space};
use crate::sync::{Mutex, MutexGuard};

/// Errors in a row after which the disk is down.
const DOWN_AFTER: u32 = 3;

/// How long a disk that is down is not used.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Bytes written between two checks of the space.
const CHECK_BYTES: u64 = 64 << 20;

/// The time between two checks of the space of a full disk.
const FULL_CHECK_EVERY: Duration = Duration::from_secs(1);

/// Free space beyond the required one that ends a full disk's state.
const MARGIN_BYTES: u64 = 64 << 20;

/// A limit that has refused a write and does not show in the space.
struct Refusal {
    state: DiskState,
    /// When a write is tried again.
    retry: Instant,
}

impl Refusal {
    /// The limit behind a write error. None for other errors.
    fn of(error: &Error) -> Option<Self> {
        let state = match error.raw_os_error() {
            Some(libc::EDQUOT) => DiskState::OverQuota,
            Some(libc::EFBIG) => DiskState::OverFileLimit,
            Some(libc::ENOSPC) => DiskState::Full,
            _ => return None,
        };
        Some(Refusal { state, retry: Instant::now() + RETRY_AFTER })
    }
}

struct State {
    errors: u32,
    retry: Instant,
    full: bool,
    refusal: Option<Refusal>,
    /// Whether our directory on the disk was deleted.
    deleted: bool,
    /// When the space was checked, and the bytes claimed since.
    checked: Option<Instant>,
    claimed: u64,
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
            deleted: false,
            checked: None,
            claimed: 0,
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
            _ if state.deleted => DiskState::Deleted,
            (DOWN_AFTER.., _) => DiskState::Failing,
            (1.., _) => DiskState::Unstable,
            (0, Some(refusal)) => refusal.state,
            (0, None) if state.full => DiskState::Full,
            (0, None) => DiskState::Normal,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        let state = self.lock();
        state.errors < DOWN_AFTER && !state.deleted
    }

    /// Claims a try of the disk. If it is down, one caller may try it from time to time, and must do so.
    pub(crate) fn claim_try(&self) -> bool {
        let mut state = self.lock();
        if state.errors < DOWN_AFTER || state.deleted {
            return !state.deleted;
        }
        let retry = Instant::now() >= state.retry;
        if retry {
            state.retry = Instant::now() + RETRY_AFTER;
        }
        retry
    }

    /// Claims room for `bytes`. Returns whether they may be written. Blocks if a check of the space is due.
    pub(crate) fn claim_room(&self, disk: &dyn Disk, bytes: u64) -> bool {
        let mut state = self.lock();
        state.claimed += bytes;
        let is_due = match state.checked {
            None => true,
            Some(checked) if state.full => checked.elapsed() >= FULL_CHECK_EVERY,
            Some(_) => state.claimed >= CHECK_BYTES,
        };
        if is_due {
            // Readers ask for the state, and must not wait for a disk that hangs.
            drop(state);
            let space = disk.space();
            state = self.lock();
            (state.checked, state.claimed) = (Some(Instant::now()), 0);
            if let Ok(space) = space {
                self.apply(&mut state, space, bytes);
            }
        }
        !state.full && state.refusal.as_ref().is_none_or(|refusal| Instant::now() >= refusal.retry)
    }

    /// Checks the space. Blocks.
    pub(crate) fn update_space(&self, disk: &dyn Disk) -> Result<Space> {
        let space = disk.space()?;
        self.apply(&mut self.lock(), space, 0);
        Ok(space)
    }

    /// Applies the result of a check, for `bytes` that are to be written.
    fn apply(&self, state: &mut State, space: Space, bytes: u64) {
        state.deleted = space.total == 0;
        state.full = self.leaves_too_little(space, bytes, state.full);
        if state.full {
            // The space shows why the write was refused.
            state.refusal.take_if(|refusal| refusal.state == DiskState::Full);
        }
    }

    fn leaves_too_little(&self, space: Space, bytes: u64, was_full: bool) -> bool {
        let margin = if was_full { MARGIN_BYTES.min(self.free_min / 8).max(1 << 20) } else { 0 };
        let files_min = if was_full { self.files_min.saturating_mul(2) } else { self.files_min };
        let few_files = space.files.is_some_and(|files| files < files_min);
        space.bytes < self.free_min.saturating_add(bytes).saturating_add(margin) || few_files
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    pub(crate) fn note_success(&self) {
        let mut state = self.lock();
        state.errors = state.errors.saturating_sub(1);
    }

    /// Notes that the disk took a sample.
    pub(crate) fn note_stored(&self) {
        self.lock().refusal = None;
        self.note_success();
    }

    pub(crate) fn note_error(&self, error: &Error) {
        let mut state = self.lock();
        if let Some(refusal) = Refusal::of(error) {
            if !state.is_full() {
                tracing::warn!(%error, "the cache disk is full; going on without storing");
            }
            // The next claim checks the space.
            (state.full, state.checked) = (true, None);
            state.refusal = Some(refusal);
            return;
        }
        state.errors = (state.errors + 1).min(DOWN_AFTER);
        if state.errors == 1 || state.errors == DOWN_AFTER {
            tracing::warn!(%error, "the cache disk fails; samples come from the source");
        }
        if state.errors == DOWN_AFTER {
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
    Refusal::of(error).is_some()
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
        assert!(!health.leaves_too_little(space(GIB + 10), 10, false));
        assert!(health.leaves_too_little(space(GIB + 9), 10, false));
        assert!(health.leaves_too_little(space(GIB + 20), 10, true));
        assert!(!health.leaves_too_little(space(GIB + MARGIN_BYTES + 10), 10, true));
        let few = Space { bytes: 2 * GIB, total: 4 * GIB, files: Some(FILES - 1) };
        assert!(health.leaves_too_little(few, 10, false));
        assert!(!health.leaves_too_little(Space { files: Some(FILES), ..few }, 10, false));
        assert!(health.leaves_too_little(Space { files: Some(2 * FILES - 1), ..few }, 10, true));
        assert!(!health.leaves_too_little(Space { files: Some(2 * FILES), ..few }, 10, true));
        assert!(!Health::new(GIB, 0).leaves_too_little(Space { files: Some(0), ..few }, 10, true));
    }

    #[test]
    fn a_limit_that_refuses_is_full_until_a_write_is_taken() {
        full_until_a_write_is_taken(libc::ENOSPC, DiskState::Full);
        full_until_a_write_is_taken(libc::EDQUOT, DiskState::OverQuota);
        full_until_a_write_is_taken(libc::EFBIG, DiskState::OverFileLimit);
    }

    fn full_until_a_write_is_taken(errno: i32, state: DiskState) {
        let disk = Model::default();
        let health = Health::new(GIB, 0);
        health.note_error(&Error::from_raw_os_error(errno));
        let no_more = || {
            // The free space shows nothing.
            health.update_space(&disk).unwrap();
            health.note_success();
            health.state() == state && health.is_full()
        };
        assert!(no_more() && !health.claim_room(&disk, 1));
        health.lock().refusal.as_mut().unwrap().retry = Instant::now();
        assert!(no_more() && health.claim_room(&disk, 1), "it is tried again");
        health.note_error(&Error::from_raw_os_error(errno));
        assert!(no_more() && !health.claim_room(&disk, 1));
        health.note_stored();
        assert!(!no_more() && health.state() == DiskState::Normal && health.claim_room(&disk, 1));
    }

    #[test]
    fn a_disk_whose_space_shows_that_it_is_full_is_used_once_there_is_space() {
        let (disk, health) = (Model::default(), Health::new(GIB, 0));
        let set = |bytes| disk.set_space(Some(Space { bytes, total: 4 * GIB, files: None }));
        health.note_error(&Error::from_raw_os_error(libc::ENOSPC));
        set(0);
        assert!(!health.claim_room(&disk, 1));
        set(2 * GIB);
        health.update_space(&disk).unwrap();
        assert!(health.state() == DiskState::Normal && health.claim_room(&disk, 1));
    }

    #[test]
    fn a_disk_that_fails_is_down_and_comes_back_step_by_step() {
        let health = Health::new(0, 0);
        let error = Error::from_raw_os_error(libc::EIO);
        health.note_error(&error);
        assert!(health.state() == DiskState::Unstable && health.claim_try());
        health.note_success();
        assert_eq!(health.state(), DiskState::Normal);
        (0..5).for_each(|_| health.note_error(&error));
        assert!(health.state() == DiskState::Failing && !health.claim_try());
        health.make_due();
        assert!(!health.is_up() && health.claim_try(), "one is let through");
        assert!(!health.claim_try(), "and no more for a while");
        health.note_success();
        assert!(health.state() == DiskState::Unstable && health.claim_try());
        health.note_error(&Error::from_raw_os_error(libc::ENOSPC));
        (0..5).for_each(|_| health.note_success());
        assert_eq!(health.state(), DiskState::Full);
    }
}
