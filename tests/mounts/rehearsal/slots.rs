//! Slots: fixed names, behind which each opening finds a fresh sample.
//!
//! Goal: no torn sample, no sample twice within the distance, and each as often as the others. This holds
//! while other readers read, list, stat or never open what they looked up. Method: eight threads open the
//! same few names. The content of each read says which sample it was.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Which sample these bytes are.
pub(super) fn which(known: &HashMap<Vec<u8>, String>, bytes: &[u8]) -> String {
    known.get(bytes).unwrap_or_else(|| panic!("{} torn bytes", bytes.len())).clone()
}

pub(super) fn written() -> HashMap<Vec<u8>, String> {
    let file = |class: &str, number: u64| {
        let seed = u64::from(class.as_bytes()[0]) << 16;
        let bytes = content(seed + number, 500 + 1000 * (number as usize % 7));
        (bytes, format!("{class}/{number}.jpg"))
    };
    ["a", "b", "c"].into_iter().flat_map(|c| (0..FILES).map(move |n| file(c, n))).collect()
}

/// Reads a slot by one descriptor, and checks that the kernel knows its size.
pub(super) fn read_slot(path: &Path) -> Vec<u8> {
    let mut file = fs::File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, size);
    bytes
}

pub(super) fn filled(fixture: &Fixture, sets: &[&str]) -> Mounted {
    let mounted = mount(fixture, sets);
    ["a", "b", "c"].into_iter().for_each(|class| read_class(&mounted, &format!("train/{class}")));
    wait_for_offers(fixture, 3 * FILES);
    mounted
}

#[test]
fn each_opening_finds_a_fresh_sample() {
    let fixture = fixture();
    let mounted = filled(&fixture, &["rehearsal.old.slots=4", "rehearsal.old.distance=20"]);
    let slots = mounted.path("rehearsal/old/slots");
    let known = written();
    // Looking at slots takes no sample.
    for _ in 0..50 {
        let mut names: Vec<_> =
            fs::read_dir(&slots).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["0000.jpg", "0001.jpg", "0002.jpg", "0003.jpg", "a", "b", "c"]);
        assert!(fs::metadata(slots.join("0001.jpg")).unwrap().len() >= 500);
    }
    let mut counts: HashMap<String, u32> = HashMap::new();
    let mut last: HashMap<String, u32> = HashMap::new();
    for turn in 0..600 {
        let sample = which(&known, &read_slot(&slots.join(format!("000{}.jpg", turn % 4))));
        if let Some(before) = last.insert(sample.clone(), turn) {
            assert!(turn - before >= 20, "{sample} after {}", turn - before);
        }
        *counts.entry(sample).or_default() += 1;
    }
    assert_eq!(counts.len(), 30);
    // A sample that is reserved at the border of a round may belong to the next one.
    let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
    assert!(most - least <= 2, "{counts:?}");
    for turn in 0..40 {
        let bytes = read_slot(&slots.join(format!("b/000{}.png", turn % 4)));
        assert!(which(&known, &bytes).starts_with("b/"));
    }
    for missing in ["0004.jpg", "1.jpg", "00001.jpg", "d", "d/0000.jpg", "a/0004.jpg", "x.jpg"] {
        let error = fs::metadata(slots.join(missing)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENOENT as i32), "{missing}");
    }
    wait_until("each opening is counted", || stats(&fixture)["replays"] == 640);
    mounted.umount();
}

/// A job that is started again goes on drawing.
#[test]
fn another_mount_draws_other_samples() {
    let fixture = fixture();
    let known = written();
    let mut mounted = filled(&fixture, &["rehearsal.old.slots=1", "rehearsal.old.distance=20"]);
    let mut before: Vec<Vec<String>> = Vec::new();
    for turn in 0..3 {
        let slot = mounted.path("rehearsal/old/slots/0000.jpg");
        let drawn: Vec<String> = (0..15).map(|_| which(&known, &read_slot(&slot))).collect();
        assert!(!before.contains(&drawn), "{drawn:?}");
        before.push(drawn);
        wait_until("each opening is counted", || stats(&fixture)["replays"] == 15 * (turn + 1));
        mounted.umount();
        mounted = mount(&fixture, &["rehearsal.old.slots=1", "rehearsal.old.distance=20"]);
    }
    mounted.umount();
}

/// There are more names than samples. All names are looked at, and few of them are opened afterwards.
#[test]
fn other_readers_find_samples_that_are_only_looked_up() {
    let fixture = fixture();
    let mounted = filled(&fixture, &["rehearsal.old.slots=64", "rehearsal.old.distance=64"]);
    let slot = |n: u64| mounted.path(format!("rehearsal/old/slots/{n:04}.jpg"));
    let known = written();
    (0..64).for_each(|name| assert!(fs::metadata(slot(name)).unwrap().len() >= 500));
    // A sample that was looked up waits this long for its reader.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut counts: HashMap<String, u32> = HashMap::new();
    for turn in 0..150 {
        *counts.entry(which(&known, &read_slot(&slot(turn % 8)))).or_default() += 1;
    }
    let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
    assert!(counts.len() == 30 && most - least <= 3, "{counts:?}");
    mounted.umount();
}

