//! What happens in a scenario, drawn from the seed and the scenario's number.
//!
//! Pure: nothing here looks at the machine or the clock, so the same numbers give the same plan.

mod fault;
mod steps;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

pub(crate) use fault::{Component, Fault};
pub(crate) use steps::Step;

/// What a scenario is mostly about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Faults of all kinds under a mount, which is made again if it ends.
    Faults,
    /// Quick cycles of mount and umount.
    Cycles,
    /// Kills of the daemon in push mode.
    Kills,
}

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A plain directory.
    Plain,
    /// slowpfs, with these options.
    Slow(Vec<&'static str>),
}

/// Where the cache directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// There is none.
    None,
    /// In a directory of a filesystem with room.
    Directory,
    /// On a small ext4 of its own.
    Ext4,
    /// On a small tmpfs of its own.
    Tmpfs,
}

/// A limit of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit besides that of the machine.
    None,
    /// Open descriptors.
    Descriptors(u32),
    /// Size of a file that it writes, in KiB.
    FileSize(u32),
}

/// The readers of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Readers {
    /// Readers of random files and ranges.
    pub(crate) random: u32,
    /// Processes that read by maps.
    pub(crate) mappers: u32,
    /// Walkers, which list directories and ask for attributes.
    pub(crate) walkers: u32,
    /// Loaders of shuffled epochs: the number of workers of each.
    pub(crate) loaders: Vec<u32>,
    /// Reading processes that are killed and replaced all the time.
    pub(crate) victims: u32,
    /// Milliseconds between two changes at the source. 0: nothing changes.
    pub(crate) edit_every_ms: u64,
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    /// The seed of all its random choices.
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    /// `mount.mode`.
    pub(crate) mode: &'static str,
    /// `revalidate`, in milliseconds. `None`: `immutable`.
    pub(crate) period_ms: Option<u64>,
    pub(crate) source: Source,
    pub(crate) disk: Disk,
    /// `cache.ram`.
    pub(crate) ram: &'static str,
    /// The limit of the daemon's memory cgroup, in MiB.
    pub(crate) memory_mib: Option<u64>,
    /// Another limit of the daemon.
    pub(crate) limit: Limit,
    /// Number of mount points.
    pub(crate) points: usize,
    /// The order that the mount is told.
    pub(crate) order: Option<String>,
    /// `order.learn`.
    pub(crate) learn: &'static str,
    /// Sizes of the files, by number.
    pub(crate) sizes: Vec<u64>,
    pub(crate) readers: Readers,
    /// The faults, in the order of their times.
    pub(crate) steps: Vec<Step>,
    /// Number of kills or cycles.
    pub(crate) rounds: u32,
    /// Whether there are derived samples, and readers read these, too. Each is a copy that a command makes.
    pub(crate) is_copied: bool,
    /// Whether hangs of the source and of the cache disk last for many seconds.
    pub(crate) has_long_hangs: bool,
    /// Milliseconds from the mount to the last moment at which a fault begins.
    pub(crate) lasts_ms: u64,
}

/// Kills or cycles in a scenario.
const ROUNDS: u32 = 16;

/// Milliseconds that a scenario of long hangs lasts longer than others.
const MORE_MS: u64 = 24_000;

/// The name of derived samples that are copies.
pub(crate) const COPIES: &str = "copies";

/// Number of directories in a source.
pub(crate) const DIRECTORIES: u64 = 8;

impl Kind {
    /// The kind of a scenario, by its number.
    pub(crate) fn of(number: u64) -> Self {
        match number % 4 {
            1 => Kind::Cycles,
            3 => Kind::Kills,
            _ => Kind::Faults,
        }
    }
}

