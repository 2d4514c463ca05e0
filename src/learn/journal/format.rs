//! A journal as bytes.
//!
//! A header in JSON on one line describes the runs. All lists of numbers follow it, as little-endian `u32`.
//! The caller numbers the samples, and `numbering` shows whether the numbers still mean the same.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Journal, LISTS_MAX, MADE_MAX, Made, RUNS_MAX, Run, SAMPLES_MAX};
use crate::learn::origin::{Law, Lists, Origin, Outputs, STRIDES};
use crate::order::samplers::Sampler;

/// The most outputs of a generator that an origin may skip: more take too long to draw.
const OUTPUTS_MAX: u64 = 1 << 40;

#[derive(Serialize, Deserialize)]
struct Header {
    numbering: String,
    runs: Vec<RunHeader>,
    /// Lengths of the lists.
    lists: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
struct RunHeader {
    made: Vec<MadeHeader>,
    /// The numbers of its lists.
    lists: Vec<usize>,
    /// Whether the last list may be cut off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

#[derive(Serialize, Deserialize)]
struct MadeHeader {
    index: String,
    n: u32,
    seed: u32,
    skip: u64,
    /// Given in place of a seed of torch's permutation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sampler: Option<SamplerHeader>,
    law: LawHeader,
}

/// A sampler as a spec names it.
#[derive(Serialize, Deserialize)]
struct SamplerHeader {
    name: String,
    keys: Vec<(String, String)>,
    epoch: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LawHeader {
    Unknown,
    Same,
    Counting,
    Sampler,
    Continued {
        gap: u64,
    },
    Drawn {
        seed: u32,
        from: u64,
        /// The number of the list of outputs.
        values: usize,
    },
    Default {
        seed: u32,
        from: u64,
        /// The number of the list of outputs.
        values: usize,
        at: u64,
        stride: u64,
    },
}

/// See [`Journal::encode`].
pub(super) fn encode(journal: &Journal, numbering: u128) -> Vec<u8> {
    let mut lists: Vec<Arc<[u32]>> = Vec::new();
    let mut number = |list: &Arc<[u32]>| {
        let known = lists.iter().position(|known| Arc::ptr_eq(known, list));
        known.unwrap_or_else(|| {
            lists.push(Arc::clone(list));
            lists.len() - 1
        })
    };
    let mut runs = Vec::new();
    for run in &journal.runs {
        let made = run.made.iter().filter_map(|made| made_header(made, &mut number)).collect();
        let lists = run.lists.all.iter().map(&mut number).collect();
        runs.push(RunHeader { made, lists, cut: run.lists.is_cut });
    }
    let numbering = format!("{numbering:032x}");
    let header = Header { numbering, runs, lists: lists.iter().map(|l| l.len()).collect() };
    let mut bytes = serde_json::to_vec(&header).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend(lists.iter().flat_map(|list| list.iter()).flat_map(|n| n.to_le_bytes()));
    bytes
}

/// See [`Journal::decode`].
pub(super) fn decode(bytes: &[u8]) -> Result<(Journal, u128), String> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no header")?;
    let header: Header = serde_json::from_slice(&bytes[..end])
        .map_err(|error| format!("its header cannot be read: {error}"))?;
    let numbering = u128::from_str_radix(&header.numbering, 16)
        .map_err(|_| "its numbering cannot be read".to_owned())?;
    let (mut rest, other) = bytes[end + 1..].as_chunks::<4>();
    let numbers: usize = header.lists.iter().fold(0, |sum, &len| sum.saturating_add(len));
    if numbers != rest.len() || !other.is_empty() {
        return Err(format!("it should have {numbers} numbers and has {}", rest.len()));
    }
    let mut lists: Vec<Arc<[u32]>> = Vec::new();
    for &len in &header.lists {
        let (list, after) = rest.split_at(len);
        lists.push(list.iter().map(|number| u32::from_le_bytes(*number)).collect());
        rest = after;
    }
    let mut journal = Journal::default();
    for run in header.runs.iter().take(RUNS_MAX) {
        let made = run.made.iter().take(MADE_MAX + 2).filter_map(|made| read(made, &lists));
        let made = made.collect();
        let found = run.lists.iter().take(LISTS_MAX).filter_map(|&at| lists.get(at).cloned());
        let all = found.filter(|list| !list.is_empty()).collect();
        let lists = Lists { all, is_cut: run.cut, is_told: false };
        journal.runs.push(Run { made, lists, loader: None });
    }
    journal.bound();
    Ok((journal, numbering))
}

fn made_header(made: &Made, number: &mut impl FnMut(&Arc<[u32]>) -> usize) -> Option<MadeHeader> {
    let (seed, skip, sampler) = match &made.origin {
        Origin::Draw { seed, skip } => (*seed, *skip, None),
        Origin::Sampler { sampler, epoch } => {
            let (name, keys) = (sampler.name().to_owned(), sampler.shown_keys().into_iter());
            let keys = keys.map(|(key, value)| (key.to_owned(), value)).collect();
            (0, 0, Some(SamplerHeader { name, keys, epoch: *epoch }))
        }
        _ => return None,
    };
    let law = match &made.law {
        Law::Same => LawHeader::Same,
        Law::Counting => LawHeader::Counting,
        Law::Continued { gap } => LawHeader::Continued { gap: *gap },
        Law::Default { outputs: Outputs { seed, from, values }, at, stride } => {
            let (seed, from, values) = (*seed, *from, number(values));
            LawHeader::Default { seed, from, values, at: *at, stride: *stride }
        }
        Law::Drawn { outputs, at } => {
            let Outputs { seed, from, values } = outputs.since(at + 1);
            LawHeader::Drawn { seed, from, values: number(&values) }
        }
        Law::Sampler => LawHeader::Sampler,
        Law::Unknown | Law::Shuffled(_) | Law::Listed => LawHeader::Unknown,
    };
    Some(MadeHeader { index: made.index.clone(), n: made.n, seed, skip, sampler, law })
}

/// The origin that a header describes, if that is possible.
fn read(made: &MadeHeader, lists: &[Arc<[u32]>]) -> Option<Made> {
    let law = match made.law {
        LawHeader::Unknown => Law::Unknown,
        LawHeader::Same => Law::Same,
        LawHeader::Counting => Law::Counting,
        LawHeader::Sampler => Law::Sampler,
        LawHeader::Continued { gap } if gap <= OUTPUTS_MAX => Law::Continued { gap },
        LawHeader::Default { seed, from, values, at, stride } => {
            let strides = 2 * STRIDES.start()..=2 * STRIDES.end();
            if from > OUTPUTS_MAX || at > OUTPUTS_MAX || !strides.contains(&stride) {
                return None;
            }
            let values = Arc::clone(lists.get(values)?);
            Law::Default { outputs: Outputs { seed, from, values }, at, stride }
        }
        LawHeader::Drawn { seed, from, values } if (1..=OUTPUTS_MAX).contains(&from) => {
            let values = Arc::clone(lists.get(values)?);
            Law::Drawn { outputs: Outputs { seed, from, values }, at: from - 1 }
        }
        LawHeader::Continued { .. } | LawHeader::Drawn { .. } => return None,
    };
    let origin = match &made.sampler {
        Some(header) => Origin::Sampler { sampler: sampler(header)?, epoch: header.epoch },
        None => Origin::Draw { seed: made.seed, skip: made.skip },
    };
    (made.skip <= OUTPUTS_MAX).then(|| Made { index: made.index.clone(), n: made.n, origin, law })
}

fn sampler(header: &SamplerHeader) -> Option<Sampler> {
    let mut sampler = Sampler::named(&header.name)?;
    for (name, value) in &header.keys {
        sampler.keys().iter_mut().find(|key| key.name == name)?.set(value).ok()?;
    }
    sampler.validate().is_ok().then_some(sampler)
}

/// The most bytes that a journal takes.
pub const BYTES_MAX: u64 = 4 * SAMPLES_MAX as u64 + (4 << 20);

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        let outputs = Outputs { seed: 42, from: 11, values: (0..40).collect() };
        let made = |law: Law| Made {
            index: "imagefolder below train".into(),
            n: 50,
            origin: Origin::Draw { seed: 7, skip: 2 },
            law,
        };
        let drawn = Law::Drawn { outputs: outputs.clone(), at: outputs.from - 1 };
        let default = Law::Default { outputs, at: 13, stride: 4 };
        let continued = Law::Continued { gap: 51 };
        let laws = [Law::Unknown, Law::Same, Law::Counting, continued, drawn, default];
        let drawn = Run { made: laws.map(made).into(), ..Run::default() };
        let all = [Arc::from([3, 1, 2]), (0..100).rev().collect()].into();
        let lists = Lists { all, is_cut: true, is_told: false };
        Journal { runs: vec![drawn, Run { lists, ..Run::default() }] }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = journal().encode(1 << 77);
        assert_eq!(Journal::decode(&bytes), Ok((journal(), 1 << 77)));
        assert_eq!(Journal::decode(&Journal::default().encode(0)), Ok((Journal::default(), 0)));
    }

