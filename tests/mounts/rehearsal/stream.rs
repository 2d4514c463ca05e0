//! Streams: the samples of an epoch under ordinals that they get when they are asked for.
//!
//! Goal: each sample has exactly one ordinal and its own bytes. This holds whichever ordinals are asked for
//! at the same time, whatever the disk has taken yet, and if the daemon is killed. Method: eight threads read
//! streams of a buffer of 30 samples. The content of each read says which sample it was.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lasting::{fill, on_tiny_disk};
use super::slots::{filled, read_slot, which, written};
use super::*;
use crate::refused::Tmpfs;

/// Samples that the buffers of these tests hold.
const HELD: usize = 30;

fn ordinal(stream: &Path, ordinal: usize) -> PathBuf {
    stream.join(format!("{ordinal:06}"))
}

/// The samples of a stream, asked for by ordinals from the first to the last.
fn in_order(stream: &Path, known: &HashMap<Vec<u8>, String>) -> Vec<String> {
    (0..HELD).map(|at| which(known, &read_slot(&ordinal(stream, at)))).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[track_caller]
fn all_once(samples: impl IntoIterator<Item = String>) {
    let samples: Vec<String> = samples.into_iter().collect();
    let once: HashSet<&String> = samples.iter().collect();
    assert_eq!((samples.len(), once.len()), (HELD, HELD), "{samples:?}");
}

#[test]
fn eight_readers_find_each_sample_under_one_ordinal() {
    let fixture = fixture();
    let mounted = filled(&fixture, &[]);
    let (known, root) = (written(), mounted.path("rehearsal/old/stream"));
    // Each ordinal is read once, by the thread that takes it.
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= HELD {
                        break;
                    }
                    let bytes = read_slot(&ordinal(&root.join("0"), at));
                    found.lock().unwrap().push(which(&known, &bytes));
                }
            });
        }
    });
    all_once(found.into_inner().unwrap());
    // Each reader reads all ordinals, each in another order.
    let found: Mutex<HashMap<usize, HashSet<String>>> = Mutex::default();
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let (found, known, stream) = (&found, &known, root.join("1"));
            scope.spawn(move || {
                for turn in 0..HELD {
                    let at = (turn * [1, 7, 11, 13][reader % 4] + reader) % HELD;
                    let path = ordinal(&stream, at);
                    let size = fs::metadata(&path).unwrap().len();
                    let bytes = read_slot(&path);
                    assert_eq!(bytes.len() as u64, size);
                    let sample = which(known, &bytes);
                    found.lock().unwrap().entry(at).or_default().insert(sample);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.values().all(|samples| samples.len() == 1), "{found:?}");
    all_once(found.into_values().flatten());
    wait_until("each opening is counted", || stats(&fixture)["replays"] == 9 * HELD);
    mounted.umount();
}

#[test]
fn a_listing_binds_nothing_and_a_lookup_what_is_due() {
    let fixture = fixture();
    let mounted = filled(&fixture, &[]);
    let known = written();
    let root = mounted.path("rehearsal/old/stream");
    assert!(names(&root).is_empty());
    let stream = root.join("5");
    let expected: Vec<String> = (0..HELD).map(|at| format!("{at:06}")).collect();
    (0..20).for_each(|_| assert_eq!(names(&stream), expected));
    let order = in_order(&stream, &known);
    all_once(order.clone());
    assert_eq!((in_order(&stream, &known), names(&stream)), (order.clone(), expected));
    let (other, half) = (root.join("6"), HELD / 2);
    let ask = |stream: &Path, at: usize| which(&known, &read_slot(&ordinal(stream, at)));
    let begun: Vec<String> = (0..half).map(|at| ask(&other, at)).collect();
    assert_ne!(begun, order[..half], "another epoch has another order");
    assert_eq!(names(&root), ["5", "6"]);
    mounted.umount();
    // The next mount goes on with the epoch that was not over. Another stream of the same buffer has the same
    // samples in the same order, whichever ordinals are asked for.
    let mounted = mount(&fixture, &[]);
    assert_eq!((0..half).map(|at| ask(&other, at)).collect::<Vec<_>>(), begun);
    let ordinals: Vec<usize> = (0..HELD).map(|at| (at * 7 + 3) % HELD).collect();
    let asked = |stream: &Path| ordinals.iter().map(|at| ask(stream, *at)).collect::<Vec<_>>();
    assert_eq!(asked(&stream), order);
    // Another task has streams of its own. A task that is told again is the same task.
    let whole = asked(&other);
    for _ in 0..2 {
        let done = rehearse(&fixture, "task", &["old", "1", "-"], "train/b\n");
        assert_eq!(done.0, Some(0), "{}", done.1);
        assert_eq!(asked(&other)[..half], begun);
    }
    assert_ne!(whole[..half], begun);
    mounted.umount();
}

#[test]
fn a_stream_is_what_was_held_when_it_was_first_looked_at() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    let (known, root) = (written(), mounted.path("rehearsal/old/stream"));
    assert!(names(&root.join("0")).is_empty());
    fails(fs::metadata(ordinal(&root.join("0"), 0)), Errno::ENOENT as i32);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    assert_eq!(names(&root.join("1")).len(), HELD);
    read_class(&mounted, "train/b");
    read_class(&mounted, "train/c");
    wait_for_offers(&fixture, 3 * FILES);
    let frozen = in_order(&root.join("1"), &known);
    assert!(frozen.iter().all(|sample| sample.starts_with("a/")), "{frozen:?}");
    all_once(frozen);
    let later = in_order(&root.join("2"), &known);
    assert_eq!(later.iter().filter(|sample| sample.starts_with("c/")).count(), 10, "{later:?}");
    for missing in [
        "01",
        "+1",
        "-1",
        "x",
        "1.0",
        "18446744073709551616",
        "epoch-1",
        "2/000030",
        "2/00000",
        "2/0000000",
        "2/+00001",
        "2/000001.jpg",
        "2/a",
        "0/000000",
    ] {
        let error = fs::metadata(root.join(missing)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENOENT as i32), "{missing}");
    }
    assert!(fs::write(root.join("2/000030"), b"x").is_err());
    mounted.umount();
}

