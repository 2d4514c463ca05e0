//! Codes that a trainer keeps.
//!
//! Goal: appended codes are read back by number, by place and mapped, and are replaced if they are given
//! again, also after kills. An incomplete code is refused as a whole and named. Method: codes whose bytes
//! follow from their number and the turn in which they were written.

use std::os::fd::IntoRawFd;

use super::*;
use crate::refused::mount_refused;

/// Bytes of a code: seven by seven features of 32 bytes.
const BYTES: usize = 1568;

fn code(number: u64, turn: u64) -> Vec<u8> {
    content((turn << 32) + number, BYTES)
}

/// The bytes that are written for these numbers in a turn.
fn written(numbers: impl IntoIterator<Item = u64>, turn: u64) -> Vec<u8> {
    let one = |number: u64| [number.to_le_bytes().to_vec(), code(number, turn)].concat();
    numbers.into_iter().flat_map(one).collect()
}

fn mount_latent(fixture: &Fixture, sets: &[&str]) -> Mounted {
    mount(fixture, &[&["rehearsal.old.latent=1568"], sets].concat())
}

/// Writes in pieces that end anywhere, and returns the result of the close.
fn append(latent: &Path, bytes: &[u8]) -> nix::Result<()> {
    let mut file = fs::OpenOptions::new().append(true).open(latent.join("append")).unwrap();
    for piece in bytes.chunks(1_000_003) {
        file.write_all(piece).unwrap();
    }
    nix::unistd::close(file.into_raw_fd())
}

/// The numbers in their order, and all codes.
fn read(latent: &Path) -> (Vec<u64>, Vec<u8>) {
    let ids = fs::read(latent.join("ids")).unwrap();
    let ids = ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect();
    (ids, fs::read(latent.join("all")).unwrap())
}

/// The numbers in their order. `all` and each single code must agree with the turn of each number.
#[track_caller]
fn check(latent: &Path, turn_of: impl Fn(u64) -> u64) -> Vec<u64> {
    let (ids, all) = read(latent);
    assert_eq!(all.len(), ids.len() * BYTES);
    for (id, found) in ids.iter().zip(all.chunks(BYTES)) {
        let expected = code(*id, turn_of(*id));
        assert!(found == expected, "{id} in all");
        assert!(fs::read(latent.join(id.to_string())).unwrap() == expected, "{id}");
    }
    ids
}

#[test]
fn codes_are_kept_replaced_and_there_again() {
    let fixture = fixture();
    let mounted = mount_latent(&fixture, &[]);
    let latent = mounted.path("rehearsal/old/latent");
    assert!(check(&latent, |_| 0).is_empty());
    append(&latent, &written(0..3000, 0)).unwrap();
    append(&latent, &written([1 << 40, u64::MAX], 0)).unwrap();
    assert!(check(&latent, |_| 0).into_iter().eq((0..3000).chain([1 << 40, u64::MAX])));
    let mut before = fs::File::open(latent.join("all")).unwrap();
    append(&latent, &written((0..3000).step_by(7).chain([5000]), 1)).unwrap();
    let turn_of = |id: u64| u64::from(id < 3000 && id.is_multiple_of(7) || id == 5000);
    let ids = check(&latent, turn_of);
    assert!(ids.iter().copied().eq((0..3000).chain([1 << 40, u64::MAX, 5000])));
    let mut bytes = Vec::new();
    before.read_to_end(&mut bytes).unwrap();
    let was: Vec<u8> = ids[..3002].iter().flat_map(|id| code(*id, 0)).collect();
    assert!(bytes == was, "what is open stays what it was");
    assert_eq!(before.metadata().unwrap().len(), was.len() as u64);
    let mut listed: Vec<_> =
        fs::read_dir(&latent).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    assert_eq!(listed, ["all", "append", "ids"]);
    for missing in ["3001", "00", "+1", "-1", "x", "18446744073709551616", "1/2"] {
        fs::metadata(latent.join(missing)).unwrap_err();
    }
    fails(fs::metadata(latent.join("3001")), Errno::ENOENT as i32);
    let open = |name| fs::OpenOptions::new().write(true).open(latent.join(name));
    fails(open("all"), Errno::EROFS as i32);
    assert!(fs::read(latent.join("append")).is_err(), "there is nothing to read");
    drop(before);
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    let again = mount_latent(&fixture, &["rehearsal.old.size=5"]);
    drop(mounted);
    assert_eq!(check(&again.path("rehearsal/old/latent"), turn_of), ids);
    again.umount();
    // Codes of another size do not go together with these.
    let cache = fixture.path("cache");
    let other = ["--cache-dir", cache.to_str().unwrap(), "--set", "rehearsal.old.latent=99"];
    mount_refused(&fixture, &other, 5, &["codes of 1568 bytes are there, not of 99", "latent"]);
}

