//! Tests that the history finds wrong bytes, and permits states that may still be served.

use std::cell::Cell;
use std::convert::Infallible;

use super::*;

const PERIOD: Nanos = 100;
const FIRST: Body = Body { content: 1, size: 1000 };
const SECOND: Body = Body { content: 2, size: 1000 };

fn file() -> File {
    File::new(3, "d/0003".into(), FIRST, 0)
}

fn ends(at: u64) -> Vec<End> {
    vec![End { at, is_exact: true }]
}

/// Changes the file between the two times.
fn change(file: &File, body: Option<Body>, from: Nanos, until: Nanos) {
    let times = Cell::new([from, until].into_iter());
    let clock = || {
        let mut rest = times.replace([0, 0].into_iter());
        let time = rest.next().unwrap_or(until);
        times.set(rest);
        time
    };
    let _: Result<(), Infallible> = file.replace(body, clock, || Ok(()));
}

fn whole(file: &File, body: Body) -> Pieces {
    Pieces { pieces: vec![(0, file.bytes(body))], ends: ends(body.size) }
}

fn is_right(file: &File, staleness: &Staleness, read: &Pieces, began: Nanos, ended: Nanos) -> bool {
    file.check(&file.permitted(staleness, began, ended), read).is_ok()
}

#[test]
fn an_old_state_is_permitted_for_the_period() {
    let (file, staleness) = (file(), Staleness::new(Some(PERIOD), 10));
    change(&file, Some(SECOND), 1000, 1005);
    let (old, new) = (whole(&file, FIRST), whole(&file, SECOND));
    assert!(is_right(&file, &staleness, &old, 1115, 5000));
    assert!(!is_right(&file, &staleness, &old, 1116, 5000));
    assert!(is_right(&file, &staleness, &new, 900, 1000));
    assert!(!is_right(&file, &staleness, &new, 900, 999));
    staleness.note_remembered(2000);
    assert!(is_right(&file, &staleness, &old, 2110, 5000));
    assert!(!is_right(&file, &staleness, &old, 2111, 5000));
    assert!(is_right(&file, &Staleness::new(None, 0), &old, 9000, 9001));
}

#[test]
fn a_file_stays_absent_only_if_an_immutable_source_lacked_it_at_the_last_mount() {
    for (period, began, may) in [(None, 25, true), (None, 31, false), (Some(PERIOD), 25, false)] {
        let (file, staleness) = (file(), Staleness::new(period, 0));
        change(&file, None, 10, 20);
        change(&file, Some(SECOND), 29, 30);
        staleness.note_mount(began);
        assert_eq!(file.may_stay_absent(&staleness), may, "{period:?} {began}");
    }
}

#[test]
fn only_other_bytes_make_a_small_file_stale() {
    let staleness = Staleness::new(None, 0);
    let large = Body { content: 1, size: LARGE };
    for (before, after, may) in [
        (FIRST, Some(FIRST), false),
        (FIRST, Some(SECOND), true),
        (FIRST, None, true),
        (large, Some(large), true),
    ] {
        let file = File::new(3, "d/0003".into(), before, 0);
        assert!(!file.permitted(&staleness, 0, 100).has_changed());
        change(&file, after, 10, 20);
        assert_eq!(file.permitted(&staleness, 0, 100).has_changed(), may, "{before:?} {after:?}");
    }
}

#[test]
fn bytes_of_two_states_are_never_right() {
    let (file, staleness) = (file(), Staleness::new(Some(PERIOD), 0));
    change(&file, Some(SECOND), 10, 10);
    let mut mixed = file.bytes(FIRST);
    mixed[500..].copy_from_slice(&file.bytes(SECOND)[500..]);
    let read = Pieces { pieces: vec![(0, mixed)], ends: Vec::new() };
    let permitted = file.permitted(&staleness, 5, 20);
    let said = file.check(&permitted, &read).expect_err("it is mixed");
    assert!(said.contains("content 1 from 0, content 2 from 496"), "{said}");
    let first = (0, file.bytes(FIRST)[..100].to_vec());
    let second = (200, file.bytes(SECOND)[200..300].to_vec());
    let apart = Pieces { pieces: vec![first, second], ends: Vec::new() };
    assert!(file.check(&permitted, &apart).is_err());
}

#[test]
fn a_file_that_ends_too_early_is_wrong_unless_it_is_being_written() {
    let (file, staleness) = (file(), Staleness::new(Some(PERIOD), 0));
    let short = |body: Body| Pieces {
        pieces: vec![(0, file.bytes(body)[..300].to_vec())],
        ends: ends(300),
    };
    assert!(!is_right(&file, &staleness, &short(FIRST), 1, 2));
    let _: Result<(), Infallible> = file.rewrite(SECOND, || 10, || Ok(()));
    assert!(is_right(&file, &staleness, &short(SECOND), 11, 12));
    assert!(!is_right(&file, &staleness, &short(SECOND), 111, 112));
    assert!(is_right(&file, &staleness, &whole(&file, SECOND), 111, 112));
    assert!(file.permitted(&staleness, 11, 12).may_have_size(7));
}

#[test]
fn a_file_that_is_removed_may_be_missing() {
    let (file, staleness) = (file(), Staleness::new(Some(PERIOD), 0));
    change(&file, None, 10, 20);
    assert!(!file.permitted(&staleness, 0, 9).may_be_absent());
    assert!(file.permitted(&staleness, 0, 10).may_be_absent());
    assert!(file.permitted(&staleness, 200, 300).must_be_absent());
    assert_eq!((file.body(), file.next_content()), (None, 2));
}
