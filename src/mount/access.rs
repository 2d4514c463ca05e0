//! Refuses mounts for other users that would give away more than the source.
//!
//! The kernel checks owners and permission bits inside the mount. It cannot check directories *above* the
//! source, which users of the mount point never pass, nor access control lists. If one of these protects
//! something, a mount for other users is refused. Lists are looked for above the source, at it, on what is
//! directly in it, and on all directories below.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use nix::libc;

use crate::catalog::Catalog;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{Location, Source};

/// The note of a mount for other users about lists that are never seen.
pub(super) const UNSEEN: &str = "other users: modes and owners in the source are followed; access \
                                 control lists that are set from now on are not seen";

/// How many names in the source are examined for access control lists.
const EXAMINED_NAMES_MAX: usize = 4096;

const THREADS: usize = 16;

/// The names of attributes that are access control lists.
const LISTS: [&CStr; 3] =
    [c"system.posix_acl_access", c"system.posix_acl_default", c"system.nfs4_acl"];

fn refuse(what: &str) -> Error {
    Error::new(ErrorKind::Mount, format!("allow-other is refused: {what}")).hint(
        "mount without allow-other, or set mount.force-allow-other=true if everybody who can log \
         in here may read the source",
    )
}

fn refuse_list(path: &Path) -> Error {
    let path = path.display();
    refuse(&format!("{path} has an access control list, which the mount cannot check"))
}

/// Refuses a source that a mount would open to users who cannot reach it.
pub(super) fn check(source: &Location) -> Result<()> {
    let Some(source) = source.path() else {
        let source = source.name().display();
        return Err(refuse(&format!("{source} is asked with your rights, which others may lack")));
    };
    for ancestor in source.ancestors().skip(1) {
        let searchable = fs::metadata(ancestor).is_ok_and(|found| found.mode() & 0o001 != 0);
        if !searchable {
            let ancestor = ancestor.display();
            return Err(refuse(&format!(
                "{ancestor} is not searchable by all, but the mount would be"
            )));
        }
    }
    let inside = fs::read_dir(source).into_iter().flatten().flatten().map(|entry| entry.path());
    let above = source.ancestors().map(Path::to_path_buf);
    for path in above.chain(inside.take(EXAMINED_NAMES_MAX)) {
        if has_acl(&path) {
            return Err(refuse_list(&path));
        }
    }
    Ok(())
}

/// Refuses a source if one of its directories has an access control list. Blocks.
pub(super) fn check_directories(catalog: &Catalog, source: &dyn Source, top: &Path) -> Result<()> {
    let (directories, next, found) = (catalog.directories(), AtomicUsize::new(0), Mutex::new(None));
    let look = || {
        while let Some(path) = directories.get(next.fetch_add(1, Ordering::Relaxed)) {
            // A directory whose attributes cannot be listed counts as one without.
            let names = source.list_xattrs(path).unwrap_or_default();
            let mut names = names.split(|byte| *byte == 0);
            if names.any(|name| LISTS.iter().any(|list| list.to_bytes() == name)) {
                next.store(directories.len(), Ordering::Relaxed);
                *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..THREADS.min(directories.len()) {
            scope.spawn(look);
        }
        look();
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.map_or(Ok(()), |path| Err(refuse_list(&top.join(path))))
}

fn has_acl(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    LISTS.iter().any(|name| {
        // SAFETY: both strings end in a NUL; no buffer is written to with length 0.
        let length =
            unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
        length > 0
    })
}
