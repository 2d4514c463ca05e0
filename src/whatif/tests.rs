use super::*;
use crate::config::Size;

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

fn assert_near(prediction: &Prediction, seconds: f64) {
    let error = prediction.seconds / seconds - 1.0;
    assert!(error.abs() < 0.03, "{prediction:?} instead of {seconds}");
}

#[test]
fn a_change_gives_what_the_model_gives() {
    let (setup, epoch, model) = cold();
    let job = Job::of(&setup, &epoch, &model).unwrap();
    assert!(job.error.abs() < 0.03, "{}", job.error);
    assert_near(&job.predict(&[]), model.seconds);
    let all = [Change::Ram(Size::Percent(100.0))];
    assert_near(&job.predict(&all), model.seconds_with(0.0, 1.0, 1.0));
    assert_near(&job.predict(&[Change::Latency(0.5)]), model.seconds_with(0.53, 1.0, 1.0));
    assert_near(&job.predict(&[Change::Link(2.0)]), model.seconds_with(0.97, 1.0, 1.0));
    let half = [Change::Ram(Size::Percent(50.0))];
    assert_near(&job.predict(&half), model.seconds_with(0.5, 1.0, 1.0));
    let twice = Model { workers: 4, ..model };
    assert_near(&job.predict(&[Change::Workers(4)]), twice.seconds_with(1.0, 1.0, 1.0));
}

/// With the order told, the source is asked for many samples at once, so workers wait for little.
#[test]
fn an_order_that_is_told_is_what_the_planner_makes_of_it() {
    let (setup, epoch, model) = cold();
    let job = Job::of(&setup, &epoch, &model).unwrap();
    let ram = Change::Ram(Size::Percent(20.0));
    let told = job.predict(&[ram, Change::OrderTold]);
    assert_near(&told, model.seconds_with(0.0, 1.0, 1.0));
    assert_eq!(told.what, "RAM for 20 % of the data, the order told");
}

#[test]
fn a_job_that_the_scenario_does_not_give_back_gets_no_prediction() {
    let (setup, mut epoch, model) = cold();
    epoch.seconds *= 1.2;
    assert!(Job::of(&setup, &epoch, &model).is_none());
    epoch.seconds /= 1.2;
    assert!(Job::of(&setup, &epoch, &model).is_some());
    let begun = Epoch { is_over: false, ..epoch.clone() };
    assert!(Job::of(&setup, &begun, &model).is_none(), "it goes on");
    let rank = Epoch { read_bytes: Some(setup.bytes / 2), ..epoch.clone() };
    assert!(Job::of(&setup, &rank, &model).is_none(), "other ranks read the rest");
    let unknown = Epoch { read_bytes: None, ..epoch };
    assert!(Job::of(&setup, &unknown, &model).is_none());
}

#[test]
fn more_workers_need_processors() {
    let (setup, epoch, model) = cold();
    let epoch = Epoch { run_s: 16.0, ..epoch };
    let setup = Setup { processors: 2, ..setup };
    let job = Job::of(&setup, &epoch, &model).unwrap();
    assert_near(&job.predict(&[Change::Workers(64), Change::Latency(0.01)]), 8.0);
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
    let job = Job::of(&large, &epoch, &model).unwrap();
    assert_near(&job.predict(&[Change::Latency(0.5)]), model.seconds_with(0.53, 1.0, 1.0));
}
