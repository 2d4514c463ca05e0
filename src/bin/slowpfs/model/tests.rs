//! Compares the model with closed forms, in virtual time.

use super::load::{closed_loop, whole_file};
use super::timeline::Timeline;
use super::{Model, Nanos, Params, Preset, Request};

const MS: Nanos = 1_000_000;
/// The file size of the presets' figures.
const FILE: u64 = 110_000;
/// Cycles of a load: so many that its beginning and its end do not matter.
const CYCLES: u64 = 20_000;

fn read(bytes: u64) -> Request {
    Request::Read { handle: 0, offset: 0, bytes }
}

#[track_caller]
fn close_to(got: f64, expected: f64, tolerance: f64) {
    let off = (got - expected).abs() / expected;
    assert!(off <= tolerance, "{got} is {:.1} % off {expected}", off * 100.0);
}

#[test]
fn idle_costs_nothing() {
    let mut model = Model::new(Preset::Idle.params(), 1);
    for request in [Request::Lookup, Request::Getattr, Request::Open, Request::Readdir, read(FILE)]
    {
        assert_eq!(model.admit(7, request).done, 7);
    }
}

#[test]
fn open_path_is_lookup_plus_open() {
    let params = Params { lookup_ms: 0.5, open_ms: 2.0, ..Params::IDLE };
    let mut model = Model::new(params, 1);
    let looked_up = model.admit(0, Request::Lookup).done;
    assert_eq!(model.admit(looked_up, Request::Open).done, 2 * MS + MS / 2);
}

#[test]
fn lone_file_on_busy_is_the_sum_of_its_parts() {
    let mut model = Model::new(Preset::Busy.params(), 1);
    let alone = closed_loop(&mut model, 1, CYCLES, &whole_file(FILE));
    // lookup .5 + .2, open 2 + .2, read 1 + seek 4 + 110 KB at 200 MB/s .55
    close_to(alone.mean_ms, 8.45, 1e-9);
}

#[test]
fn link_caps_many_readers() {
    let mut model = Model::new(Params { mbs: 200.0, ..Params::IDLE }, 1);
    for clients in [1, 4, 16] {
        let out = closed_loop(&mut model, clients, CYCLES, &[read(FILE)]);
        close_to(out.rate * FILE as f64 / 1e6, 200.0, 0.001);
        model = Model::new(Params { mbs: 200.0, ..Params::IDLE }, 1);
    }
}

#[test]
fn stream_rate_limits_one_stream_only() {
    let params = Params { stream_mbs: 100.0, slots: 8, ..Params::IDLE };
    let megabytes =
        |clients| closed_loop(&mut Model::new(params, 1), clients, CYCLES, &[read(1_000_000)]).rate;
    close_to(megabytes(1), 100.0, 0.001);
    close_to(megabytes(8), 800.0, 0.001);
    close_to(megabytes(32), 800.0, 0.01);
}

#[test]
fn seeks_scale_to_the_number_of_slots() {
    let params = Params { seek_ms: 4.0, slots: 8, ..Params::IDLE };
    for (clients, expected) in [(1, 250.0), (4, 1000.0), (8, 2000.0), (32, 2000.0)] {
        let out = closed_loop(&mut Model::new(params, 1), clients, CYCLES, &[read(4096)]);
        close_to(out.rate, expected, 0.005);
        // Little's law: number in the system = rate x time in the system.
        close_to(out.rate * out.mean_ms / 1e3, clients as f64, 0.005);
    }
}

#[test]
fn queueing_at_the_slots_gives_the_latency_of_littles_law() {
    let params = Params { seek_ms: 4.0, slots: 8, ..Params::IDLE };
    let out = closed_loop(&mut Model::new(params, 1), 32, CYCLES, &[read(4096)]);
    close_to(out.mean_ms, 16.0, 0.005);
}

#[test]
fn metadata_servers_cap_the_rate() {
    let params = Params { mds_slots: 2, mds_us: 1000.0, getattr_ms: 0.5, ..Params::IDLE };
    let out = closed_loop(&mut Model::new(params, 1), 16, CYCLES, &[Request::Getattr]);
    close_to(out.rate, 2000.0, 0.005);
}

