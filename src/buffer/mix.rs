//! Mixes new and old samples into one order.

/// What stands at a position of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The new sample with this number, from 0.
    New(u64),
    /// The epoch's draw with this number, from 0.
    Replay(u64),
}

/// New samples, and `replay` old ones for each `batch` of them, spread evenly: any `batch + replay`
/// consecutive positions have `replay` old samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    new: u64,
    batch: u64,
    replay: u64,
}

impl Mix {
    /// A mix of `new` new samples. A batch of 0 counts as 1.
    pub fn new(new: u64, batch: u32, replay: u32) -> Mix {
        Mix { new, batch: u64::from(batch.max(1)), replay: u64::from(replay) }
    }

    /// Number of old samples.
    pub fn replays(&self) -> u64 {
        let replays = u128::from(self.new) * u128::from(self.replay) / u128::from(self.batch);
        u64::try_from(replays).unwrap_or(u64::MAX)
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.new.saturating_add(self.replays())
    }

    pub fn is_empty(&self) -> bool {
        self.new == 0
    }

    /// Old samples before a position.
    fn replays_before(&self, position: u64) -> u64 {
        let both = u128::from(self.batch + self.replay);
        (u128::from(position) * u128::from(self.replay) / both) as u64
    }

    /// What stands at a position, from 0.
    pub fn at(&self, position: u64) -> Option<Part> {
        if position >= self.len() {
            return None;
        }
        let before = self.replays_before(position);
        Some(if self.replays_before(position + 1) > before {
            Part::Replay(before)
        } else {
            Part::New(position - before)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_part_has_its_place_once(new in 0..700_u64, batch in 1..70_u32, replay in 0..90_u32) {
            let mix = Mix::new(new, batch, replay);
            let parts: Vec<Part> = (0..).map_while(|position| mix.at(position)).collect();
            prop_assert_eq!(parts.len() as u64, mix.len());
            let (mut news, mut replays) = (0_u64, 0_u64);
            for part in &parts {
                let (next, number) = match part {
                    Part::New(number) => (&mut news, number),
                    Part::Replay(number) => (&mut replays, number),
                };
                prop_assert_eq!(*number, *next);
                *next += 1;
            }
            prop_assert_eq!((news, replays), (new, mix.replays()));
            for window in parts.windows((batch + replay) as usize) {
                let old = window.iter().filter(|part| matches!(part, Part::Replay(_))).count();
                prop_assert_eq!(old, replay as usize);
            }
        }
    }

    #[test]
    fn huge_and_empty_mixes_do_not_overflow() {
        assert_eq!(Mix::new(0, 56, 7).at(0), None);
        assert_eq!(Mix::new(56, 56, 7).replays(), 7);
        let huge = Mix::new(u64::MAX, 1, u32::MAX);
        assert_eq!(huge.len(), u64::MAX);
        assert!(huge.at(u64::MAX - 1).is_some());
        assert_eq!(Mix::new(3, 0, 1).len(), 6);
    }
}
