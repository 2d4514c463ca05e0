//! What follows from an epoch: where the time went, which part decides, and what its absence would give.

use serde::{Deserialize, Serialize};

use super::epoch::{Epoch, Kind, Looks, TrainerLooks};
use super::loader::Loader;

/// The model has to give the measured time back within this share of it. Otherwise it does not tell what would be.
const MODEL_ERROR_MAX: f64 = 0.05;

/// How much batches may differ, as shares of their mean: the model is tried with each. A batch is the sum of many samples.
const SPREADS: [f64; 4] = [0.0, 0.05, 0.1, 0.15];

/// With fewer batches, the start of an epoch and its end are most of it.
const BATCHES_MIN: u64 = 3;

/// How much more time looks may find a task running than the kernel has counted. If they find more, the kernel does not
/// tell in which function it sleeps.
const RUNS_MORE_MAX: f64 = 0.1;

/// If the model misses the measured time by more, it does not tell which part decides either.
const VERDICT_ERROR_MAX: f64 = 0.2;

/// Without the model there is a verdict in two cases. In the first one the trainer waits for less than this share of the
/// time, and its workers lack work.
const LITTLE_WAIT: f64 = 0.1;

/// In the second one the trainer waits for at least this share, and one part takes at least that share of the workers'
/// time.
const MUCH_WAIT: f64 = 0.5;
const MOST_WORK: f64 = 0.6;

/// A trainer has to wait for the first batch. If that takes longer than so many seconds and looks, and the trainer is seen waiting
/// for less than this share of it, another thread than its main one takes the batches. If it takes less, the same follows
/// if the trainer is seldom seen waiting and its workers seldom lack work. One that waits for long is seen.
const FIRST_BATCH_MIN: f64 = 0.1;
const FIRST_LOOKS_MIN: u32 = 5;
const FIRST_WAIT_MIN: f64 = 0.1;
const LONG_WAIT: f64 = 0.2;
const WAIT_MIN: f64 = 0.02;
const NO_WORK_MIN: f64 = 0.5;

/// Shares of the time of all workers. The kernel counts `processor` and `queued`, and looks show the others. So their sum is
/// 1 up to what looks miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    pub fetch: f64,
    /// Their main threads are on a processor, or wait for one.
    pub processor: f64,
    pub queued: f64,
    pub no_work: f64,
    pub elsewhere: f64,
    /// It may not be known why they sleep.
    pub unknown: f64,
}

fn share(part: f64, of: f64) -> f64 {
    if of > 0.0 { part / of } else { 0.0 }
}

impl Parts {
    fn of(epoch: &Epoch) -> Self {
        let Looks { runs, fetches, has_no_work, elsewhere, unknown } = epoch.looks;
        let seen = |part| share(part, epoch.looks.total());
        let counted = |part| share(part, epoch.workers_s);
        let (processor, queued) = (counted(epoch.run_s), counted(epoch.queued_s));
        let unseen = seen(runs) - processor - queued;
        Parts {
            fetch: seen(fetches),
            processor,
            queued,
            no_work: seen(has_no_work),
            elsewhere: seen(elsewhere),
            unknown: seen(unknown) + if unseen > RUNS_MORE_MAX { unseen } else { 0.0 },
        }
    }

    pub fn sum(&self) -> f64 {
        self.fetch + self.processor + self.queued + self.no_work + self.elsewhere + self.unknown
    }

    /// The share in which workers prepare samples, or wait until they can.
    fn preparation(&self) -> f64 {
        self.processor + self.queued + self.elsewhere
    }
}

/// The part of a job that decides how long its epoch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    Fetch,
    Processor,
    Gpu,
}

impl Bottleneck {
    pub fn words(self) -> &'static str {
        match self {
            Bottleneck::Fetch => "fetch-bound",
            Bottleneck::Processor => "processor-bound",
            Bottleneck::Gpu => "GPU-bound",
        }
    }
}

/// Shares of the epoch's time that would be saved if a part took no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gains {
    pub fetch: f64,
    pub processor: f64,
    pub gpu: f64,
}

impl Gains {
    pub fn largest(&self) -> Bottleneck {
        let of_data =
            if self.fetch >= self.processor { Bottleneck::Fetch } else { Bottleneck::Processor };
        if self.gpu > self.fetch.max(self.processor) { Bottleneck::Gpu } else { of_data }
    }
}

