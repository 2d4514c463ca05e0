//! Operations on names and files. Each admits the request, does the work on the source, and answers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, OpenAccMode, OpenFlags,
    ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, ReplyXattr,
};

use super::handles::Handle;
use super::inodes::{CONTROL_DIR, ROOT, STATS_FILE};
use super::source::{self, Xattr};
use super::{SlowFs, attr};
use crate::locked;
use crate::model::Request;
use crate::stats::Op;

/// Inode numbers are identities, so all inodes have one generation.
pub(super) const GENERATION: Generation = Generation(0);

/// Resolves a name.
pub(super) fn lookup(fs: &SlowFs, parent: u64, name: &OsStr, reply: ReplyEntry) {
    let ttl = fs.options.ttl;
    if let Some(found) = control_entry(parent, name) {
        return match found {
            Ok(attr) => reply.entry(&ttl, &attr, GENERATION),
            Err(error) => reply.error(error),
        };
    }
    let dir = match fs.path(parent) {
        Ok(dir) => dir,
        Err(error) => return reply.error(error),
    };
    let path = dir.join(name);
    let ticket = fs.engine.admit(Op::Lookup, Request::Lookup, parent, &path);
    let found = ticket.work(|| fs.source.stat(&path)).map(|stat| {
        let mut inodes = locked(&fs.inodes);
        let number = inodes.number(&stat);
        inodes.found(number, &stat, &path);
        ticket.reported_attr(fs.attr(number, &stat))
    });
    fs.engine.finish(ticket, move |error| match error.map_or(found, Err) {
        Ok(attr) => reply.entry(&ttl, &attr, GENERATION),
        Err(error) => reply.error(error),
    });
}

/// Answers with the attributes of an inode.
pub(super) fn getattr(fs: &SlowFs, ino: u64, reply: ReplyAttr) {
    let ttl = fs.options.ttl;
    match ino {
        CONTROL_DIR => return reply.attr(&ttl, &attr::synthetic(ino, FileType::Directory)),
        STATS_FILE => return reply.attr(&ttl, &attr::synthetic(ino, FileType::RegularFile)),
        _ => {}
    }
    let path = match fs.path(ino) {
        Ok(path) => path,
        Err(error) => return reply.error(error),
    };
    let ticket = fs.engine.admit(Op::Getattr, Request::Getattr, ino, &path);
    let found = ticket.work(|| {
        let by_path = || fs.source.stat(&path).and_then(|stat| fs.check_inode(ino, stat));
        by_path().or_else(|error| fs.stat_open(ino).ok_or(stale(error)))
    });
    let found = found.map(|stat| ticket.reported_attr(fs.attr(ino, &stat)));
    fs.engine.finish(ticket, move |error| match error.map_or(found, Err) {
        Ok(attr) => reply.attr(&ttl, &attr),
        Err(error) => reply.error(error),
    });
}

pub(super) fn open(fs: &SlowFs, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
    if flags.acc_mode() != OpenAccMode::O_RDONLY {
        return reply.error(Errno::EROFS);
    }
    if ino == STATS_FILE {
        let fh = fs.handles.add(Handle::Text(fs.engine.stats.json()));
        return reply.opened(fh, FopenFlags::FOPEN_DIRECT_IO);
    }
    let path = match fs.path(ino) {
        Ok(path) => path,
        Err(error) => return reply.error(error),
    };
    let ticket = fs.engine.admit(Op::Open, Request::Open, ino, &path);
    let opened = ticket.work(|| {
        let (file, stat) = fs.source.open_file(&path).map_err(stale)?;
        let stat = fs.check_inode(ino, stat)?;
        Ok((Handle::File { file, ino, path }, fs.open_flags(ino, &stat)))
    });
    let handles = fs.handles.clone();
    fs.engine.finish(ticket, move |error| match error.map_or(opened, Err) {
        Ok((handle, flags)) => reply.opened(handles.add(handle), flags),
        Err(error) => reply.error(error),
    });
}

/// Reads from an open file. The cost is that of the bytes that exist, not of the bytes requested.
pub(super) fn read(
    fs: &SlowFs,
    ino: u64,
    fh: FileHandle,
    offset: u64,
    size: u32,
    reply: ReplyData,
) {
    let handle = match fs.handles.get(fh) {
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
    let ticket = fs.engine.admit(Op::Read, request, ino, path);
    let mut data = ticket.work(|| source::read(file, offset, bytes as u32));
    if let (Ok(data), true) = (&mut data, ticket.is_short()) {
        data.truncate(data.len() / 2);
    }
    fs.engine.stats.read(data.as_ref().map_or(0, Vec::len));
    fs.engine.finish(ticket, move |error| match error.map_or(data, Err) {
        Ok(data) => reply.data(&data),
        Err(error) => reply.error(error),
    });
}

/// Closes a file for the last time.
pub(super) fn release(fs: &SlowFs, ino: u64, fh: FileHandle) {
    if let Some(Handle::File { path, .. }) = fs.handles.remove(fh).as_deref() {
        fs.engine.released(fh.0, ino, path);
    }
}

pub(super) fn readlink(fs: &SlowFs, ino: u64, reply: ReplyData) {
    let path = match fs.path(ino) {
        Ok(path) => path,
        Err(error) => return reply.error(error),
    };
    let ticket = fs.engine.admit(Op::Other, Request::Getattr, ino, &path);
    let target = ticket.work(|| fs.source.readlink(&path).map_err(stale));
    fs.engine.finish(ticket, move |error| match error.map_or(target, Err) {
        Ok(target) => reply.data(target.as_bytes()),
        Err(error) => reply.error(error),
    });
}

/// Answers a request for extended attributes. `get` fetches them.
pub(super) fn xattr(
    fs: &SlowFs,
    ino: u64,
    reply: ReplyXattr,
    get: impl FnOnce(&Path) -> Result<Xattr, Errno>,
) {
    let path = match fs.path(ino) {
        Ok(path) => path,
        // A virtual file has none.
        Err(_) if ino >= CONTROL_DIR => return reply.error(Errno::ENODATA),
        Err(error) => return reply.error(error),
    };
    let ticket = fs.engine.admit(Op::Other, Request::Getattr, ino, &path);
    let found = ticket.work(|| get(&path));
    fs.engine.finish(ticket, move |error| match error.map_or(found, Err) {
        Ok(Xattr::Size(size)) => reply.size(size),
        Ok(Xattr::Data(data)) => reply.data(&data),
        Err(error) => reply.error(error),
    });
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
