//! A change of a scenario, as people write it.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::Job;
use super::fitted::PROCESSORS_MIN;
use crate::config::{Bytes, Size};
use crate::error::{Error, ErrorKind};
use crate::plan::{RAM, Settings, Tier};
use crate::sim::Scenario;

/// What may be different.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// RAM of so many bytes, or of a share of the data.
    Ram(Size),
    /// A cache disk of so many bytes, or of a share of the data, and how many bytes it gives and takes a second. Without the
    /// latter: as fast as the present one.
    Disk(Size, Option<u64>),
    /// Latencies of the source, as multiples of what they are.
    Latency(f64),
    /// The bandwidth of the source, as a multiple of what it is.
    Link(f64),
    /// The workers of the loader, of each rank.
    Workers(u32),
    /// The processors of the machine.
    Cores(u32),
    /// The order is told, and samples are read ahead.
    OrderTold,
}

/// Why a change cannot be made.
const NO_DISK: &str =
    "nothing was read from a cache disk, so its speed is not known; give it, as in disk=50%@500MB";
const NO_PROCESSORS: &str = "it is not known how the workers share the processors: workers used none, or belady may not \
                             use all processors of the machine, or others used them at other times";

/// What can be written.
const HINT: &str = "write ram=50% or ram=64GiB, disk=100%@2GB (its size, and bytes a second), latency=0.5, link=2, \
                    workers=8, cores=16, or order=told; several in one, with commas between them, are made together";

/// Workers and processors that can be written.
const COUNT_MAX: u32 = 1024;

impl FromStr for Change {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong =
            || Error::new(ErrorKind::Usage, format!("--what-if {text}: not a change")).hint(HINT);
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let size = |value| -> Result<Size, Error> {
            let value = StrDeserializer::<ValueError>::new(value);
            let size = Size::deserialize(value).map_err(|_| wrong())?;
            if size == Size::Auto { Err(wrong()) } else { Ok(size) }
        };
        let rate = |value| match size(value)? {
            Size::Bytes(Bytes(rate)) if rate > 0 => Ok(rate),
            _ => Err(wrong()),
        };
        let count = || -> Result<u32, Error> {
            let count = value.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
            count.ok_or_else(wrong)
        };
        let factor = || -> Result<f64, Error> {
            let factor: f64 = value.parse().map_err(|_| wrong())?;
            if (0.001..=1000.0).contains(&factor) { Ok(factor) } else { Err(wrong()) }
        };
        Ok(match name {
            "ram" => Change::Ram(size(value)?),
            "disk" => match value.split_once('@') {
                Some((value, speed)) => Change::Disk(size(value)?, Some(rate(speed)?)),
                None => Change::Disk(size(value)?, None),
            },
            "latency" => Change::Latency(factor()?),
            "link" => Change::Link(factor()?),
            "workers" => Change::Workers(count()?),
            "cores" => Change::Cores(count()?),
            "order" if value == "told" => Change::OrderTold,
            _ => return Err(wrong()),
        })
    }
}

impl Change {
    /// Changes that are made together, with commas between them.
    ///
    /// # Errors
    /// If one of them is none.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, Error> {
        text.split(',').map(str::parse).collect()
    }

    /// # Errors
    /// Why it cannot be made.
    pub(super) fn make(self, scenario: &mut Scenario, job: &Job) -> Result<(), &'static str> {
        let Scenario { layout, settings: Settings { tiers, .. }, machine, .. } = scenario;
        match self {
            Change::Ram(size) => {
                tiers[RAM].capacity = room(size, layout.pages_bytes_of_all(), job.scale)
            }
            Change::Disk(size, rate) => {
                let capacity = room(size, layout.stored_bytes_of_all(), job.scale);
                let block_us = match (rate, job.setup.disk_read_s) {
                    _ if capacity == 0 => 0,
                    (Some(_), _) => 0,
                    (None, Some(seconds)) => (seconds * 1e6) as u64,
                    (None, None) => return Err(NO_DISK),
                };
                tiers.truncate(RAM + 1);
                tiers.push(Tier { capacity, block_us });
                machine.disk_bandwidth = rate.unwrap_or(0);
            }
            Change::Cores(count) => {
                if scenario.readers.iter().all(|reader| reader.run_us == 0) {
                    return Err(NO_PROCESSORS);
                }
                let more = f64::from(count) - f64::from(job.setup.processors);
                machine.processors = (machine.processors + more).max(PROCESSORS_MIN);
            }
            Change::Latency(factor) => {
                let latency = &mut scenario.source.latency_us;
                *latency = (*latency as f64 * factor) as u64;
            }
            Change::Link(factor) => {
                let bandwidth = &mut scenario.source.bandwidth;
                *bandwidth = (*bandwidth as f64 * factor) as u64;
            }
            Change::Workers(workers) => {
                scenario.readers.iter_mut().for_each(|reader| reader.workers = workers);
            }
            Change::OrderTold => {
                scenario.known = true;
                scenario.settings.prefetch = true;
            }
        }
        Ok(())
    }
}

/// Bytes of a size, if the real dataset is so many times as large as all of this one. Samples on their way need room, too.
fn room(size: Size, all: u64, scale: f64) -> u64 {
    match size {
        Size::Percent(share) if share >= 100.0 => all * 2,
        Size::Bytes(Bytes(bytes)) => (bytes as f64 / scale) as u64,
        size => size.of(all).unwrap_or_default(),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |size: Size| match size {
            Size::Auto => "auto".to_owned(),
            Size::Bytes(bytes) => bytes.human(),
            Size::Percent(share) => format!("{share} % of the data"),
        };
        match self {
            Change::Ram(bytes) => write!(f, "RAM for {}", size(*bytes)),
            Change::Disk(bytes, None) => write!(f, "a cache disk for {}", size(*bytes)),
            Change::Disk(bytes, Some(rate)) => {
                write!(f, "a cache disk for {} at {}/s", size(*bytes), Bytes(*rate).human())
            }
            Change::Latency(factor) => write!(f, "{factor} times the latency"),
            Change::Link(factor) => write!(f, "{factor} times the bandwidth"),
            Change::Workers(workers) => write!(f, "{workers} workers"),
            Change::Cores(count) => write!(f, "{count} processors"),
            Change::OrderTold => write!(f, "the order told"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_written_as_people_say_them() {
        for (text, words) in [
            ("ram=50%", "RAM for 50 % of the data"),
            ("latency=0.5", "0.5 times the latency"),
            ("link=2", "2 times the bandwidth"),
            ("workers=4", "4 workers"),
            ("cores=16", "16 processors"),
            ("disk=40%", "a cache disk for 40 % of the data"),
            ("disk=8GiB@2GB", "a cache disk for 8 GiB at 1.9 GiB/s"),
            ("order=told", "the order told"),
        ] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), words);
        }
        let both = Change::parse_all("ram=100%,workers=4").unwrap();
        assert_eq!(both, [Change::Ram(Size::Percent(100.0)), Change::Workers(4)]);
    }

    #[test]
    fn what_is_no_change_is_refused_with_what_would_be_one() {
        for wrong in [
            "",
            "ram",
            "ram=",
            "ram=auto",
            "ram=-1",
            "link=0",
            "link=nan",
            "workers=0",
            "cores=0",
            "disk=@1GB",
            "disk=1GB@",
            "disk=1GB@50%",
            "disk=1GB@0",
            "order=x",
            "a=b",
        ] {
            let refused = wrong.parse::<Change>().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Usage, "{wrong}");
            assert!(refused.to_string().contains("latency=0.5"), "{refused}");
        }
    }
}
