//! Rehearsal buffers: samples that were read come back as files.
//!
//! Goal: the samples of a buffer are served byte for byte as they were frozen, whatever happens to the
//! source, the buffer and the daemon. Method: a dataset of a few classes is read through the mount. Views are
//! listed, read and compared while more is read, and daemons are killed.

mod ahead;
mod distance;
mod json;
mod lasting;
mod latent;
mod named;
mod rights;
mod scores;
mod slots;
mod stream;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, check_many, content, fails, said, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::{Program, signal, wait_for_end};

const FILES: u64 = 40;

fn write_files(fixture: &Fixture, root: &str, class: &str) {
    let seed = u64::from(class.as_bytes()[0]) << 16;
    for number in 0..FILES {
        let size = 500 + 1000 * (number as usize % 7);
        fixture.write(&format!("{root}/{class}/{number}.jpg"), &content(seed + number, size));
    }
}

/// A dataset of three classes to learn from and one to test with.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    ["a", "b", "c"].into_iter().for_each(|class| write_files(&fixture, "train", class));
    write_files(&fixture, "val", "a");
    fixture
}

#[track_caller]
fn mount(fixture: &Fixture, sets: &[&str]) -> Mounted {
    let cache = fixture.path("cache");
    let mut options = vec!["--cache-dir", cache.to_str().unwrap()];
    for set in ["rehearsal.old.size=30", "rehearsal.old.root=train"].iter().chain(sets) {
        options.extend(["--set", set]);
    }
    Mounted::new(fixture, &options)
}

fn read_class(mounted: &Mounted, class: &str) {
    for number in 0..FILES {
        fs::read(mounted.path(format!("{class}/{number}.jpg"))).unwrap();
    }
}

/// Runs `belady rehearse` on a mount, with `input` on its standard input.
pub(crate) fn rehearse(
    fixture: &Fixture,
    verb: &str,
    rest: &[&str],
    input: &str,
) -> (Option<i32>, String) {
    let mut command = fixture.belady();
    command.args(["rehearse", verb]).arg(fixture.path("mount")).args(rest);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), said(&output))
}

pub(crate) fn stats(fixture: &Fixture) -> Value {
    let (code, text) = rehearse(fixture, "stats", &["--json"], "");
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str::<Value>(&text).unwrap()[0].take()
}

pub(crate) fn wait_for_offers(fixture: &Fixture, offered: u64) {
    wait_until("what was read is offered", || stats(fixture)["offered"] == offered);
}

/// The files of an epoch by class and name. All of them must be as they were written.
#[track_caller]
fn epoch(root: &Path, number: u32) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let view = root.join(format!("epoch-{number}"));
    let names = |path: &Path| -> Vec<String> {
        let entries = fs::read_dir(path).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    for class in names(&view) {
        let files = names(&view.join(&class));
        for name in &files {
            let number: u64 = name.trim_end_matches(".jpg").parse().unwrap();
            let seed = (u64::from(class.as_bytes()[0]) << 16) + number;
            let path = view.join(&class).join(name);
            let bytes = fs::read(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), bytes.len() as u64);
            assert!(bytes == content(seed, 500 + 1000 * (number as usize % 7)), "{path:?}");
        }
        found.insert(class, files);
    }
    found
}

fn counts(epoch: &BTreeMap<String, Vec<String>>) -> Vec<(&str, usize)> {
    epoch.iter().map(|(class, files)| (class.as_str(), files.len())).collect()
}

#[test]
fn read_samples_are_kept_and_shown_as_frozen() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    let view = mounted.path("rehearsal/old");
    assert_eq!(counts(&epoch(&view, 0)), []);
    read_class(&mounted, "val/a");
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let first = epoch(&view, 1);
    assert_eq!(counts(&first), [("a", 30)]);
    read_class(&mounted, "train/b");
    read_class(&mounted, "train/c");
    wait_for_offers(&fixture, 3 * FILES);
    assert_eq!(epoch(&view, 1), first, "what was frozen stays");
    assert_eq!(counts(&epoch(&view, 2)), [("a", 10), ("b", 10), ("c", 10)]);
    assert_eq!(counts(&epoch(&view, 0)), []);
    let mut names: Vec<_> =
        fs::read_dir(&view).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["epoch-0", "epoch-1", "epoch-2", "scores", "slots", "stream"]);
    let listed = fs::read_dir(mounted.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(listed.into_iter().all(|name| name == "train" || name == "val"));
    for missing in ["epoch-01", "epoch--1", "epoch-", "other", "epoch-2/d", "epoch-2/a/x.jpg"] {
        let error = fs::metadata(view.join(missing)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENOENT as i32), "{missing}");
    }
    assert!(fs::write(view.join("epoch-2/new"), b"x").is_err());
    mounted.umount();
}

