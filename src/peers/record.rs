//! What a member tells the others of itself: a value in its own shard, for a few seconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::shard::key;
use crate::cluster::{Demand, Report, Stream, ToldHomes};

/// How often a member writes its record and reads those of others, and how long a record counts.
pub(super) const EVERY_S: u64 = 3;
pub(super) const FOR_S: u64 = 15;

/// A record longer than this is none.
const BYTES_MOST: usize = 1 << 16;

/// Streams that are told of at most, and the bytes of an order's text. Others do not know the rest.
const STREAMS_MOST: usize = 64;
const SPEC_BYTES_MOST: usize = 512;

/// A member's record. Fields that a member of another version does not write are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// The version of belady.
    pub version: String,
    /// The name of its rack.
    pub group: String,
    /// Bytes of samples that its shard holds at most.
    pub capacity: u64,
    /// [`Report::disk`] and [`Report::seed`]
    pub disk: u64,
    pub seed: u64,
    /// Bytes that its shard takes at this moment.
    pub used: u64,
    /// The digest of its catalog; 0 if it is not known yet.
    pub digest: u64,
    /// Bytes a second that it asks the source for, and whether it would ask for more.
    pub asked: u64,
    pub wants_more: bool,
    /// The orders that its readers follow.
    pub streams: Vec<Stream>,
    /// [`Report::horizon_s`]
    pub horizon_s: Option<f32>,
    /// [`Report::homes`]
    pub homes: Option<ToldHomes>,
}

impl Record {
    /// The key of the record of the member with this tag.
    pub(super) fn key(tag: &str) -> String {
        key(tag, "m")
    }

    /// The same record with what readers do now.
    pub(super) fn with(self, report: Report) -> Self {
        let Report { demand, mut streams, horizon_s, disk, seed, homes, .. } = report;
        let Demand { asked, wants_more } = demand;
        streams.retain(|stream| stream.spec.len() <= SPEC_BYTES_MOST);
        streams.truncate(STREAMS_MOST);
        let record = Record { asked, wants_more, streams, horizon_s, disk, seed, homes, ..self };
        match record.to_text().len() <= BYTES_MOST {
            true => record,
            // A member that joins then reads from the source what it would have found by these homes.
            false => Record { homes: None, ..record },
        }
    }

    /// The report that it makes, if it was read so long ago.
    pub(super) fn report(&self, ago: Duration) -> Report {
        let demand = Demand { asked: self.asked, wants_more: self.wants_more };
        // On average, it had been written half a period before.
        let age_s = ago.as_secs_f32() + EVERY_S as f32 / 2.0;
        let (streams, homes) = (self.streams.clone(), self.homes.clone());
        let Record { horizon_s, disk, seed, .. } = *self;
        Report { demand, streams, horizon_s, disk, seed, homes, age_s }
    }

    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what a member wrote. None if it is no record.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        (text.len() <= BYTES_MOST).then(|| serde_json::from_slice(text).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Member, View};

    /// Without a limit, no member of a large cluster would be understood.
    #[test]
    fn a_record_stays_short_however_many_members_there_are() {
        let stream = Stream { spec: "x".repeat(SPEC_BYTES_MOST), ..Stream::default() };
        for (members, streams, is_told) in [(900, 0, true), (5000, 0, false), (900, 99, false)] {
            let streams = vec![stream.clone(); streams];
            let member = |id| Member {
                id: u64::MAX - id,
                capacity: 1 << 40,
                disk: 0,
                seed: 0,
                group: u32::MAX,
            };
            let view = View::new((0..members).map(member).collect());
            let homes = Some(ToldHomes::new(&view, &[], 0));
            let report = Report { homes, streams, ..Report::default() };
            let record = Record::default().with(report);
            assert_eq!(record.homes.is_some(), is_told);
            assert_eq!(Record::parse(record.to_text().as_bytes()), Some(record));
        }
    }

    #[test]
    fn a_record_of_another_version_is_understood() {
        let group = "rack 7".to_owned();
        let record = Record { version: "1".into(), group, capacity: 5, ..Record::default() };
        assert_eq!(Record::parse(record.to_text().as_bytes()), Some(record));
        let newer = br#"{"capacity":7,"new":[1]}"#;
        assert_eq!(Record::parse(newer), Some(Record { capacity: 7, ..Record::default() }));
        for other in [&b"x"[..], b"", b"7", &[b' '; 70_000]] {
            assert_eq!(Record::parse(other), None);
        }
    }
}