/// A random element of a list.
fn pick<T: Copy>(random: &mut ChaCha8Rng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

/// A new seed from a seed and a number: splitmix64.
pub(crate) fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Plan {
    pub(crate) fn draw(seed: u64, number: u64) -> Self {
        let kind = Kind::of(number);
        let seed = mix(seed, number);
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut plan = Plan {
            number,
            seed,
            kind,
            mode: pick(random, &["push", "push", "push", "keep-cache", "passthrough", "plain"]),
            period_ms: pick(random, &[None, Some(200), Some(1000), Some(3000)]),
            source: source(random),
            disk: pick(random, &[Disk::None, Disk::Directory, Disk::Ext4, Disk::Ext4, Disk::Tmpfs]),
            ram: pick(random, &["2MiB", "8MiB", "64MiB", "auto"]),
            memory_mib: pick(random, &[None, None, Some(64), Some(128)]),
            limit: limit(random),
            points: pick(random, &[1, 1, 2, 3]),
            order: order(random),
            learn: pick(random, &["off", "no-crack"]),
            sizes: sizes(random),
            readers: readers(random),
            steps: Vec::new(),
            rounds: 0,
            is_copied: false,
            has_long_hangs: false,
            lasts_ms: random.random_range(8_000..16_000),
        };
        match kind {
            Kind::Faults => {
                plan.has_long_hangs = random.random_bool(0.3);
                if plan.has_long_hangs {
                    plan.lasts_ms += MORE_MS;
                }
                plan.steps = steps::draw(random, &plan);
            }
            Kind::Cycles => plan.rounds = ROUNDS,
            Kind::Kills => {
                plan.rounds = ROUNDS;
                plan.mode = "push";
            }
        }
        if kind != Kind::Faults {
            plan.simplify();
        }
        // The limits of the daemon hold for its commands, too.
        let is_limited = plan.memory_mib.is_some() || plan.limit != Limit::None;
        plan.is_copied = !is_limited && random.random_bool(0.5);
        plan
    }

    /// Makes a scenario of quick mounts small, and removes other faults.
    fn simplify(&mut self) {
        self.sizes.truncate(120);
        self.sizes.iter_mut().for_each(|size| *size = (*size).min(1 << 20));
        self.limit = Limit::None;
        self.readers.random = self.readers.random.clamp(4, 24);
        self.readers.walkers = self.readers.walkers.min(2);
        self.readers.victims = 0;
    }

    /// Milliseconds that the longest fault lasts.
    pub(crate) fn longest_fault_ms(&self) -> u64 {
        self.steps.iter().map(|step| step.lasts_ms).max().unwrap_or(0)
    }

    /// Milliseconds from the mount to the end of the last fault.
    pub(crate) fn ends_ms(&self) -> u64 {
        let ends = self.steps.iter().map(|step| step.at_ms + step.lasts_ms);
        ends.max().unwrap_or(0).max(self.lasts_ms)
    }

    /// Whether there is a cache directory, which remembers names.
    pub(crate) fn has_cache(&self) -> bool {
        self.disk != Disk::None
    }

    /// Whether the source's own client keeps pages.
    pub(crate) fn source_keeps_pages(&self) -> bool {
        matches!(&self.source, Source::Slow(options) if !options.contains(&"--direct-io"))
    }

    /// The path of a file in the source.
    pub(crate) fn name(number: u64) -> String {
        format!("d{}/{number:04}.bin", number % DIRECTORIES)
    }

    /// The options of the mount, without the cache directory.
    pub(crate) fn options(&self) -> Vec<String> {
        let mut options = vec!["--ram".to_owned(), self.ram.to_owned()];
        let mut set = |setting: String| options.extend(["--set".to_owned(), setting]);
        set(format!("mount.mode={}", self.mode));
        set(format!("order.learn={}", self.learn));
        set("cache.large-file=4MiB".to_owned());
        match self.period_ms {
            Some(period) => set(format!("source.revalidate={period}ms")),
            None => set("source.consistency=immutable".to_owned()),
        }
        if self.is_copied {
            set(format!("derived=[{{name={COPIES:?}, from=\"**/*.bin\", command=\"cat\"}}]"));
        }
        if let Some(order) = &self.order {
            options.extend(["--order".to_owned(), order.clone()]);
        }
        options
    }

    /// A description in one line.
    pub(crate) fn describe(&self) -> String {
        let period =
            self.period_ms.map_or("immutable".to_owned(), |ms| format!("revalidate {ms}ms"));
        let source = match &self.source {
            Source::Plain => "plain source".to_owned(),
            Source::Slow(options) => format!("slowpfs {}", options.join(" ")),
        };
        let memory = self.memory_mib.map_or(String::new(), |mib| format!(", cgroup {mib} MiB"));
        let limit = match self.limit {
            Limit::None => String::new(),
            Limit::Descriptors(most) => format!(", ulimit -n {most}"),
            Limit::FileSize(most) => format!(", ulimit -f {most}"),
        };
        let order = self.order.as_deref().unwrap_or("no order");
        let Readers { random, mappers, walkers, loaders, victims, edit_every_ms } = &self.readers;
        let edits = match edit_every_ms {
            0 => "no edits".to_owned(),
            ms => format!("an edit each {ms} ms"),
        };
        let copies = if self.is_copied { ", derived copies" } else { "" };
        let hangs = if self.has_long_hangs { ", long hangs" } else { "" };
        format!(
            "{:?}: {}, {period}, {source}, cache {:?}, ram {}{memory}{limit}, {} points, {order}, \
             {} files, {random} readers, {mappers} mappers, {walkers} walkers, loaders {loaders:?}, {victims} victims, {edits}{copies}{hangs}",
            self.kind,
            self.mode,
            self.disk,
            self.ram,
            self.points,
            self.sizes.len(),
        )
        .to_lowercase()
    }
}

fn source(random: &mut ChaCha8Rng) -> Source {
    if random.random_bool(0.25) {
        return Source::Plain;
    }
    let mut options = vec!["--preset", pick(random, &["idle", "idle", "busy", "bad"])];
    for option in ["--direct-io", "--no-readdirplus"] {
        if random.random_bool(0.3) {
            options.push(option);
        }
    }
    if !options.contains(&"--direct-io") && random.random_bool(0.3) {
        options.push("--client-cache");
    }
    Source::Slow(options)
}

fn limit(random: &mut ChaCha8Rng) -> Limit {
    match random.random_range(0..10) {
        0 => Limit::Descriptors(pick(random, &[128, 256, 512])),
        1 => Limit::FileSize(pick(random, &[64, 1024, 8192])),
        _ => Limit::None,
    }
}

fn order(random: &mut ChaCha8Rng) -> Option<String> {
    match random.random_range(0..4) {
        0 => Some("sequential".to_owned()),
        1 => Some(format!("torch-random:seed={},index=path", random.random_range(0..1000))),
        _ => None,
    }
}

/// Many small files, some of a few hundred KB, and a few that are large for the settings.
fn sizes(random: &mut ChaCha8Rng) -> Vec<u64> {
    let count = random.random_range(60..300);
    let size = |random: &mut ChaCha8Rng| match random.random_range(0..100) {
        0..2 => 0,
        2..60 => random.random_range(1..20_000),
        60..92 => random.random_range(20_000..200_000),
        92..98 => random.random_range(200_000..2_500_000),
        _ => random.random_range((4 << 20)..(6 << 20)),
    };
    (0..count).map(|_| size(random)).collect()
}

fn readers(random: &mut ChaCha8Rng) -> Readers {
    Readers {
        random: pick(random, &[2, 4, 8, 16, 32, 72]),
        mappers: random.random_range(1..4),
        walkers: random.random_range(1..4),
        loaders: (0..random.random_range(0..3)).map(|_| random.random_range(1..5)).collect(),
        victims: pick(random, &[0, 1, 2]),
        edit_every_ms: pick(random, &[0, 0, 20, 100, 500]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_numbers_give_the_same_plan() {
        for number in 0..50 {
            assert_eq!(Plan::draw(7, number), Plan::draw(7, number));
        }
        assert_ne!(Plan::draw(7, 0), Plan::draw(8, 0));
    }

    #[test]
    fn every_fault_mode_and_kind_is_drawn() {
        let plans: Vec<Plan> = (0..400).map(|number| Plan::draw(1, number)).collect();
        let drawn =
            |fault| plans.iter().any(|plan| plan.steps.iter().any(|step| step.fault == fault));
        let by_other_means =
            [Fault::Cycle, Fault::FewDescriptors, Fault::PassedThrough, Fault::SourceHoldsPages];
        for fault in Fault::ALL.into_iter().filter(|fault| !by_other_means.contains(fault)) {
            assert!(drawn(fault), "{}", fault.name());
        }
        for mode in ["push", "keep-cache", "passthrough", "plain"] {
            assert!(plans.iter().any(|plan| plan.mode == mode), "{mode}");
        }
        for kind in [Kind::Faults, Kind::Cycles, Kind::Kills] {
            assert!(plans.iter().any(|plan| plan.kind == kind));
        }
    }

    #[test]
    fn each_hang_is_long_in_some_scenario() {
        // Longer than belady waits for a cache disk, and far longer than an operation may take.
        const LONG_MS: u64 = 12_000;
        let plans: Vec<Plan> = (0..400).map(|number| Plan::draw(1, number)).collect();
        let steps = || plans.iter().flat_map(|plan| &plan.steps);
        for fault in Fault::ALL.into_iter().filter(|fault| fault.hangs()) {
            let is_long = |step: &Step| step.fault == fault && step.lasts_ms >= LONG_MS;
            assert!(steps().any(is_long), "{}", fault.name());
        }
        for plan in &plans {
            let ends = |step: &Step| step.at_ms + step.lasts_ms;
            assert!(plan.steps.iter().all(|step| ends(step) <= plan.ends_ms()));
        }
    }

    #[test]
    fn faults_of_one_component_do_not_overlap() {
        for number in 0..200 {
            let plan = Plan::draw(3, number);
            let mut ends = [0, 0, 0];
            for step in &plan.steps {
                let end = &mut ends[step.fault.component() as usize];
                assert!(step.at_ms >= *end, "{plan:?}");
                *end = step.at_ms + step.lasts_ms;
            }
        }
    }
}
