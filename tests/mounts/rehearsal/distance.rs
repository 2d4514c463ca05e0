//! Slots under readers that open them at the same time, or late.
//!
//! Goal: no sample comes twice within the distance, even if several readers read at the same time. Method:
//! readers wait for each other after as many openings as the distance. So these openings follow each other,
//! in whatever order they were served, and all of them must find different samples. A late reader holds the
//! file that it looked up by a descriptor that is not open (`O_PATH`), until its sample is reserved for others.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;

use super::slots::{filled, read_slot, which, written};
use super::*;

const READERS: usize = 8;

/// Openings in a row of each reader.
const EACH: usize = 2;

const ALL: [&str; 3] =
    ["rehearsal.old.size=120", "rehearsal.old.slots=3", "rehearsal.old.distance=16"];

#[test]
fn eight_readers_find_nothing_twice_within_the_distance() {
    let fixture = fixture();
    let mounted = filled(&fixture, &ALL);
    let (slots, known) = (mounted.path("rehearsal/old/slots"), written());
    let read = |turn: usize, reader: usize, class: &str| {
        let open = |opening: usize| {
            let path = slots.join(class).join(format!("000{}.jpg", (reader + opening) % 3));
            if (turn + reader).is_multiple_of(4) {
                fs::metadata(&path).unwrap();
            }
            which(&known, &read_slot(&path))
        };
        (0..EACH).map(open).collect::<Vec<_>>()
    };
    for turn in 0..90 {
        let (read, class) = (&read, ["", "b", "c"][turn % 3]);
        let found: Vec<String> = std::thread::scope(|scope| {
            let readers = (0..READERS).map(|reader| scope.spawn(move || read(turn, reader, class)));
            let readers: Vec<_> = readers.collect();
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
        });
        assert!(found.iter().all(|sample| sample.starts_with(class)), "{found:?} in {class}");
        let different: HashSet<&String> = found.iter().collect();
        assert_eq!(different.len(), READERS * EACH, "turn {turn}: {found:?}");
    }
    wait_until("each opening is counted", || stats(&fixture)["replays"] == 90 * READERS * EACH);
    mounted.umount();
}

/// Looks a slot up without opening it.
fn look(slot: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(slot).unwrap()
}

/// The path by which the looked-up file is opened, without another lookup of its name.
fn behind(looked: &fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", looked.as_raw_fd()))
}

#[test]
fn a_late_reader_gets_no_sample_reserved_for_others() {
    let fixture = fixture();
    let mounted = filled(&fixture, &ALL);
    let (slots, known) = (mounted.path("rehearsal/old/slots"), written());
    let slot = |n: usize| slots.join(format!("000{n}.jpg"));
    let open = |path: &Path| which(&known, &fs::read(path).unwrap());
    let prompt = look(&slot(0));
    let sample = open(&behind(&prompt));
    assert!((0..15).all(|turn| open(&slot(1 + turn % 2)) != sample));
    assert_eq!(open(&behind(&prompt)), sample, "who has opened it finds it again");
    let late = look(&slot(0));
    // A sample that was looked up waits this long for its reader.
    std::thread::sleep(std::time::Duration::from_secs(1));
    // Two rounds: the sample that was looked up is among them.
    let opened: Vec<String> = (0..240).map(|turn| open(&slot(1 + turn % 2))).collect();
    fails(fs::read(behind(&late)), libc::ESTALE);
    let again = open(&slot(0));
    assert!(!opened[225..].contains(&again), "{again}: {opened:?}");
    drop((prompt, late));
    mounted.umount();
}
