//! Holds what is written to a file until it is taken.
//!
//! 1. Written bytes are added, and charged to the [`WriteAccount`] of all files.
//! 2. Bytes that are whole are handed out: with the write, with an fsync, or at the close.
//! 3. Their charge is given back when they have been taken or refused.
//!
//! Only the close of the descriptor that wrote last counts. A process that was forked meanwhile closes its
//! copy of the descriptor while text is still written, and a shell closes one before it writes.

use std::sync::Arc;

use fuser::LockOwner;
use nix::errno::Errno;

use super::write_account::{self, WriteAccount, WriteCharge};
use crate::sync::Mutex;

/// Limit in bytes for lines or records whose end is not written yet.
const BYTES_MAX: usize = 64 << 20;

/// What may be written to a file. It decides when written bytes are whole.
#[derive(Clone, Copy)]
pub(super) enum WriteForm {
    /// A text that is written in any order, whole at its close. It stays, so that other descriptors can
    /// continue it.
    Text,
    /// Lines, at any offset. Each is whole with its end.
    Lines,
    /// Records of this number of bytes, at any offset. An fsync takes those that are whole.
    Records(usize),
}

/// Written bytes and their charge.
pub(super) struct ChargedBytes {
    pub(super) bytes: Vec<u8>,
    pub(super) charge: WriteCharge,
}

impl ChargedBytes {
    fn empty(account: &Arc<WriteAccount>) -> Arc<Self> {
        Arc::new(ChargedBytes { bytes: Vec::new(), charge: account.charge() })
    }

    fn copy(&self, account: &Arc<WriteAccount>) -> Result<Self, Errno> {
        let mut charge = account.charge();
        charge.grow(self.bytes.len())?;
        Ok(ChargedBytes { bytes: self.bytes.clone(), charge })
    }

    /// Puts bytes at an offset within it, or at its end, up to `most` bytes in all.
    fn put(&mut self, at: u64, data: &[u8], most: usize) -> Result<(), Errno> {
        let length = self.bytes.len();
        let at = usize::try_from(at).ok().filter(|at| *at <= length).ok_or(Errno::EFBIG)?;
        if at.saturating_add(data.len()) > most {
            return Err(Errno::EFBIG);
        }
        let (over, behind) = data.split_at(data.len().min(length - at));
        self.charge.grow(behind.len())?;
        self.bytes[at..at + over.len()].copy_from_slice(over);
        self.bytes.extend_from_slice(behind);
        Ok(())
    }

    fn split(&mut self, to: usize) -> Arc<Self> {
        let rest = self.bytes.split_off(to);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        Arc::new(ChargedBytes { charge: self.charge.split(bytes.len()), bytes })
    }
}

/// A text that may be changed. If it is being taken, a copy replaces it.
fn make_unique<'a>(
    text: &'a mut Arc<ChargedBytes>,
    account: &Arc<WriteAccount>,
) -> Result<&'a mut ChargedBytes, Errno> {
    if Arc::get_mut(text).is_none() {
        *text = Arc::new(text.copy(account)?);
    }
    Arc::get_mut(text).ok_or(Errno::EIO)
}

pub(super) struct WriteBuffer {
    form: WriteForm,
    account: Arc<WriteAccount>,
    state: Mutex<WriteState>,
}

struct WriteState {
    /// What was written, or why it was refused. Nothing is kept after a refusal.
    text: Result<Arc<ChargedBytes>, Errno>,
    /// The last writer, unless it has closed its descriptor since. The kernel may not name the writer.
    writer: Option<Option<LockOwner>>,
    /// Why part of what was taken was refused.
    refused: Option<Errno>,
}

impl WriteBuffer {
    /// An empty buffer that is charged to this account.
    pub(super) fn new(form: WriteForm, account: &Arc<WriteAccount>) -> Self {
        let state =
            WriteState { text: Ok(ChargedBytes::empty(account)), writer: None, refused: None };
        WriteBuffer { form, account: Arc::clone(account), state: Mutex::new(state) }
    }

    /// Takes what is left.
    fn take_all(&self, state: &mut WriteState) -> Result<Arc<ChargedBytes>, Errno> {
        let text = state.text.as_mut().map_err(|why| *why)?;
        match self.form {
            WriteForm::Text => Ok(Arc::clone(text)),
            _ => make_unique(text, &self.account).map(|text| text.split(text.bytes.len())),
        }
    }

