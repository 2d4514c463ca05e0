use super::*;

/// One of each sampler and of each setting of its epochs, with the seed that a script would give.
fn running() -> Vec<Sampler> {
    let mut all = Sampler::all();
    for words in ["reseed", "reseed-again", "fresh", "again"] {
        for mut sampler in Sampler::all().into_iter().filter(|s| matches!(s, Sampler::Shuffle(_))) {
            set(&mut sampler, "epochs", words);
            all.push(sampler);
        }
    }
    for (name, key) in [
        ("torch-random", "persistent_workers"),
        ("torch-random", "replacement"),
        ("torch-default", "replacement"),
        ("dali", "random_shuffle"),
        ("dali", "shuffle_after_epoch"),
    ] {
        let mut sampler = Sampler::named(name).unwrap();
        set(&mut sampler, key, "true");
        all.push(sampler);
    }
    let some = Weighted { replacement: false, num_samples: Some(100), ..Weighted::default() };
    all.push(Sampler::TorchWeighted(some));
    for sampler in &mut all {
        if let Sampler::TfShuffle(sampler) = sampler {
            sampler.seed = Some(3);
        }
        if let Some(weights) = sampler.weights_mut() {
            *weights = Weights::of("w", &[1.0, 0.5, 7.0].repeat(101)[..301]);
        }
    }
    all
}

fn set(sampler: &mut Sampler, key: &str, value: &str) {
    sampler.keys().iter_mut().find(|known| known.name == key).unwrap().set(value).unwrap();
}

#[test]
fn starting_late_is_the_same_as_running_there() {
    for sampler in running() {
        let run: Vec<_> = sampler.epochs(301).take(6).collect();
        let late: Vec<_> = sampler.epochs(301).skip_epochs(4).take(2).collect();
        assert_eq!(run[4..], late, "{sampler}");
        let mut later = sampler.clone();
        if later.keys().iter().any(|key| key.name == "epoch") {
            let first = if sampler.name() == "dlio" { "3" } else { "2" };
            set(&mut later, "epoch", first);
            assert_eq!(run[2..], later.epochs(301).take(4).collect::<Vec<_>>(), "{later}");
        }
        for (k, epoch) in (0..).zip(&run) {
            assert_eq!(epoch.len(), sampler.epoch_len(301, k) as usize, "{sampler}");
        }
    }
}

#[test]
fn names_and_keys_are_told_apart() {
    let all = Sampler::all();
    for (at, sampler) in all.iter().enumerate() {
        assert!(all[..at].iter().all(|other| other.name() != sampler.name()), "{sampler}");
        assert_eq!(Sampler::named(sampler.name()).as_ref(), Some(sampler));
        let mut own = sampler.clone();
        let names: Vec<_> = own.keys().iter().map(|key| key.name).collect();
        assert!((1..names.len()).all(|at| !names[..at].contains(&names[at])), "{names:?}");
        assert!(!sampler.about().is_empty());
    }
}

#[test]
fn words_say_what_is_not_a_default() {
    let sampler = Distributed { seed: 3, world: 2, rank: 1, ..Distributed::default() };
    let sampler = Sampler::TorchDistributed(sampler);
    assert_eq!(sampler.to_string(), "torch-distributed seed 3 world 2 rank 1");
    assert_eq!(Sampler::SEQUENTIAL.to_string(), "sequential");
}
