//! Warm-ups and evictions.
//!
//! Goal: the counts of a warm-up are true, and everything that it fetched is read without the source. Method:
//! real mounts over a filesystem that counts reads and fails on command.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Fixture, check_many, content, wait_until};
use crate::mounted::{Mounted, Slowpfs};

const FILES: u64 = 150;
const SIZE: usize = 30_000;

/// Two directories of files behind a filesystem that counts, mounted.
struct Setup {
    mounted: Mounted,
    slow: Slowpfs,
    fixture: Fixture,
}

impl Setup {
    fn new(ram: &str, nvme: Option<&str>) -> Self {
        let fixture = Fixture::new();
        fixture.write_many("a", FILES, SIZE);
        fixture.write_many("b", FILES / 3, SIZE);
        let slow = Slowpfs::new(&fixture, &[]);
        let cache = fixture.path("cache");
        let disk = |nvme| ["--cache-dir", cache.to_str().unwrap(), "--disk", nvme];
        let disk = nvme.map(disk);
        let only = ["order.learn=off", "--set", "cache.slow-after=1h"];
        let counted = [&["--ram", ram, "--set"][..], &only].concat();
        let options = [&counted[..], disk.as_ref().map_or(&[], |disk| &disk[..])].concat();
        let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
        Setup { mounted, slow, fixture }
    }

    /// Runs `belady warmup`, which must end with this exit code. Returns its counts.
    #[track_caller]
    fn warmup(&self, code: i32, words: &[&str]) -> Value {
        let point = self.mounted.point.to_str().unwrap();
        let said = self.fixture.run(code, &[&["warmup", point, "--json"], words].concat());
        let json = said.lines().next().unwrap_or_default();
        let progress: Value = serde_json::from_str(json).unwrap_or_else(|_| panic!("{said}"));
        let sum: u64 = ["already", "fetched", "unfit", "failed", "late", "waiting"]
            .iter()
            .map(|part| blocks(&progress, part))
            .sum();
        let counts = words.contains(&"--check") || words.contains(&"--evict");
        assert!(counts || sum == blocks(&progress, "chosen"), "{progress}");
        progress
    }
}

fn blocks(progress: &Value, of: &str) -> u64 {
    progress[of]["blocks"].as_u64().unwrap()
}

#[test]
fn what_is_warm_is_read_without_the_source() {
    let setup = Setup::new("1MiB", Some("64MiB"));
    let all = FILES + FILES / 3;
    let bytes = all * SIZE as u64;
    assert_eq!(blocks(&setup.warmup(0, &["--check"]), "disk"), 0);
    let progress = setup.warmup(0, &[]);
    assert_eq!((blocks(&progress, "fetched"), blocks(&progress, "disk")), (all, all), "{progress}");
    assert_eq!(
        (progress["files"].as_u64(), progress["fetched"]["bytes"].as_u64()),
        (Some(all), Some(bytes))
    );
    assert_eq!(
        (setup.slow.count("bytes"), setup.mounted.count("/disk/stored") >= bytes),
        (bytes, true)
    );
    let again = setup.warmup(0, &[]);
    assert_eq!(blocks(&again, "already"), all);
    check_many(&setup.mounted.path(""), "a", FILES, SIZE);
    check_many(&setup.mounted.path(""), "b", FILES / 3, SIZE);
    assert_eq!(setup.slow.count("bytes"), bytes, "the source was read");
    wait_until("nothing is on its way", || setup.mounted.count("/fetching") == 0);
    let said = setup.fixture.run(0, &["warmup", setup.mounted.point.to_str().unwrap(), "--check"]);
    assert!(said.contains("200 samples") && said.contains("on disk"), "{said}");
    let gone = setup.warmup(0, &["--evict", "--glob", "a/*"]);
    assert_eq!(
        (blocks(&gone, "already"), blocks(&gone, "ram") + blocks(&gone, "disk")),
        (FILES, 0)
    );
    assert_eq!(blocks(&setup.warmup(0, &["--check"]), "chosen"), all);
    assert_eq!(blocks(&setup.warmup(0, &[]), "fetched"), FILES);
    check_many(&setup.mounted.path(""), "a", FILES, SIZE);
    assert_eq!(setup.mounted.count("/read_errors"), 0);
    setup.mounted.umount();
}

#[test]
fn samples_are_chosen_by_order_by_names_and_by_pattern() {
    let setup = Setup::new("1MiB", Some("64MiB"));
    let file = |name: &str, text: &str| {
        fs::write(setup.fixture.path(name), text).unwrap();
        setup.fixture.path(name).to_str().unwrap().to_owned()
    };
    let fetched = |progress: &Value| (blocks(progress, "chosen"), blocks(progress, "fetched"));
    let order = file("order", "a/0003\na/0001\na/0002\n");
    assert_eq!(fetched(&setup.warmup(0, &["--order", &order])), (3, 3));
    let mount = setup.mounted.path("a/0004");
    let names = file("names", &format!("a/0003\n{}\nnone\nb\n", mount.display()));
    let progress = setup.warmup(0, &["--files-from", &names]);
    assert_eq!(fetched(&progress), (2 + FILES / 3, 1 + FILES / 3));
    assert_eq!((progress["missing"].as_u64(), blocks(&progress, "already")), (Some(1), 1));
    assert_eq!(fetched(&setup.warmup(0, &["--glob", "*/000?"])), (20, 10 - 4));
    let point = setup.mounted.point.to_str().unwrap();
    setup.fixture.run(2, &["warmup", point, "--glob", "a/***"]);
    setup.fixture.run(3, &["warmup", point, "--order", "no-such-file"]);
    setup.fixture.run(2, &["warmup", point, "--files-from", "/no/such/file"]);
    setup.fixture.run(2, &["warmup", point, "--rate", "0"]);
    setup.fixture.run(6, &["warmup", setup.fixture.path("source").to_str().unwrap()]);
    setup.mounted.umount();
}

