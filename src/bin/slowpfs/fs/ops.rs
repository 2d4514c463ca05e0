//! Operations on names and files: admit, do the work on the source, hand over the answer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, OpenAccMode, OpenFlags,
    ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, ReplyXattr,
};
use nix::sys::stat::{FileStat, fstat};

use super::handles::Handle;
use super::inodes::{self, CONTROL_DIR, ROOT, STATS_FILE};
use super::source::{self, Xattr};
use super::{SlowFs, attr};
use crate::locked;
use crate::model::Request;
use crate::stats::Op;

/// Inode numbers are identities, so all inodes have one generation.
pub(super) const GENERATION: Generation = Generation(0);

impl SlowFs {
    /// Resolves a name.
    pub(crate) fn find(&self, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let ttl = self.options.ttl;
        if let Some(found) = control_entry(parent, name) {
            return match found {
                Ok(attr) => reply.entry(&ttl, &attr, GENERATION),
                Err(error) => reply.error(error),
            };
        }
        let dir = match self.path(parent) {
            Ok(dir) => dir,
            Err(error) => return reply.error(error),
        };
        let path = dir.join(name);
        let ticket = self.engine.admit(Op::Lookup, Request::Lookup, parent, &path);
        let found = ticket.work(|| self.source.stat(&path)).map(|stat| {
            let mut inodes = locked(&self.inodes);
            let number = inodes.number(&stat);
            inodes.found(number, &stat, &path);
            ticket.told(self.attr(number, &stat))
        });
        self.engine.finish(ticket, move |error| match error.map_or(found, Err) {
            Ok(attr) => reply.entry(&ttl, &attr, GENERATION),
            Err(error) => reply.error(error),
        });
    }

    /// Answers with the attributes of an inode.
    pub(crate) fn attributes(&self, ino: u64, reply: ReplyAttr) {
        let ttl = self.options.ttl;
        match ino {
            CONTROL_DIR => return reply.attr(&ttl, &attr::synthetic(ino, FileType::Directory)),
            STATS_FILE => return reply.attr(&ttl, &attr::synthetic(ino, FileType::RegularFile)),
            _ => {}
        }
        let path = match self.path(ino) {
            Ok(path) => path,
            Err(error) => return reply.error(error),
        };
        let ticket = self.engine.admit(Op::Getattr, Request::Getattr, ino, &path);
        let found = ticket.work(|| {
            let by_path = || self.source.stat(&path).and_then(|stat| self.same(ino, stat));
            by_path().or_else(|error| self.stat_open(ino).ok_or(stale(error)))
        });
        let found = found.map(|stat| ticket.told(self.attr(ino, &stat)));
        self.engine.finish(ticket, move |error| match error.map_or(found, Err) {
            Ok(attr) => reply.attr(&ttl, &attr),
            Err(error) => reply.error(error),
        });
    }

    pub(crate) fn open_file(&self, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        if ino == STATS_FILE {
            let fh = self.handles.add(Handle::Text(self.engine.stats.json()));
            return reply.opened(fh, FopenFlags::FOPEN_DIRECT_IO);
        }
        let path = match self.path(ino) {
            Ok(path) => path,
            Err(error) => return reply.error(error),
        };
        let ticket = self.engine.admit(Op::Open, Request::Open, ino, &path);
        let opened = ticket.work(|| {
            let (file, stat) = self.source.open_file(&path).map_err(stale)?;
            let stat = self.same(ino, stat)?;
            Ok((Handle::File { file, ino, path }, self.caching(ino, &stat)))
        });
        let handles = self.handles.clone();
        self.engine.finish(ticket, move |error| match error.map_or(opened, Err) {
            Ok((handle, flags)) => reply.opened(handles.add(handle), flags),
            Err(error) => reply.error(error),
        });
    }

