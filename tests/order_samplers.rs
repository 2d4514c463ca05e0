//! Properties of samplers: epochs are permutations or multisets as their sampler promises, and no parameters
//! cause a panic.

use std::collections::BTreeMap;

use belady::ids::FileId;
use belady::order::samplers::Sampler;
use belady::order::spec::SequenceSpec;
use belady::order::{Entry, Listing, OrderSpec, Split};
use proptest::collection::vec;
use proptest::prelude::*;

/// A value of any key.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0u32..9).prop_map(|number| number.to_string()),
        1 => any::<u32>().prop_map(|number| number.to_string()),
        1 => Just(u32::MAX.to_string()),
        1 => any::<u64>().prop_map(|number| number.to_string()),
        4 => prop::sample::select(vec![
            "true", "false", "none", "same", "reseed", "fresh", "again", "training", "validation",
            "iterative", "index", "0.5", "0.01", "'a'", "-1", "1e9", "",
        ]).prop_map(str::to_owned),
    ]
}

/// A sampler with some of its keys set.
fn spec() -> impl Strategy<Value = String> {
    let all = Sampler::all();
    (0..all.len(), vec((any::<prop::sample::Index>(), value()), 0..6), 0u64..50).prop_map(
        move |(at, given, seed)| {
            let mut sampler = all[at].clone();
            let keys: Vec<&str> = sampler.keys().iter().map(|key| key.name).collect();
            let mut set = BTreeMap::new();
            if keys.contains(&"seed") {
                set.insert("seed", seed.to_string());
            }
            if keys.contains(&"weights") {
                set.insert("weights", "w".to_owned());
            }
            for (index, value) in given.into_iter().filter(|_| !keys.is_empty()) {
                set.insert(keys[index.index(keys.len())], value);
            }
            let set: Vec<_> = set.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("{}:{},index=path", sampler.name(), set.join(",")).replace(":,", ":")
        },
    )
}

fn listing(names: &[String]) -> Listing<'_> {
    let entries = names.iter().zip(0..);
    Listing::new(
        entries
            .map(|(name, at)| Entry { path: name.as_bytes(), file: FileId(at), size: 1 })
            .collect(),
    )
}

