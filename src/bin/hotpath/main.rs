//! hotpath: measures what a sample costs its reader, without an interpreter.
//!
//! A tool for measurements. Readers go through the samples without pause, and each sample is timed. One line
//! of JSON has the median and the mean of a sample's nanoseconds, the time of all samples, and the CPU time of
//! this process. With one reader the process has one thread, as a loader's worker has.

mod neighbours;
mod reads;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};

use reads::Samples;

/// Times the reading of samples.
#[derive(Debug, Parser)]
#[command(name = "hotpath", version)]
struct Cli {
    /// How samples are read.
    mode: Mode,
    /// A directory (walk), a large file (shard-...), or for all other modes a file with one path a line.
    path: PathBuf,
    /// Threads that read, each taking every Nth sample.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = 1..=256)]
    readers: i64,
    /// Seed of the order of shard-random.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// open, fstat, read to the end, close.
    Read,
    /// open, fstat, map, touch every page, unmap, close.
    Mmap,
    /// open, fstat, close, and nothing is read.
    Open,
    /// Read to the end. Open and close are not timed.
    Pages,
    /// Ask whether it is a terminal, as Python's open() does for each file.
    Isatty,
    /// List every directory and ask for every entry's attributes. A sample is an entry.
    Walk,
    /// 128 KiB pieces of one file, in sequence.
    ShardSeq,
    /// 128 KiB pieces of one file, shuffled.
    ShardRandom,
    /// Time nothing, but tell which share of the pages of cached files lies in memory right before the next
    /// page of the file. Root only.
    Neighbours,
}

/// What one reader measured.
#[derive(Default)]
struct Timings {
    /// Nanoseconds of each sample, or the mean of a group of samples.
    ns: Vec<u64>,
    /// Nanoseconds of all samples.
    total_ns: u64,
    samples: u64,
    bytes: u64,
}

impl Timings {
    /// Times `work`, which returns its number of samples and of bytes.
    fn time(&mut self, work: impl FnOnce() -> io::Result<(u64, u64)>) -> io::Result<()> {
        let began = Instant::now();
        let (samples, bytes) = work()?;
        let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.total_ns += ns;
        self.samples += samples;
        self.bytes += bytes;
        if let Some(each) = ns.checked_div(samples) {
            self.ns.push(each);
        }
        Ok(())
    }

    fn add(&mut self, other: Timings) {
        self.ns.extend(other.ns);
        self.total_ns += other.total_ns;
        self.samples += other.samples;
        self.bytes += other.bytes;
    }

    fn median(&mut self) -> u64 {
        let middle = self.ns.len() / 2;
        if self.ns.is_empty() { 0 } else { *self.ns.select_nth_unstable(middle).1 }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hotpath: {}: {error}", cli.path.display());
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> io::Result<Value> {
    if cli.mode == Mode::Neighbours {
        return neighbours::measure(&reads::paths(&cli.path)?);
    }
    let samples = Samples::find(cli.mode, &cli.path, cli.seed)?;
    let readers = usize::try_from(cli.readers).unwrap_or(1);
    let cpu_before = cpu_us()?;
    let began = Instant::now();
    let mut timings = Timings::default();
    if readers == 1 {
        timings = samples.read(0, 1)?;
    } else {
        let all = thread::scope(|scope| {
            let samples = &samples;
            let reader = |first| scope.spawn(move || samples.read(first, readers));
            let threads: Vec<_> = (0..readers).map(reader).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        for one in all {
            timings.add(one.map_err(|_| io::Error::other("a reader panicked"))??);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(json!({
        "readers": readers,
        "samples": timings.samples,
        "bytes": timings.bytes,
        "seconds": seconds,
        "p50_ns": timings.median(),
        "mean_ns": timings.total_ns as f64 / timings.samples.max(1) as f64,
        "cpu_us": cpu_us()? - cpu_before,
    }))
}

/// CPU time of this process in microseconds.
fn cpu_us() -> io::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok(usage.user_time().num_microseconds() + usage.system_time().num_microseconds())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn measured(mode: Mode, path: PathBuf, readers: i64) -> Value {
        run(&Cli { mode, path, readers, seed: 1 }).expect("it reads")
    }

    #[test]
    fn every_mode_reads_each_sample_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (data, list) = (dir.path().join("data"), dir.path().join("list"));
        fs::create_dir_all(data.join("a/b")).expect("directories");
        let files = ["one", "a/two", "a/b/three"].map(|name| data.join(name));
        for (file, size) in files.iter().zip([1, 5_000, 300_000]) {
            fs::write(file, vec![7; size]).expect("a file");
        }
        let lines = files.each_ref().map(|file| file.display().to_string()).join("\n");
        fs::write(&list, lines).expect("a list");
        for readers in [1, 2] {
            for mode in [Mode::Read, Mode::Mmap] {
                let found = measured(mode, list.clone(), readers);
                assert_eq!((&found["samples"], &found["bytes"]), (&json!(3), &json!(305_001)));
                assert!(found["p50_ns"].as_u64() > Some(0));
            }
            for (mode, bytes) in [(Mode::Pages, 305_001), (Mode::Open, 0), (Mode::Isatty, 0)] {
                let found = measured(mode, list.clone(), readers);
                assert_eq!((&found["samples"], &found["bytes"]), (&json!(3), &json!(bytes)));
            }
            for mode in [Mode::ShardSeq, Mode::ShardRandom] {
                let found = measured(mode, files[2].clone(), readers);
                assert_eq!((&found["samples"], &found["bytes"]), (&json!(3), &json!(300_000)));
            }
        }
        assert_eq!(measured(Mode::Walk, data, 1)["samples"], 5);
    }

    #[test]
    fn neighbours_are_counted_by_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let (data, list) = (dir.path().join("data"), dir.path().join("list"));
        fs::write(&data, vec![7; 10 * 4096 + 1]).expect("a file");
        fs::write(dir.path().join("none"), "").expect("a file");
        let lines =
            ["data", "data", "none"].map(|name| dir.path().join(name).display().to_string());
        fs::write(&list, lines.join("\n")).expect("a list");
        let found = measured(Mode::Neighbours, list, 1);
        // Only root learns the numbers of pages.
        let pairs = found["pairs"].as_u64().expect("a number");
        assert_eq!(pairs, if nix::unistd::geteuid().is_root() { 20 } else { 0 });
        assert!(found["side_by_side"].as_u64() <= Some(pairs));
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let cli = Cli { mode: Mode::ShardSeq, path: "/no/such".into(), readers: 1, seed: 0 };
        assert!(run(&cli).is_err());
    }
}
