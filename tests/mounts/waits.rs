//! How long readers wait, and why.
//!
//! Goal: each wait of a reader is counted once, with its cause and its time, and what the kernel answers by itself is
//! not. Method: a source with delays, which hangs or fails on command, and pages that are dropped behind belady's back.

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::fixture::{Fixture, check_many, content, fails, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::Reader;

const SIZE: usize = 9000;

/// Nothing is read ahead.
const ON_DEMAND: [&str; 4] = ["--ram", "64MiB", "--set", "prefetch.enabled=false"];

/// Waits that have ended, by cause.
fn counts(mounted: &Mounted, causes: [&str; 3]) -> [u64; 3] {
    causes.map(|cause| mounted.count(&format!("/waits/{cause}/count")))
}

fn reads(mounted: &Mounted, number: u64) -> bool {
    fs::read(mounted.path(format!("d/{number:04}"))).unwrap() == content(number, SIZE)
}

/// The text of a control file.
fn stats(mounted: &Mounted) -> String {
    fs::read_to_string(mounted.path(".belady/stats")).unwrap()
}

#[test]
fn a_wait_is_counted_with_its_cause_and_its_time() {
    let fixture = Fixture::new();
    fixture.write_many("d", 4, SIZE);
    let slow = Slowpfs::new(&fixture, &["--read-ms", "20", "--open-ms", "20"]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &ON_DEMAND);
    let causes = ["cold", "lost", "error"];
    assert_eq!(counts(&mounted, causes), [0; 3]);
    assert!(reads(&mounted, 0));
    wait_until("it is pushed", || mounted.count("/pushes/count") == 1);
    assert_eq!(counts(&mounted, causes), [1, 0, 0]);
    let waits = mounted.status()["waits"]["cold"].clone();
    let us = |key: &str| waits[key].as_u64().unwrap();
    // An open and a read. A time is within one in a hundred.
    assert!(us("p50_us") >= 39_500 && us("max_us") >= us("p50_us"), "{waits}");
    assert!(us("total_us") >= 40_000, "{waits}");
    assert!(reads(&mounted, 0));
    assert_eq!(counts(&mounted, causes), [1, 0, 0], "the kernel has its pages");

    let file = File::open(mounted.path("d/0000")).unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    drop(file);
    assert!(reads(&mounted, 0));
    assert_eq!(counts(&mounted, causes), [1, 1, 0], "the kernel has taken its pages back");

    slow.ctl(&["fault", "eio", "d/0001"]);
    fails(fs::read(mounted.path("d/0001")), nix::libc::EIO);
    let [cold, lost, errors] = counts(&mounted, causes);
    assert!((cold, lost) == (1, 1) && errors > 0, "{cold} {lost} {errors}");
    slow.ctl(&["fault", "clear"]);
    let stats = stats(&mounted);
    assert!(stats.contains("belady_reader_wait_seconds_count{cause=\"cold\"} 1\n"), "{stats}");
    let slowest = "belady_reader_wait_seconds{cause=\"lost\",quantile=\"0.999\"} ";
    let slowest = stats.lines().find_map(|line| line.strip_prefix(slowest)).unwrap();
    assert!(slowest.parse::<f64>().unwrap() >= 0.039, "{stats}");
    assert!(stats.contains("belady_source_request_seconds_count{operation=\"read\"} "), "{stats}");
    let text = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(text.contains("  waits    cold: 1, "), "{text}");
    mounted.umount();
}

#[test]
fn a_request_that_still_waits_is_shown() {
    let fixture = Fixture::new();
    fixture.write_many("d", 4, SIZE);
    let slow = Slowpfs::new(&fixture, &[]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &ON_DEMAND);
    slow.ctl(&["fault", "hang", "d/0000"]);
    let path = mounted.path("d/0000");
    let reader = Reader::start(move || fs::read(path).unwrap() == content(0, SIZE));
    wait_until("it waits", || mounted.count("/waiting") > 0);
    wait_until("it has waited", || mounted.count("/waiting_longest_us") >= 100_000);
    let text = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(text.contains(" wait now, the first for "), "{text}");
    assert_eq!(counts(&mounted, ["cold", "late", "error"]), [0; 3]);
    slow.ctl(&["fault", "clear"]);
    assert!(reader.result());
    assert_eq!(counts(&mounted, ["cold", "late", "error"]), [1, 0, 0]);
    assert_eq!(mounted.count("/waiting"), 0);
    mounted.umount();
}

#[test]
fn a_reader_waits_for_what_is_on_its_way_and_for_names() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, SIZE);
    let slow = Slowpfs::new(&fixture, &[]);
    let options = ["--ram", "64MiB", "--order", "sequential:index=path", "--set"];
    let options = [&options[..], &["prefetch.start=first-open", "--set", "source.revalidate=1s"]];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options.concat());
    slow.ctl(&["fault", "hang", "d/0010"]);
    assert!(reads(&mounted, 0));
    wait_until("one is left", || mounted.count("/fetching") == 1 && slow.count("in_flight") == 1);
    // The first file may have been on its way before its read.
    let [late, ..] = counts(&mounted, ["late", "lost", "error"]);
    let path = mounted.path("d/0010");
    let reader = Reader::start(move || fs::read(path).unwrap() == content(10, SIZE));
    wait_until("it waits", || mounted.count("/waiting") > 0);
    slow.ctl(&["fault", "clear"]);
    assert!(reader.result());
    assert_eq!(counts(&mounted, ["late", "lost", "error"]), [late + 1, 0, 0]);
    // By then names have to be checked again.
    thread::sleep(Duration::from_millis(1500));
    let [names, ..] = counts(&mounted, ["name", "lost", "error"]);
    fs::metadata(mounted.path("d/0011")).unwrap();
    assert!(counts(&mounted, ["name", "lost", "error"])[0] > names);
    mounted.umount();
}

