//! learnspeed: measures how fast belady finds out an order.
//!
//! A tool for measurements, on one thread. It prints one line of JSON.

mod load;
mod observe;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};

use belady::learn::crack::{Path, SeedSearch, Target};
use belady::order::samplers::torch::{generator, randperm};

/// Times the search for an order.
#[derive(Debug, Parser)]
#[command(name = "learnspeed", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The search for seeds.
    Crack {
        /// The instruction set.
        path: PathName,
        /// How many hypotheses are searched at the same time.
        #[arg(long, default_value_t = 1, value_parser = 1..=1024)]
        hypotheses: i64,
        /// Seeds to search, from 0.
        #[arg(long, default_value_t = 1 << 24)]
        seeds: u64,
    },
    /// Opens of a loader whose order is known.
    Observe {
        /// Samples of the dataset.
        #[arg(long, default_value_t = 1_000_000, value_parser = 1_000..=10_000_000)]
        samples: i64,
    },
    /// The parsing of an order file.
    Load {
        /// What the file holds.
        format: load::Format,
        /// Samples in the file.
        #[arg(long, default_value_t = 10_000_000, value_parser = 1..=100_000_000)]
        entries: i64,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PathName {
    Baseline,
    Avx2,
    Avx512,
}

/// The instruction set of a name, if this processor has it.
fn path_of(name: PathName) -> Result<Path, String> {
    let text = match name {
        PathName::Baseline => "baseline",
        PathName::Avx2 => "avx2",
        PathName::Avx512 => "avx512",
    };
    let path = Path::ALL.iter().copied().find(|path| path.name() == text && path.is_here());
    path.ok_or_else(|| format!("this processor has no {text}"))
}

fn main() -> ExitCode {
    let result = match Cli::parse().what {
        What::Crack { path, hypotheses, seeds } => {
            path_of(path).map(|path| crack(path, hypotheses, seeds))
        }
        What::Load { format, entries } => load::run(format, entries as u32),
        What::Observe { samples } => Ok(observe::run(samples as u32)),
    };
    match result {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("learnspeed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Searches for one seed per hypothesis. The seeds are beyond the searched range, and datasets have about
/// 100,000 files.
fn crack(path: Path, hypotheses: i64, seeds: u64) -> Value {
    let target = |number: i64| {
        let n = 100_003 + number as u32;
        let mut elements = randperm(n, &mut generator(u64::from(u32::MAX - number as u32)));
        elements.truncate(4);
        Target { n, skip: 0, place: 0, elements, reach: 8 }
    };
    let search = SeedSearch::new((0..hypotheses).map(target).collect());
    let began = Instant::now();
    let hits = search.run_on(path, 0..seeds).len();
    let seconds = began.elapsed().as_secs_f64();
    json!({
        "path": path.name(),
        "hypotheses": hypotheses,
        "seeds": seeds,
        "hits": hits,
        "seconds": seconds,
        "seeds_per_second": seeds as f64 / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_loader_is_followed_to_its_end() {
        let found = observe::run(20_000);
        assert_eq!(found["followed"], json!(true));
        let predicted = found["predicted"].as_u64();
        assert!((39_000..=40_000).contains(&predicted.unwrap()), "{found}");
    }

    #[test]
    fn every_format_is_parsed() {
        for format in load::Format::value_variants() {
            let found = load::run(*format, 10_000).unwrap();
            assert_eq!(found["entries"], json!(10_000), "{format:?}");
        }
    }

    #[test]
    fn every_path_is_measured() {
        for name in [PathName::Baseline, PathName::Avx2, PathName::Avx512] {
            let Ok(path) = path_of(name) else { continue };
            let found = crack(path, 2, 10_000);
            assert_eq!((&found["hits"], &found["seeds"]), (&json!(0), &json!(10_000)));
        }
    }
}