/// The loader in virtual time, filled with what was measured. Times are seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    pub workers: u32,
    pub batches: u64,
    /// Until a worker begins to read.
    pub starting_s: f64,
    /// What a worker takes for a batch: to prepare it, and waiting for files.
    pub preparation_s: f64,
    pub fetch_s: f64,
    /// Of the preparation: on a processor, and waiting for one.
    pub run_s: f64,
    pub queued_s: f64,
    /// The standard deviation of both together, as a share.
    pub spread: f64,
    /// What the trainer takes for a batch.
    pub step_s: f64,
    /// The epoch as the model gives it back, and by which share it differs from the measured one.
    pub seconds: f64,
    pub error: f64,
}

impl Model {
    fn fit(epoch: &Epoch, parts: &Parts, batches: u64, waits: f64) -> Self {
        let each = |share: f64, of: f64| share * of / batches as f64;
        let workers = epoch.workers.max(1);
        let preparation = each(parts.preparation(), epoch.workers_s);
        let preparation_s = (preparation - each(1.0, epoch.starting_s)).max(0.0);
        // Starting takes processors, too.
        let left = share(preparation_s, preparation);
        let model = Model {
            workers,
            batches,
            starting_s: epoch.starting_s / f64::from(workers),
            preparation_s,
            run_s: each(parts.processor, epoch.workers_s) * left,
            queued_s: each(parts.queued, epoch.workers_s) * left,
            fetch_s: each(parts.fetch, epoch.workers_s),
            step_s: each(1.0 - waits, epoch.seconds),
            ..Model::default()
        };
        let with = |spread: f64| {
            let mut model = Model { spread, ..model };
            model.seconds = model.seconds_with(1.0, 1.0, 1.0);
            model.error =
                if epoch.seconds > 0.0 { model.seconds / epoch.seconds - 1.0 } else { 0.0 };
            model
        };
        let nearest = |a: &Model, b: &Model| a.error.abs().total_cmp(&b.error.abs());
        SPREADS.into_iter().map(with).min_by(nearest).unwrap_or_default()
    }

    /// The epoch if each part took this share of the time that it takes.
    pub fn seconds_with(&self, fetch: f64, preparation: f64, step: f64) -> f64 {
        let loader = Loader {
            workers: self.workers as usize,
            batches: self.batches as usize,
            starting: self.starting_s,
            work: self.preparation_s * preparation + self.fetch_s * fetch,
            spread: self.spread,
            step: self.step_s * step,
        };
        loader.run().seconds
    }

    fn gains(&self) -> Gains {
        let gain = |seconds: f64| {
            if self.seconds > 0.0 { (1.0 - seconds / self.seconds).max(0.0) } else { 0.0 }
        };
        Gains {
            fetch: gain(self.seconds_with(0.0, 1.0, 1.0)),
            processor: gain(self.seconds_with(1.0, 0.0, 1.0)),
            gpu: gain(self.seconds_with(1.0, 1.0, 0.0)),
        }
    }
}

/// What follows from an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    pub parts: Parts,
    /// The share of the epoch in which the trainer waited for data. `None` if that cannot be seen.
    pub trainer_wait: Option<f64>,
    pub bottleneck: Option<Bottleneck>,
    /// What each part's absence would give. `None` if the model does not give the measured epoch back.
    pub gains: Option<Gains>,
    /// Seconds below which no storage brings the epoch.
    pub cap_s: Option<f64>,
    pub model: Option<Model>,
    /// What is not known, and what to do about it.
    pub notes: Vec<String>,
}

impl Finding {
    pub fn of(epoch: &Epoch) -> Self {
        let parts = Parts::of(epoch);
        let mut finding = Finding { parts, ..Finding::default() };
        finding.note_what_is_missing(epoch);
        match epoch.kind {
            // Any verdict would be a guess.
            _ if parts.unknown > RUNS_MORE_MAX => {}
            Kind::Workers => finding.fit(epoch),
            Kind::Itself => finding.of_one_thread(epoch),
            Kind::Threads => finding.notes.push(
                "threads of one process read, so preparing and training cannot be told apart: \
                 there is no verdict"
                    .to_owned(),
            ),
        }
        finding
    }

