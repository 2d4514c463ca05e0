//! The ways in which samples reach readers.
//!
//! Goal: each serves the same bytes, says which it is, and asks for what it says. Method: the same
//! files read twice over a mount in each mode; the requests are counted by kind.

use std::fs;
use std::thread;

use serde_json::Value;

use crate::ground::{Ground, check_many, content, wait_until};
use crate::mounted::Mounted;

const FILES: u64 = 200;

fn asked(status: &Value, kind: &str) -> u64 {
    status["requests"][kind].as_u64().unwrap()
}

#[test]
fn each_mode_serves_the_bytes_and_says_which_it_is() {
    for (mode, opens) in [("push", false), ("keep-cache", true), ("plain", true)] {
        let ground = Ground::new();
        ground.plant_many("d", FILES, 5000);
        let set = format!("mount.mode={mode}");
        let options = ["--ram", "64MiB", "--order", "sequential", "--set", &set];
        let mounted = Mounted::new(&ground, &options);
        check_many(&mounted.path(""), "d", FILES, 5000);
        check_many(&mounted.path(""), "d", FILES, 5000);
        let status = mounted.status();
        assert_eq!(status["mode"], mode);
        assert_eq!(asked(&status, "open") >= 2 * FILES, opens, "{status}");
        assert_eq!(asked(&status, "release") > 0, opens, "{status}");
        mounted.umount();
    }
}

#[test]
fn what_is_kept_and_expected_is_opened_and_read_without_a_request() {
    let ground = Ground::new();
    ground.plant_many("d", FILES, 5000);
    // A snapshot elsewhere that shares the files is no reason to ask.
    fs::create_dir(ground.path("snapshot")).unwrap();
    for number in 0..FILES {
        let name = format!("{number:04}");
        let (file, link) = (ground.source("d").join(&name), ground.path("snapshot").join(&name));
        fs::hard_link(file, link).unwrap();
    }
    let options = ["--ram", "64MiB", "--order", "sequential", "--set", "mount.mode=push"];
    let mounted = Mounted::new(&ground, &options);
    check_many(&mounted.path(""), "d", FILES, 5000);
    // The first files of an epoch are watched, and a sixteenth of the others.
    wait_until("the rest trusted", || mounted.count("/trusted_files") > FILES / 2);
    check_many(&mounted.path(""), "d", FILES, 5000);
    let before = mounted.status();
    thread::scope(|scope| {
        // By somebody who reads only what is trusted by now.
        scope.spawn(|| check_many(&mounted.path(""), "d", FILES, 5000));
    });
    let after = mounted.status();
    let requests = asked(&after, "lookup") + asked(&after, "read")
        - asked(&before, "lookup")
        - asked(&before, "read");
    assert!(requests < FILES, "{requests} requests for {FILES} files: {before} {after}");
    mounted.umount();
}

#[test]
fn files_that_come_and_go_show_in_a_listing_that_the_kernel_keeps() {
    let ground = Ground::new();
    ground.plant_many("d", 20, 100);
    let options = ["--set", "source.revalidate=200ms", "--set", "mount.mode=push"];
    let mounted = Mounted::new(&ground, &options);
    let names = || {
        let entries = fs::read_dir(mounted.path("d")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!((names().len(), names().len()), (20, 20));
    ground.plant("d/new", &content(7, 100));
    wait_until("the new file listed", || names().contains(&"new".to_owned()));
    fs::remove_file(ground.source("d/0003")).unwrap();
    wait_until("the old file gone", || !names().contains(&"0003".to_owned()));
    assert_eq!(names().len(), 20);
    assert_eq!(fs::read(mounted.path("d/new")).unwrap(), content(7, 100));
    mounted.umount();
}