#[test]
fn eight_readers_find_no_torn_sample_and_each_as_often_as_the_others() {
    let fixture = fixture();
    let mounted = filled(&fixture, &["rehearsal.old.slots=3", "rehearsal.old.distance=1"]);
    let slots = mounted.path("rehearsal/old/slots");
    let known = written();
    let counts: Mutex<HashMap<String, u32>> = Mutex::default();
    // Openings by all readers, and the rounds that were shown while a reader held a sample.
    let (opened, missed) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let (slots, known, counts) = (&slots, &known, &counts);
            let (opened, missed) = (&opened, &missed);
            scope.spawn(move || {
                for turn in 0..300 {
                    let path = slots.join(format!("000{}.jpg", turn % 3));
                    let before = opened.load(Ordering::Relaxed);
                    if turn % 5 == reader % 5 {
                        fs::metadata(&path).unwrap();
                    }
                    let sample = which(known, &read_slot(&path));
                    let meanwhile = opened.fetch_add(1, Ordering::Relaxed) - before;
                    missed.fetch_add(meanwhile / 30, Ordering::Relaxed);
                    *counts.lock().unwrap().entry(sample).or_default() += 1;
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap();
    assert_eq!((counts.len(), counts.values().sum::<u32>()), (30, 2400));
    let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
    // Eighty rounds. A sample that a reader holds at the border of a round may miss it.
    assert!(*most <= least + 24 + missed.into_inner(), "{counts:?}");
    mounted.umount();
}

/// The buffer goes on while its slots are read. Samples that it gave up are soon shown no more.
#[test]
fn slots_follow_the_buffer() {
    let fixture = fixture();
    let sets = ["rehearsal.old.slots=1", "rehearsal.old.policy=ring"];
    let mounted = mount(&fixture, &sets);
    let slot = mounted.path("rehearsal/old/slots/0000.jpg");
    let error = fs::metadata(&slot).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOENT as i32), "nothing is held");
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let known = written();
    assert!(which(&known, &read_slot(&slot)).starts_with("a/"));
    let mut open = fs::File::open(&slot).unwrap();
    read_class(&mounted, "train/b");
    wait_for_offers(&fixture, 2 * FILES);
    wait_until("the next class is shown", || which(&known, &read_slot(&slot)).starts_with("b/"));
    (0..100).for_each(|_| assert!(which(&known, &read_slot(&slot)).starts_with("b/")));
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert!(which(&known, &bytes).starts_with("a/"), "a descriptor keeps its sample");
    drop(open);
    mounted.umount();
}

#[test]
fn a_slot_has_the_label_of_its_sample() {
    let fixture = fixture();
    let mounted = filled(&fixture, &[]);
    let script = "import os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY)\n\
        of = lambda name: os.getxattr(fd, 'user.belady.' + name).decode()\n\
        same = all(of('source') == of('source') for _ in range(9))\n\
right = of('source').split('/')[:2] == ['train', of('label')]\n\
        os.close(fd)\n\
        print(same, right, os.path.isfile(sys.argv[1]))";
    let path = mounted.path("rehearsal/old/slots/0005.jpg");
    let mut program = Program::python(script, &[path.to_str().unwrap()]);
    assert_eq!(program.line(), "True True True");
    mounted.umount();
}

/// The samples of a sleep set are where the command says, in its order, even if they repeat.
#[test]
fn a_sleep_set_is_a_directory() {
    let fixture = fixture();
    let mounted = filled(&fixture, &[]);
    let rest = ["old", "--budget", "70", "--batch", "10", "--seed", "4", "--json"];
    let (code, text) = rehearse(&fixture, "sleep", &rest, "");
    assert_eq!(code, Some(0), "{text}");
    let chosen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(chosen["view"], "sleep-0");
    let samples = chosen["samples"].as_array().unwrap();
    let view = mounted.path("rehearsal/old/sleep-0");
    for (place, source) in samples.iter().enumerate() {
        let source = source.as_str().unwrap();
        let (class, name) = source.trim_start_matches("train/").split_once('/').unwrap();
        let bytes = fs::read(view.join(class).join(format!("{place:08}-{name}"))).unwrap();
        assert!(bytes == fs::read(fixture.source(source)).unwrap(), "{source}");
    }
    let (_, again) = rehearse(&fixture, "sleep", &rest, "");
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!((&again["view"], &again["samples"]), (&"sleep-1".into(), &chosen["samples"]));
    let error = fs::metadata(mounted.path("rehearsal/old/sleep-2")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOENT as i32));
    mounted.umount();
}

