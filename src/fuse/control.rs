//! The control files: a small connection of its own, read-write, where every open is seen.
//!
//! A file is rendered when it is opened and read past the page cache, so each open shows the state
//! of its moment at its exact size. What is written is taken when its descriptor is closed: the
//! close fails with `EINVAL` where it is refused.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::room::{BYTES_MAX, Room, Share, log_refusal};
use crate::fs::NAME_MAX;
use crate::sync::{Mutex, MutexGuard};

/// Renders a file's content.
pub type Render = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Takes what was written to a file, or refuses it.
pub type Accept = Box<dyn Fn(&[u8]) -> Result<(), ()> + Send + Sync>;

/// One control file.
pub struct ControlFile {
    pub name: &'static str,
    pub render: Render,
    /// What happens to what is written; none: it cannot be.
    pub accept: Option<Accept>,
}

/// What was written, and the room that it takes.
struct Text {
    bytes: Vec<u8>,
    share: Share,
}

impl Text {
    fn empty(room: &Arc<Room>) -> Arc<Self> {
        Arc::new(Text { bytes: Vec::new(), share: room.share() })
    }

    fn copy(&self, room: &Arc<Room>) -> Result<Self, Errno> {
        let mut share = room.share();
        share.grow(self.bytes.len())?;
        Ok(Text { bytes: self.bytes.clone(), share })
    }

    /// Puts bytes at a place in it, or at its end.
    ///
    /// # Errors
    /// `EFBIG` where it would have a gap or be too long, `ENOSPC` where there is no memory for more.
    fn put(&mut self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let length = self.bytes.len();
        let at = usize::try_from(offset).ok().filter(|at| *at <= length).ok_or(Errno::EFBIG)?;
        if at.saturating_add(data.len()) > BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        let (over, behind) = data.split_at(data.len().min(length - at));
        self.share.grow(behind.len())?;
        self.bytes[at..at + over.len()].copy_from_slice(over);
        self.bytes.extend_from_slice(behind);
        Ok(())
    }
}

/// A file that is open.
struct Handle {
    shown: Vec<u8>,
    room: Arc<Room>,
    /// What was written to it, or why that was refused: nothing is left of it then.
    written: Result<Arc<Text>, Errno>,
    /// Who wrote last, where that is something that nobody has taken yet.
    writer: Option<LockOwner>,
}

impl Handle {
    fn new(shown: Vec<u8>, room: &Arc<Room>) -> Self {
        let written = Ok(Text::empty(room));
        Handle { shown, room: Arc::clone(room), written, writer: None }
    }

    fn truncate(&mut self) {
        self.written = Ok(Text::empty(&self.room));
    }

    /// Adds to what was written.
    ///
    /// # Errors
    /// As of [`Text::put`]: then nothing of it is left, and nothing more is taken.
    fn write(&mut self, offset: u64, data: &[u8], writer: Option<LockOwner>) -> Result<(), Errno> {
        self.writer = writer;
        let text = self.written.as_mut().map_err(|why| *why)?;
        let bytes = text.bytes.len();
        let put = match Arc::get_mut(text) {
            Some(text) => text.put(offset, data),
            // It is being taken as it was.
            None => text.copy(&self.room).and_then(|mut copy| {
                copy.put(offset, data)?;
                *text = Arc::new(copy);
                Ok(())
            }),
        };
        if let Err(why) = put {
            log_refusal(why, bytes);
            self.written = Err(why);
        }
        put
    }

    /// What is to be taken when a descriptor is closed: nothing unless its owner wrote last. It stays,
    /// for others may go on writing.
    fn closed(&mut self, closer: LockOwner) -> Option<Result<Arc<Text>, Errno>> {
        self.writer.take_if(|writer| *writer == closer)?;
        Some(self.written.clone())
    }

    /// What is to be taken when nobody has the file open any more.
    fn rest(self) -> Option<Arc<Text>> {
        self.written.ok().filter(|_| self.writer.is_some())
    }
}

/// The filesystem of the control files. Inode 1 is the directory, file `n` is inode `n + 2`.
pub(super) struct ControlOps {
    files: Arc<Vec<ControlFile>>,
    handles: Mutex<HashMap<u64, Handle>>,
    next: AtomicU64,
    /// What is written to all files and not closed yet.
    room: Arc<Room>,
    owner: (u32, u32),
}

impl ControlOps {
    pub(super) fn new(files: Arc<Vec<ControlFile>>, room: Arc<Room>) -> Self {
        let owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        ControlOps { files, handles: Mutex::default(), next: AtomicU64::new(1), room, owner }
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        self.handles.lock()
    }

    fn file(&self, ino: INodeNo) -> Option<&ControlFile> {
        self.files.get(usize::try_from(ino.0.checked_sub(2)?).ok()?)
    }

    /// Has what was written taken, and does `then` with what came of it; none: it is no file that
    /// takes anything. Taking an order may need a while; the connection goes on meanwhile.
    fn take(
        &self,
        ino: INodeNo,
        written: Arc<Text>,
        then: impl FnOnce(Option<Result<(), ()>>) + Send + 'static,
    ) {
        let files = Arc::clone(&self.files);
        let take = move || {
            let file = files.get((ino.0 as usize).wrapping_sub(2));
            then(file.and_then(|file| file.accept.as_ref()).map(|accept| accept(&written.bytes)));
        };
        // Where no thread can be had the reply is dropped, and the close fails with EIO.
        let _ = std::thread::Builder::new().name("belady-control".into()).spawn(take);
    }

    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm) = match self.file(ino) {
            Some(file) if file.accept.is_some() => (FileType::RegularFile, 0o600),
            Some(_) => (FileType::RegularFile, 0o400),
            None if ino == INodeNo::ROOT => (FileType::Directory, 0o500),
            None => return None,
        };
        let now = SystemTime::now();
        Some(FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn reply_attr(&self, ino: INodeNo, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&Duration::ZERO, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }
}

