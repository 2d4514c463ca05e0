//! Who syncs a file that takes something.
//!
//! Goal: what `fsync` says is true: what was written is there after a kill of the daemon, with the file
//! still open; where the disk does not take it, `fsync` and the close say so. Method: codes and scores
//! in pieces that end anywhere, daemons that are killed, and a disk that is full.

use std::os::fd::IntoRawFd;

use super::*;

fn append_to(file: &Path) -> fs::File {
    fs::OpenOptions::new().append(true).open(file).unwrap()
}

fn code(number: u64) -> Vec<u8> {
    [number.to_le_bytes().to_vec(), content(number, 100)].concat()
}

#[test]
fn what_was_synced_is_there_after_a_kill() {
    let ground = ground();
    let sets = ["rehearsal.old.latent=100", "rehearsal.old.policy=max-loss"];
    let mounted = mount(&ground, &sets);
    read_class(&mounted, "train/a");
    wait_for_offers(&ground, FILES);
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
    wait_until("the end of the daemon", || !runs(mounted.pid));
    drop((codes, scores));
    let again = mount(&ground, &sets);
    drop(mounted);
    let view = again.path("rehearsal/old");
    assert_eq!(ids(&view), numbers(50));
    let all: Vec<u8> = (0..50).flat_map(|n| content(n, 100)).collect();
    assert!(fs::read(view.join("latent/all")).unwrap() == all);
    let (_, known) =
        rehearse(&ground, "show", &["old", &format!("train/a/{}", held[0]), "--json"], "");
    assert_eq!(serde_json::from_str::<Value>(&known).unwrap()["score"], 7.5);
    again.umount();
}

#[test]
fn a_full_disk_is_no_success() {
    let ground = ground();
    let tiny = Tmpfs::new(&ground, "tiny", "size=8M,mode=700");
    let mounted = on_tiny_disk(&ground, &tiny);
    read_class(&mounted, "train/a");
    wait_for_offers(&ground, FILES);
    let view = mounted.path("rehearsal/old");
    let held = epoch(&view, 0)["a"].clone();
    let other = fill(&tiny);
    let lines: String = (0..100)
        .flat_map(|turn| held.iter().map(move |name| format!("train/a/{name} {turn}\n")))
        .collect();
    // A few wait for the disk, which is no error before somebody wants them to last; when many
    // wait, no more are taken.
    let mut few = append_to(&view.join("scores"));
    few.write_all(lines.as_bytes()).unwrap();
    fails(few.sync_all(), Errno::ENOSPC as i32);
    drop(few);
    let close = || {
        let mut file = append_to(&view.join("scores"));
        file.write_all(lines.as_bytes()).unwrap();
        nix::unistd::close(file.into_raw_fd())
    };
    wait_until("no more are taken", || close() == Err(Errno::ENOSPC));
    assert!(stats(&ground)["why"].to_string().contains("disk takes nothing"));
    other.set_len(0).unwrap();
    wait_until("there is room again", || close() == Ok(()));
    append_to(&view.join("scores")).sync_all().unwrap();
    mounted.umount();
}
