//! Orders of byte ranges: samples that are parts of shards.
//!
//! Goal: a sample that is a part of a large file is fetched ahead like a file of its own, and no byte is
//! fetched twice. Method: the ranges of a shard are read in a shuffled order that is told by a file, epoch
//! after epoch, from one descriptor and from one for each sample.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fixture::{Choice, Fixture, content, said, wait_until};
use crate::mounted::{Mounted, Slowpfs};

/// Samples, and bytes of each. No sample begins or ends at a block boundary.
const SAMPLES: usize = 96;
const BYTES: usize = 200_003;

fn shuffled_epochs(epochs: usize, count: usize) -> Vec<Vec<usize>> {
    let mut choice = Choice(11);
    let mut epoch = || {
        let mut samples: Vec<usize> = (0..count).collect();
        (1..count).rev().for_each(|at| samples.swap(at, choice.below(at as u64 + 1) as usize));
        samples
    };
    (0..epochs).map(|_| epoch()).collect()
}

/// Writes the order of samples of so many bytes, which follow each other in the shard.
fn write_order(to: &Path, epochs: &[Vec<usize>], bytes: usize) {
    let line = |sample: &usize| format!("shards/0.tar\t{}\t{bytes}\n", sample * bytes);
    let lines = |samples: &Vec<usize>| -> String { samples.iter().map(line).collect() };
    let text: String =
        (0..).zip(epochs).map(|(k, e)| format!("# epoch {k}\n{}", lines(e))).collect();
    fs::write(to, text).unwrap();
}

#[test]
fn ranges_of_a_shard_are_fetched_ahead_in_their_order() {
    let fixture = Fixture::new();
    let whole = content(5, SAMPLES * BYTES);
    fixture.write("shards/0.tar", &whole);
    let epochs = shuffled_epochs(3, SAMPLES);
    write_order(&fixture.path("order.txt"), &epochs, BYTES);
    let slow = Slowpfs::new(&fixture, &["--read-ms", "2"]);
    let order = fixture.path("order.txt");
    let options = ["--ram", "64MiB", "--order", order.to_str().unwrap()];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let shard = mounted.path("shards/0.tar");
    for (epoch, samples) in epochs.iter().enumerate() {
        let held = File::open(&shard).unwrap();
        let mut bytes = vec![0; BYTES];
        for &sample in samples {
            let own = (epoch > 0).then(|| File::open(&shard).unwrap());
            let file = own.as_ref().unwrap_or(&held);
            file.read_exact_at(&mut bytes, (sample * BYTES) as u64).unwrap();
            assert!(bytes == whole[sample * BYTES..][..BYTES], "epoch {epoch}, sample {sample}");
        }
    }
    let mut status = mounted.status();
    wait_until("nothing is on its way", || {
        status = mounted.status();
        status["fetching"] == 0 && status["source_bytes"].as_u64() >= Some(whole.len() as u64)
    });
    let count = |key: &str| status[key].as_u64().unwrap();
    assert!(count("prefetched") > count("demanded"), "{status}");
    assert_eq!(count("failed"), 0, "{status}");
    // Bytes are fetched again only if the kernel had taken their pages back.
    assert_eq!(count("source_bytes"), whole.len() as u64 + count("refetched_bytes"), "{status}");
    mounted.umount();
}

/// Samples of a shard of which RAM holds half.
const SLICES: usize = 240;
const SLICE: usize = 99_000;

/// A shard whose ranges are read in an order that is told.
struct Shard {
    fixture: Fixture,
    bytes: Vec<u8>,
    epochs: Vec<Vec<usize>>,
}

impl Shard {
    fn new(epochs: usize) -> Self {
        let (fixture, bytes) = (Fixture::new(), content(5, SLICES * SLICE));
        fixture.write("shards/0.tar", &bytes);
        let epochs = shuffled_epochs(epochs, SLICES);
        write_order(&fixture.path("order.txt"), &epochs, SLICE);
        Shard { fixture, bytes, epochs }
    }

    fn mount(&self, slow: &Slowpfs) -> Mounted {
        let order = self.fixture.path("order.txt");
        let options =
            ["--ram", "12MiB", "--set", "source.revalidate=1s", "--order", order.to_str().unwrap()];
        Mounted::at(&self.fixture, &slow.point, &self.fixture.path("mount"), &options)
    }

