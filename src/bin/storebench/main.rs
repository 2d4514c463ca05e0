//! storebench: measures what the local store costs, compared with plain files on the same disk.
//!
//! A tool for measurements. Samples have one size and bytes that do not compress. No data is in the
//! page cache before it is read. The tool prints one line of JSON.

mod plain;

use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use belady::disk::Directory;
use belady::source::Fingerprint;
use belady::store::{Key, Limits, ReadOutcome, Store, recorded_keys};
use clap::{Parser, ValueEnum};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::{Value, json};

/// Times the store, or plain files.
#[derive(Debug, Parser)]
#[command(name = "storebench", version)]
struct Cli {
    /// What is timed.
    what: What,
    /// A directory for this tool alone. It is made, or left from an earlier run.
    directory: PathBuf,
    /// Samples.
    #[arg(long, default_value_t = 4000)]
    samples: u64,
    /// Bytes of a sample.
    #[arg(long, default_value_t = 112_283)]
    bytes: usize,
    /// Threads that read.
    #[arg(long, default_value_t = 4)]
    readers: u64,
    /// A directory with a copy of the index as it was before a kill.
    #[arg(long, required_if_eq("what", "kept"))]
    before: Option<PathBuf>,
    /// Use the page cache and make it forget, instead of bypassing it.
    #[arg(long)]
    buffered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Write samples to a store, and sync it.
    Ingest,
    /// Write samples to a file each, and sync the filesystem.
    PlainIngest,
    /// Read the samples of a store in a random order.
    Read,
    /// Read the files in a random order.
    PlainRead,
    /// Open a store whose index is not in the page cache.
    Reopen,
    /// Fill a store, then go on while each sample replaces another.
    Full,
    /// Look in a store for each sample that was recorded before a kill.
    Kept,
}

/// Bytes that are written at once, as in a mount.
const BATCH_BYTES: usize = 4 << 20;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("storebench: {}: {error}", cli.directory.display());
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<Value> {
    fs::create_dir_all(&cli.directory)?;
    match cli.what {
        What::Ingest => {
            let store = open(cli, u64::MAX)?;
            timed(cli, cli.samples, || {
                put_all(cli, &store, 0..cli.samples)?;
                store.sync()
            })
        }
        What::PlainIngest => timed(cli, cli.samples, || plain::write(cli)),
        What::Read => {
            let store = open(cli, u64::MAX)?;
            timed(cli, cli.samples, || {
                read(cli, |number| match store.get(key(&store, number)) {
                    ReadOutcome::Whole(bytes) => check(cli, number, &bytes),
                    ReadOutcome::Missing | ReadOutcome::Damaged => {
                        Err(Error::other("a sample is not there"))
                    }
                })
            })
        }
        What::PlainRead => {
            plain::drop_pages(cli)?;
            timed(cli, cli.samples, || {
                read(cli, |number| check(cli, number, &plain::read(cli, number)?))
            })
        }
        What::Reopen => {
            drop_index_pages(&cli.directory)?;
            let start = Instant::now();
            let store = open(cli, u64::MAX)?;
            let seconds = start.elapsed().as_secs_f64();
            Ok(json!({ "seconds": seconds, "entries": store.totals().0 }))
        }
        What::Full => full(cli),
        What::Kept => kept(cli),
    }
}

fn timed(cli: &Cli, samples: u64, work: impl FnOnce() -> Result<()>) -> Result<Value> {
    let start = Instant::now();
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = samples * cli.bytes as u64;
    Ok(json!({ "seconds": seconds, "bytes": bytes, "samples": samples }))
}

fn open(cli: &Cli, bytes: u64) -> Result<Store> {
    let disk = Arc::new(Directory::open(&cli.directory, !cli.buffered)?);
    Store::open(disk, Limits { bytes, ..Limits::new(bytes.min(1 << 36), 0) }, 1)
}

fn key(store: &Store, number: u64) -> Key {
    store.key(Path::new("sample"), &Fingerprint([7; 40]), number)
}

