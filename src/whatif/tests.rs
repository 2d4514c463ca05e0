use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::config::{Bytes, Size};
use crate::plan::{Layout, Settings, Tier};
use crate::sim::{Machine, Reader, workload};
use crate::stall::{AHEAD, Bottleneck, Finding, Looks, Meters, TrainerLooks};

const FILES: u32 = 3_000;
const BYTES: u64 = 110_000;

/// A job whose samples are all read when they are asked for: a worker waits 8 ms for each, .5 ms of them for its bytes.
fn cold() -> (Setup, Epoch, Model) {
    let (workers, batches, batch) = (2_u32, 47_u64, 64.0);
    let mut model = Model {
        workers,
        batches,
        preparation_s: 0.004 * batch,
        fetch_s: 0.008 * batch,
        step_s: 0.1,
        ..Model::default()
    };
    model.seconds = model.seconds_with(1.0, 1.0, 1.0);
    let reads = u64::from(FILES);
    let mut epoch = Epoch {
        is_over: true,
        is_whole: true,
        seconds: model.seconds,
        workers,
        read_bytes: Some(reads * BYTES),
        batches: Some(batches),
        ..Epoch::default()
    };
    epoch.mount.source_reads = reads;
    epoch.mount.source_s = 0.0078 * reads as f64;
    let setup = Setup {
        files: reads,
        bytes: reads * BYTES,
        ram_bytes: 4 << 20,
        reads_at_once: 16,
        seconds_per_byte: 0.0005 / BYTES as f64,
        ..Setup::default()
    };
    (setup, epoch, model)
}

fn alone(setup: &Setup, epoch: &Epoch, model: &Model) -> Option<Job> {
    Job::of(setup, &[Rank { epoch, model }])
}

fn told(job: &Job, changes: &[Change]) -> Prediction {
    job.predict(changes).unwrap()
}

fn assert_near(prediction: &Prediction, seconds: f64) {
    let error = prediction.seconds / seconds - 1.0;
    assert!(error.abs() < 0.03, "{prediction:?} instead of {seconds}");
}

#[test]
fn a_change_gives_what_the_model_gives() {
    let (setup, epoch, model) = cold();
    let job = alone(&setup, &epoch, &model).unwrap();
    assert!(job.error.abs() < 0.03, "{}", job.error);
    assert_near(&told(&job, &[]), model.seconds);
    let all = [Change::Ram(Size::Percent(100.0))];
    assert_near(&told(&job, &all), model.seconds_with(0.0, 1.0, 1.0));
    assert_near(&told(&job, &[Change::Latency(0.5)]), model.seconds_with(0.53, 1.0, 1.0));
    assert_near(&told(&job, &[Change::Link(2.0)]), model.seconds_with(0.97, 1.0, 1.0));
    let half = [Change::Ram(Size::Percent(50.0))];
    assert_near(&told(&job, &half), model.seconds_with(0.5, 1.0, 1.0));
    let twice = Model { workers: 4, ..model };
    assert_near(&told(&job, &[Change::Workers(4)]), twice.seconds_with(1.0, 1.0, 1.0));
}

/// With the order told, the source is asked for many samples at once, so workers wait for little.
#[test]
fn an_order_that_is_told_is_what_the_planner_makes_of_it() {
    let (setup, epoch, model) = cold();
    let job = alone(&setup, &epoch, &model).unwrap();
    let ram = Change::Ram(Size::Percent(20.0));
    let told = told(&job, &[ram, Change::OrderTold]);
    assert_near(&told, model.seconds_with(0.0, 1.0, 1.0));
    assert_eq!(told.what, "RAM for 20 % of the data, the order told");
}

#[test]
fn a_job_that_the_scenario_does_not_give_back_gets_no_prediction() {
    let (setup, mut epoch, model) = cold();
    epoch.seconds *= 1.2;
    assert!(alone(&setup, &epoch, &model).is_none());
    epoch.seconds /= 1.2;
    assert!(alone(&setup, &epoch, &model).is_some());
    let begun = Epoch { is_over: false, ..epoch.clone() };
    assert!(alone(&setup, &begun, &model).is_none(), "it goes on");
    let rank = Epoch { read_bytes: Some(setup.bytes / 2), ..epoch.clone() };
    assert!(alone(&setup, &rank, &model).is_none(), "other ranks read the rest");
    let unknown = Epoch { read_bytes: None, ..epoch };
    assert!(alone(&setup, &unknown, &model).is_none());
}