#[test]
fn incomplete_codes_are_refused_and_named() {
    let fixture = fixture();
    let mounted = mount_latent(&fixture, &["rehearsal.new.size=5"]);
    let latent = mounted.path("rehearsal/old/latent");
    append(&latent, &written(0..4, 0)).unwrap();
    assert_eq!(append(&latent, &written(0..4, 1)[1..]), Err(Errno::EINVAL));
    assert_eq!(append(&latent, b"x"), Err(Errno::EINVAL));
    append(&latent, b"").unwrap();
    assert_eq!(check(&latent, |_| 0), [0, 1, 2, 3]);
    // A process that is started meanwhile closes its copy of the descriptor.
    let mut file = fs::OpenOptions::new().append(true).open(latent.join("append")).unwrap();
    let bytes = written(2..9, 1);
    file.write_all(&bytes[..2000]).unwrap();
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert_eq!(fs::metadata(latent.join("ids")).unwrap().len(), 4 * 8);
    file.write_all(&bytes[2000..]).unwrap();
    nix::unistd::close(file.into_raw_fd()).unwrap();
    assert_eq!(check(&latent, |id| u64::from(id >= 2)), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    // More bytes at once than are kept in memory.
    let mut file = fs::OpenOptions::new().append(true).open(latent.join("append")).unwrap();
    let error = (0..65).find_map(|_| file.write_all(&vec![0; 1 << 20]).err()).unwrap();
    assert_eq!(error.raw_os_error(), Some(Errno::EFBIG as i32));
    assert_eq!(nix::unistd::close(file.into_raw_fd()), Err(Errno::EFBIG));
    let told = stats_of(&fixture, "old")["latent"].take();
    assert_eq!((&told["codes"], &told["bytes_each"]), (&9.into(), &BYTES.into()));
    assert_eq!((&told["appended"], &told["refused"]), (&11.into(), &2.into()));
    let why = told["why"][0].as_str().unwrap();
    assert_eq!(why, "latent/append: 6303 bytes are no multiple of 8 + 1568");
    let (_, said) = rehearse(&fixture, "stats", &[], "");
    assert!(said.contains("9 codes of 1568 bytes") && said.contains(why), "{said}");
    assert!(stats_of(&fixture, "new")["latent"].is_null());
    fails(fs::metadata(mounted.path("rehearsal/new/latent")), Errno::ENOENT as i32);
    mounted.umount();
}

fn stats_of(fixture: &Fixture, name: &str) -> Value {
    let (code, text) = rehearse(fixture, "stats", &["--json"], "");
    assert_eq!(code, Some(0), "{text}");
    let stats: Value = serde_json::from_str(&text).unwrap();
    let found = stats.as_array().unwrap().iter().find(|buffer| buffer["name"] == name);
    found.unwrap().clone()
}

/// Codes that are written at the same time are all there, and a code that is read meanwhile is whole.
#[test]
fn eight_trainers_append_and_read() {
    let fixture = fixture();
    let mounted = mount_latent(&fixture, &[]);
    let latent = mounted.path("rehearsal/old/latent");
    std::thread::scope(|scope| {
        for trainer in 0..8_u64 {
            let latent = &latent;
            scope.spawn(move || {
                for turn in 0..10 {
                    let first = 1000 * trainer + 20 * turn;
                    append(latent, &written(first..first + 20, 0)).unwrap();
                    // Others may have appended since the numbers were read. Their codes come after these.
                    let (ids, all) = read(latent);
                    assert!(all.len() >= ids.len() * BYTES);
                    let own = ids.iter().filter(|id| *id / 1000 == trainer).count();
                    assert_eq!(own as u64, 20 * (turn + 1), "what was closed is there");
                    for (id, found) in ids.iter().zip(all.chunks(BYTES)) {
                        assert!(found == code(*id, 0), "{id}");
                    }
                }
            });
        }
    });
    assert_eq!(check(&latent, |_| 0).len(), 1600);
    mounted.umount();
}

/// Numpy writes, reads and maps codes, as a trainer does.
#[test]
fn numpy_appends_and_maps_codes() {
    let fixture = fixture();
    let mounted = mount_latent(&fixture, &[]);
    let script = "import os, sys\n\
        import numpy as np\n\
        root = sys.argv[1] + '/'\n\
        code = np.dtype([('id', '<u8'), ('code', 'u1', 1568)])\n\
        random = np.random.default_rng(5)\n\
        batch = np.zeros(2048, code)\n\
        batch['id'] = random.permutation(10**6)[:2048]\n\
        batch['code'] = random.integers(0, 256, (2048, 1568))\n\
        with open(root + 'append', 'wb') as append: append.write(batch.tobytes())\n\
        ids = np.fromfile(root + 'ids', '<u8')\n\
        codes = np.memmap(root + 'all', 'u1', 'r').reshape(-1, 1568)\n\
        print((ids == batch['id']).all(), (codes == batch['code']).all())\n\
        chosen = random.integers(0, 2048, 512)\n\
        fd = os.open(root + 'all', os.O_RDONLY)\n\
        read = [os.pread(fd, 1568, 1568 * int(at)) for at in chosen]\n\
        print(b''.join(read) == batch['code'][chosen].tobytes(), (codes[chosen] == batch['code'][chosen]).all())\n\
        batch['code'] += 1\n\
        with open(root + 'append', 'wb') as append: append.write(batch[:512].tobytes())\n\
        later = np.memmap(root + 'all', 'u1', 'r').reshape(-1, 1568)\n\
        print((later[:512] == batch['code'][:512]).all(), (later[512:] == codes[512:]).all(), \
              (later[:512] == codes[:512]).any(axis=1).all())";
    let latent = mounted.path("rehearsal/old/latent");
    let mut program = Program::python(script, &[latent.to_str().unwrap()]);
    assert_eq!(program.line(), "True True");
    assert_eq!(program.line(), "True True");
    assert_eq!(program.line(), "True True False");
    drop(program);
    mounted.umount();
}
