//! What a mount for other users would give away.
//!
//! The kernel checks owners and permission bits of what is inside the mount. It cannot check the
//! directories *above* the source, which a user who comes by the mount point never passes, nor
//! access control lists. Where either of them protects something, a mount for others is refused.
//! Lists are looked for above the source, at it, and on what stands directly in it.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::libc;

use crate::error::{Error, ErrorKind, Result};

/// How many names in the source are looked at for access control lists.
const LOOKED_AT_MAX: usize = 4096;

/// Refuses a source that a mount for others would open to people who cannot reach it.
pub(super) fn check(source: &Path, force: bool) -> Result<()> {
    if force {
        return Ok(());
    }
    let refuse = |what: String| {
        Error::new(ErrorKind::Mount, format!("allow-other is refused: {what}")).hint(
            "mount without allow-other, or set mount.force-allow-other=true if everybody who can \
             log in here may read the source",
        )
    };
    for ancestor in source.ancestors().skip(1) {
        let searchable = fs::metadata(ancestor).is_ok_and(|found| found.mode() & 0o001 != 0);
        if !searchable {
            return Err(refuse(format!(
                "{} is not searchable by all, but the mount would be",
                ancestor.display()
            )));
        }
    }
    let inside = fs::read_dir(source).into_iter().flatten().flatten().map(|entry| entry.path());
    let above = source.ancestors().map(Path::to_path_buf);
    for path in above.chain(inside.take(LOOKED_AT_MAX)) {
        if has_acl(&path) {
            return Err(refuse(format!(
                "{} has an access control list, which the mount cannot check",
                path.display()
            )));
        }
    }
    Ok(())
}

fn has_acl(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    [c"system.posix_acl_access", c"system.posix_acl_default", c"system.nfs4_acl"].iter().any(
        |name| {
            // SAFETY: both strings end in a NUL; no buffer is written to with length 0.
            let length =
                unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
            length > 0
        },
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_private_parent_is_not_given_away() {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("data");
        fs::create_dir(&source).unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let error = check(&source, false).unwrap_err();
        assert!(error.message().contains("not searchable by all"), "{error}");
        assert_eq!(check(&source, true), Ok(()));
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check(&source, false), Ok(()));
    }
}
