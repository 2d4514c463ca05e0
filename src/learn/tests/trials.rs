//! A thousand jobs whose orders are learnt, or must not be.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::shell::{Outcome, Shell, Truth};
use super::sim::{Loader, merge, reader, unknowable};
use crate::learn::{Learner, Numbering, Settings};
use crate::order::SampleTable;
use crate::order::samplers::Sampler;
use crate::order::samplers::torch::{Distributed, Random, generator, randperm};

/// Where a job's orders come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// `DataLoader(shuffle=True)` of a script that seeds nothing.
    Unseeded,
    /// The same in a script that seeds torch's default generator.
    Seeded,
    /// A loader with a generator of its own.
    Own,
    /// `DistributedSampler` with and without `set_epoch`.
    Distributed,
    Unset,
    /// A sampler that goes on with one generator.
    Continued,
    Sequential,
    /// The same unknown permutation in every epoch.
    Fixed,
    /// Another unknown permutation in each.
    Unknowable,
}

use Kind::*;

const KINDS: [Kind; 9] =
    [Unseeded, Seeded, Own, Distributed, Unset, Continued, Sequential, Fixed, Unknowable];

const GROUP: u64 = 100;
const EPOCHS: usize = 4;

/// One job.
struct Trial {
    kind: Kind,
    loader: Loader,
    truth: Truth,
    n: u32,
    /// Whether searches take no time; else each takes up to a quarter of an epoch.
    at_once: bool,
}

/// By epoch, positions; and the seeds that a search may find.
fn draw(kind: Kind, n: u32, rng: &mut ChaCha8Rng) -> (Vec<Vec<u32>>, Vec<u32>) {
    let small = rng.random_range(0..1_000u32);
    let popular = [0, 1, 42, 1234, 2024][rng.random_range(0..5)];
    let perm = |seed: u32| randperm(n, &mut generator(u64::from(seed)));
    let seeds: Vec<u32> = (0..EPOCHS).map(|_| rng.random()).collect();
    let world = [1, 1, 2, 3, 8, 16][rng.random_range(0..6)].min(n / 256).max(1);
    let sampler = Distributed {
        seed: u64::from(small),
        world,
        rank: rng.random_range(0..world),
        set_epoch: kind == Distributed,
        ..Distributed::default()
    };
    match kind {
        Unseeded => (seeds.iter().map(|&seed| perm(seed)).collect(), seeds),
        Seeded => {
            let mut outputs = generator(popular);
            let stride = 2 * rng.random_range(1..5);
            (0..rng.random_range(3..3_000)).for_each(|_| _ = outputs.next_u32());
            let mut next = || (0..stride).map(|_| outputs.next_u32()).last().unwrap_or(0);
            let seeds: Vec<u32> = (0..EPOCHS).map(|_| next()).collect();
            (seeds.iter().map(|&seed| perm(seed)).collect(), seeds)
        }
        Own => {
            let persistent_workers = rng.random_bool(0.5);
            let own = Random { persistent_workers, ..Random::new(u64::from(small)) };
            let epochs = Sampler::TorchRandom(own).epochs(n);
            (epochs.take(EPOCHS).collect(), vec![small])
        }
        Distributed | Unset => {
            let epochs = (0..EPOCHS as u32).map(|epoch| sampler.epoch(n, epoch)).collect();
            (epochs, (0..EPOCHS as u32).map(|epoch| small + epoch).collect())
        }
        Continued => {
            let mut outputs = generator(u64::from(seeds[0]));
            ((0..EPOCHS).map(|_| randperm(n, &mut outputs)).collect(), seeds[..1].to_vec())
        }
        Sequential => (vec![(0..n).collect(); EPOCHS], vec![]),
        Fixed => (vec![unknowable(n, rng); EPOCHS], vec![]),
        Unknowable => ((0..EPOCHS).map(|_| unknowable(n, rng)).collect(), vec![]),
    }
}

impl Trial {
    fn new(number: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(number);
        let kind = KINDS[number as usize % KINDS.len()];
        let n = (2f64.powf(rng.random_range(8.0..13.0))) as u32;
        let (positions, seeds) = draw(kind, n, &mut rng);
        // The training set's files follow those of the validation set.
        let epochs = positions.into_iter().map(|epoch| epoch.iter().map(|p| p + n / 4).collect());
        let epochs: Vec<Vec<u32>> = epochs.collect();
        let loader = Loader {
            group: GROUP,
            workers: rng.random_range(0..9),
            batch: [1, 2, 4, 8, 16, 32, 64][rng.random_range(0..7)].min(n as usize / 32),
            drop_last: rng.random_bool(0.5),
            persistent: rng.random_bool(0.5),
            resume: if rng.random_bool(0.1) { rng.random_range(0..epochs[0].len() / 2) } else { 0 },
            lost: if rng.random_bool(0.2) { 0.02 } else { 0.0 },
            epochs: epochs.clone(),
        };
        let skipped = loader.resume / loader.batch * loader.batch;
        let slack = 4 * loader.batch * loader.workers.max(1) + 16;
        let at_once = rng.random_bool(0.5);
        Trial {
            kind,
            loader,
            truth: Truth { epochs, seeds, slack, skipped, ..Truth::default() },
            n,
            at_once,
        }
    }

