//! The control files: a second connection inside the mount.
//!
//! Goal: the state of a mount can be read and changed by plain files that no loader ever meets. Method: the
//! files are read and written as a shell, `cp` and Python do it, while the tree is listed.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use nix::errno::Errno;
use serde_json::Value;

use crate::fixture::{Fixture, content, wait_until};
use crate::mounted::Mounted;

const FILES: u64 = 40;

fn mounted(fixture: &Fixture) -> Mounted {
    for number in 0..FILES {
        fixture.write(&format!("class/{number:04}.png"), &content(number, 700));
    }
    Mounted::new(fixture, &[])
}

/// Writes to the order file and closes it. Returns the error of the write or of the close.
fn write_order(mounted: &Mounted, text: &[u8]) -> Result<(), Errno> {
    let mut file = OpenOptions::new().write(true).open(mounted.path(".belady/order")).unwrap();
    file.write_all(text).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap()))?;
    nix::unistd::close(file.into_raw_fd())
}

#[test]
fn the_files_are_there_and_never_listed() {
    let fixture = Fixture::new();
    let mounted = mounted(&fixture);
    let names = |path| {
        let entries = fs::read_dir(mounted.path(path)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["class"]);
    assert_eq!(names(".belady"), ["config", "order", "stats", "status.json"]);
    for (name, mode) in
        [("status.json", 0o400), ("stats", 0o400), ("config", 0o400), ("order", 0o600)]
    {
        let found = fs::metadata(mounted.path(".belady").join(name)).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{name}");
        assert_eq!(found.uid(), nix::unistd::geteuid().as_raw());
    }
    let found =
        Command::new("find").arg(mounted.path("")).args(["-name", ".belady"]).output().unwrap();
    assert!(found.stdout.is_empty(), "{found:?}");
    mounted.umount();
}

#[test]
fn each_open_shows_the_state_of_its_moment() {
    let fixture = Fixture::new();
    let mounted = mounted(&fixture);
    let status = || -> Value {
        serde_json::from_slice(&fs::read(mounted.path(".belady/status.json")).unwrap()).unwrap()
    };
    let before = status();
    assert_eq!(before["files"], FILES);
    fs::read(mounted.path("class/0001.png")).unwrap();
    wait_until("the open in the status", || status()["opens"] == 1);
    let asked = |kind: &str| {
        let count = |status: &Value| status["requests"][kind].as_u64().unwrap();
        count(&status()) - count(&before)
    };
    assert!(asked("lookup") >= 1 && asked("read") >= 1);
    let mut held = File::open(mounted.path(".belady/stats")).unwrap();
    let mut stats = String::new();
    held.read_to_string(&mut stats).unwrap();
    assert!(stats.contains("belady_files 40\n"), "{stats}");
    assert!(stats.contains("belady_opens_total{found=\"cold\"} 1\n"), "{stats}");
    let config = fs::read_to_string(mounted.path(".belady/config")).unwrap();
    assert!(config.contains("cache.ram"), "{config}");
    drop(held);
    mounted.umount();
}

#[test]
fn an_order_is_taken_when_its_file_is_closed() {
    let fixture = Fixture::new();
    let mounted = mounted(&fixture);
    let following = |words: &str| {
        wait_until(words, || {
            mounted.status()["orders"][0]["order"]
                .as_str()
                .is_some_and(|order| order.contains(words))
        });
    };
    assert_eq!(write_order(&mounted, b"torch-distributed:seed=3\n"), Ok(()));
    following("torch-distributed seed 3");
    let list: String = (0..FILES).rev().map(|n| format!("class/{n:04}.png\n")).collect();
    assert_eq!(write_order(&mounted, list.as_bytes()), Ok(()));
    following("1 epoch of 40 samples");
    fs::write(fixture.path("order.txt"), "class/0001.png\nclass/0002.png\n").unwrap();
    // `cp -p` sets times and modes, too, before it closes the file.
    let copied = Command::new("cp")
        .arg("-p")
        .arg(fixture.path("order.txt"))
        .arg(mounted.path(".belady/order"))
        .status();
    assert!(copied.unwrap().success());
    following("1 epoch of 2 samples");
    let shell = format!("echo sequential > '{}'", mounted.path(".belady/order").display());
    assert!(Command::new("sh").args(["-c", &shell]).status().unwrap().success());
    following("sequential");
    // The list is written by several processes. One of them closes its copy of the descriptor in the middle.
    let half = fixture.path("order.txt").display().to_string();
    let order = mounted.path(".belady/order").display().to_string();
    let shell = format!("{{ cat '{half}'; true; echo class/0003.png; }} > '{order}'");
    assert!(Command::new("sh").args(["-c", &shell]).status().unwrap().success());
    following("1 epoch of 3 samples");
    let mut file = OpenOptions::new().write(true).open(order).unwrap();
    file.write_all(b"class/0001.png\nclass/00").unwrap();
    assert!(Command::new("true").status().unwrap().success());
    assert_eq!(mounted.status()["orders"][0]["refused"], serde_json::Value::Null);
    file.write_all(b"02.png\nclass/0004.png\nclass/0005.png\n").unwrap();
    drop(file);
    following("1 epoch of 4 samples");
    mounted.umount();
}

#[test]
fn a_bad_order_fails_the_close_and_says_why() {
    let fixture = Fixture::new();
    let mounted = mounted(&fixture);
    assert_eq!(write_order(&mounted, b"sequential\n"), Ok(()));
    assert_eq!(write_order(&mounted, b"class/0001.png\nclass/none.png\n"), Err(Errno::EINVAL));
    let refused = mounted.status()["orders"][0]["refused"].as_str().unwrap().to_string();
    assert!(refused.contains("line 2") && refused.contains("class/none.png"), "{refused}");
    assert_eq!(write_order(&mounted, b"keras:sed=1\n"), Err(Errno::EINVAL));
    let refused = mounted.status()["orders"][0]["refused"].as_str().unwrap().to_string();
    assert!(refused.contains("did you mean 'seed'"), "{refused}");
    wait_until("the order that was there", || {
        mounted.status()["orders"][0]["order"].as_str().is_some_and(|o| o.contains("sequential"))
    });
    let error =
        OpenOptions::new().write(true).open(mounted.path(".belady/status.json")).unwrap_err();
    assert!(
        [Some(Errno::EACCES as i32), Some(Errno::EPERM as i32)].contains(&error.raw_os_error()),
        "{error}"
    );
    mounted.umount();
}