#[test]
fn samples_outlive_their_source_and_their_daemon() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    ["a", "b", "c"].into_iter().for_each(|class| read_class(&mounted, &format!("train/{class}")));
    wait_for_offers(&fixture, 3 * FILES);
    let before = epoch(&mounted.path("rehearsal/old"), 0);
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    fs::remove_dir_all(fixture.source("train")).unwrap();
    let again = mount(&fixture, &[]);
    drop(mounted);
    assert_eq!(epoch(&again.path("rehearsal/old"), 0), before);
    assert_eq!(stats(&fixture)["offered"], 3 * FILES);
    // More room does not bring given-up samples back. Less room takes some of the rest.
    again.umount();
    let smaller = mount(&fixture, &["rehearsal.old.size=12"]);
    let kept = epoch(&smaller.path("rehearsal/old"), 0);
    assert_eq!(counts(&kept), [("a", 4), ("b", 4), ("c", 4)]);
    for (class, files) in kept {
        assert!(files.iter().all(|file| before[&class].contains(file)));
    }
    smaller.umount();
}

#[test]
fn commands_feed_a_buffer_and_ask_it() {
    let fixture = fixture();
    let sets = ["rehearsal.old.policy=max-loss", "rehearsal.old.offer-rate=0"];
    let mounted = mount(&fixture, &sets);
    read_class(&mounted, "train/a");
    let list: String = (0..FILES).map(|number| format!("train/b/{number}.jpg\n")).collect();
    let (code, text) = rehearse(&fixture, "offer", &["old"], &(list.clone() + "train/b/99.jpg\n"));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("train/b/99.jpg: is not a file of the dataset"), "{text}");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    let mut number = 0;
    // The bytes come from the source, so it takes a moment until all are there.
    wait_until("what was offered is shown", || {
        number += 1;
        counts(&epoch(&view, number)) == [("b", 30)]
    });
    let shown = epoch(&view, number)["b"].clone();
    let scores: String = shown.iter().zip(0..).map(|(f, n)| format!("train/b/{f} {n}\n")).collect();
    let wrong = "train/b/x.jpg 1\nval/a/1.jpg 2\nnothing\n".to_owned();
    let nan = format!("train/b/{} nan\n", shown[0]);
    let (code, text) = rehearse(&fixture, "score", &["old"], &(scores + &wrong + &nan));
    assert_eq!(code, Some(2), "{text}");
    for words in ["30 taken, 1 of", "3 not taken", "train/b/x.jpg: is no file of", "not a finite"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (_, hardest) =
        rehearse(&fixture, "sleep", &["old", "--budget", "1", "--policy", "mir"], "");
    assert!(hardest.lines().any(|line| line == format!("train/b/{}", shown[29])), "{hardest}");
    let (_, drawn) = rehearse(&fixture, "draw", &["old", "--epoch", "3", "--count", "60"], "");
    let mut once: Vec<&str> = drawn.lines().take(30).collect();
    once.sort_unstable();
    once.dedup();
    assert_eq!((drawn.lines().count(), once.len()), (60, 30));
    assert_eq!(rehearse(&fixture, "draw", &["old", "--epoch", "3", "--count", "60"], "").1, drawn);
    // The next class takes half of the room, and the samples with the least loss go.
    assert_eq!(rehearse(&fixture, "task", &["old", "1"], "").0, Some(0));
    let next = list.replace("train/b", "train/c");
    assert_eq!(rehearse(&fixture, "offer", &["old"], &next).0, Some(0));
    wait_for_offers(&fixture, 2 * FILES);
    let stats = stats(&fixture);
    assert_eq!((&stats["classes"]["b"], &stats["classes"]["c"]), (&15.into(), &15.into()));
    assert_eq!((&stats["tasks"]["0"], &stats["tasks"]["1"]), (&15.into(), &15.into()));
    let (_, listed) = rehearse(&fixture, "ls", &["old", "--json"], "");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let held = listed.as_array().unwrap().iter().filter(|member| member["class"] == "b");
    assert!(held.clone().all(|member| member["score"].as_f64().unwrap() >= 15.0), "{listed}");
    let (code, text) = rehearse(&fixture, "ls", &["new"], "");
    assert!(code == Some(2) && text.contains("no rehearsal buffer `new`"), "{text}");
    mounted.umount();
}