#[test]
fn more_workers_need_processors() {
    let (setup, epoch, model) = cold();
    let epoch = Epoch { run_s: 16.0, ..epoch };
    let setup = Setup { processors: 2, ..setup };
    let job = alone(&setup, &epoch, &model).unwrap();
    assert_near(&told(&job, &[Change::Workers(64), Change::Latency(0.01)]), 8.0);
    assert!(job.gains().1 >= 8.0, "no storage brings it below what the processors need");
}

/// Two workers share the processors that others leave them: of two processors, a half. Each sample takes 8 ms of one.
fn contended() -> (Setup, Epoch, Model) {
    let (setup, mut epoch, mut model) = cold();
    let samples = f64::from(FILES);
    model.step_s = 0.001;
    model.run_s = 0.008 * 64.0;
    // Half a processor takes 16 ms for a sample, and one of the two workers waits for it meanwhile.
    model.queued_s = 0.016 * 64.0;
    model.preparation_s = model.run_s + model.queued_s;
    model.fetch_s = 0.001 * 64.0;
    epoch.run_s = 0.008 * samples;
    epoch.seconds = 2.0 * epoch.run_s;
    epoch.mount.busy_s = Some(epoch.run_s + 1.5 * epoch.seconds);
    (Setup { processors: 2, ..setup }, epoch, model)
}

#[test]
fn workers_share_the_processors_that_others_leave_them() {
    let (setup, epoch, model) = contended();
    let job = alone(&setup, &epoch, &model).unwrap();
    assert!(job.least == 0.0 && job.error.abs() < 0.03, "{}", job.error);
    // There is half a processor. With 8 of them there are as many as workers, and each takes 9 ms for a sample.
    assert_near(&told(&job, &[Change::Cores(8)]), 0.0045 * f64::from(FILES));
    assert_near(&told(&job, &[Change::Workers(8)]), epoch.seconds);
    assert_eq!(told(&job, &[Change::Cores(8)]).what, "8 processors");
    let unknown = Setup { processors: 0, ..setup };
    let model = Model { preparation_s: 0.032 * 64.0 - model.fetch_s, ..model };
    let job = alone(&unknown, &epoch, &model).unwrap();
    assert!(job.predict(&[Change::Cores(8)]).unwrap_err().contains("not known"));
}

#[test]
fn a_cache_disk_is_as_fast_as_it_was_or_as_is_written() {
    let (setup, epoch, model) = cold();
    let all = |rate| Change::Disk(Size::Percent(100.0), rate);
    let job = alone(&setup, &epoch, &model).unwrap();
    assert!(job.predict(&[all(None)]).unwrap_err().contains("disk=50%@500MB"));
    // 12 ms for each sample from the source became 4 ms and the disk's.
    let with = |disk_ms: f64| 0.001 * f64::from(FILES) / 2.0 * (4.0 + disk_ms) + 0.1;
    assert_near(&told(&job, &[all(Some(110_000_000))]), with(1.0));
    let slow = told(&job, &[all(Some(11_000_000))]);
    assert!(slow.seconds > 0.009 * f64::from(FILES), "the disk is shared: {slow:?}");
    let measured = Setup { disk_read_s: Some(0.002), ..setup };
    let job = alone(&measured, &epoch, &model).unwrap();
    assert_near(&told(&job, &[all(None)]), with(2.0));
    let none = Change::Disk(Size::Bytes(Bytes(0)), None);
    assert_near(&told(&job, &[none]), model.seconds);
}