    /// Whether it has an order that can be found out within its epochs.
    fn can_be_known(&self) -> bool {
        match self.kind {
            Unknowable => false,
            // All seeds are searched only where it is worth it.
            // The generator has to be seen from its beginning.
            Continued if self.truth.skipped > 0 => false,
            Unseeded | Seeded | Continued => self.n >= Settings::default().crack_from,
            Own | Distributed | Unset | Sequential | Fixed => true,
        }
    }

    fn run(&self, number: u64) -> BTreeMap<u64, Outcome> {
        let mut rng = ChaCha8Rng::seed_from_u64(number ^ 0xfeed);
        let n = self.n;
        let mut readers = vec![self.loader.run(1_000, &mut rng).into()];
        let mut truths = BTreeMap::from([(GROUP, self.truth.clone())]);
        let all: Vec<u32> = (0..n + n / 4).collect();
        if rng.random_bool(0.3) {
            // A checksum of everything, file after file.
            readers.push(reader(1, 1, &all));
            truths.insert(1, Truth { epochs: vec![all.clone()], parts: true, ..Truth::default() });
        }
        if rng.random_bool(0.3) {
            // An indexer.
            readers.push(reader(2, 2, &unknowable(n + n / 4, &mut rng)));
        }
        let steps = merge(readers, &mut rng);
        let learner = learner(n);
        let delay =
            if self.at_once { 0 } else { rng.random_range(0..self.loader.epochs[0].len() / 4) };
        let mut shell = Shell::new(learner, truths, delay);
        shell.run(&steps);
        shell.outcomes
    }
}

/// A learner for a dataset of a validation and a training set, in several index orders.
pub(super) fn learner(n: u32) -> Learner {
    let numbering = |name: &str, samples: Vec<u32>| Numbering {
        name: name.into(),
        samples: samples.into(),
        spec: None,
    };
    let numberings = vec![
        numbering("path", (0..n + n / 4).collect()),
        numbering("path below train", (n / 4..n + n / 4).collect()),
        numbering("path below val", (0..n / 4).collect()),
        numbering("manifest", (n / 4..n + n / 4).rev().collect()),
    ];
    let settings = Settings { default_outputs: 4_000, ..Settings::default() };
    Learner::new(settings, numberings, SampleTable::Files)
}

/// What came out for the jobs of a kind.
#[derive(Default)]
struct Row {
    trials: u32,
    can_be_known: u32,
    known: u32,
    /// Opens until the order was known, where searches took no time.
    opens: Vec<u32>,
    foreseen: u32,
    withdrawn: u32,
}

impl Row {
    fn add(&mut self, trial: &Trial, outcome: &Outcome) {
        self.trials += 1;
        self.withdrawn += outcome.withdrawn;
        self.foreseen += outcome.foreseen;
        self.opens.extend(outcome.opens.values().next().filter(|_| trial.at_once));
        self.can_be_known += u32::from(trial.can_be_known());
        self.known += u32::from(trial.can_be_known() && !outcome.opens.is_empty());
    }
}

fn table(rows: &mut BTreeMap<Kind, Row>) -> String {
    let mut text = String::from(
        "order         jobs  knowable  known  opens: median   most  epochs foreseen  withdrawn\n",
    );
    for (kind, row) in rows {
        row.opens.sort_unstable();
        let median = row.opens.get(row.opens.len() / 2).copied().unwrap_or(0);
        let most = row.opens.last().copied().unwrap_or(0);
        let Row { trials, can_be_known, known, foreseen, withdrawn, .. } = row;
        let kind = format!("{kind:?}");
        _ = writeln!(
            text,
            "{kind:12} {trials:5} {can_be_known:9} {known:6} {median:14} {most:6} {foreseen:16} \
             {withdrawn:10}"
        );
    }
    text
}

/// The same for programs.
fn figures(rows: &BTreeMap<Kind, Row>, wrong: usize) -> Value {
    let kinds = rows.iter().map(|(kind, row)| {
        let Row { trials, can_be_known, known, opens, .. } = row;
        json!({
            "kind": format!("{kind:?}"),
            "jobs": trials,
            "knowable": can_be_known,
            "known": known,
            "opens": opens,
        })
    });
    json!({ "false_commits": wrong, "kinds": kinds.collect::<Vec<Value>>() })
}

#[test]
fn a_thousand_jobs() {
    let mut rows: BTreeMap<Kind, Row> = BTreeMap::new();
    let mut wrong = Vec::new();
    for number in 0..1_000 {
        let trial = Trial::new(number);
        let outcomes = trial.run(number);
        for (group, outcome) in &outcomes {
            let what = outcome.wrong.iter();
            wrong.extend(what.map(|what| format!("{number} {:?} {group}: {what}", trial.kind)));
        }
        let outcome = outcomes.get(&GROUP).cloned().unwrap_or_default();
        rows.entry(trial.kind).or_default().add(&trial, &outcome);
    }
    println!("{}", table(&mut rows));
    println!("trials {}", figures(&rows, wrong.len()));
    assert!(wrong.is_empty(), "{} false:\n{}", wrong.len(), wrong.join("\n"));
    let sum = |count: fn(&Row) -> u32| f64::from(rows.values().map(count).sum::<u32>());
    let share = sum(|row| row.known) / sum(|row| row.can_be_known);
    assert!(share >= 0.95, "{share} known");
    assert!(rows[&Unknowable].opens.is_empty());
}
