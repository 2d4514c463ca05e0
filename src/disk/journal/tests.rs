//! A journal over the model disk: its records after errors, damage and crashes.

use nix::libc;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::disk::Directory;
use crate::disk::tests::model::Model;

type Records = Vec<(Vec<u8>, Option<Pinned>)>;

fn try_open(disk: &Model) -> Result<(Journal, Records)> {
    let mut said = Vec::new();
    let tell = |text: &[u8], pinned| said.push((text.to_vec(), pinned));
    let journal = Journal::open(Arc::new(disk.clone()), tell)?;
    Ok((journal, said))
}

fn open(disk: &Model) -> (Journal, Records) {
    try_open(disk).unwrap()
}

/// The bytes pinned with record `n`. Every second record has some.
fn bytes(n: u8) -> Vec<u8> {
    vec![n; if n.is_multiple_of(2) { 100 + usize::from(n) } else { 0 }]
}

fn append(journal: &mut Journal, n: u8) -> Pinned {
    journal.append(&[n; 3], &bytes(n)).unwrap()
}

/// Writes records. Returns their pinned bytes.
fn write(journal: &mut Journal, records: std::ops::Range<u8>) -> Vec<Pinned> {
    let pinned = records.map(|n| append(journal, n)).collect();
    journal.write().unwrap();
    pinned
}

/// The numbers of the records, each of which must have its bytes.
#[track_caller]
fn check(said: &Records) -> Vec<u8> {
    let number = |(text, pinned): &(Vec<u8>, Option<Pinned>)| {
        let n = text[0];
        assert_eq!(text, &[n; 3]);
        assert_eq!(pinned.as_ref().map(|p| p.read().unwrap()).unwrap_or_default(), bytes(n));
        n
    };
    said.iter().map(number).collect()
}

fn length(disk: &Model, generation: u32) -> u64 {
    let found = generations(disk).unwrap();
    found.into_iter().find(|(g, _)| *g == generation).unwrap().1
}

/// A journal with records 0 to 5, synced, and 6 and 7, not synced.
fn synced() -> Model {
    let disk = Model::default();
    let (mut journal, said) = open(&disk);
    assert!(said.is_empty());
    write(&mut journal, 0..6);
    journal.sync().unwrap();
    write(&mut journal, 6..8);
    disk
}

#[test]
fn what_was_written_is_said_again() {
    let disk = synced();
    let (mut journal, said) = open(&disk);
    assert!(check(&said).into_iter().eq(0..8));
    let pinned = append(&mut journal, 8);
    assert!(!pinned.is_written() && said[2].1.as_ref().is_some_and(Pinned::is_written));
    journal.write().unwrap();
    assert!(pinned.is_written());
    assert!(check(&open(&disk).1).into_iter().eq(0..9));
}

#[test]
fn a_torn_journal_says_what_was_before_the_tear() {
    let whole = Model::default();
    write(&mut open(&whole).0, 0..6);
    let mut counts = std::collections::BTreeSet::new();
    for cut in 0..length(&whole, 1) {
        let disk = Model::default();
        drop(open(&disk));
        whole.edit(&name(1), |bytes| {
            disk.edit(&name(1), |copy| copy.extend_from_slice(&bytes[..cut as usize]));
        });
        let (mut journal, said) = open(&disk);
        let n = check(&said).len() as u8;
        counts.insert(n);
        write(&mut journal, n..n + 1);
        assert!(check(&open(&disk).1).into_iter().eq(0..=n), "cut at {cut}");
    }
    assert!(counts.into_iter().eq(0..6));
}

/// A header may have reached the disk without the bytes behind it.
#[test]
fn behind_what_was_synced_every_byte_counts() {
    let whole = length(&synced(), 1);
    for at in 0..whole {
        let disk = synced();
        let mut begin = 0;
        disk.edit(&name(1), |bytes| {
            begin = bytes.windows(4).rposition(|word| word == MAGIC).unwrap();
            bytes[at as usize] ^= 4;
        });
        let (opened, after) = (try_open(&disk), length(&disk, 1));
        match opened {
            Ok((_, said)) if after < whole => {
                let n = check(&said).len();
                assert!(n == 6 || n == 7, "a flip at {at} left {n}");
            }
            // Synced records are not cut off, and pinned bytes there are compared when read.
            Ok((_, said)) => {
                let damaged = said.iter().filter_map(|(_, pinned)| pinned.as_ref()?.read().err());
                let kinds: Vec<_> = damaged.map(|error| error.kind()).collect();
                assert_eq!((said.len(), kinds), (8, vec![ErrorKind::InvalidData]), "{at}");
            }
            Err(error) => {
                assert_eq!((error.kind(), after), (ErrorKind::InvalidData, whole), "{at}");
                assert!(at < begin as u64);
            }
        }
    }
}