/// Half of the samples come from the disk, in 2 ms each. What workers wait for them is no time of the source.
#[test]
fn waits_for_the_cache_disk_are_none_for_the_source() {
    let (setup, mut epoch, mut model) = cold();
    let setup = Setup { disk_bytes: setup.bytes / 2, disk_read_s: Some(0.002), ..setup };
    model.fetch_s = (0.008 + 0.002) / 2.0 * 64.0;
    model.seconds = model.seconds_with(1.0, 1.0, 1.0);
    epoch.seconds = model.seconds;
    epoch.mount.source_reads /= 2;
    epoch.mount.disk_bytes = setup.bytes / 2;
    let job = alone(&setup, &epoch, &model).unwrap();
    assert!(job.error.abs() < 0.03, "{}", job.error);
    let none = Change::Disk(Size::Bytes(Bytes(0)), None);
    assert_near(&told(&job, &[none]), cold().1.seconds);
}

/// Two ranks of one job, each with half of the samples.
#[test]
fn ranks_that_read_together_are_one_job() {
    let (setup, whole, model) = cold();
    let model = Model { batches: model.batches.div_ceil(2), ..model };
    let seconds = model.seconds_with(1.0, 1.0, 1.0);
    let rank = |began_s: f64| Epoch {
        began_s,
        seconds,
        read_bytes: whole.read_bytes.map(|bytes| bytes / 2),
        ..whole.clone()
    };
    let (first, second) = (rank(100.0), rank(100.0));
    assert!(alone(&setup, &first, &model).is_none(), "the other rank reads the rest");
    let ranks = [&first, &second].map(|epoch| Rank { epoch, model: &model });
    let job = Job::of(&setup, &ranks).unwrap();
    let all = [Change::Ram(Size::Percent(100.0))];
    assert_near(&told(&job, &all), model.seconds_with(0.0, 1.0, 1.0));
    // Two jobs that each read everything.
    let each = cold().2;
    let jobs = [&whole, &whole].map(|epoch| Rank { epoch, model: &each });
    assert!(
        Job::of(&setup, &jobs).is_none(),
        "each sample was read once, so they did not wait so long"
    );
}

/// 10 million samples are simulated as fewer ones.
#[test]
fn a_large_dataset_is_made_smaller() {
    let (setup, epoch, model) = cold();
    let times = 200;
    let large = Setup { files: setup.files * times, bytes: setup.bytes * times, ..setup };
    let mut epoch = epoch;
    epoch.read_bytes = Some(large.bytes);
    epoch.mount.source_bytes = large.bytes;
    epoch.mount.source_reads *= times;
    let mut model = Model { batches: model.batches * times, ..model };
    model.seconds = model.seconds_with(1.0, 1.0, 1.0);
    epoch.seconds = model.seconds;
    let job = alone(&large, &epoch, &model).unwrap();
    assert_near(&told(&job, &[Change::Latency(0.5)]), model.seconds_with(0.53, 1.0, 1.0));
}

/// A job of random numbers at a random mount.
fn random_scenario(rng: &mut StdRng) -> Scenario {
    let mut spread = |low: f64, high: f64| low * (high / low).powf(rng.random::<f64>());
    let (samples, bytes) = (spread(800.0, 2_000.0) as u32, spread(2e4, 5e5) as u64);
    let (workers, batch) = (spread(1.0, 8.99) as u32, spread(4.0, 16.99) as u32);
    let (think_us, step_us) = (spread(200.0, 20_000.0) as u64, spread(2.5e3, 2.5e5) as u64);
    let source = SourceModel {
        latency_us: spread(500.0, 20_000.0) as u64,
        servers: spread(2.0, 32.0) as u32,
        bandwidth: spread(5e7, 2e9) as u64,
    };
    let ram = (spread(0.01, 1.0) * f64::from(samples) * bytes as f64) as u64;
    let (known, prefetch) = (rng.random(), rng.random());
    let order = workload::permutations(samples, 2, rng.random()).unwrap();
    Scenario {
        layout: Arc::new(Layout::new((0..samples).map(|_| bytes))),
        readers: vec![Reader {
            order,
            workers,
            batch,
            think_us,
            run_us: 0,
            step_us,
            ahead: AHEAD as u32,
        }],
        known,
        epochs: 2,
        settings: Settings {
            tiers: vec![Tier { capacity: ram.max(64 << 20), block_us: 0 }],
            source_us: None,
            policy: PolicyKind::Auto,
            prefetch,
            inflight_max: source.servers,
            window_bytes: None,
            request_bytes: 8 << 20,
            start_at_open: true,
            may_untrack: false,
            withheld: false,
        },
        machine: Machine::default(),
        source,
        manners: None,
        vanish: None,
    }
}