    fn note_what_is_missing(&mut self, epoch: &Epoch) {
        if self.parts.unknown > RUNS_MORE_MAX {
            self.notes.push(format!(
                "for {:.0} % of their time it is not known why workers sleep: the kernel does not \
                 tell it to this user; run belady as the user of the job, or as root",
                self.parts.unknown * 100.0
            ));
        }
        if epoch.read_bytes.is_none() {
            self.notes.push(
                "how much the workers read is not known: this user may not read /proc/PID/io of \
                 them; run belady as the user of the job, or as root"
                    .to_owned(),
            );
        }
        if !epoch.is_whole {
            self.notes.push("the start of this epoch was not seen".to_owned());
        }
    }

    fn fit(&mut self, epoch: &Epoch) {
        let Some(batches) = epoch.batches else {
            self.notes.push(
                "the batches could not be counted: a worker hands nothing over that can be seen"
                    .to_owned(),
            );
            return self.judge_by_workers();
        };
        if batches < BATCHES_MIN {
            let words = format!("{batches} batches are too few for a verdict");
            return self.notes.push(words);
        }
        if epoch.shares_trainer {
            self.notes.push(
                "the trainer had workers of another loader meanwhile, so it is not known for which \
                 of them it waited; the verdict is by the workers alone"
                    .to_owned(),
            );
            return self.judge_by_workers();
        }
        // If it is not seen waiting for workers, another thread may take the batches.
        let looks = (epoch.trainer_looks, epoch.first_looks);
        let through = (looks.0.through_thread(), looks.1.through_thread());
        let shown = [looks, through].into_iter().find(|looks| self.show_the_trainer(epoch, looks));
        let Some((looks, _)) = shown else {
            self.notes.push(
                "the trainer's main thread does not show when it waits for data: another thread takes its \
                 batches (pin_memory), and it is not seen waiting for that; the verdict is by the workers \
                 alone; belady sees more as root"
                    .to_owned(),
            );
            return self.judge_by_workers();
        };
        let waits = share(looks.waits, looks.all);
        // A trainer that waits for a processor does not train either.
        let queued = share(epoch.trainer_queued_s, epoch.trainer_looks.all);
        let waits = (waits + queued).min(1.0);
        let model = Model::fit(epoch, &self.parts, batches, waits);
        self.trainer_wait = Some(waits);
        let gains = model.gains();
        self.bottleneck = match model.error.abs() <= VERDICT_ERROR_MAX {
            true => Some(gains.largest()),
            false => self.judge_without_model(epoch, waits),
        };
        if model.error.abs() <= MODEL_ERROR_MAX {
            self.gains = Some(gains);
            self.cap_s = Some(model.seconds_with(0.0, 1.0, 1.0));
        } else {
            self.notes.push(format!(
                "the model gives {:.1} s for this epoch, which took {:.1} s: it makes no prediction",
                model.seconds, epoch.seconds
            ));
        }
        self.model = Some(model);
    }

    /// Whether looks at the trainer's main thread, in all and until the first batch, show when it waits for data.
    fn show_the_trainer(
        &self,
        epoch: &Epoch,
        (looks, first): &(TrainerLooks, TrainerLooks),
    ) -> bool {
        let waits = share(looks.waits, looks.all);
        if first.all >= FIRST_BATCH_MIN && first.count >= FIRST_LOOKS_MIN && epoch.is_whole {
            return waits >= LONG_WAIT || share(first.waits, first.all) >= FIRST_WAIT_MIN;
        }
        waits >= WAIT_MIN || self.parts.no_work >= NO_WORK_MIN
    }

    /// The verdict by the shares of time alone, if these leave no doubt.
    fn judge_without_model(&self, epoch: &Epoch, waits: f64) -> Option<Bottleneck> {
        let starting = share(epoch.starting_s, epoch.workers_s);
        let (fetch, preparation) = (self.parts.fetch, self.parts.preparation() - starting);
        if waits < LITTLE_WAIT && self.parts.no_work >= NO_WORK_MIN {
            return Some(Bottleneck::Gpu);
        }
        match waits >= MUCH_WAIT {
            true if fetch >= MOST_WORK => Some(Bottleneck::Fetch),
            true if preparation >= MOST_WORK => Some(Bottleneck::Processor),
            _ => None,
        }
    }