    #[test]
    fn what_is_no_journal_is_refused_in_words() {
        let whole = journal().encode(5);
        for len in 0..whole.len() {
            assert!(Journal::decode(&whole[..len]).is_err(), "{len}");
        }
        let text = String::from_utf8_lossy(&whole[..whole.len() - 4 * 143]).into_owned();
        let changed = |from: &str, to: &str| {
            assert!(text.contains(from), "{text}");
            let mut bytes = text.replace(from, to).into_bytes();
            bytes.extend(&whole[whole.len() - 4 * 143..]);
            Journal::decode(&bytes)
        };
        // What cannot be is left out.
        for (from, to, left) in [
            ("\"stride\":4", "\"stride\":1000000", 5),
            ("\"gap\":51", "\"gap\":18446744073709551615", 5),
            ("\"values\":0", "\"values\":99", 4),
            ("\"from\":11", "\"from\":18446744073709551615", 4),
            ("\"from\":11", "\"from\":0", 5),
            ("\"at\":13", "\"at\":18446744073709551615", 5),
        ] {
            let (read, _) = changed(from, to).unwrap();
            assert_eq!(read.runs[0].made.len(), left, "{to}");
        }
        assert!(changed("[40,3,100]", "[40,3,18446744073709551615]").is_err());
        assert_eq!(
            changed("\"lists\":[1,2]", "\"lists\":[1,7]").unwrap().0.runs[1].lists.all.len(),
            1
        );
        assert!(changed("counting", "guessing").is_err());
    }
}