    fn path(&self) -> PathBuf {
        self.fixture.path("mount/shards/0.tar")
    }

    #[track_caller]
    fn read(&self, file: &File, sample: usize) {
        let mut bytes = vec![0; SLICE];
        file.read_exact_at(&mut bytes, (sample * SLICE) as u64).unwrap();
        assert!(bytes == self.bytes[sample * SLICE..][..SLICE], "sample {sample}");
    }
}

#[test]
fn ranges_of_a_shard_that_ram_does_not_hold_are_read_less_than_once_an_epoch() {
    let shard = Shard::new(5);
    let slow = Slowpfs::new(&shard.fixture, &["--read-ms", "2"]);
    let mounted = shard.mount(&slow);
    let held = File::open(shard.path()).unwrap();
    for samples in &shard.epochs {
        samples.iter().for_each(|sample| shard.read(&held, *sample));
    }
    let status = mounted.status();
    let count = |key: &str| status[key].as_u64().unwrap();
    // RAM has room for half of the samples, and for a page of their neighbours with each.
    let fetched = count("source_bytes") - count("refetched_bytes");
    let all = (shard.epochs.len() * shard.bytes.len()) as u64;
    assert!(fetched * 100 <= all * 95, "{fetched} of {all}: {status}");
    assert!(count("prefetched") > count("demanded"), "{status}");
    assert_eq!(status["orders"][0]["following"], true, "{status}");
    drop(held);
    mounted.umount();
}

/// Reads the shard through a map, sample after sample, and compares it with the source.
const MAPPED: &str = "
import mmap, sys
files = [open(path, 'rb') for path in sys.argv[1:3]]
there, here = (mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files)
size = int(sys.argv[3])
for sample in range(0, len(here) // size, 7):
    part = slice(sample * size, (sample + 1) * size)
    assert there[part] == here[part], sample
";

#[test]
fn a_shard_that_is_cut_is_read_in_any_way_and_as_it_is_now() {
    let shard = Shard::new(2);
    let slow = Slowpfs::new(&shard.fixture, &[]);
    let mounted = shard.mount(&slow);
    let held = File::open(shard.path()).unwrap();
    for sample in &shard.epochs[0][..SLICES / 2] {
        shard.read(&held, *sample);
    }
    assert!(fs::read(shard.path()).unwrap() == shard.bytes, "read whole");
    let source = shard.fixture.path("source/shards/0.tar");
    let mut mapped = Command::new("python3");
    mapped.args(["-c", MAPPED]).args([&shard.path(), &source]).arg(SLICE.to_string());
    assert!(mapped.stdin(Stdio::null()).status().unwrap().success());
    // Ranges that begin and end anywhere.
    let mut choice = Choice(3);
    for _ in 0..200 {
        let from = choice.below(shard.bytes.len() as u64 - 1) as usize;
        let mut bytes = vec![0; (1 + choice.below(300_000) as usize).min(shard.bytes.len() - from)];
        held.read_exact_at(&mut bytes, from as u64).unwrap();
        assert!(bytes == shard.bytes[from..][..bytes.len()], "{} from {from}", bytes.len());
    }

    // Another order cuts the shard anew.
    let other = shard.fixture.path("other.txt");
    write_order(&other, &shuffled_epochs(2, 200), SLICE + 5);
    fs::write(mounted.path(".belady/order"), format!("file:{}", other.display())).unwrap();
    for sample in &shard.epochs[1][..SLICES / 2] {
        shard.read(&held, *sample);
    }
    drop(held);

    // Another version of the same size.
    let changed = Shard { bytes: content(6, SLICES * SLICE), ..shard };
    changed.fixture.write("shards/0.tar", &changed.bytes);
    wait_until("the change is seen", || {
        fs::metadata(changed.path()).unwrap().modified().unwrap()
            == fs::metadata(&source).unwrap().modified().unwrap()
    });
    let held = File::open(changed.path()).unwrap();
    (0..SLICES).for_each(|sample| changed.read(&held, sample));
    drop(held);
    mounted.umount();
}

/// Trains over the rows of an array that is mapped. Words: where the array is, and epochs. A row begins with its
/// number.
const ROWS: &str = r#"
import sys, numpy as np, torch

class Rows(torch.utils.data.Dataset):
    rows = np.load(sys.argv[1], mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = np.array(self.rows[i])
        assert row[0] == i and row[1:].tobytes() == row[1:2].tobytes() * (len(row) - 1), i
        return i

generator = torch.Generator().manual_seed(7)
loader = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2, generator=generator)
for epoch in range(int(sys.argv[2])):
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(len(Rows.rows)))
"#;