    /// If workers have no work, the trainer is slower than they are. If not, it is not.
    fn judge_by_workers(&mut self) {
        let parts = &self.parts;
        let busy = parts.fetch.max(parts.preparation());
        self.bottleneck = Some(match parts.fetch > parts.preparation() {
            _ if parts.no_work > busy => Bottleneck::Gpu,
            true => Bottleneck::Fetch,
            false => Bottleneck::Processor,
        });
    }

    /// One thread reads, prepares and trains, so it waits for files whenever it does nothing else.
    fn of_one_thread(&mut self, epoch: &Epoch) {
        let fetch = self.parts.fetch;
        self.trainer_wait = Some(fetch);
        self.gains = Some(Gains { fetch, ..Gains::default() });
        self.cap_s = Some(epoch.seconds * (1.0 - fetch));
        if fetch > 0.5 {
            self.bottleneck = Some(Bottleneck::Fetch);
        }
        self.notes.push(
            "one process reads, prepares and trains, so preparing and training cannot be told \
             apart; with worker processes (num_workers) they go on side by side"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An epoch as it would be seen of a loader in virtual time.
    fn seen(loader: &Loader, fetch: f64) -> Epoch {
        let run = loader.run();
        let workers = loader.workers as f64;
        let busy = loader.work * loader.batches as f64;
        let workers_s = run.seconds * workers;
        let (fetches, runs) = (busy * fetch, busy * (1.0 - fetch));
        let starting_s = loader.starting * workers;
        Epoch {
            is_over: true,
            is_whole: true,
            seconds: run.seconds,
            workers: loader.workers as u32,
            workers_s,
            run_s: runs + starting_s,
            starting_s,
            looks: Looks {
                runs: runs + starting_s,
                fetches,
                has_no_work: workers_s - busy - starting_s,
                ..Looks::default()
            },
            trainer_looks: waiting(run.waited, run.seconds),
            read_bytes: Some(1 << 30),
            batches: Some(loader.batches as u64),
            ..Epoch::default()
        }
    }

    fn waiting(waits: f64, all: f64) -> TrainerLooks {
        TrainerLooks { waits, all, ..TrainerLooks::default() }
    }

    const LOADER: Loader =
        Loader { workers: 2, batches: 50, starting: 0.2, work: 1.0, spread: 0.0, step: 0.1 };

    fn verdict(epoch: &Epoch) -> (Option<Bottleneck>, Option<Gains>) {
        let Finding { bottleneck, gains, .. } = Finding::of(epoch);
        (bottleneck, gains)
    }

    #[test]
    fn the_part_whose_absence_gives_most_is_the_bottleneck() {
        let (bottleneck, gains) = verdict(&seen(&LOADER, 0.8));
        assert_eq!(bottleneck, Some(Bottleneck::Fetch));
        assert!((gains.unwrap().fetch - 0.79).abs() < 0.02, "{gains:?}");
        assert_eq!(verdict(&seen(&LOADER, 0.2)).0, Some(Bottleneck::Processor));
        let slow_steps = Loader { step: 2.0, ..LOADER };
        assert_eq!(verdict(&seen(&slow_steps, 0.8)).0, Some(Bottleneck::Gpu));
    }

    #[test]
    fn the_cap_is_what_is_left_if_files_cost_nothing() {
        let finding = Finding::of(&seen(&LOADER, 0.8));
        let model = finding.model.unwrap();
        assert!(model.error.abs() < 1e-6, "{model:?}");
        let free = Loader { work: 0.2, ..LOADER }.run().seconds;
        assert!((finding.cap_s.unwrap() - free).abs() < 1e-6);
        assert!((finding.parts.sum() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn an_epoch_that_the_model_does_not_give_back_has_a_verdict_and_no_promise() {
        let mut epoch = seen(&LOADER, 0.8);
        epoch.seconds *= 1.2;
        let finding = Finding::of(&epoch);
        assert_eq!((finding.gains, finding.cap_s), (None, None));
        assert!(finding.notes.iter().any(|note| note.contains("no prediction")), "{finding:?}");
    }

    #[test]
    fn a_trainer_that_waits_for_a_processor_does_not_train() {
        let loader = Loader { step: 0.3, ..LOADER };
        let mut epoch = seen(&loader, 0.8);
        let before = Finding::of(&epoch).trainer_wait.unwrap();
        epoch.trainer_looks.waits -= 1.0;
        epoch.trainer_queued_s = 1.0;
        let finding = Finding::of(&epoch);
        assert!((finding.trainer_wait.unwrap() - before).abs() < 1e-9, "{finding:?}");
        epoch.trainer_queued_s = 1e6;
        assert_eq!(Finding::of(&epoch).trainer_wait, Some(1.0));
    }

    /// As if most batches had not been counted.
    #[test]
    fn if_the_model_is_wrong_shares_that_leave_no_doubt_give_the_verdict() {
        let wrong = |loader: &Loader, fetch| {
            let epoch = seen(loader, fetch);
            verdict(&Epoch { batches: Some(3), ..epoch })
        };
        let slow_steps = Loader { step: 2.0, ..LOADER };
        assert_eq!(wrong(&slow_steps, 0.8), (Some(Bottleneck::Gpu), None));
        assert_eq!(wrong(&LOADER, 0.9), (Some(Bottleneck::Fetch), None));
        assert_eq!(wrong(&LOADER, 0.1), (Some(Bottleneck::Processor), None));
        assert_eq!(wrong(&LOADER, 0.5), (None, None), "both take the same");
    }

    #[test]
    fn few_batches_have_no_verdict() {
        let finding = Finding::of(&seen(&Loader { batches: 2, ..LOADER }, 0.5));
        assert!(finding.bottleneck.is_none() && finding.notes[0].contains("too few"));
    }

    #[test]
    fn without_sight_of_the_trainer_the_workers_decide() {
        for (loader, expected) in
            [(LOADER, Bottleneck::Fetch), (Loader { step: 2.0, ..LOADER }, Bottleneck::Gpu)]
        {
            let unseen = Epoch { batches: None, ..seen(&loader, 0.8) };
            assert_eq!(verdict(&unseen), (Some(expected), None));
        }
        let other_thread = Epoch { trainer_looks: waiting(0.0, 25.0), ..seen(&LOADER, 0.8) };
        let finding = Finding::of(&other_thread);
        assert_eq!((finding.bottleneck, finding.trainer_wait), (Some(Bottleneck::Fetch), None));
        assert!(finding.notes[0].contains("pin_memory"));
    }

    #[test]
    fn a_trainer_may_wait_for_the_thread_that_takes_its_batches() {
        let direct = seen(&LOADER, 0.8);
        let TrainerLooks { waits, all, .. } = direct.trainer_looks;
        let looks = TrainerLooks { waits: 0.0, waits_for_thread: waits, all, count: 9 };
        let through = Finding::of(&Epoch { trainer_looks: looks, ..direct.clone() });
        assert_eq!(through, Finding::of(&direct));
        // Steps that wait for threads with a timeout are not taken for that if the trainer is seen waiting for workers.
        let both = TrainerLooks { waits, waits_for_thread: all - waits, all, count: 9 };
        assert_eq!(Finding::of(&Epoch { trainer_looks: both, ..direct }), through);
    }

    #[test]
    fn a_kernel_that_tells_no_function_leaves_the_rest_unknown() {
        let mut epoch = seen(&LOADER, 0.8);
        epoch.looks = Looks { runs: epoch.workers_s, ..Looks::default() };
        let finding = Finding::of(&epoch);
        assert!(finding.parts.unknown > 0.5 && finding.bottleneck.is_none(), "{finding:?}");
        assert!(finding.notes[0].contains("as root"));
    }

    #[test]
    fn one_thread_that_reads_and_trains_waits_as_long_as_it_fetches() {
        let epoch = Epoch { kind: Kind::Itself, ..seen(&LOADER, 0.9) };
        let finding = Finding::of(&epoch);
        assert_eq!(finding.bottleneck, Some(Bottleneck::Fetch));
        let left = epoch.seconds * (1.0 - finding.parts.fetch);
        assert!((finding.cap_s.unwrap() - left).abs() < 1e-9);
    }
}