#[test]
fn an_error_of_the_disk_is_no_end_of_the_journal() {
    let disk = synced();
    let whole = length(&disk, 1);
    disk.fail_reads(Some(libc::EIO));
    assert_eq!(try_open(&disk).err().unwrap().raw_os_error(), Some(libc::EIO));
    disk.fail_reads(None);
    assert_eq!(length(&disk, 1), whole);
    assert!(check(&open(&disk).1).into_iter().eq(0..8));
}

#[test]
fn what_is_of_another_format_is_left_alone() {
    let disk = synced();
    disk.edit(&name(1), |bytes| bytes[..4].copy_from_slice(b"blj9"));
    let whole = length(&disk, 1);
    assert_eq!(try_open(&disk).err().unwrap().kind(), ErrorKind::InvalidData);
    assert_eq!(length(&disk, 1), whole);
}

#[test]
fn what_no_record_can_have_is_refused() {
    let disk = synced();
    let (mut journal, _) = open(&disk);
    let before = journal.length();
    assert!(journal.append(&vec![0; TEXT_MAX + 1], &[]).is_err());
    assert_eq!(journal.length(), before);
}

#[test]
fn writing_can_be_tried_again() {
    let disk = synced();
    let (mut journal, _) = open(&disk);
    disk.tear(true);
    append(&mut journal, 8);
    assert!(journal.write().is_err());
    disk.tear(false);
    write(&mut journal, 9..10);
    assert!(check(&open(&disk).1).into_iter().eq(0..10));
}

#[test]
fn a_rewritten_journal_has_what_was_put_into_it_and_old_places_can_be_read() {
    let disk = Model::default();
    let (mut journal, _) = open(&disk);
    let pinned = write(&mut journal, 0..200);
    let before = journal.length();
    journal.rewrite(|next| Ok(write(next, 0..5))).unwrap();
    assert!(journal.length() < before);
    assert_eq!(pinned[150].read().unwrap(), bytes(150));
    assert!(pinned[150].is_written());
    write(&mut journal, 5..6);
    let (journal, said) = open(&disk);
    assert!(check(&said).into_iter().eq(0..6));
    assert_eq!((journal.log.generation, disk.names().unwrap().len()), (2, 1));
}

#[test]
fn a_rewrite_that_fails_leaves_the_journal_and_nothing_else() {
    let disk = synced();
    let (mut journal, _) = open(&disk);
    let failed = journal.rewrite(|next| {
        write(next, 0..200);
        Err::<(), _>(Error::from_raw_os_error(libc::ENOSPC))
    });
    assert!(failed.is_err());
    assert_eq!(disk.names().unwrap(), [(name(1), journal.length())]);
    write(&mut journal, 8..9);
    assert!(check(&open(&disk).1).into_iter().eq(0..9));
}

/// A crash then leaves one of the two generations, and both are whole. The next open continues the new one.
#[test]
fn a_name_that_may_not_last_is_written_on_under() {
    let disk = synced();
    let (mut journal, _) = open(&disk);
    disk.fail_names(Some(libc::EIO));
    journal.rewrite(|next| Ok(write(next, 0..3))).unwrap();
    write(&mut journal, 3..5);
    assert_eq!(disk.names().unwrap().len(), 2);
    assert!(journal.sync().is_err() && !journal.is_durable());
    let there = || (open(&disk), disk.names().unwrap().len());
    let ((_, said), names) = there();
    assert!(check(&said).into_iter().eq(0..5) && names == 2, "it may be needed");
    disk.fail_names(None);
    journal.sync().unwrap();
    assert!(journal.is_durable() && disk.names().unwrap().len() == 1);
    assert!(check(&open(&disk).1).into_iter().eq(0..5));
}

/// What a sync failed on is written again before a later sync counts. If it is gone by then, no sync
/// succeeds, and a crash leaves what was before it.
#[test]
fn what_a_sync_failed_on_lasts_once_one_says_so() {
    let disk = synced();
    let (mut journal, _) = open(&disk);
    let (before, count) = (journal.synced, disk.ops());
    assert!(before < journal.end(), "6 and 7");
    disk.fail_syncs(Some(libc::EIO));
    journal.sync().unwrap_err();
    disk.fail_syncs(None);
    assert!(!journal.is_durable());
    // The disk has lost the last byte.
    let (name, end) = (name(1), journal.end() as usize);
    disk.edit(&name, |bytes| bytes[end - 1] ^= 1);
    let lost = journal.sync().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::InvalidData);
    disk.edit(&name, |bytes| bytes[end - 1] ^= 1);
    journal.sync().unwrap();
    assert!(journal.is_durable());
    let mut random = ChaCha8Rng::seed_from_u64(0);
    for cut in count..=disk.ops() {
        let lasts = cut == disk.ops();
        let said = check(&open(&disk.crash(cut, &mut random)).1);
        assert!(said.iter().copied().eq(0..8) || !lasts && said.len() >= 6, "{cut}: {said:?}");
    }
}