/// The first or the second epoch of a simulation, as the profiler would see it.
fn seen(scenario: &Scenario, nth: usize) -> Epoch {
    let epochs = run(scenario).epochs;
    let (epoch, began) = (epochs[nth], if nth == 0 { 0 } else { epochs[0].trained_us });
    let reader = &scenario.readers[0];
    let batches = epoch.reads.div_ceil(u64::from(reader.batch));
    let seconds = (epoch.trained_us - began) as f64 / 1e6;
    let (workers, fetches) = (f64::from(reader.workers), epoch.stall_us as f64 / 1e6);
    let runs = (epoch.reads * reader.think_us) as f64 / 1e6;
    let waits = seconds - (batches * reader.step_us) as f64 / 1e6;
    let has_no_work = workers * seconds - fetches - runs;
    Epoch {
        is_over: true,
        is_whole: true,
        seconds,
        workers: reader.workers,
        workers_s: workers * seconds,
        run_s: runs,
        looks: Looks { runs, fetches, has_no_work, ..Looks::default() },
        trainer_looks: TrainerLooks { waits, all: seconds, ..TrainerLooks::default() },
        first_looks: TrainerLooks { waits: 1.0, all: 1.0, count: 50, ..TrainerLooks::default() },
        read_bytes: Some(scenario.layout.stored_bytes_of_all()),
        batches: Some(batches),
        mount: Meters {
            source_reads: epoch.source_reads,
            source_s: epoch.source_us as f64 / 1e6,
            source_bytes: epoch.source_bytes,
            ..Meters::default()
        },
        ..Epoch::default()
    }
}

/// What the same job would gain without each part, the largest gain first.
fn truth(scenario: &Scenario, nth: usize, seconds: f64) -> [(f64, Bottleneck); 3] {
    let gain = |change: &dyn Fn(&mut Scenario)| {
        let mut other = scenario.clone();
        change(&mut other);
        1.0 - seen(&other, nth).seconds / seconds
    };
    let mut gains = [
        (gain(&|other| other.source = SourceModel::INSTANT), Bottleneck::Fetch),
        (gain(&|other| other.readers[0].think_us = 0), Bottleneck::Processor),
        (gain(&|other| other.readers[0].step_us = 1), Bottleneck::Gpu),
    ];
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    gains
}

/// What the mount of the scenario would say.
fn setup(scenario: &Scenario) -> Setup {
    let (files, bytes) = (scenario.layout.files() as u64, scenario.layout.stored_bytes_of_all());
    let bandwidth = scenario.source.bandwidth as f64;
    Setup {
        files,
        bytes,
        ram_bytes: scenario.settings.tiers[0].capacity,
        prefetch: scenario.settings.prefetch,
        order_is_known: scenario.known,
        reads_at_once: scenario.source.servers,
        seconds_per_byte: 1.0 / bandwidth,
        ..Setup::default()
    }
}

#[test]
fn jobs_at_random_mounts_get_the_right_verdict_and_their_own_time() {
    let mut rng = StdRng::seed_from_u64(27);
    let (mut right, mut near) = (0, 0);
    for number in 0..200 {
        let scenario = random_scenario(&mut rng);
        let nth = number % 2;
        let epoch = seen(&scenario, nth);
        let [first, second, _] = truth(&scenario, nth, epoch.seconds);
        let finding = Finding::of(&epoch);
        let job = finding.model.and_then(|model| alone(&setup(&scenario), &epoch, &model));
        let told = job.as_ref().map(|job| job.gains().0.largest()).or(finding.bottleneck);
        let (is_right, lead) = (told == Some(first.1), first.0 - second.0);
        assert!(is_right || lead < 0.1, "job {number}: {first:?} by {lead}, not {told:?}");
        right += u32::from(is_right);
        let error = job.map(|job| job.error).or(finding.model.map(|model| model.error));
        near += u32::from(error.is_some_and(|error| error.abs() <= 0.03));
    }
    assert!(right >= 190 && near >= 190, "{right} verdicts are right, {near} times are near");
}
