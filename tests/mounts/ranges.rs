//! Orders of byte ranges: samples that are parts of shards.
//!
//! Goal: a sample that is a part of a large file is fetched ahead like a file of its own, and no byte is
//! fetched twice. Method: the ranges of a shard are read in a shuffled order that is told by a file, epoch
//! after epoch, from one descriptor and from one for each sample.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::fixture::{Choice, Fixture, content, wait_until};
use crate::mounted::{Mounted, Slowpfs};

/// Samples, and bytes of each. No sample begins or ends at a block boundary.
const SAMPLES: usize = 96;
const BYTES: usize = 200_003;

#[test]
fn ranges_of_a_shard_are_fetched_ahead_in_their_order() {
    let fixture = Fixture::new();
    let whole = content(5, SAMPLES * BYTES);
    fixture.write("shards/0.tar", &whole);
    let mut choice = Choice(11);
    let epochs: [Vec<usize>; 3] = std::array::from_fn(|_| {
        let mut samples: Vec<usize> = (0..SAMPLES).collect();
        (1..SAMPLES).rev().for_each(|at| samples.swap(at, choice.below(at as u64 + 1) as usize));
        samples
    });
    let lines = |samples: &Vec<usize>| -> String {
        let line = |sample: &usize| format!("shards/0.tar\t{}\t{BYTES}\n", sample * BYTES);
        samples.iter().map(line).collect()
    };
    let text: String =
        (0..).zip(&epochs).map(|(k, e)| format!("# epoch {k}\n{}", lines(e))).collect();
    fs::write(fixture.path("order.txt"), text).unwrap();
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
