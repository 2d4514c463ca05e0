//! The troubles of an episode and their times.
//!
//! The source, the cache disk and the daemon are lanes. Troubles of one lane follow each other. The lanes run
//! side by side.

use std::ops::Range;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::{Disk, Plan, Source, Trouble, pick};
use crate::target::Target;

/// A trouble and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Milliseconds after the mount.
    pub(crate) at_ms: u64,
    /// Milliseconds that it lasts.
    pub(crate) lasts_ms: u64,
    pub(crate) trouble: Trouble,
    /// The part of the source that it concerns.
    pub(crate) target: Target,
}

impl Step {
    /// The lane: 0 is the source, 1 the cache disk, 2 the daemon.
    pub(crate) fn lane(&self) -> usize {
        match self.trouble {
            trouble if trouble.is_of_the_source() => 0,
            trouble if trouble.is_of_the_disk() => 1,
            _ => 2,
        }
    }
}

/// Milliseconds that most troubles last.
const SHORT_MS: Range<u64> = 300..4_000;

/// Milliseconds that a hang lasts in an episode of long hangs. This is longer than belady waits for a cache
/// disk. It is also longer than operations may take that the hang must not hold up.
const LONG_MS: Range<u64> = 12_000..20_000;

const OF_SOURCE: [Trouble; 9] = [
    Trouble::SourceEio,
    Trouble::SourceEstale,
    Trouble::SourceNamesEio,
    Trouble::SourceHangData,
    Trouble::SourceHangNames,
    Trouble::SourceHangLists,
    Trouble::SourceSlow,
    Trouble::SourceGone,
    Trouble::SourceShort,
];

const OF_EXT4: [Trouble; 5] = [
    Trouble::DiskFull,
    Trouble::DiskReadOnly,
    Trouble::DiskSlow,
    Trouble::DiskHangs,
    Trouble::DiskGone,
];

const OF_TMPFS: [Trouble; 1] = [Trouble::DiskFull];

const OF_DAEMON: [Trouble; 2] = [Trouble::Kill, Trouble::LessMemory];

/// Draws the troubles of an episode of faults.
pub(super) fn draw(random: &mut ChaCha8Rng, plan: &Plan) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Source::Slow(options) = &plan.source {
        // A client that keeps pages fills the missing part of a short read with zeros. If its attributes are
        // requested at that moment, the source itself gives wrong bytes without any sign.
        let kinds = OF_SOURCE.len() - usize::from(!options.contains(&"--direct-io"));
        lane(random, plan, &OF_SOURCE[..kinds], 1500, &mut steps);
    }
    match plan.disk {
        Disk::Ext4 => lane(random, plan, &OF_EXT4, 2500, &mut steps),
        Disk::Tmpfs => lane(random, plan, &OF_TMPFS, 2500, &mut steps),
        Disk::None | Disk::Directory => {}
    }
    if random.random_bool(0.5) {
        let which = if plan.memory_mib.is_some() { &OF_DAEMON[..] } else { &OF_DAEMON[..1] };
        lane(random, plan, which, 5000, &mut steps);
    }
    // The mount does not learn of a source that comes back, so this is the source's last trouble.
    let gone = steps.iter().filter(|step| step.trouble == Trouble::SourceGone);
    if let Some(first) = gone.map(|step| step.at_ms).min() {
        steps.retain(|step| {
            step.at_ms <= first || step.trouble != Trouble::SourceGone && step.lane() != 0
        });
    }
    // The same holds for a disk that has failed or become read-only.
    let fails = [Trouble::DiskGone, Trouble::DiskReadOnly];
    let gone = steps.iter().filter(|step| fails.contains(&step.trouble));
    if let Some(first) = gone.map(|step| step.at_ms).min() {
        steps.retain(|step| step.at_ms <= first || step.lane() != 1);
    }
    steps.sort_by_key(|step| step.at_ms);
    steps
}

/// Fills the time of an episode with these troubles. The mean pause between them is `pause_ms`.
fn lane(
    random: &mut ChaCha8Rng,
    plan: &Plan,
    troubles: &[Trouble],
    pause_ms: u64,
    steps: &mut Vec<Step>,
) {
    let mut at_ms = random.random_range(0..pause_ms);
    while at_ms < plan.lasts_ms {
        let trouble = pick(random, troubles);
        let is_long = plan.has_long_hangs && trouble.hangs();
        let lasts_ms = random.random_range(if is_long { LONG_MS } else { SHORT_MS });
        let target = match random.random_range(0..6) {
            0 => Target::All,
            1..3 => Target::Directory(random.random_range(0..8)),
            _ => Target::Ending(random.random_range(0..10)),
        };
        steps.push(Step { at_ms, lasts_ms, trouble, target });
        at_ms += lasts_ms + random.random_range(0..2 * pause_ms);
    }
}