/// A file of weights, usually a correct one.
fn weights() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        90 => (0u32..5).prop_map(|weight| format!("{weight}\n")),
        9 => any::<f64>().prop_map(|weight| format!("{}\n", weight.abs())),
        1 => prop::sample::select(vec!["", "#\n", "nan\n", "-1\n", "x\n", "1e308\n"])
            .prop_map(str::to_owned),
    ];
    vec(line, 0..40).prop_map(|lines| lines.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn no_parameters_panic_and_epochs_are_what_they_are_said_to_be(
        text in spec(),
        n in 0u32..40,
        weights in vec(0u32..5, 40),
    ) {
        let names: Vec<String> = (0..n).map(|at| format!("{at:04}")).collect();
        let Ok(spec) = text.parse::<OrderSpec>() else { return Ok(()) };
        prop_assert_eq!(spec.to_string().parse::<OrderSpec>().unwrap(), spec.clone());
        // Positions that take seconds to reach are left out of a property.
        let SequenceSpec::Sampler(sampler) = &spec.sequence else { return Ok(()) };
        let draws = sampler.draws_before(n, 2);
        if (1 << 18..1 << 36).contains(&draws) {
            return Ok(());
        }
        let weights = weights.iter().take(n as usize).map(|weight| format!("{weight}\n"));
        let weights = weights.collect::<String>().into_bytes();
        let contents = vec![weights.as_slice(); spec.files_needed().len()];
        let Ok(order) = spec.resolve(&listing(&names), &contents) else { return Ok(()) };
        prop_assert!(draws < 1 << 18, "{text} was to be refused");
        for (k, epoch) in (0..3).zip(order.epochs(0)) {
            prop_assert_eq!(epoch.len(), order.epoch_len(k) as usize);
            prop_assert!(!epoch.is_empty());
            prop_assert!(epoch.iter().all(|id| *id < n));
            let mut once = epoch.to_vec();
            once.sort_unstable();
            once.dedup();
            prop_assert!(!order.is_permutation() || once.len() == epoch.len(), "{text}: {epoch:?}");
            if k == 2 {
                prop_assert_eq!(epoch, order.epoch(2));
            }
        }
    }

    #[test]
    fn weighted_samples_are_drawn_by_their_weights(
        seed: u64,
        text in weights(),
        count in 2u32..60,
        replacement: bool,
    ) {
        let values: Vec<f64> = String::from_utf8_lossy(&text)
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.parse().ok())
            .collect();
        let names: Vec<String> = (0..values.len()).map(|at| format!("{at:04}")).collect();
        let spec = format!(
            "torch-weighted:seed={seed},weights=w,num_samples={count},replacement={replacement}"
        );
        let spec: OrderSpec = spec.parse().unwrap();
        let order = spec.resolve(&listing(&names), &[&text]);
        let likely = values.iter().filter(|weight| **weight > 0.0).count();
        let is_wrong = values.iter().any(|weight| weight.is_nan() || *weight < 0.0)
            || !values.iter().sum::<f64>().is_finite()
            || text.contains(&b'x')
            || likely == 0
            || !replacement && count as usize > likely;
        prop_assert_eq!(order.is_err(), is_wrong, "{:?}", order);
        let Ok(order) = order else { return Ok(()) };
        for epoch in order.epochs(0).take(3) {
            prop_assert_eq!(epoch.len(), count as usize);
            let mut once = epoch.to_vec();
            once.sort_unstable();
            once.dedup();
            prop_assert!(once.iter().all(|id| values[*id as usize] > 0.0), "{:?}", epoch);
            prop_assert!(replacement || once.len() == epoch.len());
        }
    }

    #[test]
    fn no_file_of_weights_panics(
        text in prop_oneof![
            vec(any::<u8>(), 0..200),
            "[0-9e+.\\-\n #,xinfa]{0,100}".prop_map(String::into_bytes),
            (0u8..4, 0u16..150, "[{}',:()<f84 0-9descrhapo]{0,120}", vec(any::<u8>(), 0..80)).prop_map(
                |(version, length, header, data)| {
                    let length = length.to_le_bytes();
                    [&b"\x93NUMPY"[..], &[version, 0], &length[..], header.as_bytes(), &data].concat()
                }
            ),
        ],
        n in 1usize..5,
    ) {
        let names: Vec<String> = (0..n).map(|at| format!("{at:04}")).collect();
        let spec: OrderSpec = "torch-weighted:seed=1,weights=w".parse().unwrap();
        if let Ok(order) = spec.resolve(&listing(&names), &[&text]) {
            prop_assert_eq!(order.epoch(0).len(), n);
        }
    }

    #[test]
    fn ranks_share_an_epoch(
        name in prop::sample::select(vec!["torch-distributed", "accelerate", "dali", "dlio"]),
        more in prop::sample::select(vec!["", ",drop_last=true", ",shuffle=false", ",batch_size=3",
            ",batch_size=4,even_batches=false", ",random_shuffle=true", ",sampler=index"]),
        (n, world, k) in (1u32..200, 1u32..9, 0u32..3),
    ) {
        let names: Vec<String> = (0..n).map(|at| format!("{at:04}")).collect();
        let seed = if name == "dali" { "" } else { "seed=3," };
        let mut read = Vec::new();
        for rank in 0..world {
            let text = format!("{name}:{seed}world={world},rank={rank},index=path{more}");
            let Ok(spec) = text.parse::<OrderSpec>() else { return Ok(()) };
            if let Ok(order) = spec.resolve(&listing(&names), &[]) {
                read.extend_from_slice(&order.epoch(k));
            }
        }
        // DLIO's ranks read the same files, unless they read by number.
        if name == "dlio" && more != ",sampler=index" || name == "dali" && world > n {
            return Ok(());
        }
        let all = read.len();
        read.sort_unstable();
        read.dedup();
        if more == ",drop_last=true" {
            prop_assert_eq!(read.len(), all);
            prop_assert_eq!(all, (n - n % world) as usize);
        } else {
            prop_assert_eq!(read.len(), n as usize);
        }
    }

    #[test]
    fn parts_of_a_split_are_the_dataset(n in 1u32..300, seed: u64, cut in 1u32..99) {
        let part = |text: &str| -> Vec<u32> {
            let split = Split::parse(text).unwrap();
            split[0].positions(n).unwrap_or_default()
        };
        let fraction = f64::from(cut) / 100.0;
        let test = part(&format!("train_test_split:{seed}:{fraction:?}:test"));
        let train = part(&format!("train_test_split:{seed}:{fraction:?}:train"));
        let lengths = format!("{fraction:?}+{:?}", 1.0 - fraction);
        let random = [0, 1].map(|at| part(&format!("random_split:{seed}:{lengths}:{at}")));
        for mut all in [[test, train].concat(), random.concat(), part(&format!("shuffle:{seed}"))] {
            all.sort_unstable();
            prop_assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_split_panics(text in "(random_split|train_test_split|shuffle|slice|slcie)(:(0|1|7|99|0\\.5|0\\.0|4294967295|0\\.5\\+0\\.5|3\\+4|train|test|x)){0,4}", n in 0u32..20) {
        if let Ok(splits) = Split::parse(&text) {
            prop_assert_eq!(Split::parse(&splits[0].to_string()).unwrap(), splits.clone());
            if let Ok(positions) = splits[0].positions(n) {
                prop_assert!(positions.iter().all(|at| *at < n) && !positions.is_empty());
            }
        }
    }
}

/// docs/orders.md has every sampler and every key of orders.
#[test]
fn the_documents_have_every_sampler() {
    let page = include_str!("../docs/orders.md");
    for sampler in Sampler::all() {
        let name = sampler.name();
        let row =
            |line: &str| line.starts_with(&format!("| `{name}")) && line.matches('|').count() == 3;
        assert!(page.lines().any(row), "docs/orders.md lacks {name}");
    }
    for key in ["index=", "column=", "root=", "ext=", "count=", "split="] {
        assert!(page.contains(key), "docs/orders.md lacks {key}");
        assert!(belady::order::spec::help().contains(key.trim_end_matches('=')));
    }
}
