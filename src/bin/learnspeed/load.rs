//! Measures the time and the memory of parsing an order file.

use std::time::Instant;

use belady::ids::FileId;
use belady::order::file::parse;
use belady::order::{Entry, Listing, Order};
use clap::ValueEnum;
use serde_json::{Value, json};

/// The format of an order file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// 4-byte positions in the index order.
    Binary,
    /// Positions in decimal, one a line.
    Numbers,
    /// Paths, one a line.
    Paths,
}

/// Parses an order of `entries` samples, each once, in an order that looks random.
pub(super) fn run(format: Format, entries: u32) -> Result<Value, String> {
    let names: Vec<String> = match format {
        Format::Paths => {
            (0..entries).map(|n| format!("train/n{:05}/{n:08}.JPEG", n / 1_300)).collect()
        }
        Format::Binary | Format::Numbers => Vec::new(),
    };
    let entry = |n: u32| {
        let path = names.get(n as usize).map_or("", String::as_str);
        Entry { path: path.as_bytes(), file: FileId(n), size: 1 }
    };
    let listing = Listing::new((0..names.len() as u32).map(entry).collect());
    let text = text_of(format, entries, &names);
    let (resident, began) = (resident()?, Instant::now());
    let parsed =
        parse(&text, &listing, || Ok((0..entries).map(FileId).collect()), Some(entries.into()));
    let order = parsed.and_then(|parsed| Order::listed("file", parsed.epochs, parsed.samples));
    let seconds = began.elapsed().as_secs_f64();
    let order = order.map_err(|error| error.to_string())?;
    let bytes = self::resident()?.saturating_sub(resident);
    Ok(json!({
        "entries": order.epoch_len(0),
        "seconds": seconds,
        "bytes_per_entry": bytes as f64 / f64::from(entries),
        "last": order.epoch(0).last(),
    }))
}

/// The order file: every position once. The step and the number of positions are coprime.
fn text_of(format: Format, entries: u32, names: &[String]) -> Vec<u8> {
    let wanted = u64::from(entries) * 618 / 1_000;
    let step = (wanted.max(1)..).find(|step| gcd(*step, entries.into()) == 1).unwrap_or(1);
    let places = (0..u64::from(entries)).map(|n| (n * step % u64::from(entries)) as u32);
    match format {
        Format::Binary => places.flat_map(u32::to_le_bytes).collect(),
        Format::Numbers => places.flat_map(|place| format!("{place}\n").into_bytes()).collect(),
        Format::Paths => {
            places.flat_map(|place| [names[place as usize].as_bytes(), b"\n"].concat()).collect()
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Anonymous memory of this process, in bytes.
fn resident() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| "the kernel does not tell of memory".to_owned())
}