/// Fetching ahead reaches tasks that have not begun. Their samples must not be rehearsed.
#[test]
fn prefetched_files_are_not_offered() {
    let fixture = fixture();
    let cache = fixture.path("cache");
    let order = "torch-random:seed=1,index=imagefolder,root=train";
    let options = ["--cache-dir", cache.to_str().unwrap(), "--order", order];
    let options = [&options[..], &["--set", "rehearsal.old.size=500"]].concat();
    let mounted = Mounted::new(&fixture, &options);
    wait_until("all is there", || {
        mounted.count("/prefetched") >= 3 * FILES && mounted.count("/fetching") == 0
    });
    assert_eq!(stats(&fixture)["offered"], 0);
    read_class(&mounted, "train/b");
    wait_for_offers(&fixture, FILES);
    read_class(&mounted, "train/b");
    read_class(&mounted, "train/c");
    wait_for_offers(&fixture, 2 * FILES);
    let view = mounted.path("rehearsal/old");
    assert_eq!(counts(&epoch(&view, 0)), [("b", FILES as usize), ("c", FILES as usize)]);
    mounted.umount();
}

/// Each opening counts as a replay. Class and path are extended attributes.
#[test]
fn a_reader_of_a_view_is_counted_and_finds_the_label() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old/epoch-0");
    let script = "import os, sys\n\
        path = sorted(os.scandir(sys.argv[1]), key=lambda e: e.name)[0].path\n\
        for _ in range(5): open(path, 'rb').read()\n\
        print(os.listxattr(path), os.getxattr(path, 'user.belady.label').decode(), \
              os.getxattr(path, 'user.belady.source').decode() == 'train/a/' + os.path.basename(path))";
    let mut program = Program::python(script, &[view.join("a").to_str().unwrap()]);
    assert_eq!(program.line(), "['user.belady.label', 'user.belady.source'] a True");
    wait_until("each opening is counted", || stats(&fixture)["replays"] == 5);
    mounted.umount();
}

/// Files of many blocks are fetched whole when they are kept.
#[test]
fn large_samples_are_kept_whole() {
    let fixture = Fixture::new();
    let bytes = content(5, 5_300_000);
    fixture.write("d/large", &bytes);
    fixture.write("d/middle", &bytes);
    fixture.write("d/small", &content(6, 10));
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--set", "rehearsal.old.size=12MB"];
    let mounted = Mounted::new(&fixture, &options);
    let mut first = [0; 10];
    fs::File::open(mounted.path("d/large")).unwrap().read_exact(&mut first).unwrap();
    let middle = fs::File::open(mounted.path("d/middle")).unwrap();
    middle.read_exact_at(&mut first, 3 << 20).unwrap();
    drop(middle);
    fs::read(mounted.path("d/small")).unwrap();
    let mut number = 0;
    wait_until("all are shown", || {
        number += 1;
        let view = mounted.path(format!("rehearsal/old/epoch-{number}/d"));
        fs::read_dir(&view).is_ok_and(|entries| entries.count() == 3)
    });
    let view = mounted.path(format!("rehearsal/old/epoch-{number}/d"));
    assert!(fs::read(view.join("large")).unwrap() == bytes);
    assert!(fs::read(view.join("middle")).unwrap() == bytes);
    assert!(fs::read(view.join("small")).unwrap() == content(6, 10));
    mounted.umount();
}