/// Works on a journal. Returns its records after each step, and after how many disk operations which step
/// was durable.
fn work(disk: &Model, random: &mut ChaCha8Rng) -> (Vec<Vec<u8>>, Vec<(usize, usize)>) {
    let (mut journal, _) = open(disk);
    let mut states = vec![Vec::new()];
    let mut lasting = vec![(disk.ops(), 0)];
    for _ in 0..40 {
        let mut state = states.last().unwrap().clone();
        match random.random_range(0..14) {
            turn @ 12.. => {
                journal.write().unwrap();
                let lasts = journal.is_durable();
                disk.fail_syncs(Some(libc::EIO));
                assert_eq!(journal.sync().is_ok(), lasts);
                disk.fail_syncs(None);
                if turn == 13 {
                    // Another process saw the failed sync.
                    journal = open(disk).0;
                }
            }
            0..8 => {
                let n = random.random_range(0..200);
                append(&mut journal, n);
                state.push(n);
                states.push(state);
            }
            8 => journal.write().unwrap(),
            9 | 10 => {
                journal.write().unwrap();
                journal.sync().unwrap();
                lasting.push((disk.ops(), states.len() - 1));
            }
            _ => {
                journal.write().unwrap();
                state.truncate(3);
                journal
                    .rewrite(|next| Ok(state.iter().map(|n| append(next, *n)).collect::<Vec<_>>()))
                    .unwrap();
                states.push(state);
                lasting.push((disk.ops(), states.len() - 1));
            }
        }
    }
    (states, lasting)
}

#[test]
fn crash_images() {
    let mut images = 0;
    for seed in 0..40 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let disk = Model::default();
        let (states, lasting) = work(&disk, &mut random);
        for cut in 1..=disk.ops() {
            let image = disk.crash(cut, &mut random);
            let last = lasting.iter().rfind(|(ops, _)| *ops <= cut).map_or(0, |(_, state)| *state);
            for _ in 0..2 {
                let said = check(&open(&image).1);
                let was = states[last..].contains(&said);
                assert!(was, "seed {seed}, cut {cut}: {said:?} never was since step {last}");
            }
            images += 1;
        }
    }
    println!("{images} crash images");
    assert!(images > 500);
}

/// Pinned bytes can be loaded into memory before they are read, in pieces on a real disk. Bytes that the
/// file does not have cannot.
#[test]
fn what_is_pinned_is_there_before_it_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let disks: [Arc<dyn Disk>; 2] =
        [Arc::new(Model::default()), Arc::new(Directory::open(directory.path(), false).unwrap())];
    for disk in disks {
        let mut journal = Journal::open(disk, |_, _| ()).unwrap();
        let pinned = [1, 4096, 300_000].map(|n| journal.append(b"x", &vec![7; n]).unwrap());
        journal.write().unwrap();
        pinned.iter().for_each(|pinned| pinned.warm().unwrap());
        assert!(pinned[2].read().unwrap() == vec![7; 300_000]);
        pinned[2].log.blob.cut(pinned[2].offset + 4096).unwrap();
        assert!(pinned[2].warm().is_err() && pinned[1].warm().is_ok());
    }
}

/// The kernel decides whether the page cache has the bytes. Bytes that are found there must be right.
#[test]
fn what_is_read_at_once_is_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Directory::open(directory.path(), false).unwrap());
    let mut journal = Journal::open(disk, |_, _| ()).unwrap();
    let whole = vec![7; 100_000];
    let pinned = journal.append(b"x", &whole).unwrap();
    assert_eq!(pinned.read_now(), None, "it has not been written");
    journal.write().unwrap();
    // As the kernel answers for the same bytes: some filesystems never answer.
    let at = pinned.log.blob.peek_at(&mut [0; 100_000], pinned.offset);
    assert_eq!(pinned.read_now(), at.then_some(whole));
    let file = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"?", pinned.offset + 50_000).unwrap();
    assert_eq!(pinned.read_now(), None, "it is damaged");
    // A disk that does not say whether it would wait gives nothing.
    let (mut journal, _) = open(&Model::default());
    let pinned = append(&mut journal, 2);
    journal.write().unwrap();
    assert_eq!((pinned.read_now(), pinned.read().unwrap()), (None, bytes(2)));
}
