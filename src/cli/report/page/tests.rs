use std::collections::BTreeMap;

use super::*;
use crate::cache::Latencies;
use crate::engine::Profile;
use crate::profiler::Seen;
use crate::stall::{Epoch, Kind, Looks, Meters, Point, ToldLane, TrainerLooks};
use crate::whatif::Setup;

/// An epoch in which two workers wait for files most of the time.
fn epoch() -> Epoch {
    let lane = |since| ToldLane { since, span: 0.1, states: "RRFFFFFFWWEE?".repeat(8) };
    let point = |nth: u64| Point {
        at: nth as f64,
        source_bytes: nth * 40_000_000,
        disk_bytes: nth * 1_000_000,
        lead_s: Some(nth as f64 / 2.0),
        ..Point::default()
    };
    Epoch {
        trainer: 7001,
        program: "<python>&\u{1b}[31m".into(),
        number: 3,
        is_over: true,
        is_whole: true,
        seconds: 10.4,
        workers: 2,
        workers_s: 20.8,
        run_s: 4.0,
        looks: Looks { runs: 4.0, fetches: 15.0, has_no_work: 1.0, ..Looks::default() },
        trainer_looks: TrainerLooks { waits: 8.0, all: 10.4, ..TrainerLooks::default() },
        first_looks: TrainerLooks { waits: 0.5, all: 0.5, count: 25, ..TrainerLooks::default() },
        read_bytes: Some(1_000_000 * 400),
        batches: Some(40),
        mount: Meters {
            source_reads: 400,
            source_s: 14.0,
            source_bytes: 400_000_000,
            ..Meters::default()
        },
        lanes: vec![lane(0.0), lane(0.05)],
        points: (0..10).map(point).collect(),
        ..Epoch::default()
    }
}

fn report(epochs: Vec<Epoch>) -> Report {
    let waits = Latencies {
        count: 9,
        total_us: 900_000,
        p50_us: 80_000,
        max_us: 300_000,
        ..Latencies::default()
    };
    Report::of(Profile {
        source: "/pfs/a & b".into(),
        mountpoints: vec!["/mnt".into()],
        setup: Some(Setup { files: 400, bytes: 400_000_000, reads_at_once: 4, ..Setup::default() }),
        waits: BTreeMap::from([
            ("cold".to_owned(), waits),
            ("late".to_owned(), Latencies::default()),
        ]),
        seen: Seen { epochs, ..Seen::default() },
    })
}

/// Each tag that is opened is closed, in its order, and each `&` begins a name that XML knows.
#[track_caller]
fn assert_well_formed(page: &str) {
    let mut open = Vec::new();
    let (_, text) = page.split_once("<!DOCTYPE html>").unwrap();
    for part in text.split('<').skip(1) {
        let (tag, rest) = part.split_once('>').expect("a tag ends");
        assert!(!rest.contains('>'), "{rest}");
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "{tag}"),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
    for entity in page.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;"];
        assert!(
            known.iter().any(|name| entity.starts_with(name)),
            "{}",
            entity.chars().take(20).collect::<String>()
        );
    }
}

#[test]
fn a_page_has_all_drawings_and_needs_nothing_else() {
    let text = page(&[report(vec![epoch()])]);
    assert_well_formed(&text);
    for title in [
        "The epoch by part, measured and by the model",
        "What each worker did",
        "Where the bytes came from, and the lead",
        "How long readers of the mount waited, by cause",
        "cold: 9, 900 ms in all",
        "/pfs/a &amp; b",
        "&lt;python&gt;",
    ] {
        assert!(text.contains(title), "{title}");
    }
    assert!(!text.contains("<script") && !text.contains("href") && !text.contains("src="));
    assert_eq!(text.matches("http").count(), text.matches("xmlns=\"http").count());
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn a_job_that_is_predicted_has_a_curve_over_ram() {
    // 40 batches of 10 samples; each waits .03 s for a file and takes .01 s to prepare; steps take .06 s.
    let mut epoch = epoch();
    let report = |epoch: Epoch| report(vec![epoch]);
    let model = report(epoch.clone()).epochs[0].finding.model.unwrap();
    epoch.seconds = model.seconds;
    epoch.workers_s = model.seconds * 2.0;
    let mut told = report(epoch);
    told.predict(&[]);
    let text = page(&[told]);
    assert_well_formed(&text);
    assert!(
        text.contains("The time of a later epoch, by RAM") && text.contains("RAM for 80 %"),
        "{text}"
    );
}

#[test]
fn a_page_of_many_workers_is_small() {
    let mut many = epoch();
    many.workers = 64;
    many.lanes = vec![ToldLane { since: 0.0, span: 0.1, states: "RFWE".repeat(32) }; 64];
    let text = page(&[report(vec![many; 30])]);
    assert_well_formed(&text);
    assert!(text.len() < 300_000, "{} bytes", text.len());
}

#[test]
fn a_page_tells_what_there_is() {
    let itself = Epoch {
        kind: Kind::Itself,
        lanes: Vec::new(),
        points: Vec::new(),
        batches: None,
        ..epoch()
    };
    let bare = Report { setup: None, waits: BTreeMap::new(), ..report(vec![itself]) };
    let text = page(&[bare, report(Vec::new())]);
    assert_well_formed(&text);
    assert!(text.contains("which reads itself") && text.contains("no loader was seen"), "{text}");
    assert!(page(&[]).contains("Nothing is mounted"));
}
