//! Written codes and scores last, or wait for the disk, or give an error.
//!
//! Goal: `fsync` tells the truth: what was written is there after a kill of the daemon, with the file still
//! open. If the disk does not take it, `fsync` and the close say so, and offers wait. Method: codes and
//! scores in pieces that end anywhere, daemons that are killed, and a full disk.

use std::os::fd::IntoRawFd;

use super::*;
use crate::refused::Tmpfs;

fn append_to(file: &Path) -> fs::File {
    fs::OpenOptions::new().append(true).open(file).unwrap()
}

fn code(number: u64) -> Vec<u8> {
    [number.to_le_bytes().to_vec(), content(number, 100)].concat()
}

#[test]
fn synced_codes_and_scores_survive_a_kill() {
    let fixture = fixture();
    let sets = ["rehearsal.old.latent=100", "rehearsal.old.policy=max-loss"];
    let mounted = mount(&fixture, &sets);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    let held = epoch(&view, 0)["a"].clone();
    let ids = |root: &Path| fs::read(root.join("latent/ids")).unwrap();
    let mut codes = append_to(&view.join("latent/append"));
    let bytes: Vec<u8> = (0..50).flat_map(code).collect();
    codes.write_all(&bytes[..bytes.len() - 1]).unwrap();
    assert!(ids(&view).is_empty(), "codes are taken at the close, or when they are synced");
    codes.sync_all().unwrap();
    let numbers = |n: u64| (0..n).flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    assert_eq!(ids(&view), numbers(49), "what is whole");
    codes.write_all(&bytes[bytes.len() - 1..]).unwrap();
    codes.sync_data().unwrap();
    codes.sync_data().unwrap();
    assert_eq!(ids(&view), numbers(50));
    codes.write_all(&code(50)).unwrap();
    let mut scores = append_to(&view.join("scores"));
    write!(scores, "train/a/{} 7.5\ntrain/a/{} 8", held[0], held[1]).unwrap();
    scores.sync_all().unwrap();
    fs::File::open(view.join("epoch-0/a").join(&held[0])).unwrap().sync_all().unwrap();
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    drop((codes, scores));
    let again = mount(&fixture, &sets);
    drop(mounted);
    let view = again.path("rehearsal/old");
    assert_eq!(ids(&view), numbers(50));
    let all: Vec<u8> = (0..50).flat_map(|n| content(n, 100)).collect();
    assert!(fs::read(view.join("latent/all")).unwrap() == all);
    let (_, known) =
        rehearse(&fixture, "show", &["old", &format!("train/a/{}", held[0]), "--json"], "");
    assert_eq!(serde_json::from_str::<Value>(&known).unwrap()["score"], 7.5);
    again.umount();
}

/// Mounts with a buffer of the latest 30 samples on a small disk of its own.
pub(super) fn on_tiny_disk(fixture: &Fixture, tiny: &Tmpfs) -> Mounted {
    // Not all of the source fits, so that none of it is stored before it is read. Stored samples that give
    // way to others would be room for samples of the buffer.
    fixture.write("val/large", &content(9, 2 << 20));
    let cache = ["--cache-dir", tiny.0.to_str().unwrap(), "--disk", "1MiB"];
    let sets = ["cache.min-free=0", "rehearsal.old.size=30", "rehearsal.old.policy=ring"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    Mounted::new(fixture, &cache.into_iter().chain(sets).collect::<Vec<_>>())
}

/// Takes all the space that is left on a disk, until the file is cut.
pub(super) fn fill(tiny: &Tmpfs) -> fs::File {
    let other = fs::File::create(tiny.0.join("other")).unwrap();
    let mut end = 0;
    while other.write_all_at(&[1; 4096], end).is_ok() {
        end += 4096;
    }
    other
}

/// Samples that are decided on a full disk are shown when there is room again, and in the next mount.
#[test]
fn a_full_disk_is_waited_for() {
    let fixture = fixture();
    let tiny = Tmpfs::new(&fixture, "tiny", "size=8M,mode=700");
    let mounted = on_tiny_disk(&fixture, &tiny);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    assert_eq!(counts(&epoch(&view, 0)), [("a", 30)]);
    let other = fill(&tiny);
    read_class(&mounted, "train/b");
    wait_for_offers(&fixture, 2 * FILES);
    // A page may have had room for some.
    assert!(epoch(&view, 1).values().flatten().count() < 10);
    assert_eq!(mounted.count("/read_errors"), 0);
    other.set_len(0).unwrap();
    assert_eq!(counts(&epoch(&view, 2)), [("b", 30)]);
    mounted.umount();
    let mounted = on_tiny_disk(&fixture, &tiny);
    assert_eq!(counts(&epoch(&mounted.path("rehearsal/old"), 0)), [("b", 30)]);
    mounted.umount();
}

#[test]
fn a_full_disk_is_no_success() {
    let fixture = fixture();
    let tiny = Tmpfs::new(&fixture, "tiny", "size=8M,mode=700");
    let mounted = on_tiny_disk(&fixture, &tiny);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    let held = epoch(&view, 0)["a"].clone();
    let other = fill(&tiny);
    let lines: String = (0..100)
        .flat_map(|turn| held.iter().map(move |name| format!("train/a/{name} {turn}\n")))
        .collect();
    // A few scores wait for the disk, and their writer is told. If many wait, no more are taken.
    let mut few = append_to(&view.join("scores"));
    few.write_all(lines.as_bytes()).unwrap();
    fails(few.sync_all(), Errno::ENOSPC as i32);
    drop(few);
    let close = || {
        let mut file = append_to(&view.join("scores"));
        file.write_all(lines.as_bytes()).unwrap();
        nix::unistd::close(file.into_raw_fd())
    };
    wait_until("no more are taken", || {
        assert_eq!(close(), Err(Errno::ENOSPC));
        stats(&fixture)["why"].to_string().contains("disk takes nothing")
    });
    other.set_len(0).unwrap();
    wait_until("there is room again", || close() == Ok(()));
    append_to(&view.join("scores")).sync_all().unwrap();
    mounted.umount();
}