/// Bytes that do not compress. Each sample is another piece of them.
fn noise(cli: &Cli) -> Vec<u8> {
    let mix = |word: u64| (word ^ 0x5bd1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    let words = (0..(cli.bytes as u64 + 8192) / 8 + 1).map(|word| mix(mix(word)));
    words.flat_map(u64::to_le_bytes).collect()
}

fn sample<'a>(cli: &Cli, noise: &'a [u8], number: u64) -> &'a [u8] {
    &noise[number as usize % 8192..][..cli.bytes]
}

fn check(cli: &Cli, number: u64, bytes: &[u8]) -> Result<()> {
    // Only the length is checked here. The store checks the bytes.
    let whole = bytes.len() == cli.bytes && !bytes.is_empty();
    if whole { Ok(()) } else { Err(Error::other(format!("sample {number} is not whole"))) }
}

fn put_all(cli: &Cli, store: &Store, numbers: std::ops::Range<u64>) -> Result<()> {
    let noise = noise(cli);
    let numbers: Vec<u64> = numbers.collect();
    for batch in numbers.chunks((BATCH_BYTES / cli.bytes).max(1)) {
        let samples: Vec<(Key, &[u8])> =
            batch.iter().map(|n| (key(store, *n), sample(cli, &noise, *n))).collect();
        if !store.put(&samples) {
            return Err(Error::other(format!("the store takes no more: {}", store.state())));
        }
    }
    Ok(())
}

/// Reads every sample once, in a nearly random order.
fn read(cli: &Cli, one: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicU64::new(0);
    // The factor is odd, and so coprime with every power of two: all numbers below the next power occur.
    let whole = cli.samples.next_power_of_two();
    let reader = || -> Result<()> {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= whole {
                return Ok(());
            }
            let number = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15 | 1) % whole;
            if number < cli.samples {
                one(number)?;
            }
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..cli.readers).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().try_for_each(|reader| {
            reader.join().unwrap_or_else(|_| Err(Error::other("a reader panicked")))
        })
    })
}

fn drop_index_pages(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("index-")) {
            let file = fs::File::open(path)?;
            file.sync_all()?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
    }
    Ok(())
}

/// Fills a store, then puts half as many samples again. Each of these replaces another sample.
fn full(cli: &Cli) -> Result<Value> {
    let whole = (cli.bytes as u64).next_multiple_of(4096) * cli.samples;
    let store = open(cli, whole)?;
    let half = cli.samples / 2;
    put_all(cli, &store, 0..half)?;
    store.sync()?;
    let start = Instant::now();
    put_all(cli, &store, half..cli.samples)?;
    store.sync()?;
    let before = start.elapsed().as_secs_f64();
    let batch = (BATCH_BYTES / cli.bytes).max(1) as u64;
    let start = Instant::now();
    let mut number = cli.samples;
    while number < cli.samples + half {
        let end = (number + batch).min(cli.samples + half);
        // Victims are scattered, as with a policy.
        let victim = |new: u64| (new - cli.samples).wrapping_mul(7919) % cli.samples;
        let gone: Vec<Key> = (number..end).map(|new| key(&store, victim(new))).collect();
        store.remove(&gone);
        put_all(cli, &store, number..end)?;
        number = end;
    }
    store.sync()?;
    let after = start.elapsed().as_secs_f64();
    Ok(json!({ "before_s": before, "full_s": after, "x_before": before / after,
        "bytes": half * cli.bytes as u64 }))
}

/// How many samples were recorded before a kill, and how many of these are not whole now.
fn kept(cli: &Cli) -> Result<Value> {
    let before = cli.before.as_deref().unwrap_or(&cli.directory);
    let recorded = recorded_keys(&Directory::open(before, false)?)?;
    let store = open(cli, u64::MAX)?;
    let is_lost = |key: &&Key| !matches!(store.get(**key), ReadOutcome::Whole(_));
    let lost = recorded.iter().filter(is_lost).count();
    Ok(json!({ "samples": recorded.len(), "lost": lost }))
}
