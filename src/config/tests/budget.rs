//! The RAM budget under changing limits.

use proptest::prelude::*;

use super::*;

/// A limit of which nothing is used, and at which `bytes` fit.
fn fitting(bytes: u64) -> Vec<Reading> {
    let limit = 64 * GIB;
    let taken = limit - limit / 8 - bytes;
    let reading = Reading::memory("cgroup /job", limit, taken);
    assert_eq!(reading.fits(), bytes);
    vec![reading]
}

#[test]
fn the_tightest_limit_decides_and_is_named() {
    let machine = Reading::memory("the machine", 64 * GIB, 8 * GIB);
    let job = Reading::memory("cgroup /job", 16 * GIB, 6 * GIB);
    let mut budget = Budget::new(20 * GIB, 20 * GIB);
    assert!(!budget.fit(std::slice::from_ref(&machine), 0));
    assert_eq!(budget.reduced(), None);
    assert!(budget.fit(&[machine, job], 0));
    assert_eq!(budget.present(), 8 * GIB - GIB / 2);
    let said = "cgroup /job has 16 GiB, of which others take 6 GiB and 2 GiB are kept in reserve";
    assert_eq!(budget.reduced(), Some(said));
    assert!(!budget.fit(&[], 0), "limits that cannot be read change nothing");
}

#[test]
fn a_budget_that_never_fitted_says_why() {
    let mut budget = Budget::new(20 * GIB, 10 * GIB);
    assert!(!budget.fit(&fitting(10 * GIB), 0));
    assert!(budget.reduced().is_some());
}

#[test]
fn it_grows_back_when_headroom_has_returned_for_a_while() {
    let mut budget = Budget::new(8 * GIB, 8 * GIB);
    assert!(budget.fit(&fitting(GIB), 0));
    let looks: Vec<bool> = (0..9).map(|_| budget.fit(&fitting(40 * GIB), 0)).collect();
    assert!(!looks.contains(&true), "too early");
    assert!(!budget.fit(&fitting(GIB), 0), "a short relief is none");
    for _ in 0..9 {
        assert!(!budget.fit(&fitting(40 * GIB), 0));
    }
    assert!(budget.fit(&fitting(4 * GIB), 0));
    assert_eq!(budget.present(), 4 * GIB - GIB / 4, "what fitted at the worst of the looks");
    for _ in 0..10 {
        budget.fit(&fitting(40 * GIB), 0);
    }
    assert_eq!((budget.present(), budget.reduced()), (8 * GIB, None));
}

#[test]
fn what_the_kernel_takes_for_files_it_knows_counts() {
    let mut budget = Budget::new(32 * GIB, 32 * GIB);
    let plenty = fitting(50 * GIB);
    assert!(!budget.fit(&plenty, GIB / 2 - 1), "not worth a change");
    assert!(budget.fit(&plenty, 11 * GIB + 5));
    assert_eq!(budget.present(), 21 * GIB);
    assert_eq!(budget.reduced(), Some("the kernel takes 11 GiB for files it knows"));
    let grown: Vec<bool> = (0..10).map(|_| budget.fit(&plenty, 0)).collect();
    assert_eq!(grown.iter().filter(|grown| **grown).count(), 1);
    assert_eq!((budget.present(), budget.reduced()), (32 * GIB, None));
    assert!(budget.fit(&plenty, 500 * GIB));
    assert_eq!(budget.present(), 16 * GIB, "half of it is left at least");
    let mut small = Budget::new(GIB / 64, GIB / 64);
    assert!(!small.fit(&plenty, 7 << 20), "a few thousand files are no matter");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_always_fits_and_is_never_above_what_is_configured(
        configured in 0..40 * GIB,
        fits in prop::collection::vec(0..50 * GIB, 1..60),
    ) {
        let mut budget = Budget::new(configured, configured);
        for fits in fits {
            let before = budget.present();
            let changed = budget.fit(&fitting(fits), 0);
            prop_assert_eq!(changed, budget.present() != before);
            prop_assert!(budget.present() <= configured);
            prop_assert!(budget.present() <= fits);
            prop_assert_eq!(budget.reduced().is_some(), budget.present() < configured);
        }
    }

    #[test]
    fn it_does_not_flap_where_use_only_wavers(
        configured in GIB..40 * GIB,
        around in GIB..40 * GIB,
        wavers in prop::collection::vec(-0.03..0.03f64, 100),
    ) {
        let mut budget = Budget::new(configured, configured);
        let fits = |waver: f64| fitting((around as f64 * (1.0 + waver)) as u64);
        let changes = wavers.iter().filter(|waver| budget.fit(&fits(**waver), 0)).count();
        prop_assert!(changes <= 2, "{changes} changes");
    }
}

#[test]
fn bytes_on_their_way_take_half_of_what_fits_and_no_more_than_they_are_worth() {
    const MIB: u64 = 1 << 20;
    let moving = |configured, fits, moving| {
        let mut budget = Budget::new(configured, configured);
        budget.fit(&fitting(fits), 0);
        budget.moving(moving)
    };
    assert_eq!(moving(64 * MIB, 10 * GIB, 0), 32 * MIB);
    assert_eq!(moving(MIB, 10 * GIB, 0), 32 * MIB, "readers are many whatever is kept");
    assert_eq!(moving(200 * MIB, 10 * GIB, 0), 100 * MIB);
    assert_eq!(moving(8 * GIB, 10 * GIB, 0), 256 * MIB);
    assert_eq!(moving(8 * GIB, 40 * MIB, 0), 20 * MIB);
    assert_eq!(moving(8 * GIB, 20 * MIB, 20 * MIB), 20 * MIB, "what moves is not lost to it");
    assert_eq!(moving(8 * GIB, 0, 0), 4 * MIB);
    assert_eq!(Budget::new(8 * GIB, 40 * MIB).moving(0), 20 * MIB, "before the first look");
}

/// A store in memory leaves half of a cgroup to all else, and its own bytes count as free.
#[test]
fn a_store_in_memory_may_take_half_of_what_there_is() {
    let group = Reading::memory("the job", 64 << 20, 30 << 20);
    assert_eq!(group.to_store(0).fits(), 2 << 20);
    assert_eq!(group.to_store(10 << 20).fits(), 12 << 20);
    let mut budget = Budget::new(32 << 20, 32 << 20);
    assert!(budget.fit(&[group.to_store(0)], 0) && budget.present() <= 2 << 20);
}
