//! What is written to the files of views that take something, until it is whole.
//!
//! Each process that was forked meanwhile closes its copy of the descriptor as well, in the middle of
//! what is written: only the one that wrote last ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use fuser::{Errno, LockOwner};

use super::room::{Room, Share, log_refusal};
use crate::sync::{Mutex, MutexGuard};

/// Bytes of one file that wait for their end at most.
const BYTES_MAX: usize = 64 << 20;

/// Bytes that are whole.
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    /// What they take until something has come of them.
    pub(super) share: Share,
}

/// A file that somebody writes to.
pub(super) struct Writing {
    begun: Mutex<Begun>,
    /// Why something of it was refused, as an errno; 0: nothing was.
    refused: AtomicI32,
}

/// What is not whole.
struct Begun {
    bytes: Vec<u8>,
    share: Share,
    writer: Option<LockOwner>,
    /// It was more than can wait, and none of it is left.
    over: Option<Errno>,
}

impl Begun {
    /// What is there up to a place.
    fn take(&mut self, to: usize) -> Whole {
        let rest = self.bytes.split_off(to);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let share = self.share.split(bytes.len());
        Whole { bytes, share }
    }

    fn take_all(&mut self) -> Whole {
        self.take(self.bytes.len())
    }
}

impl Writing {
    /// One that nothing was written to, of those that share this room.
    pub(super) fn new(room: &Arc<Room>) -> Arc<Self> {
        let begun = Begun { bytes: Vec::new(), share: room.share(), writer: None, over: None };
        Arc::new(Writing { begun: Mutex::new(begun), refused: AtomicI32::default() })
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock()
    }

    /// Adds to what is not whole yet.
    ///
    /// # Errors
    /// `EFBIG` where it is too much for one file, `ENOSPC` where there is no memory for more that is not
    /// whole: then nothing of it is left, and nothing more is taken.
    pub(super) fn add(&self, data: &[u8], writer: Option<LockOwner>) -> Result<(), Errno> {
        let mut begun = self.begun();
        begun.writer = writer;
        if let Some(over) = begun.over {
            return Err(over);
        }
        let grown = match begun.bytes.len() + data.len() {
            ..=BYTES_MAX => begun.share.grow(data.len()),
            _ => Err(Errno::EFBIG),
        };
        match grown {
            Ok(()) => begun.bytes.extend_from_slice(data),
            Err(over) => {
                log_refusal(over, begun.bytes.len());
                drop(begun.take_all());
                begun.over = Some(over);
            }
        }
        grown
    }

    /// Why it was too much, if it was.
    pub(super) fn over(&self) -> Option<Errno> {
        self.begun().over
    }

    /// Adds to lines, and says those that are whole with this.
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

    /// All files together take as much as there is room for, as long as something of it waits or is
    /// being taken.
    #[test]
    fn all_files_share_one_room() {
        const FILES: usize = 4;
        let room = Arc::<Room>::default();
        room.resize(FILES * BYTES_MAX);
        let files: Vec<_> = (0..=FILES).map(|_| Writing::new(&room)).collect();
        let taken = || room.taken();
        let data = vec![7; BYTES_MAX];
        for file in &files[..FILES] {
            file.add(&data[..BYTES_MAX - 1], None).unwrap();
            file.add(b"x", None).unwrap();
        }
        assert_eq!(taken(), FILES * BYTES_MAX);
        assert_eq!(files[FILES].add(b"x", None), Err(Errno::ENOSPC));
        assert_eq!(files[FILES].over(), Some(Errno::ENOSPC));
        // What is too much for one file goes at once.
        assert_eq!(files[0].add(b"x", None), Err(Errno::EFBIG));
        assert_eq!(files[0].add(b"x", None), Err(Errno::EFBIG));
        assert!(files[0].rest().bytes.is_empty());
        assert_eq!(taken(), (FILES - 1) * BYTES_MAX);
        // What is whole takes its room until something has come of it.
        let whole = files[1].whole(1000);
        assert_eq!(whole.bytes.len(), BYTES_MAX / 1000 * 1000);
        assert_eq!(taken(), (FILES - 1) * BYTES_MAX);
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

    /// Whoever writes without end is refused when he has as much as there is memory for.
    #[test]
    fn what_has_no_memory_is_refused_and_let_go_of() {
        const MEMORY: usize = 1 << 20;
        let room = Arc::<Room>::default();
        room.resize(MEMORY);
        let file = Writing::new(&room);
        let written = (0..100).take_while(|_| file.add(&[b'x'; 64 << 10], None).is_ok()).count();
        assert_eq!((written << 16, room.taken()), (MEMORY, 0));
        assert_eq!(file.add_lines(b"x 1\n", None).err(), Some(Errno::ENOSPC), "and nothing more");
        assert_eq!((file.over(), file.rest().bytes.len()), (Some(Errno::ENOSPC), 0));
        // Others go on, as far as there is memory left.
        room.resize(MEMORY / 2);
        let other = Writing::new(&room);
        assert_eq!(other.add(&vec![b'x'; MEMORY / 2], None), Ok(()));
        assert_eq!(other.add(b"x", None), Err(Errno::ENOSPC));
    }
}
