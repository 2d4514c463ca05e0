//! Directories that are deleted meanwhile, that are none, or that cannot be synced.

use super::*;

#[test]
fn a_store_that_is_thrown_away_while_it_is_claimed_is_made_again() {
    let cache = tempfile::tempdir().unwrap();
    let (owner, path) = (Owner::new(Path::new("/source"), 1), cache.path().join("store"));
    assert!(matches!(lock(cache.path(), &path, LOCK_PATIENCE), Ok(None)));
    let path = path_of(cache.path(), &owner);
    std::thread::scope(|scope| {
        let claims =
            scope.spawn(|| (0..200).try_for_each(|_| claim(cache.path(), &owner).map(drop)));
        for nth in 0.. {
            if claims.is_finished() {
                break;
            }
            let gone = cache.path().join(format!("gone-{nth}"));
            if fs::rename(&path, &gone).is_ok() {
                // It stays if the owner file is made in it at this moment.
                let _ = fs::remove_dir_all(gone);
            }
        }
        assert_eq!(claims.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_cache_directory_is_a_directory() {
    let top = tempfile::tempdir().unwrap();
    let [file, link] = ["file", "link"].map(|name| top.path().join(name));
    fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(top.path(), &link).unwrap();
    for (path, what) in [(file, "but a file"), (link, "but a link")] {
        let refused = make_own(&path, &path).unwrap_err();
        assert!(refused.message().contains(what), "{refused}");
        assert_eq!(check(&path), Err(refused));
    }
}

/// Directories of FUSE filesystems may be like this one.
#[test]
fn a_filesystem_need_not_be_able_to_sync_a_directory() {
    let error = File::open("/proc/self").unwrap().sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert!(sync_names(Path::new("/proc/self")).is_ok());
}