impl Filesystem for ControlOps {
    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.files.iter().position(|file| name == file.name);
        match found.and_then(|index| self.attr(INodeNo(index as u64 + 2))) {
            Some(attr) => reply.entry(&Duration::ZERO, &attr, Generation(0)),
            None if name.len() > NAME_MAX => reply.error(Errno::ENAMETOOLONG),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(ino, reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut handles = self.handles();
        // Opening with truncation is all that a shell does here.
        if let Some(handle) = fh.and_then(|fh| handles.get_mut(&fh.0)) {
            handle.truncate();
        }
        drop(handles);
        self.reply_attr(ino, reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let dots = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, name));
        let files = self
            .files
            .iter()
            .enumerate()
            .map(|(index, file)| (INodeNo(index as u64 + 2), FileType::RegularFile, file.name));
        for (index, (ino, kind, name)) in dots.into_iter().chain(files).enumerate() {
            if index as u64 >= offset && reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::ENOENT) };
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        if writes && file.accept.is_none() {
            return reply.error(Errno::EACCES);
        }
        let shown = (file.render)();
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(handle, Handle::new(shown, &self.room));
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handles = self.handles();
        let Some(handle) = handles.get(&fh.0) else { return reply.error(Errno::EBADF) };
        let from = (offset as usize).min(handle.shown.len());
        let to = from.saturating_add(size as usize).min(handle.shown.len());
        reply.data(&handle.shown[from..to]);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut handles = self.handles();
        let Some(handle) = handles.get_mut(&fh.0) else { return reply.error(Errno::EBADF) };
        // What is appended to an empty file starts at its start, whatever is shown of it.
        let written = handle.write(offset, data, lock_owner);
        drop(handles);
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(why) => reply.error(why),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A shell closes a copy of the descriptor before it writes, and a process that was forked
        // meanwhile closes its own in the middle: only who wrote last has something to be taken.
        let closed = self.handles().get_mut(&fh.0).and_then(|handle| handle.closed(lock_owner));
        let written = match closed {
            Some(Ok(written)) => written,
            Some(Err(why)) => return reply.error(why),
            None => return reply.ok(),
        };
        self.take(ino, written, move |taken| match taken {
            Some(Ok(())) => reply.ok(),
            Some(Err(())) => reply.error(Errno::EINVAL),
            None => reply.error(Errno::EBADF),
        });
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let closed = self.handles().remove(&fh.0);
        if let Some(written) = closed.and_then(Handle::rest) {
            // Whoever wrote it left its closing to others; what becomes of it is in the status.
            self.take(ino, written, drop);
        }
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 1 << 20;
    const PIECE: usize = 64 << 10;

    fn open() -> (Arc<Room>, Handle) {
        let room = Arc::<Room>::default();
        room.resize(MEMORY);
        let handle = Handle::new(Vec::new(), &room);
        (room, handle)
    }

    /// As `cat /dev/zero` does it.
    #[test]
    fn what_has_no_memory_is_refused_and_let_go_of() {
        let (room, mut handle) = open();
        let (owner, zeros) = (LockOwner(7), vec![0; PIECE]);
        let mut write =
            |number: usize| handle.write((number * PIECE) as u64, &zeros, Some(owner)).err();
        assert_eq!((0..16).find_map(&mut write), None);
        assert_eq!((write(16), room.taken()), (Some(Errno::ENOSPC), 0));
        assert_eq!(write(0), Some(Errno::ENOSPC), "nothing more is taken");
        assert_eq!(handle.closed(owner).and_then(Result::err), Some(Errno::ENOSPC));
        // Who begins anew is taken at his word.
        handle.truncate();
        assert_eq!(handle.write(0, b"sequential\n", Some(owner)), Ok(()));
        assert_eq!(handle.rest().map(|text| text.bytes.clone()), Some(b"sequential\n".to_vec()));
        assert_eq!(room.taken(), 0);
    }

    /// What is taken at a close is no copy, and is not changed by who writes on meanwhile.
    #[test]
    fn what_is_being_taken_stays_as_it_was() {
        let (room, mut handle) = open();
        let (first, second) = (LockOwner(7), LockOwner(8));
        handle.write(0, b"a\nb", Some(first)).unwrap();
        assert!(handle.closed(second).is_none(), "somebody else wrote it");
        let taken = handle.closed(first).unwrap().ok().unwrap();
        assert!(handle.closed(first).is_none(), "it is taken");
        assert_eq!((taken.bytes.as_slice(), room.taken()), (b"a\nb".as_slice(), 3));
        handle.write(3, b"\nc", Some(second)).unwrap();
        assert_eq!((taken.bytes.as_slice(), room.taken()), (b"a\nb".as_slice(), 8));
        drop(taken);
        handle.write(0, b"x", Some(second)).unwrap();
        assert_eq!(handle.write(6, b"beyond its end", Some(second)), Err(Errno::EFBIG));
        assert!(handle.rest().is_none() && room.taken() == 0);
    }

    #[test]
    fn what_is_written_over_takes_no_more_room() {
        let (room, mut handle) = open();
        handle.write(0, b"sequential\n", None).unwrap();
        handle.write(2, b"QUENTIALLY\n", None).unwrap();
        let text = handle.written.as_ref().ok().unwrap();
        assert_eq!((text.bytes.as_slice(), room.taken()), (b"seQUENTIALLY\n".as_slice(), 13));
    }
}