#[test]
fn busy_and_bad_serve_what_they_say() {
    let rate = |preset: Preset, clients| {
        closed_loop(&mut Model::new(preset.params(), 1), clients, CYCLES, &whole_file(FILE)).rate
    };
    close_to(rate(Preset::Busy, 1), 1e3 / 8.45, 0.001);
    close_to(rate(Preset::Busy, 16) * FILE as f64 / 1e6, 200.0, 0.03);
    close_to(rate(Preset::Bad, 1), 100.0, 0.15);
    close_to(rate(Preset::Bad, 16), 1500.0, 0.10);
}

#[test]
fn wan_is_round_trips_for_one_and_the_link_for_many() {
    let rate = |clients| {
        closed_loop(&mut Model::new(Preset::Wan.params(), 1), clients, CYCLES, &whole_file(FILE))
            .rate
    };
    close_to(rate(1), 1e3 / (300.0 + 4.4), 0.02);
    close_to(rate(128) * FILE as f64 / 1e6, 25.0, 0.02);
}

#[test]
fn continuing_reads_do_not_seek() {
    let mut model = Model::new(Params { seek_ms: 4.0, ..Params::IDLE }, 1);
    let mut random = |handle, offset| {
        let admitted = model.admit(0, Request::Read { handle, offset, bytes: 4096 });
        assert_eq!(admitted.done > 0, admitted.random);
        admitted.random
    };
    assert!(random(1, 0), "the first read of a handle");
    assert!(!random(1, 4096));
    assert!(random(2, 8192), "another handle");
    assert!(!random(1, 12288) && !random(1, 8192), "two neighbours that changed places");
    assert!(!random(1, 16384));
    assert!(random(1, 1 << 20), "a jump");
    assert!(random(1, 0), "and back");
}

#[test]
fn closed_handles_are_forgotten() {
    let mut model = Model::new(Params::IDLE, 1);
    let first = Request::Read { handle: 1, offset: 0, bytes: 4096 };
    let next = Request::Read { handle: 1, offset: 4096, bytes: 4096 };
    model.admit(0, first);
    model.close(1);
    assert!(model.admit(0, next).random);
}

#[test]
fn tail_hits_the_asked_fraction() {
    let params = Params { lookup_ms: 1.0, tail_p: 0.05, tail_x: 10.0, ..Params::IDLE };
    let mut model = Model::new(params, 7);
    let n = 100_000;
    let slow = (0..n).filter(|_| model.admit(0, Request::Lookup).done == 10 * MS).count();
    close_to(slow as f64 / f64::from(n), 0.05, 0.05);
}

#[test]
fn seed_decides_everything() {
    let run = |seed| {
        let mut model = Model::new(Preset::Bad.params(), seed);
        closed_loop(&mut model, 16, CYCLES, &whole_file(FILE)).mean_ms
    };
    assert_eq!(run(1).to_bits(), run(1).to_bits());
    assert_ne!(run(1).to_bits(), run(2).to_bits());
}

#[test]
fn slow_request_does_not_block_the_link_for_those_behind_it() {
    // The first read books the link 20 ms ahead. The second read is not slow, and ends long before.
    let mut link = Timeline::default();
    assert_eq!(link.fill(20 * MS, MS), 21 * MS);
    assert_eq!(link.fill(MS, MS), 2 * MS);
    // A transfer that meets the booked millisecond uses the idle time on both sides.
    assert_eq!(link.fill(19 * MS + MS / 2, MS), 21 * MS + MS / 2);
}

#[test]
fn booked_time_is_never_given_twice() {
    let mut server = Timeline::default();
    server.occupy(10, 20);
    server.occupy(30, 40);
    assert_eq!(server.fit(0, 10), 0);
    assert_eq!(server.fit(5, 10), 20);
    assert_eq!(server.fit(5, 11), 40);
    server.occupy(20, 30);
    assert_eq!(server.fit(12, 1), 40);
    server.prune(40);
    assert_eq!(server.fit(12, 1), 12);
}

#[test]
fn slowdown_and_preset_change_at_run_time() {
    let mut model = Model::new(Params { open_ms: 2.0, ..Params::IDLE }, 1);
    model.set_slowdown(3.0);
    assert_eq!(model.admit(0, Request::Open).done, 6 * MS);
    model.set_params(Preset::Idle.params());
    assert_eq!(model.admit(5, Request::Open).done, 5);
}
