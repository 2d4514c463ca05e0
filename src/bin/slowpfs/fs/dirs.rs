//! Operations on directories.
//!
//! A directory is listed when it is read from the beginning. Later pages are of the same listing, so a reader
//! sees every entry once, whatever changes meanwhile.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, ReplyDirectory, ReplyDirectoryPlus,
    ReplyOpen,
};
use nix::sys::stat::FileStat;

use super::files::{GENERATION, stale};
use super::handles::Handle;
use super::inodes::{CONTROL_DIR, ROOT, STATS_FILE};
use super::source::Entry;
use super::{SlowFs, attr};
use crate::engine::Ticket;
use crate::locked;
use crate::model::Request;
use crate::stats::Op;

/// The path of a directory and its entries.
type Listing = (Arc<Path>, Arc<Vec<Entry>>);

pub(super) fn opendir(fs: &SlowFs, ino: u64, reply: ReplyOpen) {
    if ino == CONTROL_DIR {
        return reply.opened(fs.handles.add(Handle::ControlDir), FopenFlags::empty());
    }
    let path = match fs.path(ino) {
        Ok(path) => path,
        Err(error) => return reply.error(error),
    };
    let ticket = fs.engine.admit(Op::Opendir, Request::Readdir, ino, &path);
    let opened = ticket.work(|| {
        let stat = fs.source.stat(&path).map_err(stale)?;
        fs.check_inode(ino, stat)?;
        Ok(Handle::Dir { path, entries: Mutex::default() })
    });
    let handles = fs.handles.clone();
    fs.engine.finish(ticket, move |error| match error.map_or(opened, Err) {
        Ok(handle) => reply.opened(handles.add(handle), FopenFlags::empty()),
        Err(error) => reply.error(error),
    });
}

/// One page of a directory.
pub(super) fn readdir(
    fs: &SlowFs,
    ino: u64,
    fh: FileHandle,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let Some((ticket, listing)) = list_page(fs, ino, fh, offset) else {
        for (at, (attr, name)) in control_listing().into_iter().skip(offset as usize) {
            let _ = reply.add(attr.ino, at, attr.kind, name);
        }
        return reply.ok();
    };
    let filled = listing.map(|(_, entries)| {
        for (at, entry) in entries.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(entry.ino), at as u64 + 1, entry.kind, &entry.name) {
                break;
            }
        }
    });
    fs.engine.finish(ticket, move |error| match error.map_or(filled, Err) {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    });
}

/// One page of a directory with the attributes of its entries.
pub(super) fn readdirplus(
    fs: &SlowFs,
    ino: u64,
    fh: FileHandle,
    offset: u64,
    mut reply: ReplyDirectoryPlus,
) {
    let Some((ticket, listing)) = list_page(fs, ino, fh, offset) else {
        let ttl = &fs.options.ttl;
        for (at, (attr, name)) in control_listing().into_iter().skip(offset as usize) {
            let _ = reply.add(attr.ino, at, name, ttl, &attr, GENERATION);
        }
        return reply.ok();
    };
    let filled = listing.map(|(path, entries)| {
        for (at, entry) in entries.iter().enumerate().skip(offset as usize) {
            // An entry that is gone is left out.
            let Ok(stat) = fs.source.stat(&path.join(&entry.name)) else { continue };
            if add_plus(fs, &mut reply, &path, entry, at as u64 + 1, &stat) {
                break;
            }
        }
    });
    fs.engine.finish(ticket, move |error| match error.map_or(filled, Err) {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    });
}

/// Adds an entry with its attributes. Returns whether the page was full.
fn add_plus(
    fs: &SlowFs,
    reply: &mut ReplyDirectoryPlus,
    dir: &Path,
    entry: &Entry,
    next: u64,
    stat: &FileStat,
) -> bool {
    let ttl = &fs.options.ttl;
    let is_dots = matches!(entry.name.as_bytes(), b"." | b"..");
    let mut inodes = locked(&fs.inodes);
    // The kernel takes no reference to the dots, so they need no number of their own.
    let number = if is_dots { stat.st_ino } else { inodes.number(stat) };
    let attr = fs.attr(number, stat);
    let full = reply.add(INodeNo(number), next, &entry.name, ttl, &attr, GENERATION);
    if !full && !is_dots {
        inodes.found(number, stat, &dir.join(&entry.name));
    }
    full
}

/// Admits one page of a directory and lists it. `None` for the virtual directory.
fn list_page(
    fs: &SlowFs,
    ino: u64,
    fh: FileHandle,
    offset: u64,
) -> Option<(Ticket, Result<Listing, Errno>)> {
    let handle = fs.handles.get(fh);
    if matches!(handle.as_deref(), Ok(Handle::ControlDir)) {
        return None;
    }
    let path = fs.path(ino).unwrap_or_else(|_| Path::new("").into());
    let ticket = fs.engine.admit(Op::Readdir, Request::Readdir, ino, &path);
    let listing = ticket.work(|| {
        let handle = handle?;
        let Handle::Dir { path, entries } = &*handle else { return Err(Errno::ENOTDIR) };
        let mut entries = locked(entries);
        if offset == 0 {
            *entries = Arc::new(fs.source.list(path)?);
        }
        Ok((path.clone(), entries.clone()))
    });
    Some((ticket, listing))
}

/// The entries of the virtual directory: the offset of the next entry, the attributes and the name of each.
fn control_listing() -> [(u64, (FileAttr, &'static str)); 3] {
    [
        (1, (attr::synthetic(CONTROL_DIR, FileType::Directory), ".")),
        (2, (attr::synthetic(ROOT, FileType::Directory), "..")),
        (3, (attr::synthetic(STATS_FILE, FileType::RegularFile), "stats")),
    ]
}
