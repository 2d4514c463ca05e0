//! What one mount has seen of orders, the next mount knows.
//!
//! Goal: a job that is started again is followed from its first opens, without a search. Its order has a
//! seed, or was drawn once and cannot be computed. Method: torch over two mounts of the same cache directory,
//! one after the other; then a damaged journal, and files that have changed in between.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Fixture, content, wait_until};
use crate::loader::{
    FILES, LEARN, Loader, await_first_epoch, known, predicted, read_until, write_files,
};
use crate::mounted::Mounted;

/// Mounts with a cache directory, so that learned orders are kept.
fn mount(fixture: &Fixture) -> Mounted {
    let cache = fixture.path("cache");
    let store = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    Mounted::new(fixture, &[&LEARN[..], &store].concat())
}

/// The file of the journal of the only store.
fn journal(fixture: &Fixture) -> PathBuf {
    let entries = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| path.to_string_lossy().contains("/belady-store-v");
    let stores = entries(fixture.path("cache")).find(named).unwrap();
    entries(stores).find(|path| path.is_dir()).unwrap().join("journal")
}

fn belief(loader: &Value) -> &str {
    loader["belief"].as_str().unwrap()
}

/// Most of an epoch of a job that is started again must be predicted from the journal that was there at the
/// mount. For another try, the source is mounted again with that journal.
#[track_caller]
fn remount_until_foreseen(fixture: &Fixture, mounted: Mounted, kind: &str, words: &str) -> Mounted {
    let (path, mut mounted) = (journal(fixture), mounted);
    let bytes = fs::read(&path).unwrap();
    for _ in 0..5 {
        if read_if_foreseen(&mounted, kind, words) {
            return mounted;
        }
        mounted.umount();
        fs::write(&path, &bytes).unwrap();
        mounted = mount(fixture);
    }
    panic!("the first epoch is not foreseen");
}

/// Starts the job again, and reads an epoch. What is read before the learner's thread has run is not
/// predicted. That may be the whole epoch.
#[track_caller]
fn read_if_foreseen(mounted: &Mounted, kind: &str, words: &str) -> bool {
    let mut loader = Loader::start(mounted, kind);
    loader.read_an_epoch();
    let process = loader.process;
    let foreseen = || known(mounted, process).is_some_and(|l| predicted(&l) >= FILES / 2);
    // Reads are counted a little later.
    if !(0..400).any(|_| {
        foreseen() || {
            thread::sleep(Duration::from_millis(50));
            false
        }
    }) {
        loader.program.finish();
        wait_until("its end seen", || known(mounted, process).is_none());
        return false;
    }
    let known = known(mounted, process).unwrap();
    assert!(belief(&known).contains("known from an earlier run"), "{known}");
    assert!(belief(&known).contains(words), "{known}");
    assert_eq!((&known["search_cpu_s"], &known["searching"]), (&0.0.into(), &false.into()));
    loader.program.finish();
    true
}

#[test]
fn an_order_that_nobody_can_compute_is_replayed() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let list = fixture.path("order.json");
    let list = list.to_str().unwrap();
    let mounted = mount(&fixture);
    let mut loader = Loader::start(&mounted, list);
    loader.read_an_epoch();
    await_first_epoch(&fixture, &mounted, loader.process);
    loader.program.finish();
    assert_eq!(mounted.status()["journal"], Value::Null);
    mounted.umount();

    let mounted = mount(&fixture);
    let said = mounted.status()["journal"].clone();
    assert_eq!(said, "1 earlier runs remembered");
    let words = "as in epoch 0 of an earlier run";
    remount_until_foreseen(&fixture, mounted, list, words).umount();
}

#[test]
fn a_seeded_job_is_known_at_the_next_mount() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = mount(&fixture);
    let mut loader = Loader::start(&mounted, "42");
    let law = "one generator for all epochs";
    read_until(&mounted, &mut loader, |known| belief(known).contains(law));
    loader.program.finish();
    mounted.umount();

    let mounted = mount(&fixture);
    let words = |seed: &str| format!("torch permutation of seed {seed} after 2 draws");
    let mounted = remount_until_foreseen(&fixture, mounted, "42", &words("42"));
    let mounted = remount_until_foreseen(&fixture, mounted, "43", &words("43"));
    let point = mounted.point.to_str().unwrap().to_owned();
    let said = fixture.run(0, &["order", "status", &point]);
    assert!(said.contains("1 earlier runs remembered"), "{said}");
    mounted.umount();
}

#[test]
fn a_journal_that_cannot_be_used_is_ignored_and_said_so() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let list = fixture.path("order.json");
    let list = list.to_str().unwrap();
    let read = |mounted: &Mounted| {
        let mut loader = Loader::start(mounted, list);
        loader.read_an_epoch();
        await_first_epoch(&fixture, mounted, loader.process);
        loader.program.finish();
    };
    let mounted = mount(&fixture);
    read(&mounted);
    mounted.umount();
    // One more file: the samples are others.
    fixture.write("class1/more.png", &content(1, 700));
    let mounted = mount(&fixture);
    let mut loader = Loader::start(&mounted, "42");
    loader.program.tell("");
    assert_eq!(loader.program.line(), format!("0 {}", FILES + 1));
    let forgotten =
        "1 earlier runs remembered; 1 of them forgotten, as the dataset has other files";
    wait_until("the journal read", || mounted.status()["journal"] == forgotten);
    loader.program.finish();
    mounted.umount();
    fs::remove_file(fixture.source("class1/more.png")).unwrap();

    let path = journal(&fixture);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let mounted = mount(&fixture);
    assert_eq!(mounted.status()["journal"], "ignored: it is damaged");
    read(&mounted);
    mounted.umount();
    assert_ne!(fs::read(&path).unwrap(), bytes, "it is replaced by a whole one");
    let mounted = mount(&fixture);
    remount_until_foreseen(&fixture, mounted, list, "of an earlier run").umount();
}
