//! How fast the readers of this node go through their orders.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::cluster::Stream;

/// A pace is measured over at least this time.
const OVER: Duration = Duration::from_secs(3);

/// The paces of streams: by their orders, and by their places among streams of one order.
#[derive(Default)]
pub(super) struct Paces(HashMap<String, Vec<Pace>>);

struct Pace {
    /// When it was measured last, and the place at that time.
    at: Instant,
    place: u64,
    /// Positions a second.
    rate: Option<f32>,
}

impl Paces {
    /// The same streams with their rates.
    pub(super) fn measure(&mut self, mut streams: Vec<Stream>, now: Instant) -> Vec<Stream> {
        self.0.retain(|spec, _| streams.iter().any(|stream| stream.spec == *spec));
        let mut seen: HashMap<String, usize> = HashMap::new();
        for stream in &mut streams {
            let place =
                u64::from(stream.epoch) * u64::from(stream.length) + u64::from(stream.position);
            let new = || Pace { at: now, place, rate: None };
            let same = self.0.entry(stream.spec.clone()).or_default();
            let nth = seen.entry(stream.spec.clone()).or_insert(0);
            if same.len() == *nth {
                same.push(new());
            }
            let pace = &mut same[*nth];
            *nth += 1;
            if place < pace.place {
                *pace = new();
            }
            let over = now - pace.at;
            if over >= OVER {
                let latest = (place - pace.place) as f32 / over.as_secs_f32();
                // The mean of this time and those before.
                let rate = pace.rate.map_or(latest, |rate| (rate + latest) / 2.0);
                *pace = Pace { at: now, place, rate: Some(rate) };
            }
            stream.rate = pace.rate.unwrap_or_default();
        }
        streams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_of_a_stream_is_found_over_some_seconds() {
        let (start, mut paces) = (Instant::now(), Paces::default());
        let mut rate = |s: u64, epoch: u32, position: u32| {
            let spec = "sequential".to_owned();
            let stream = Stream { spec, epoch, position, length: 100, rate: 0.0 };
            paces.measure(vec![stream], start + Duration::from_secs(s))[0].rate
        };
        assert_eq!((rate(0, 0, 0), rate(2, 0, 20), rate(4, 0, 40)), (0.0, 0.0, 10.0));
        assert_eq!(rate(8, 1, 20), 15.0, "an epoch has begun");
        assert_eq!((rate(12, 0, 0), rate(16, 0, 40)), (0.0, 10.0), "it has begun anew");
    }
}
