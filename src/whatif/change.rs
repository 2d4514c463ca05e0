//! A change of a scenario, as people write it.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use crate::config::Size;
use crate::error::{Error, ErrorKind};
use crate::sim::Scenario;

/// What may be different.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// RAM of so many bytes, or of a share of the data.
    Ram(Size),
    /// Latencies of the source, as multiples of what they are.
    Latency(f64),
    /// The bandwidth of the source, as a multiple of what it is.
    Link(f64),
    /// The workers of the loader.
    Workers(u32),
    /// The order is told, and samples are read ahead.
    OrderTold,
}

/// What can be written.
const HINT: &str = "write ram=50% or ram=64GiB, latency=0.5, link=2, workers=8, or order=told; several in one, \
                    with commas between them, are made together";

impl FromStr for Change {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong =
            || Error::new(ErrorKind::Usage, format!("--what-if {text}: not a change")).hint(HINT);
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let size = || -> Result<Size, Error> {
            let value = StrDeserializer::<ValueError>::new(value);
            let size = Size::deserialize(value).map_err(|_| wrong())?;
            if size == Size::Auto { Err(wrong()) } else { Ok(size) }
        };
        let factor = || -> Result<f64, Error> {
            let factor: f64 = value.parse().map_err(|_| wrong())?;
            if (0.001..=1000.0).contains(&factor) { Ok(factor) } else { Err(wrong()) }
        };
        Ok(match name {
            "ram" => Change::Ram(size()?),
            "latency" => Change::Latency(factor()?),
            "link" => Change::Link(factor()?),
            "workers" => {
                let workers = value.parse().ok().filter(|workers| (1..=1024).contains(workers));
                Change::Workers(workers.ok_or_else(wrong)?)
            }
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

    pub(super) fn make(self, scenario: &mut Scenario) {
        let ram = scenario.layout.pages_bytes_of_all();
        let tiers = &mut scenario.settings.tiers;
        match self {
            // Samples on their way need room, too.
            Change::Ram(Size::Percent(share)) if share >= 100.0 => tiers[0].capacity = ram * 2,
            Change::Ram(size) => tiers[0].capacity = size.of(ram).unwrap_or_default(),
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
            Change::Latency(factor) => write!(f, "{factor} times the latency"),
            Change::Link(factor) => write!(f, "{factor} times the bandwidth"),
            Change::Workers(workers) => write!(f, "{workers} workers"),
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
            "order=x",
            "a=b",
        ] {
            let refused = wrong.parse::<Change>().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Usage, "{wrong}");
            assert!(refused.to_string().contains("latency=0.5"), "{refused}");
        }
    }
}