#[test]
fn the_lead_of_an_order_is_told_in_samples_and_in_seconds() {
    let fixture = Fixture::new();
    fixture.write_many("d", 1000, SIZE);
    let options = ["--ram", "4MiB", "--order", "sequential:index=path"];
    let mounted = Mounted::new(&fixture, &options);
    assert!(mounted.status()["lead"]["seconds"].is_null(), "nobody reads");
    let mut lead = mounted.status()["lead"].clone();
    for number in 0..1000 {
        assert!(reads(&mounted, number));
        thread::sleep(Duration::from_millis(4));
        if number % 100 == 99 && lead["seconds"].is_null() {
            lead = mounted.status()["lead"].clone();
        }
    }
    assert!(lead["seconds"].as_f64().unwrap() > 0.0, "{lead}");
    assert!(lead["samples"].as_u64().unwrap() > 0 && lead["need"].as_u64().unwrap() > 0, "{lead}");
    let text = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(text.contains("  lead     "), "{text}");
    assert!(stats(&mounted).contains("belady_lead_samples "));
    mounted.umount();
}

#[test]
fn reads_of_the_cache_disk_are_timed() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, SIZE);
    fs::create_dir(fixture.path("cache")).unwrap();
    let cache = fixture.path("cache");
    let options = ["--ram", "64MiB", "--disk", "64MiB", "--cache-dir", cache.to_str().unwrap()];
    let mounted = Mounted::new(&fixture, &options);
    check_many(&mounted.path(""), "d", 20, SIZE);
    assert_eq!(mounted.count("/disk_reads/count"), 0);
    wait_until("all is stored", || mounted.count("/placed") == 20);
    mounted.umount();
    let mounted = Mounted::new(&fixture, &options);
    check_many(&mounted.path(""), "d", 20, SIZE);
    wait_until("all is there", || mounted.count("/fetching") == 0);
    assert!(mounted.count("/disk_reads/count") >= 20);
    assert!(stats(&mounted).contains("belady_block_move_seconds_count{move=\"disk_read\"} "));
    mounted.umount();
}
