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

use crate::ground::{Ground, check_many, content, wait_until};
use crate::mounted::{Mounted, Slow};

const FILES: u64 = 150;
const SIZE: usize = 30_000;

/// Two directories of files behind a filesystem that counts, mounted.
struct Stand {
    mounted: Mounted,
    slow: Slow,
    ground: Ground,
}

impl Stand {
    fn new(ram: &str, nvme: Option<&str>) -> Self {
        let ground = Ground::new();
        ground.plant_many("a", FILES, SIZE);
        ground.plant_many("b", FILES / 3, SIZE);
        let slow = Slow::new(&ground, &[]);
        let cache = ground.path("cache");
        let disk = |nvme| ["--cache-dir", cache.to_str().unwrap(), "--disk", nvme];
        let disk = nvme.map(disk);
        let only = ["order.learn=off", "--set", "cache.slow-after=1h"];
        let counted = [&["--ram", ram, "--set"][..], &only].concat();
        let options = [&counted[..], disk.as_ref().map_or(&[], |disk| &disk[..])].concat();
        let mounted = Mounted::at(&ground, &slow.point, &ground.path("mount"), &options);
        Stand { mounted, slow, ground }
    }

    /// Runs `belady warmup`, which must end with this exit code. Returns its counts.
    #[track_caller]
    fn warmup(&self, code: i32, words: &[&str]) -> Value {
        let point = self.mounted.point.to_str().unwrap();
        let said = self.ground.ends(code, &[&["warmup", point, "--json"], words].concat());
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
    let stand = Stand::new("1MiB", Some("64MiB"));
    let all = FILES + FILES / 3;
    let bytes = all * SIZE as u64;
    assert_eq!(blocks(&stand.warmup(0, &["--check"]), "disk"), 0);
    let progress = stand.warmup(0, &[]);
    assert_eq!((blocks(&progress, "fetched"), blocks(&progress, "disk")), (all, all), "{progress}");
    assert_eq!(
        (progress["files"].as_u64(), progress["fetched"]["bytes"].as_u64()),
        (Some(all), Some(bytes))
    );
    assert_eq!(
        (stand.slow.count("bytes"), stand.mounted.count("/disk/stored") >= bytes),
        (bytes, true)
    );
    let again = stand.warmup(0, &[]);
    assert_eq!(blocks(&again, "already"), all);
    check_many(&stand.mounted.path(""), "a", FILES, SIZE);
    check_many(&stand.mounted.path(""), "b", FILES / 3, SIZE);
    assert_eq!(stand.slow.count("bytes"), bytes, "the source was read");
    wait_until("nothing is on its way", || stand.mounted.count("/fetching") == 0);
    let said = stand.ground.ends(0, &["warmup", stand.mounted.point.to_str().unwrap(), "--check"]);
    assert!(said.contains("200 samples") && said.contains("on disk"), "{said}");
    let gone = stand.warmup(0, &["--evict", "--glob", "a/*"]);
    assert_eq!(
        (blocks(&gone, "already"), blocks(&gone, "ram") + blocks(&gone, "disk")),
        (FILES, 0)
    );
    assert_eq!(blocks(&stand.warmup(0, &["--check"]), "chosen"), all);
    assert_eq!(blocks(&stand.warmup(0, &[]), "fetched"), FILES);
    check_many(&stand.mounted.path(""), "a", FILES, SIZE);
    assert_eq!(stand.mounted.count("/read_errors"), 0);
    stand.mounted.umount();
}

#[test]
fn samples_are_chosen_by_order_by_names_and_by_pattern() {
    let stand = Stand::new("1MiB", Some("64MiB"));
    let file = |name: &str, text: &str| {
        fs::write(stand.ground.path(name), text).unwrap();
        stand.ground.path(name).to_str().unwrap().to_owned()
    };
    let fetched = |progress: &Value| (blocks(progress, "chosen"), blocks(progress, "fetched"));
    let order = file("order", "a/0003\na/0001\na/0002\n");
    assert_eq!(fetched(&stand.warmup(0, &["--order", &order])), (3, 3));
    let mount = stand.mounted.path("a/0004");
    let names = file("names", &format!("a/0003\n{}\nnone\nb\n", mount.display()));
    let progress = stand.warmup(0, &["--files-from", &names]);
    assert_eq!(fetched(&progress), (2 + FILES / 3, 1 + FILES / 3));
    assert_eq!((progress["missing"].as_u64(), blocks(&progress, "already")), (Some(1), 1));
    assert_eq!(fetched(&stand.warmup(0, &["--glob", "*/000?"])), (20, 10 - 4));
    let point = stand.mounted.point.to_str().unwrap();
    stand.ground.ends(2, &["warmup", point, "--glob", "a/***"]);
    stand.ground.ends(3, &["warmup", point, "--order", "no-such-file"]);
    stand.ground.ends(2, &["warmup", point, "--files-from", "/no/such/file"]);
    stand.ground.ends(2, &["warmup", point, "--rate", "0"]);
    stand.ground.ends(6, &["warmup", stand.ground.path("source").to_str().unwrap()]);
    stand.mounted.umount();
}

/// The command itself reads a pipe, since only the command has it.
#[test]
fn names_come_from_a_pipe_too() {
    const NONE: usize = 1_280_000;
    let stand = Stand::new("1MiB", Some("64MiB"));
    let point = stand.mounted.point.to_str().unwrap();
    for (from, name) in [("-", "a/0001"), ("/dev/stdin", "a/0002")] {
        let mut command = stand.ground.belady();
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
    stand.mounted.umount();
}

#[test]
fn what_came_and_is_gone_again_is_no_success() {
    let stand = Stand::new("1MiB", Some("64MiB"));
    stand.warmup(0, &["--glob", "a/*"]);
    // The warm-up cannot end before this file comes.
    stand.slow.ctl(&["fault", "hang", "b/0001", "ops=read"]);
    let point = stand.mounted.point.to_str().unwrap();
    let mut command = stand.ground.belady();
    let child = command.args(["warmup", point, "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    // The warm-up first counts what is here, and then fetches.
    wait_until("all others are here", || {
        blocks(&stand.warmup(0, &["--check", "--glob", "b/*"]), "disk") == FILES / 3 - 1
    });
    stand.warmup(0, &["--evict", "--glob", "a/0003"]);
    stand.slow.ctl(&["fault", "clear"]);
    let output = child.wait_with_output().unwrap();
    let progress: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), blocks(&progress, "gone")), (Some(5), 1), "{progress}");
    stand.warmup(0, &[]);
    stand.mounted.umount();
}

#[test]
fn what_does_not_fit_is_said_and_not_fetched() {
    let stand = Stand::new("1MiB", Some("2MiB"));
    let progress = stand.warmup(5, &[]);
    let (fetched, unfit) = (blocks(&progress, "fetched"), blocks(&progress, "unfit"));
    assert!(fetched > 50 && unfit > 50 && fetched + unfit == FILES + FILES / 3, "{progress}");
    assert_eq!(blocks(&progress, "ram") + blocks(&progress, "disk"), fetched);
    assert_eq!(stand.slow.count("bytes"), fetched * SIZE as u64);
    check_many(&stand.mounted.path(""), "a", FILES, SIZE);
    stand.mounted.umount();
}

#[test]
fn without_a_disk_ram_is_warmed() {
    let stand = Stand::new("64MiB", None);
    let progress = stand.warmup(0, &[]);
    assert_eq!(blocks(&progress, "ram"), FILES + FILES / 3);
    let before = stand.slow.count("bytes");
    check_many(&stand.mounted.path(""), "a", FILES, SIZE);
    // The kernel may have taken a page or two back by itself.
    let again = stand.mounted.count("/refetched_bytes");
    assert!(stand.slow.count("bytes") <= before + again, "{}", stand.mounted.status());
    let gone = stand.warmup(0, &["--evict"]);
    assert!(blocks(&gone, "ram") <= 1, "but for what this task has read last: {gone}");
    stand.mounted.umount();
}

#[test]
fn rate_and_deadline_hold() {
    let stand = Stand::new("1MiB", Some("64MiB"));
    let progress = stand.warmup(7, &["--rate", "200KB/s", "--deadline", "500ms"]);
    let fetched = progress["fetched"]["bytes"].as_u64().unwrap();
    // A sample on credit, and a tenth of a second at once.
    assert!(fetched <= 100_000 + 20_000 + SIZE as u64, "{progress}");
    assert!(blocks(&progress, "late") > 0);
    stand.warmup(0, &["--rate", "1GB", "--deadline", "10m"]);
    stand.mounted.umount();
}

#[test]
fn it_ends_when_its_command_is_killed() {
    let stand = Stand::new("1MiB", Some("64MiB"));
    let words = ["warmup", stand.mounted.point.to_str().unwrap(), "--rate", "100KB/s"];
    let mut command = stand.ground.belady().args(words).spawn().unwrap();
    wait_until("something is fetched", || stand.slow.count("bytes") > 0);
    command.kill().unwrap();
    command.wait().unwrap();
    let mut before = 0;
    wait_until("nothing more is fetched", || {
        // Longer than a sample has to wait for its share of the rate.
        thread::sleep(Duration::from_secs(2));
        stand.slow.count("bytes") == std::mem::replace(&mut before, stand.slow.count("bytes"))
    });
    assert!(before < FILES * SIZE as u64, "not all of it");
    stand.mounted.umount();
}

#[test]
fn what_the_source_does_not_give_is_counted() {
    let stand = Stand::new("1MiB", Some("64MiB"));
    stand.slow.ctl(&["fault", "eio", "a/0007"]);
    let progress = stand.warmup(4, &[]);
    assert_eq!(
        (blocks(&progress, "failed"), blocks(&progress, "disk")),
        (1, FILES + FILES / 3 - 1)
    );
    stand.slow.ctl(&["fault", "clear"]);
    assert_eq!(blocks(&stand.warmup(0, &[]), "fetched"), 1);
    assert!(fs::read(stand.mounted.path("a/0007")).unwrap() == content(7, SIZE));
    assert_eq!(stand.mounted.count("/read_errors"), 0);
    stand.mounted.umount();
}
