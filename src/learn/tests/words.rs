//! What is said of a loader whose order is not known.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::Shell;
use super::sim::{Loader, Step, unknowable};
use super::trials::learner;

const N: u32 = 5_000;

/// A loader of samples from `first` on in orders that nobody can compute.
fn steps(first: u32) -> Vec<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut epoch = || unknowable(N, &mut rng).iter().map(|sample| sample + first).collect();
    let loader = Loader {
        group: 100,
        workers: 2,
        batch: 16,
        drop_last: false,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs: vec![epoch(), epoch()],
    };
    loader.run(1_000, &mut rng)
}

fn said(shell: &Shell) -> String {
    shell.learner.beliefs().map(|belief| belief.text).collect()
}

#[test]
fn a_search_of_all_seeds_is_called_so_in_the_next_epoch_too() {
    let mut shell = Shell::new(learner(N), [].into(), 20);
    shell.crack_delay = usize::MAX / 2;
    let steps = steps(N / 4);
    shell.run(&steps[..N as usize / 2]);
    assert!(said(&shell).contains("all seeds are being searched"), "{}", said(&shell));
    shell.run(&steps[N as usize / 2..]);
    assert!(said(&shell).contains("all seeds are being searched"), "{}", said(&shell));
}

#[test]
fn no_seed_is_said_to_be_not_found_where_none_was_searched_for() {
    // Beyond all files that are numbered.
    let mut shell = Shell::new(learner(N), [].into(), 20);
    shell.run(&steps(10 * N)[..2_000]);
    assert_eq!(shell.asked, 0);
    assert!(!said(&shell).contains("no seed was found"), "{}", said(&shell));
    assert!(said(&shell).contains("no dataset"), "{}", said(&shell));
}