/// A file's attributes say where it came from, and a trainer's score under its path finds the sample.
#[test]
fn a_sample_of_a_stream_is_known_by_its_ordinal() {
    let fixture = fixture();
    let mounted = filled(&fixture, &["rehearsal.old.policy=max-loss"]);
    let (known, stream) = (written(), mounted.path("rehearsal/old/stream/3"));
    let script = "import os, sys\n\
        for name in sorted(os.listdir(sys.argv[1])):\n    \
            of = lambda key: os.getxattr(os.path.join(sys.argv[1], name), 'user.belady.' + key).decode()\n    \
            print(name, of('label'), of('source'))";
    let mut program = Program::python(script, &[stream.to_str().unwrap()]);
    for at in 0..HELD {
        let sample = which(&known, &read_slot(&ordinal(&stream, at)));
        let (label, _) = sample.split_once('/').unwrap();
        assert_eq!(program.line(), format!("{at:06} {label} train/{sample}"));
    }
    let scored = ordinal(&stream, 7);
    let line = format!("{} 2.5\n", scored.display());
    fs::OpenOptions::new()
        .append(true)
        .open(mounted.path("rehearsal/old/scores"))
        .and_then(|mut scores| scores.write_all(line.as_bytes()))
        .unwrap();
    let show = || rehearse(&fixture, "show", &["old", scored.to_str().unwrap(), "--json"], "");
    let known_of = || serde_json::from_str::<Value>(&show().1).unwrap();
    wait_until("the score is taken", || known_of()["score"] == 2.5);
    let path = format!("train/{}", which(&known, &read_slot(&scored)));
    assert_eq!(known_of()["path"], path.as_str());
    mounted.umount();
}

#[test]
fn samples_of_a_stream_outlive_their_daemon() {
    let fixture = fixture();
    let mounted = filled(&fixture, &[]);
    let known = written();
    let stream = mounted.path("rehearsal/old/stream/0");
    let before: Vec<String> = (0..HELD / 2)
        .map(|at| which(&known, &read_slot(&ordinal(&stream, HELD - 1 - at))))
        .collect();
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    fs::remove_dir_all(fixture.source("train")).unwrap();
    let again = mount(&fixture, &[]);
    drop(mounted);
    // The job goes on with the samples that it had not asked for.
    let stream = again.path("rehearsal/old/stream/0");
    let rest = (0..HELD / 2).map(|at| which(&known, &read_slot(&ordinal(&stream, at))));
    all_once(before.iter().cloned().chain(rest));
    let bound = |at: usize| which(&known, &read_slot(&ordinal(&stream, HELD - 1 - at)));
    assert!((0..HELD / 2).all(|at| bound(at) == before[at]));
    again.umount();
}