const MAKE_ROWS: &str = "
import sys, numpy as np
rows = np.repeat(np.random.default_rng(1).integers(0, 1 << 62, 300), 9_000).reshape(300, 9_000)
rows[:, 0] = np.arange(300)
np.save(sys.argv[1], rows)
";

#[test]
fn rows_of_an_array_are_read_in_the_order_of_a_sampler() {
    const EPOCHS: u64 = 4;
    let fixture = Fixture::new();
    let array = fixture.path("source/rows.npy");
    let made = Command::new("/usr/bin/python3").args(["-c", MAKE_ROWS]).arg(&array).status();
    assert!(made.unwrap().success());
    let slow = Slowpfs::new(&fixture, &["--read-ms", "2"]);
    let options = ["--ram", "11MiB", "--order", "torch-random:seed=7,index=npy,count=300"];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let mut job = Command::new("/usr/bin/python3");
    job.args(["-c", ROWS]).arg(mounted.path("rows.npy")).arg(EPOCHS.to_string());
    let output = job.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let status = mounted.status();
    let order = &status["orders"][0];
    assert_eq!((&order["following"], &order["length"]), (&true.into(), &300.into()), "{status}");
    let count = |key: &str| status[key].as_u64().unwrap();
    let fetched = count("source_bytes") - count("refetched_bytes");
    let all = EPOCHS * fs::metadata(&array).unwrap().len();
    assert!(fetched * 100 <= all * 95, "{fetched} of {all}: {status}");
    assert!(count("prefetched") > count("demanded"), "{status}");
    mounted.umount();
}

#[test]
fn an_array_that_was_cut_off_is_refused_as_an_index() {
    let fixture = Fixture::new();
    let array = fixture.path("source/rows.npy");
    let made = Command::new("/usr/bin/python3").args(["-c", MAKE_ROWS]).arg(&array).status();
    assert!(made.unwrap().success());
    let whole = fs::read(&array).unwrap();
    fs::write(&array, &whole[..whole.len() - 1]).unwrap();
    let source = fixture.path("source");
    let said =
        fixture.run(3, &["order", "check", "sequential:index=npy", source.to_str().unwrap()]);
    assert!(
        said.contains(
            "rows.npy: its rows need 21600000 bytes, and after its header it has 21599999"
        ),
        "{said}"
    );
}

#[test]
fn samples_inside_large_files_are_listed_as_ranges() {
    let fixture = Fixture::new();
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/containers");
    for (name, index, count) in [
        ("shard.mds", "mds", 9),
        ("old.h5", "hdf5:in/chunks", 90),
        ("hf.arrow", "arrow:image", 25),
        ("values.lmdb", "lmdb", 149),
    ] {
        let bytes = fs::read(vectors.join(name)).unwrap();
        fixture.write(name, &bytes);
        fixture.write(&format!("again/{name}"), &bytes);
        let (source, to) = (fixture.path("source"), fixture.path(&format!("{name}.order")));
        let order = format!("sequential:index={index}");
        let paths = [source.to_str().unwrap(), "-o", to.to_str().unwrap()];
        fixture.run(0, &[&["order", "show", &order, "--epochs", "1"], &paths[..]].concat());
        let listed = fs::read_to_string(&to).unwrap();
        let lines: Vec<&str> = listed.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 2 * count, "{name}: the files are in the order of their paths");
        for (nth, line) in lines.into_iter().enumerate() {
            let path = if nth < count { format!("again/{name}") } else { name.to_owned() };
            let [found, offset, length] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let (offset, length): (usize, usize) =
                (offset.parse().unwrap(), length.parse().unwrap());
            let number = format!("{:08}", nth % count).into_bytes();
            let is_there = bytes[offset..][..length].windows(8).any(|window| window == number);
            assert!(found == path && is_there, "{name}: {line}");
        }
    }
}
