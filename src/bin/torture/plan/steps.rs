//! The faults of a scenario and their times.
//!
//! Faults of one component follow each other. Faults of different components may overlap.

use std::ops::Range;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::{Component, Disk, Fault, Plan, Source, pick};
use crate::target::Target;

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Milliseconds after the mount.
    pub(crate) at_ms: u64,
    /// Milliseconds that it lasts.
    pub(crate) lasts_ms: u64,
    pub(crate) fault: Fault,
    /// The part of the source that it concerns.
    pub(crate) target: Target,
}

/// Milliseconds that most faults last.
const SHORT_MS: Range<u64> = 300..4_000;

/// Milliseconds that a hang lasts in a scenario of long hangs. This is longer than belady waits for a cache
/// disk. It is also longer than operations may take that the hang must not hold up.
const LONG_MS: Range<u64> = 12_000..20_000;

const OF_SOURCE: [Fault; 9] = [
    Fault::SourceEio,
    Fault::SourceEstale,
    Fault::SourceNamesEio,
    Fault::SourceHangData,
    Fault::SourceHangNames,
    Fault::SourceHangLists,
    Fault::SourceSlow,
    Fault::SourceGone,
    Fault::SourceShort,
];

const OF_EXT4: [Fault; 5] =
    [Fault::DiskFull, Fault::DiskReadOnly, Fault::DiskSlow, Fault::DiskHangs, Fault::DiskGone];

const OF_TMPFS: [Fault; 1] = [Fault::DiskFull];

const OF_DAEMON: [Fault; 2] = [Fault::Kill, Fault::LessMemory];

/// Draws the faults of a scenario of faults.
pub(super) fn draw(random: &mut ChaCha8Rng, plan: &Plan) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Source::Slow(options) = &plan.source {
        // A client that keeps pages fills the missing part of a short read with zeros. If its attributes are
        // requested at that moment, the source itself gives wrong bytes without any sign.
        let kinds = OF_SOURCE.len() - usize::from(!options.contains(&"--direct-io"));
        schedule(random, plan, &OF_SOURCE[..kinds], 1500, &mut steps);
    }
    match plan.disk {
        Disk::Ext4 => schedule(random, plan, &OF_EXT4, 2500, &mut steps),
        Disk::Tmpfs => schedule(random, plan, &OF_TMPFS, 2500, &mut steps),
        Disk::None | Disk::Directory => {}
    }
    if random.random_bool(0.5) {
        let which = if plan.memory_mib.is_some() { &OF_DAEMON[..] } else { &OF_DAEMON[..1] };
        schedule(random, plan, which, 5000, &mut steps);
    }
    // The mount does not learn of a source that comes back, so this is the source's last fault.
    let gone = steps.iter().filter(|step| step.fault == Fault::SourceGone);
    if let Some(first) = gone.map(|step| step.at_ms).min() {
        steps.retain(|step| step.at_ms <= first || step.fault.component() != Component::Source);
    }
    // The same holds for a disk that has failed or become read-only.
    let lasting = [Fault::DiskGone, Fault::DiskReadOnly];
    let gone = steps.iter().filter(|step| lasting.contains(&step.fault));
    if let Some(first) = gone.map(|step| step.at_ms).min() {
        steps.retain(|step| step.at_ms <= first || step.fault.component() != Component::CacheDisk);
    }
    steps.sort_by_key(|step| step.at_ms);
    steps
}

/// Fills the time of a scenario with these faults. The mean pause between them is `pause_ms`.
fn schedule(
    random: &mut ChaCha8Rng,
    plan: &Plan,
    faults: &[Fault],
    pause_ms: u64,
    steps: &mut Vec<Step>,
) {
    let mut at_ms = random.random_range(0..pause_ms);
    while at_ms < plan.lasts_ms {
        let fault = pick(random, faults);
        let is_long = plan.has_long_hangs && fault.hangs();
        let lasts_ms = random.random_range(if is_long { LONG_MS } else { SHORT_MS });
        let target = match random.random_range(0..6) {
            0 => Target::All,
            1..3 => Target::Directory(random.random_range(0..8)),
            _ => Target::Ending(random.random_range(0..10)),
        };
        steps.push(Step { at_ms, lasts_ms, fault, target });
        at_ms += lasts_ms + random.random_range(0..2 * pause_ms);
    }
}
