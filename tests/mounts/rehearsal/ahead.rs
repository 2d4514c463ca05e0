//! Samples that slots and streams show next are read ahead of their open.
//!
//! Goal: the bytes of the samples that are shown next are in the page cache before they are asked for, even
//! if none of them is there when a mount begins. Method: a buffer that an earlier mount filled is pushed out
//! of the page cache. A slot or a stream is looked at but not read, and then its journal's pages are counted.
//! New samples of a mix are counted by the planner.

use memmap2::Mmap;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc;

use super::slots::{filled, read_slot, which, written};
use super::*;

/// How many pages of a file are in the page cache.
fn resident(path: &Path) -> usize {
    // SAFETY: nothing cuts the file while it is mapped.
    let map = unsafe { Mmap::map(&fs::File::open(path).unwrap()) }.unwrap();
    let mut pages = vec![0; map.len().div_ceil(4096)];
    let address = map.as_ptr().cast_mut().cast();
    // SAFETY: the mapping is alive and there is a byte for each of its pages.
    assert_eq!(unsafe { libc::mincore(address, map.len(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// Pushes the journal of the only buffer out of the page cache.
fn forget(fixture: &Fixture) -> PathBuf {
    let mut journals = find(&fixture.path("cache"), "journal-00000001");
    assert_eq!(journals.len(), 1, "{journals:?}");
    let journal = journals.remove(0);
    let file = fs::File::open(&journal).unwrap();
    wait_until("none of it is in memory", || {
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        resident(&journal) == 0
    });
    journal
}

#[test]
fn draws_are_read_ahead_after_a_remount() {
    let fixture = fixture();
    filled(&fixture, &[]).umount();
    let mounted = mount(&fixture, &["rehearsal.old.slots=4", "rehearsal.old.distance=4"]);
    let journal = forget(&fixture);
    let (known, slots) = (written(), mounted.path("rehearsal/old/slots"));
    assert_eq!(resident(&journal), 0, "nobody looks at a slot");
    fs::metadata(slots.join("0000.jpg")).unwrap();
    wait_until("the next samples are in memory", || resident(&journal) > 0);
    (0..12).for_each(|turn| {
        which(&known, &read_slot(&slots.join(format!("000{}.jpg", turn % 4))));
    });
    mounted.umount();
}

#[test]
fn a_stream_is_read_ahead() {
    let fixture = fixture();
    filled(&fixture, &[]).umount();
    let mounted = mount(&fixture, &[]);
    let journal = forget(&fixture);
    let (known, stream) = (written(), mounted.path("rehearsal/old/stream/0"));
    fs::metadata(&stream).unwrap();
    wait_until("the next samples are in memory", || resident(&journal) > 0);
    (0..12).for_each(|turn| {
        which(&known, &read_slot(&stream.join(format!("{turn:06}"))));
    });
    mounted.umount();
}

/// Reads a mix whose order was told, as a job does. All files must be as they were written.
fn read_mix(mounted: &Mounted, view: &str) {
    let (mix, known) = (mounted.path("rehearsal/old").join(view), written());
    let sorted = |directory: &Path| {
        let entries = fs::read_dir(directory).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let files = sorted(&mix).into_iter().flat_map(|class| sorted(&class));
    files.for_each(|file| _ = which(&known, &fs::read(file).unwrap()));
}

#[test]
fn the_new_samples_of_a_mix_are_fetched_ahead() {
    of_a_mix_are_fetched_ahead("mix");
}

#[test]
fn the_new_samples_of_an_epochs_mix_are_fetched_ahead() {
    of_a_mix_are_fetched_ahead("mix-3");
}

fn of_a_mix_are_fetched_ahead(view: &str) {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    mounted.umount();
    let order = &format!("sequential:index=imagefolder,root=rehearsal/old/{view}");
    let mounted = mount(&fixture, &[]);
    let point = mounted.point.to_str().unwrap();
    let there = |count| {
        wait_until("what is new is there", || {
            mounted.count("/prefetched") >= count && mounted.count("/fetching") == 0
        });
        assert_eq!(mounted.count("/prefetched"), count, "and nothing else");
    };
    assert_eq!(rehearse(&fixture, "task", &["old", "1", "-"], "train/b\n").0, Some(0));
    fixture.run(0, &["order", "set", point, order]);
    there(FILES);
    read_mix(&mounted, view);
    wait_until("its reads are seen", || {
        mounted.count("/orders/0/opens_predicted") >= FILES * 9 / 10
    });
    // The next task has another mix, and the order is then over that one.
    assert_eq!(rehearse(&fixture, "task", &["old", "2", "-"], "train/c\n").0, Some(0));
    there(2 * FILES);
    read_mix(&mounted, view);
    assert_eq!((mounted.count("/demanded"), mounted.count("/cold")), (0, 0));
    let said = fixture.run(3, &["order", "set", point, &order.replace("old", "new")]);
    assert!(said.contains(&format!("rehearsal/new/{view}")), "{said}");
    mounted.umount();
    // Also if the order is told at the mount.
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--order", order];
    let sets = ["--set", "rehearsal.old.size=30", "--set", "rehearsal.old.root=train"];
    let mounted = Mounted::new(&fixture, &[&options[..], &sets].concat());
    wait_until("what is new is there", || mounted.count("/prefetched") == FILES);
    read_mix(&mounted, view);
    assert_eq!((mounted.count("/demanded"), mounted.count("/cold")), (0, 0));
    mounted.umount();
}
