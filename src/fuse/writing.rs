//! What is written to the files of views that take something, until it is whole.
//!
//! Each process that was forked meanwhile closes its copy of the descriptor as well, in the middle of
//! what is written: only the one that wrote last ends it.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use fuser::{Errno, LockOwner};

use crate::sync::{Mutex, MutexGuard};

/// Bytes of one file that wait for their end at most, and of all files together.
const BYTES_MAX: usize = 64 << 20;
const ALL_BYTES_MAX: usize = 256 << 20;

/// Bytes that wait in all files, or are being taken.
#[derive(Default)]
pub(super) struct Room(AtomicUsize);

impl Room {
    /// Room for so many bytes more, if there is.
    fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let grown = |all: usize| all.checked_add(bytes).filter(|all| *all <= ALL_BYTES_MAX);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        taken.then(|| Share { room: Arc::clone(self), bytes })
    }
}

/// The room that some bytes take, as long as it is kept.
pub(super) struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Share {
    /// Splits off what so many of its bytes take.
    fn split(&mut self, bytes: usize) -> Share {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Share { room: Arc::clone(&self.room), bytes }
    }

    fn join(&mut self, mut other: Share) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes that are whole.
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    /// What they take until something has come of them.
    pub(super) share: Option<Share>,
}

/// A file that somebody writes to.
pub(super) struct Writing {
    begun: Mutex<Begun>,
    room: Arc<Room>,
    /// Why something of it was refused, as an errno; 0: nothing was.
    refused: AtomicI32,
}

/// What is not whole.
#[derive(Default)]
struct Begun {
    bytes: Vec<u8>,
    share: Option<Share>,
    /// Who wrote it.
    writer: Option<LockOwner>,
    /// It was more than can wait, and none of it is left.
    over: Option<Errno>,
}

impl Begun {
    /// What is there up to a place.
    fn take(&mut self, to: usize) -> Whole {
        let rest = self.bytes.split_off(to);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let share = self.share.as_mut().map(|share| share.split(bytes.len()));
        Whole { bytes, share }
    }

    fn take_all(&mut self) -> Whole {
        self.take(self.bytes.len())
    }
}

impl Writing {
    /// One that nothing was written to, of those that share this room.
    pub(super) fn new(room: &Arc<Room>) -> Arc<Self> {
        let (begun, refused) = Default::default();
        Arc::new(Writing { begun, room: Arc::clone(room), refused })
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to what is not whole yet.
    ///
    /// # Errors
    /// `EFBIG` where it is too much for one file, `ENOSPC` where others have written too much that
    /// is not whole: then nothing of it is left, and nothing more is taken.
    pub(super) fn add(&self, data: &[u8], writer: Option<LockOwner>) -> Result<(), Errno> {
        let mut begun = self.begun();
        begun.writer = writer;
        if let Some(over) = begun.over {
            return Err(over);
        }
        let share = match begun.bytes.len() + data.len() {
            ..=BYTES_MAX => self.room.take(data.len()).ok_or(Errno::ENOSPC),
            _ => Err(Errno::EFBIG),
        };
        match share {
            Ok(share) => {
                begun.bytes.extend_from_slice(data);
                match &mut begun.share {
                    Some(own) => own.join(share),
                    none => *none = Some(share),
                }
                Ok(())
            }
            Err(over) => {
                drop(begun.take_all());
                begun.over = Some(over);
                Err(over)
            }
        }
    }

    /// Why it was too much, if it was.
    pub(super) fn over(&self) -> Option<Errno> {
        self.begun().over
    }

    /// Adds to lines, and says those that are whole with this.
    ///
    /// # Errors
    /// As of [`Writing::add`].
    pub(super) fn add_lines(&self, data: &[u8], writer: Option<LockOwner>) -> Result<Whole, Errno> {
        self.add(data, writer)?;
        let mut begun = self.begun();
        let whole = begun.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        Ok(begun.take(whole))
    }

    /// What is there of parts of this size.
    pub(super) fn whole(&self, of: usize) -> Whole {
        let mut begun = self.begun();
        let rest = begun.bytes.len().checked_rem(of).unwrap_or(0);
        let whole = begun.bytes.len() - rest;
        begun.take(whole)
    }

    /// What is left, where whoever closes a descriptor has written to it.
    pub(super) fn end(&self, closer: LockOwner) -> Option<Whole> {
        let mut begun = self.begun();
        let ends = begun.writer.is_some_and(|writer| writer == closer);
        ends.then(|| begun.take_all())
    }

    /// What is left when nobody has the file open any more: whoever wrote it may have left its
    /// closing to others.
    pub(super) fn rest(&self) -> Whole {
        self.begun().take_all()
    }

    /// Something was refused.
    pub(super) fn refuse(&self, why: Errno) {
        self.refused.store(why.code(), Ordering::Relaxed);
    }

    /// Why something was refused since this was asked last.
    pub(super) fn refused(&self) -> Option<Errno> {
        let code = self.refused.swap(0, Ordering::Relaxed);
        (code != 0).then(|| Errno::from_i32(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All files together take so much, as long as something of it waits or is being taken.
    #[test]
    fn all_files_share_one_room() {
        let room = Arc::<Room>::default();
        let files: Vec<_> = (0..5).map(|_| Writing::new(&room)).collect();
        let taken = || room.0.load(Ordering::Relaxed);
        let data = vec![7; BYTES_MAX];
        for file in &files[..4] {
            file.add(&data[..BYTES_MAX - 1], None).unwrap();
            file.add(b"x", None).unwrap();
        }
        assert_eq!(taken(), ALL_BYTES_MAX);
        assert_eq!(files[4].add(b"x", None).unwrap_err().code(), Errno::ENOSPC.code());
        assert_eq!(files[4].over().map(Errno::code), Some(Errno::ENOSPC.code()));
        // What is too much for one file goes at once.
        assert_eq!(files[0].add(b"x", None).unwrap_err().code(), Errno::EFBIG.code());
        assert_eq!(files[0].add(b"x", None).unwrap_err().code(), Errno::EFBIG.code());
        assert!(files[0].rest().bytes.is_empty());
        assert_eq!(taken(), ALL_BYTES_MAX - BYTES_MAX);
        // What is whole takes its room until something has come of it.
        let whole = files[1].whole(1000);
        assert_eq!(whole.bytes.len(), BYTES_MAX / 1000 * 1000);
        assert_eq!(taken(), ALL_BYTES_MAX - BYTES_MAX);
        drop(whole);
        assert_eq!(taken(), 2 * BYTES_MAX + BYTES_MAX % 1000);
        let lines = files[1].add_lines(b"a\nb\nc", None).unwrap();
        assert!(lines.bytes.ends_with(b"a\nb\n"));
        drop(lines);
        assert_eq!(
            (taken(), files[1].rest().bytes.as_slice()),
            (2 * BYTES_MAX + 1, b"c".as_slice())
        );
        drop(files);
        assert_eq!(taken(), 0);
    }
}
