//! Who may read a kept sample: no user whom the source does not let read it any more.
//!
//! Method: another user reads a buffer's samples, while rights change at the source.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{FILES, fixture, mount, read_class, wait_for_offers};
use crate::fixture::wait_until;

/// Whether a user other than the one who mounted can read a file.
fn others_read(path: &Path) -> bool {
    let mut command = Command::new("cat");
    command.arg(path).uid(65534).gid(65534).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

#[test]
fn a_sample_that_may_not_be_read_any_more_is_closed() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let fixture = fixture();
    let mounted = mount(&fixture, &["mount.allow-other=true", "source.revalidate=1s"]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let class = mounted.path("rehearsal/old/epoch-0/a");
    let mut names: Vec<_> =
        fs::read_dir(&class).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let [first, second] = [&names[0], &names[1]].map(|name| class.join(name));
    assert!(others_read(&first) && others_read(&second));
    let file = Path::new("train/a").join(&names[0]);
    for (path, less, usual, closes_all) in [
        (file.as_path(), 0o640, 0o644, false),
        (Path::new("train/a"), 0o750, 0o755, true),
        (Path::new("train"), 0o704, 0o755, true),
    ] {
        let set = |mode| {
            fs::set_permissions(fixture.source(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        set(less);
        wait_until("the sample is closed", || !others_read(&first));
        if closes_all {
            wait_until("the other one is closed, too", || !others_read(&second));
        } else {
            assert!(others_read(&second));
        }
        // The owner of both files goes on.
        fs::read(&first).unwrap();
        set(usual);
        wait_until("the samples are open again", || others_read(&first) && others_read(&second));
    }
    // A sample that is gone from the source stays readable for the users it was kept for.
    fs::remove_file(fixture.source(&file)).unwrap();
    assert!(others_read(&first));
    fs::set_permissions(fixture.source("train"), fs::Permissions::from_mode(0o700)).unwrap();
    wait_until("the sample is closed", || !others_read(&first));
    mounted.umount();
}
