//! How far ahead of the readers of orders RAM is, and whether the source keeps up with them.
//!
//! 1. The planner's thread notes now and then where the readers are, how many bytes the source has given, and how many
//!    are staged.
//! 2. Two notes that are some seconds apart give rates: the reads of each stream, and the bytes that readers take of
//!    what was staged. These are the bytes that were brought, less those by which the stage has grown. The source gives its
//!    share of them.
//! 3. If readers have to wait, they would take more than that.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ids::StreamId;
use crate::plan::Published;

/// Rates are means over about this time, and over this time at least.
const OVER: Duration = Duration::from_secs(10);
const OVER_MIN: Duration = Duration::from_secs(1);

/// The pause between two notes.
const NOTE_EVERY: Duration = Duration::from_millis(500);

/// How far ahead of the readers RAM is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeadStatus {
    /// Reads to come that are staged, of all orders that are followed.
    pub samples: u64,
    /// In how many seconds the first reader would reach what is not staged. `None` if nobody reads.
    pub seconds: Option<f64>,
    /// Bytes a second of the source that readers use. If they wait, they need more.
    pub need: u64,
    /// Whether readers have waited for the source of late.
    pub waits: bool,
    /// Bytes a second by which the stage grows.
    pub growth: i64,
    /// Whether nothing more is to be staged: RAM holds all of the epoch that is left, or the window is full.
    pub is_full: bool,
}

/// The state at one moment.
#[derive(Clone, Default)]
struct Note {
    /// Places in the order, counted over epochs.
    places: Vec<(StreamId, u64)>,
    /// Bytes that the source has given, bytes that all have given, bytes that are staged, and opens that found nothing.
    given: u64,
    all_given: u64,
    staged: u64,
    missed: u64,
}

impl Note {
    fn of(published: &Published) -> Self {
        let Published { counters, accounts, streams, .. } = published;
        let followed = streams.iter().filter(|(_, stream)| stream.following);
        let places = followed.map(|(id, stream)| {
            (*id, u64::from(stream.epoch) * u64::from(stream.length) + u64::from(stream.position))
        });
        Note {
            places: places.collect(),
            given: counters.source_bytes,
            all_given: counters.source_bytes + counters.tier_bytes + counters.member_bytes,
            staged: accounts.staged,
            missed: counters.late + counters.cold + counters.lost,
        }
    }

    fn place(&self, stream: StreamId) -> Option<u64> {
        self.places.iter().find(|(id, _)| *id == stream).map(|(_, place)| *place)
    }
}

/// The notes of the last seconds, oldest first.
#[derive(Clone, Default)]
pub(super) struct Flow(VecDeque<(Instant, Note)>);

impl Flow {
    /// Notes the state of the planner, unless it has just been noted.
    pub(super) fn note(&mut self, published: &Published, now: Instant) {
        if self.0.back().is_some_and(|(at, _)| now < *at + NOTE_EVERY) {
            return;
        }
        self.0.push_back((now, Note::of(published)));
        // One that is older than the time over which rates are means is needed.
        while self.0.get(1).is_some_and(|(at, _)| *at + OVER < now) {
            self.0.pop_front();
        }
    }

    /// How far ahead the stage is `now`. `None` if no order is followed.
    pub(super) fn lead(&self, published: &Published, now: Instant) -> Option<LeadStatus> {
        let followed = || published.streams.iter().filter(|(_, stream)| stream.following);
        followed().next()?;
        let latest = Note::of(published);
        let lead = followed().filter_map(|(id, stream)| {
            let (before, seconds) = self.before(now, |note| note.place(*id))?;
            let read = latest.place(*id)?.checked_sub(before)?;
            (read > 0).then(|| stream.ahead as f64 * seconds / read as f64)
        });
        let before = self.before(now, |note| Some(note.clone()));
        let (before, seconds) = before.unwrap_or((latest.clone(), 1.0));
        let growth = (latest.staged as f64 - before.staged as f64) / seconds;
        let given = latest.given.saturating_sub(before.given) as f64 / seconds;
        let all_given = latest.all_given.saturating_sub(before.all_given) as f64 / seconds;
        let of_source = if all_given > 0.0 { given / all_given } else { 0.0 };
        let is_whole = followed().all(|(_, stream)| stream.front >= stream.length);
        Some(LeadStatus {
            samples: followed().map(|(_, stream)| stream.ahead).sum(),
            seconds: lead.min_by(f64::total_cmp),
            need: ((all_given - growth).max(0.0) * of_source) as u64,
            waits: latest.missed > before.missed,
            growth: growth as i64,
            is_full: is_whole || published.accounts.staged * 10 >= published.accounts.window * 9,
        })
    }

    /// A value of some seconds ago, and its age in seconds. Notes are taken only while something happens, so the last note
    /// before these seconds tells the value at their beginning. `None` if the first note with a value is too young.
    fn before<T>(&self, now: Instant, of: impl Fn(&Note) -> Option<T>) -> Option<(T, f64)> {
        let is_old = |(at, _): &(Instant, Note)| *at + OVER <= now;
        let first = self.0.iter().rposition(is_old).unwrap_or_default();
        let (at, found) = self.0.iter().skip(first).find_map(|(at, note)| Some((at, of(note)?)))?;
        let over = now.saturating_duration_since(*at).min(OVER);
        (over >= OVER_MIN).then_some((found, over.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::StreamStatus;

    fn state(position: u32, given: u64, staged: u64) -> Published {
        let mut published = Published::default();
        let stream = StreamStatus {
            position,
            length: 100_000,
            ahead: 600,
            following: true,
            ..Default::default()
        };
        published.streams = vec![(StreamId(1), stream)];
        published.counters.source_bytes = given;
        published.accounts =
            crate::plan::Accounts { staged, window: 1 << 40, ..Default::default() };
        published
    }

    #[test]
    fn a_lead_is_told_in_samples_and_in_seconds_of_the_readers_pace() {
        let (start, mut flow) = (Instant::now(), Flow::default());
        flow.note(&Published::default(), start.checked_sub(Duration::from_secs(1)).unwrap());
        assert_eq!(flow.lead(&Published::default(), start), None, "no order is followed");
        flow.note(&state(0, 0, 0), start);
        let soon = flow.lead(&state(9, 900, 0), start + Duration::from_millis(100)).unwrap();
        assert_eq!((soon.samples, soon.seconds), (600, None));
        for second in 1..=30 {
            let (position, given) = (second as u32 * 50, second * 7_000);
            flow.note(&state(position, given, second * 2_000), start + Duration::from_secs(second));
        }
        let lead =
            flow.lead(&state(1500, 210_000, 60_000), start + Duration::from_secs(30)).unwrap();
        assert_eq!((lead.seconds, lead.need, lead.growth), (Some(12.0), 5_000, 2_000));
        assert!(!lead.waits && !lead.is_full);
        // Nothing is noted while nothing happens.
        let later =
            flow.lead(&state(1500, 210_000, 60_000), start + Duration::from_secs(90)).unwrap();
        assert_eq!((later.seconds, later.need, later.growth), (None, 0, 0));
    }

    #[test]
    fn a_reader_that_begins_anew_has_no_pace_and_few_notes_are_kept() {
        let (start, mut flow) = (Instant::now(), Flow::default());
        for tenth in 0..1000 {
            let now = start + Duration::from_millis(100 * tenth);
            flow.note(&state(tenth as u32, 0, 0), now);
        }
        assert!(flow.0.len() <= 23, "{}", flow.0.len());
        let now = start + Duration::from_secs(100);
        assert_eq!(flow.lead(&state(0, 0, 0), now).unwrap().seconds, None);
    }
}