/// The files of a mix, as a loader that follows links finds them: the number of new ones, and the old ones by
/// class and name.
fn mix(view: &Path) -> (usize, Vec<String>) {
    let (mut new, mut old) = (0, Vec::new());
    for class in fs::read_dir(view).unwrap().map(|entry| entry.unwrap()) {
        for file in fs::read_dir(class.path()).unwrap().map(|entry| entry.unwrap()) {
            let (path, name) = (file.path(), file.file_name().into_string().unwrap());
            let class = class.file_name().into_string().unwrap();
            let number = name.rsplit('-').next().unwrap().trim_end_matches(".jpg");
            let number: u64 = number.parse().unwrap();
            let seed = (u64::from(class.as_bytes()[0]) << 16) + number;
            let expected = content(seed, 500 + 1000 * (number as usize % 7));
            assert!(fs::read(&path).unwrap() == expected, "{path:?}");
            if fs::symlink_metadata(&path).unwrap().is_symlink() {
                assert!(path.canonicalize().unwrap().ends_with(format!("train/{class}/{name}")));
                new += 1;
            } else {
                assert!(name.starts_with("replay-"), "{name}");
                old.push(format!("{class}/{number}"));
            }
        }
    }
    old.sort();
    (new, old)
}

#[test]
fn a_mix_has_the_task_and_draws_of_others() {
    let fixture = fixture();
    let sets = ["rehearsal.old.batch=8", "rehearsal.old.replay=2"];
    let mounted = filled(&fixture, &sets);
    let root = mounted.path("rehearsal/old");
    let (code, text) = rehearse(&fixture, "task", &["old", "1", "-"], "train/c\n");
    assert_eq!(code, Some(0), "{text}");
    let (new, first) = mix(&root.join("mix-3"));
    assert_eq!((new, first.len()), (40, 10));
    assert!(first.iter().all(|sample| !sample.starts_with("c/")), "{first:?}");
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 10, "none twice");
    assert_eq!(mix(&root.join("mix-3")).1, first);
    assert_ne!(mix(&root.join("mix-4")).1, first);
    let of_task = mix(&root.join("mix"));
    assert_eq!((of_task.0, of_task.1.len()), (40, 10));
    // The next task has a directory and a file.
    let (code, text) = rehearse(&fixture, "task", &["old", "2", "-"], "train/a/\ntrain/b/7.jpg\n");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(mix(&root.join("mix")).0, 41);
    let next = mix(&root.join("mix-3"));
    assert_eq!((next.0, next.1.len()), (41, 10), "a mix of that number of the next task");
    assert!(next.1.iter().any(|sample| sample.starts_with("c/")), "{next:?}");
    let (code, text) = rehearse(&fixture, "task", &["old", "3", "-"], "train/x\n");
    assert!(code == Some(2) && text.contains("train/x is not in the dataset"), "{text}");
    assert_eq!(stats(&fixture)["task"], 2);
    // After a crash, the task and the samples drawn for it are known.
    let (_, drawn) = mix(&root.join("mix-9"));
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    let again = mount(&fixture, &sets);
    drop(mounted);
    assert_eq!(mix(&again.path("rehearsal/old/mix-9")), (41, drawn));
    again.umount();
}

/// No files of the task were told: samples in the buffer are old, and all others are new.
#[test]
fn a_mix_without_a_task_has_what_is_held_and_what_is_not() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["rehearsal.old.batch=8", "rehearsal.old.replay=2"]);
    let root = mounted.path("rehearsal/old");
    assert_eq!(mix(&root.join("mix-0")), (120, vec![]), "nothing is held");
    wait_until("that is said", || mounted.log().contains("a mix is without old samples"));
    // Reading the mix has read the files that its links lead to.
    wait_for_offers(&fixture, 3 * FILES);
    let held = epoch(&root, 1);
    let holds = |sample: &String| {
        let (class, number) = sample.split_once('/').unwrap();
        held[class].contains(&format!("{number}.jpg"))
    };
    let (new, old) = mix(&root.join("mix-1"));
    assert_eq!((new, old.len()), (90, 22));
    assert!(old.iter().all(holds), "{old:?}");
    assert!(old.windows(2).all(|pair| pair[0] != pair[1]), "none twice: {old:?}");
    let (code, text) = rehearse(&fixture, "task", &["old", "1"], "");
    assert_eq!(code, Some(0), "{text}");
    let of_task = mix(&root.join("mix"));
    assert_eq!((of_task.0, of_task.1.len()), (90, 22));
    mounted.umount();
}