/// Eight readers whose daemon is killed while they read. Each ordinal that was read gives the same sample
/// again, and all samples are found once.
#[test]
fn ordinals_of_eight_readers_stay_after_a_kill() {
    let fixture = fixture();
    let mounted = filled(&fixture, &[]);
    let (known, stream) = (written(), mounted.path("rehearsal/old/stream/0"));
    let (next, found) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= HELD {
                        break;
                    }
                    if at == HELD / 2 {
                        signal(mounted.pid, Signal::SIGKILL);
                    }
                    // After the kill nothing can be read.
                    if let Ok(bytes) = fs::read(ordinal(&stream, at * 7 % HELD)) {
                        found.lock().unwrap().insert(at * 7 % HELD, which(&known, &bytes));
                    }
                }
            });
        }
    });
    wait_for_end(mounted.pid);
    let again = mount(&fixture, &[]);
    drop(mounted);
    let (found, all) = (found.into_inner().unwrap(), in_order(&stream, &known));
    assert!(!found.is_empty() && found.iter().all(|(at, sample)| all[*at] == *sample));
    all_once(all);
    again.umount();
}

/// A sample that has left the buffer has no ordinal in the next mount, and no name is given for it.
#[test]
fn a_stream_goes_on_with_what_is_still_held() {
    let fixture = fixture();
    let ring = ["rehearsal.old.policy=ring"];
    let mounted = mount(&fixture, &ring);
    let known = written();
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let stream = mounted.path("rehearsal/old/stream/0");
    let before: Vec<String> =
        (0..10).map(|at| which(&known, &read_slot(&ordinal(&stream, at)))).collect();
    let first = fs::read_dir(fixture.source("train/b")).unwrap().next().unwrap().unwrap();
    let new = first.file_name().into_string().unwrap();
    rehearse(&fixture, "offer", &["old"], &format!("train/b/{new}\n"));
    wait_for_offers(&fixture, FILES + 1);
    mounted.umount();
    let mounted = mount(&fixture, &ring);
    let listed = names(&stream);
    assert_eq!(listed.len(), HELD - 1, "{listed:?}");
    let read = |name: &String| (name.clone(), which(&known, &read_slot(&stream.join(name))));
    let after: HashMap<String, String> = listed.iter().map(read).collect();
    assert!(after.iter().all(|(name, sample)| {
        let at: usize = name.parse().unwrap();
        before.get(at).is_none_or(|expected| expected == sample)
    }));
    let once: HashSet<&String> = after.values().collect();
    assert!(once.len() == HELD - 1 && once.iter().all(|sample| sample.starts_with("a/")));
    let missing = (0..HELD).filter(|at| !listed.contains(&format!("{at:06}")));
    missing.for_each(|at| fails(fs::metadata(ordinal(&stream, at)), Errno::ENOENT as i32));
    mounted.umount();
}

/// A sample that the disk has not taken yet gets its ordinal later, and cannot be read before.
#[test]
fn samples_that_are_not_written_are_skipped() {
    let fixture = fixture();
    let tiny = Tmpfs::new(&fixture, "tiny", "size=8M,mode=700");
    let mounted = on_tiny_disk(&fixture, &tiny);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let other = fill(&tiny);
    read_class(&mounted, "train/b");
    wait_for_offers(&fixture, 2 * FILES);
    let (known, stream) = (written(), mounted.path("rehearsal/old/stream/0"));
    assert_eq!(names(&stream).len(), HELD);
    let mut found = HashMap::new();
    for at in 0..HELD {
        match fs::metadata(ordinal(&stream, at)) {
            Ok(_) => drop(found.insert(at, which(&known, &read_slot(&ordinal(&stream, at))))),
            Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::EAGAIN as i32)),
        }
    }
    // A page may have had room for some.
    assert!(found.len() < 10, "{found:?}");
    other.set_len(0).unwrap();
    wait_until("all are there", || (0..HELD).all(|at| fs::metadata(ordinal(&stream, at)).is_ok()));
    let samples = in_order(&stream, &known);
    assert!(found.iter().all(|(at, sample)| samples[*at] == *sample), "{found:?} {samples:?}");
    assert!(samples.iter().all(|sample| sample.starts_with("b/")), "{samples:?}");
    all_once(samples);
    mounted.umount();
}