    /// Reads from an open file. The cost is that of the bytes that exist, not of the bytes requested.
    pub(crate) fn read_file(
        &self,
        ino: u64,
        fh: FileHandle,
        offset: u64,
        size: u32,
        reply: ReplyData,
    ) {
        let handle = match self.handles.get(fh) {
            Ok(handle) => handle,
            Err(error) => return reply.error(error),
        };
        let (file, path) = match &*handle {
            Handle::File { file, path, .. } => (file, path),
            Handle::Text(text) => return reply.data(part(text.as_bytes(), offset, size)),
            Handle::Dir { .. } | Handle::ControlDir => return reply.error(Errno::EISDIR),
        };
        let rest = file.metadata().map_or(0, |m| m.len().saturating_sub(offset));
        let bytes = rest.min(u64::from(size));
        let request = Request::Read { handle: fh.0, offset, bytes };
        let ticket = self.engine.admit(Op::Read, request, ino, path);
        let mut data = ticket.work(|| source::read(file, offset, bytes as u32));
        if let (Ok(data), true) = (&mut data, ticket.is_short()) {
            data.truncate(data.len() / 2);
        }
        self.engine.stats.read(data.as_ref().map_or(0, Vec::len));
        self.engine.finish(ticket, move |error| match error.map_or(data, Err) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        });
    }

    /// Closes a file for the last time.
    pub(crate) fn close(&self, ino: u64, fh: FileHandle) {
        if let Some(Handle::File { path, .. }) = self.handles.remove(fh).as_deref() {
            self.engine.released(fh.0, ino, path);
        }
    }

    pub(crate) fn link_target(&self, ino: u64, reply: ReplyData) {
        let path = match self.path(ino) {
            Ok(path) => path,
            Err(error) => return reply.error(error),
        };
        let ticket = self.engine.admit(Op::Other, Request::Getattr, ino, &path);
        let target = ticket.work(|| self.source.readlink(&path).map_err(stale));
        self.engine.finish(ticket, move |error| match error.map_or(target, Err) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(error),
        });
    }

    /// Answers a request for extended attributes. `get` fetches them.
    pub(crate) fn xattr(
        &self,
        ino: u64,
        reply: ReplyXattr,
        get: impl FnOnce(&Path) -> Result<Xattr, Errno>,
    ) {
        let path = match self.path(ino) {
            Ok(path) => path,
            // A virtual file has none.
            Err(_) if ino >= CONTROL_DIR => return reply.error(Errno::ENODATA),
            Err(error) => return reply.error(error),
        };
        let ticket = self.engine.admit(Op::Other, Request::Getattr, ino, &path);
        let found = ticket.work(|| get(&path));
        self.engine.finish(ticket, move |error| match error.map_or(found, Err) {
            Ok(Xattr::Size(size)) => reply.size(size),
            Ok(Xattr::Data(data)) => reply.data(&data),
            Err(error) => reply.error(error),
        });
    }

    /// The path of an inode that the kernel knows.
    pub(super) fn path(&self, ino: u64) -> Result<Arc<Path>, Errno> {
        locked(&self.inodes).path(ino).ok_or(Errno::ESTALE)
    }

    /// The attributes of an inode that has lost its name but is open: it lives until it is closed.
    fn stat_open(&self, ino: u64) -> Option<FileStat> {
        match &*self.handles.of_inode(ino)? {
            Handle::File { file, .. } => fstat(file).ok(),
            _ => None,
        }
    }

    /// `stat`, if it is still that of inode `ino`. If another file has taken the name, ESTALE makes the
    /// kernel look the name up again, and the caller gets the new file.
    pub(super) fn same(&self, ino: u64, stat: FileStat) -> Result<FileStat, Errno> {
        let same = ino == ROOT || locked(&self.inodes).number(&stat) == ino;
        if same { Ok(stat) } else { Err(Errno::ESTALE) }
    }

    /// How the kernel treats the pages of a file that is opened.
    fn caching(&self, ino: u64, stat: &FileStat) -> FopenFlags {
        let mut flags = FopenFlags::empty();
        if self.options.direct_io {
            flags |= FopenFlags::FOPEN_DIRECT_IO;
        }
        if self.options.client_cache && locked(&self.inodes).keeps_pages(ino, inodes::version(stat))
        {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        flags
    }
}

/// Turns the error of a path that is gone into ESTALE: the kernel then looks the name up again and reports
/// that error.
pub(super) fn stale(error: Errno) -> Errno {
    let gone = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP];
    if gone.iter().any(|e| e.code() == error.code()) { Errno::ESTALE } else { error }
}

/// The result of looking up `name` in `parent`, if that concerns the virtual files.
fn control_entry(parent: u64, name: &OsStr) -> Option<Result<FileAttr, Errno>> {
    match (parent, name.as_bytes()) {
        (ROOT, b".slowpfs") => Some(Ok(attr::synthetic(CONTROL_DIR, FileType::Directory))),
        (CONTROL_DIR, b"stats") => Some(Ok(attr::synthetic(STATS_FILE, FileType::RegularFile))),
        (CONTROL_DIR, _) => Some(Err(Errno::ENOENT)),
        _ => None,
    }
}

/// The bytes of `content` that a read returns.
fn part(content: &[u8], offset: u64, size: u32) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
    let end = start.saturating_add(size as usize).min(content.len());
    &content[start..end]
}