    /// Adds what is written, and returns what is whole with it.
    ///
    /// # Errors
    /// `EFBIG` if it is too much for one file, or leaves a gap before it. `ENOSPC` if there is no memory
    /// for more. Then all of the file's bytes are dropped, and nothing more is taken.
    pub(super) fn add(
        &self,
        offset: u64,
        data: &[u8],
        writer: Option<LockOwner>,
    ) -> Result<Option<Arc<ChargedBytes>>, Errno> {
        let mut state = self.state.lock();
        state.writer = Some(writer);
        let text = state.text.as_mut().map_err(|why| *why)?;
        let length = text.bytes.len();
        let (at, most) = match self.form {
            WriteForm::Text => (offset, write_account::BYTES_MAX),
            _ => (length as u64, BYTES_MAX),
        };
        let added = make_unique(text, &self.account)
            .and_then(|text| text.put(at, data, most).map(|()| text));
        let lines = |text: &mut ChargedBytes| {
            let end = text.bytes.iter().rposition(|byte| *byte == b'\n')?;
            Some(text.split(end + 1))
        };
        match added {
            Ok(text) => Ok(matches!(self.form, WriteForm::Lines).then(|| lines(text)).flatten()),
            Err(why) => {
                let why_not = match why {
                    Errno::ENOSPC => "there is no memory for more",
                    _ => "it is too long or has a gap",
                };
                tracing::warn!(
                    bytes = length,
                    why = why_not,
                    "what is written to a file of belady is refused, all of it"
                );
                state.text = Err(why);
                Err(why)
            }
        }
    }

    /// Takes what is whole at an fsync.
    ///
    /// # Errors
    /// Why what was written was refused.
    pub(super) fn take_at_sync(&self) -> Result<Option<Arc<ChargedBytes>>, Errno> {
        let mut state = self.state.lock();
        let text = state.text.as_mut().map_err(|why| *why)?;
        let WriteForm::Records(of) = self.form else { return Ok(None) };
        let text = make_unique(text, &self.account)?;
        let rest = text.bytes.len().checked_rem(of).unwrap_or(0);
        Ok(Some(text.split(text.bytes.len() - rest)))
    }

    /// Takes what is left when a descriptor is closed. Takes nothing unless its owner wrote last.
    pub(super) fn take_at_close(
        &self,
        closer: LockOwner,
    ) -> Option<Result<Arc<ChargedBytes>, Errno>> {
        let mut state = self.state.lock();
        state.writer.take_if(|writer| *writer == Some(closer))?;
        Some(self.take_all(&mut state))
    }

    /// Takes what is left when the file is not open any more: the writer may have left the close to another
    /// process.
    pub(super) fn take_at_release(&self) -> Option<Arc<ChargedBytes>> {
        let mut state = self.state.lock();
        state.writer.take()?;
        self.take_all(&mut state).ok()
    }

    /// Starts with an empty text, also after a refusal.
    pub(super) fn truncate(&self) {
        self.state.lock().text = Ok(ChargedBytes::empty(&self.account));
    }

    /// Notes the result for what was taken.
    pub(super) fn note_result(&self, result: Result<(), Errno>) {
        let mut state = self.state.lock();
        state.refused = result.err().or(state.refused);
    }