/// A dataset's own directory of that name stays. The views are where the settings say.
#[test]
fn a_directory_of_the_dataset_goes_before_the_views() {
    let fixture = fixture();
    fixture.write("rehearsal/x/1.jpg", b"own");
    let mounted = mount(&fixture, &[]);
    assert_eq!(fs::read(mounted.path("rehearsal/x/1.jpg")).unwrap(), b"own");
    mounted.umount();
    let place = fixture.path("views");
    fs::create_dir(&place).unwrap();
    let set = format!("mount.rehearsal={}", place.display());
    let mounted = mount(&fixture, &[&set]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    assert_eq!(fs::read(mounted.path("rehearsal/x/1.jpg")).unwrap(), b"own");
    assert_eq!(counts(&epoch(&place.join("old"), 0)), [("a", 30)]);
    mounted.umount();
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
}

/// If the source fails, no sample is given up for one that cannot be read. That one can be offered again.
#[test]
fn samples_stay_until_others_are_there() {
    let fixture = fixture();
    let slow = Slowpfs::new(&fixture, &[]);
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--set", "rehearsal.old.size=30"];
    let sets = ["rehearsal.old.policy=ring", "prefetch.enabled=false"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let options = options.into_iter().chain(sets).collect::<Vec<_>>();
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    let before = epoch(&view, 0);
    slow.ctl(&["fault", "eio", "train/b/*"]);
    let list: String = (0..FILES).map(|number| format!("train/b/{number}.jpg\n")).collect();
    assert_eq!(rehearse(&fixture, "offer", &["old"], &list).0, Some(0));
    wait_until("none is left to be decided", || stats(&fixture)["waiting"] == 0);
    assert_eq!((epoch(&view, 1), &stats(&fixture)["offered"]), (before.clone(), &FILES.into()));
    slow.ctl(&["fault", "clear"]);
    // As long as the bytes do not come, no sample goes. After an end of the daemon, the samples count as not
    // offered.
    slow.ctl(&["fault", "hang", "train/b/*"]);
    assert_eq!(rehearse(&fixture, "offer", &["old"], &list).0, Some(0));
    wait_until("all wait", || stats(&fixture)["waiting"] == FILES);
    assert_eq!(epoch(&view, 2), before);
    signal(mounted.pid, Signal::SIGKILL);
    slow.ctl(&["fault", "clear"]);
    wait_for_end(mounted.pid);
    let again = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    drop(mounted);
    let view = again.path("rehearsal/old");
    assert_eq!(epoch(&view, 0), before);
    assert_eq!(rehearse(&fixture, "offer", &["old"], &list).0, Some(0));
    wait_for_offers(&fixture, 2 * FILES);
    assert_eq!(counts(&epoch(&view, 1)), [("b", 30)]);
    again.umount();
}

/// A buffer is added to a mount whose files are all in the local store.
#[test]
fn stored_files_are_offered_and_read_from_the_store() {
    const COUNT: u64 = 150;
    let fixture = Fixture::new();
    fixture.write_many("d", COUNT, 30_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let cache = fixture.path("cache");
    let disk = ["--ram", "1MiB", "--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let only = ["--set", "order.learn=off", "--set", "cache.slow-after=1h"];
    let disk = [&disk[..], &only].concat();
    let mount = |options: &[&str]| {
        Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &[&disk[..], options].concat())
    };
    let mounted = mount(&[]);
    wait_until("all is stored", || {
        check_many(&mounted.path(""), "d", COUNT, 30_000);
        mounted.count("/disk/stored") >= COUNT * 32_768
    });
    mounted.umount();
    let before = slow.count("bytes");
    let mounted = mount(&["--set", "rehearsal.old.size=500"]);
    check_many(&mounted.path(""), "d", COUNT, 30_000);
    wait_for_offers(&fixture, COUNT);
    check_many(&mounted.path("rehearsal/old/epoch-0"), "d", COUNT, 30_000);
    assert_eq!(slow.count("bytes"), before, "the source was read");
    mounted.umount();
}

/// The files of this name below a directory.
fn find(directory: &Path, name: &str) -> Vec<PathBuf> {
    let inside = |path: PathBuf| match path.is_dir() {
        true => find(&path, name),
        false => Vec::from_iter((path.file_name().unwrap() == name).then_some(path)),
    };
    fs::read_dir(directory).unwrap().flat_map(|entry| inside(entry.unwrap().path())).collect()
}

/// Damages a sample of class a in the journal.
fn damage(fixture: &Fixture, name: &str) {
    let number: u64 = name.trim_end_matches(".jpg").parse().unwrap();
    let sample = content((u64::from(b'a') << 16) + number, 500 + 1000 * (number as usize % 7));
    let journals = find(&fixture.path("cache"), "journal-00000001");
    let [journal] = &journals[..] else { panic!("{journals:?}") };
    let at = fs::read(journal).unwrap().windows(sample.len()).position(|part| part == sample);
    let file = fs::OpenOptions::new().write(true).open(journal).unwrap();
    file.write_all_at(&[!sample[7]], at.unwrap() as u64 + 7).unwrap();
}

/// Its reader gets an error once. Later epochs do not have the sample.
#[test]
fn a_damaged_sample_is_in_no_later_epoch() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    let held = fs::read_dir(view.join("epoch-0/a")).unwrap().next().unwrap().unwrap().file_name();
    damage(&fixture, held.to_str().unwrap());
    fails(fs::read(view.join("epoch-0/a").join(&held)), Errno::EIO as i32);
    wait_until("it is given up", || stats(&fixture)["samples"] == 29);
    let next = epoch(&view, 1);
    assert!(next["a"].len() == 29 && !next["a"].contains(&held.into_string().unwrap()));
    mounted.umount();
}

/// A user who cannot reach a sample at the source cannot read it here.
#[test]
fn views_show_to_nobody_what_the_source_hides() {
    let fixture = fixture();
    for (path, mode) in [("train/a", 0o700), ("train/b", 0o750), ("train/c/1.jpg", 0o640)] {
        fs::set_permissions(fixture.source(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mounted = mount(&fixture, &["rehearsal.old.size=500"]);
    ["a", "b", "c"].into_iter().for_each(|class| read_class(&mounted, &format!("train/{class}")));
    wait_for_offers(&fixture, 3 * FILES);
    let mode = |path: &str| {
        let path = mounted.path("rehearsal/old/epoch-0").join(path);
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    };
    assert_eq!(
        ["a/1.jpg", "b/1.jpg", "c/1.jpg", "c/2.jpg"].map(mode),
        [0o400, 0o440, 0o440, 0o444]
    );
    mounted.umount();
}

/// An unmount that is refused changes nothing.
#[test]
fn a_view_in_use_keeps_the_whole_mount() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    for used in ["rehearsal/old/epoch-0", ".belady"] {
        let opened = fs::File::open(mounted.path(used)).unwrap();
        assert!(fixture.run(8, &["umount", mounted.point.to_str().unwrap()]).contains("in use"));
        assert!(mounted.path(".belady/stats").exists(), "with {used} open");
        assert_eq!(counts(&epoch(&mounted.path("rehearsal/old"), 0)), [("a", 30)]);
        drop(opened);
    }
    mounted.umount();
}

/// The job looks at an epoch's view when it has read half of the epoch.
#[test]
fn an_epoch_shows_what_was_held_when_it_began() {
    let fixture = fixture();
    let list = fixture.path("order");
    let lines = |from: u64, to: u64| {
        (from..to).map(|number| format!("train/a/{number}.jpg\n")).collect::<String>()
    };
    fs::write(&list, format!("{}# epoch 1\n{}", lines(0, FILES / 2), lines(FILES / 2, FILES)))
        .unwrap();
    let mounted = mount(&fixture, &["rehearsal.old.size=100"]);
    let point = mounted.point.to_str().unwrap();
    fixture.run(0, &["order", "set", point, list.to_str().unwrap()]);
    let read = |from: u64, to: u64| {
        (from..to).for_each(|number| {
            fs::read(mounted.path(format!("train/a/{number}.jpg"))).unwrap();
        });
    };
    // A sample is offered when the wing hears of its arrival, which may be after the last open of the epoch.
    read(0, FILES / 2 - 1);
    wait_until("most of it is offered", || stats(&fixture)["offered"].as_u64().unwrap() > 10);
    read(FILES / 2 - 1, FILES / 2);
    // If the last open was missed, the next ones show that another epoch has begun.
    read(FILES / 2, FILES * 3 / 4);
    let view = mounted.path("rehearsal/old");
    wait_until("the epoch is frozen", || {
        let names = fs::read_dir(&view).unwrap().map(|entry| entry.unwrap().file_name());
        names.into_iter().any(|name| name == "epoch-1")
    });
    read(FILES * 3 / 4, FILES - 2);
    // The kernel already knows the first file's name, so its open may be missed.
    wait_until("what was read is offered", || {
        read(0, 1);
        stats(&fixture)["offered"] == FILES - 2
    });
    let shown = epoch(&view, 1);
    let held: Vec<u64> =
        shown["a"].iter().map(|name| name.trim_end_matches(".jpg").parse().unwrap()).collect();
    assert!(held.len() > 10 && held.iter().all(|number| *number < FILES * 3 / 4), "{held:?}");
    mounted.umount();
}