/// The command itself reads a pipe, since only the command has it.
#[test]
fn names_come_from_a_pipe_too() {
    const NONE: usize = 1_280_000;
    let setup = Setup::new("1MiB", Some("64MiB"));
    let point = setup.mounted.point.to_str().unwrap();
    for (from, name) in [("-", "a/0001"), ("/dev/stdin", "a/0002")] {
        let mut command = setup.fixture.belady();
        command.args(["warmup", point, "--json", "--files-from", from]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // As many names as ImageNet has.
        let none = "train/n01440764/n01440764_10026.JPEG\n".repeat(NONE);
        let names = format!("{name}\n{none}");
        child.stdin.take().unwrap().write_all(names.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let progress: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success());
        assert_eq!(
            (blocks(&progress, "fetched"), progress["missing"].as_u64()),
            (1, Some(NONE as u64))
        );
    }
    setup.mounted.umount();
}

#[test]
fn what_came_and_is_gone_again_is_no_success() {
    let setup = Setup::new("1MiB", Some("64MiB"));
    setup.warmup(0, &["--glob", "a/*"]);
    // The warm-up cannot end before this file comes.
    setup.slow.ctl(&["fault", "hang", "b/0001", "ops=read"]);
    let point = setup.mounted.point.to_str().unwrap();
    let mut command = setup.fixture.belady();
    let child = command.args(["warmup", point, "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    // The warm-up first counts what is here, and then fetches.
    wait_until("all others are here", || {
        blocks(&setup.warmup(0, &["--check", "--glob", "b/*"]), "disk") == FILES / 3 - 1
    });
    setup.warmup(0, &["--evict", "--glob", "a/0003"]);
    setup.slow.ctl(&["fault", "clear"]);
    let output = child.wait_with_output().unwrap();
    let progress: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), blocks(&progress, "gone")), (Some(5), 1), "{progress}");
    setup.warmup(0, &[]);
    setup.mounted.umount();
}

#[test]
fn what_does_not_fit_is_said_and_not_fetched() {
    let setup = Setup::new("1MiB", Some("2MiB"));
    let progress = setup.warmup(5, &[]);
    let (fetched, unfit) = (blocks(&progress, "fetched"), blocks(&progress, "unfit"));
    assert!(fetched > 50 && unfit > 50 && fetched + unfit == FILES + FILES / 3, "{progress}");
    assert_eq!(blocks(&progress, "ram") + blocks(&progress, "disk"), fetched);
    assert_eq!(setup.slow.count("bytes"), fetched * SIZE as u64);
    check_many(&setup.mounted.path(""), "a", FILES, SIZE);
    setup.mounted.umount();
}

#[test]
fn without_a_disk_ram_is_warmed() {
    let setup = Setup::new("64MiB", None);
    let progress = setup.warmup(0, &[]);
    assert_eq!(blocks(&progress, "ram"), FILES + FILES / 3);
    let before = setup.slow.count("bytes");
    check_many(&setup.mounted.path(""), "a", FILES, SIZE);
    // The kernel may have taken a page or two back by itself.
    let again = setup.mounted.count("/refetched_bytes");
    assert!(setup.slow.count("bytes") <= before + again, "{}", setup.mounted.status());
    let gone = setup.warmup(0, &["--evict"]);
    assert!(blocks(&gone, "ram") <= 1, "but for what this task has read last: {gone}");
    setup.mounted.umount();
}

#[test]
fn rate_and_deadline_hold() {
    let setup = Setup::new("1MiB", Some("64MiB"));
    let progress = setup.warmup(7, &["--rate", "200KB/s", "--deadline", "500ms"]);
    let fetched = progress["fetched"]["bytes"].as_u64().unwrap();
    // A sample on credit, and a tenth of a second at once.
    assert!(fetched <= 100_000 + 20_000 + SIZE as u64, "{progress}");
    assert!(blocks(&progress, "late") > 0);
    setup.warmup(0, &["--rate", "1GB", "--deadline", "10m"]);
    setup.mounted.umount();
}

#[test]
fn it_ends_when_its_command_is_killed() {
    let setup = Setup::new("1MiB", Some("64MiB"));
    let words = ["warmup", setup.mounted.point.to_str().unwrap(), "--rate", "100KB/s"];
    let mut command = setup.fixture.belady().args(words).spawn().unwrap();
    wait_until("something is fetched", || setup.slow.count("bytes") > 0);
    command.kill().unwrap();
    command.wait().unwrap();
    let mut before = 0;
    wait_until("nothing more is fetched", || {
        // Longer than a sample has to wait for its share of the rate.
        thread::sleep(Duration::from_secs(2));
        setup.slow.count("bytes") == std::mem::replace(&mut before, setup.slow.count("bytes"))
    });
    assert!(before < FILES * SIZE as u64, "not all of it");
    setup.mounted.umount();
}

#[test]
fn what_the_source_does_not_give_is_counted() {
    let setup = Setup::new("1MiB", Some("64MiB"));
    setup.slow.ctl(&["fault", "eio", "a/0007"]);
    let progress = setup.warmup(4, &[]);
    assert_eq!(
        (blocks(&progress, "failed"), blocks(&progress, "disk")),
        (1, FILES + FILES / 3 - 1)
    );
    setup.slow.ctl(&["fault", "clear"]);
    assert_eq!(blocks(&setup.warmup(0, &[]), "fetched"), 1);
    assert!(fs::read(setup.mounted.path("a/0007")).unwrap() == content(7, SIZE));
    assert_eq!(setup.mounted.count("/read_errors"), 0);
    setup.mounted.umount();
}