    /// Takes out why something was refused since the last call.
    pub(super) fn take_refusal(&self) -> Result<(), Errno> {
        self.state.lock().refused.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 1 << 20;
    const PIECE: usize = 64 << 10;
    const OWNER: LockOwner = LockOwner(7);

    fn open(form: WriteForm) -> (Arc<WriteAccount>, WriteBuffer) {
        let account = Arc::<WriteAccount>::default();
        account.resize(MEMORY);
        let file = WriteBuffer::new(form, &account);
        (account, file)
    }

    fn add(file: &WriteBuffer, data: &[u8]) -> Result<Option<Arc<ChargedBytes>>, Errno> {
        file.add(0, data, None)
    }

    /// All files together take only as much as there is room for. Bytes count while they wait or are being
    /// taken.
    #[test]
    fn all_files_share_one_room() {
        const FILES: usize = 4;
        let account = Arc::<WriteAccount>::default();
        account.resize(FILES * BYTES_MAX);
        let of = |file| if file == 2 { WriteForm::Lines } else { WriteForm::Records(1000) };
        let files: Vec<_> = (0..=FILES).map(|file| WriteBuffer::new(of(file), &account)).collect();
        let taken = || account.charged();
        let data = vec![7; BYTES_MAX];
        for file in &files[..FILES] {
            add(file, &data[..BYTES_MAX - 1]).unwrap();
            add(file, b"x").unwrap();
        }
        assert_eq!(taken(), FILES * BYTES_MAX);
        assert_eq!(add(&files[FILES], b"x").err(), Some(Errno::ENOSPC));
        assert_eq!(files[FILES].take_at_sync().err(), Some(Errno::ENOSPC));
        // A file that gets too much is dropped at once.
        assert_eq!(add(&files[0], b"x").err(), Some(Errno::EFBIG));
        assert_eq!(add(&files[0], b"x").err(), Some(Errno::EFBIG));
        assert!(files[0].take_at_release().is_none());
        assert_eq!(taken(), (FILES - 1) * BYTES_MAX);
        // Whole bytes take their room until they are taken or refused.
        let whole = files[1].take_at_sync().unwrap().unwrap();
        assert_eq!(whole.bytes.len(), BYTES_MAX / 1000 * 1000);
        assert_eq!(taken(), (FILES - 1) * BYTES_MAX);
        drop(whole);
        assert_eq!(taken(), 2 * BYTES_MAX + BYTES_MAX % 1000);
        drop(files[2].take_at_release());
        let lines = add(&files[2], b"a\nb\nc").unwrap().unwrap();
        assert_eq!(lines.bytes, b"a\nb\n");
        assert!(files[2].take_at_sync().unwrap().is_none(), "lines are taken as they are written");
        drop((lines, files[1].take_at_release()));
        assert_eq!(taken(), BYTES_MAX + 1);
        assert_eq!(files[2].take_at_release().unwrap().bytes, b"c");
        drop(files);
        assert_eq!(taken(), 0);
    }

    /// As `cat /dev/zero` does it.
    #[test]
    fn what_has_no_memory_is_refused_and_let_go_of() {
        for form in [WriteForm::Text, WriteForm::Lines, WriteForm::Records(8)] {
            let (account, file) = open(form);
            let zeros = vec![0; PIECE];
            let write =
                |number: usize| file.add((number * PIECE) as u64, &zeros, Some(OWNER)).err();
            assert_eq!((0..16).find_map(write), None);
            assert_eq!((write(16), account.charged()), (Some(Errno::ENOSPC), 0));
            assert_eq!(write(0), Some(Errno::ENOSPC), "nothing more is taken");
            assert_eq!(file.take_at_sync().err(), Some(Errno::ENOSPC));
            assert_eq!(file.take_at_close(OWNER).and_then(Result::err), Some(Errno::ENOSPC));
            // Other files go on while there is memory left.
            account.resize(MEMORY / 2);
            let other = WriteBuffer::new(WriteForm::Records(8), &account);
            assert!(add(&other, &vec![b'x'; MEMORY / 2]).is_ok());
            assert_eq!(add(&other, b"x").err(), Some(Errno::ENOSPC));
            // After a truncation, writes are taken again.
            file.truncate();
            assert!(file.add(0, b"sequential", Some(OWNER)).is_ok());
            assert_eq!(
                file.take_at_release().map(|text| text.bytes.clone()),
                Some(b"sequential".to_vec())
            );
            drop(file);
            assert_eq!(account.charged(), 0);
        }
    }

    /// Taking at a close makes no copy, and later writes do not change what is taken.
    #[test]
    fn what_is_being_taken_stays_as_it_was() {
        let (account, file) = open(WriteForm::Text);
        let second = LockOwner(8);
        file.add(0, b"a\nb", Some(OWNER)).unwrap();
        assert!(file.take_at_close(second).is_none(), "somebody else wrote it");
        let taken = file.take_at_close(OWNER).unwrap().ok().unwrap();
        assert!(
            file.take_at_close(OWNER).is_none() && file.take_at_release().is_none(),
            "it is taken"
        );
        assert_eq!((taken.bytes.as_slice(), account.charged()), (b"a\nb".as_slice(), 3));
        file.add(3, b"\nc", Some(second)).unwrap();
        assert_eq!((taken.bytes.as_slice(), account.charged()), (b"a\nb".as_slice(), 8));
        drop(taken);
        file.add(0, b"x", Some(second)).unwrap();
        assert_eq!(file.add(6, b"beyond its end", Some(second)).err(), Some(Errno::EFBIG));
        assert!(file.take_at_release().is_none() && account.charged() == 0);
    }

    #[test]
    fn what_is_written_over_takes_no_more_room() {
        let (account, file) = open(WriteForm::Text);
        assert!(file.add(0, b"sequential\n", None).unwrap().is_none());
        file.add(2, b"QUENTIALLY\n", None).unwrap();
        let text = file.take_at_release().unwrap();
        assert_eq!((text.bytes.as_slice(), account.charged()), (b"seQUENTIALLY\n".as_slice(), 13));
    }

    #[test]
    fn what_was_refused_is_said_once() {
        let (_, file) = open(WriteForm::Lines);
        [Ok(()), Err(Errno::EINVAL), Ok(())]
            .into_iter()
            .for_each(|result| file.note_result(result));
        assert_eq!((file.take_refusal(), file.take_refusal()), (Err(Errno::EINVAL), Ok(())));
    }
}
