//! Order files of what loaders read: they are made, cut, merged and told to the next job.
//!
//! Goal: an order that a job has read once need not be found out again: it is written down, and the next
//! job's mount is told. Method: a loader in an order that no seed gives, recorded as it is seen, and a loader
//! whose order is learned, recorded as it is drawn.

use std::fs;

use serde_json::Value;

use crate::fixture::{Fixture, wait_until};
use crate::loader::{
    FILES, LEARN, Loader, await_first_epoch, known, names, read_until, write_files,
};
use crate::mounted::Mounted;

/// The epochs of an order file, each with its lines.
fn epochs(text: &str) -> Vec<Vec<String>> {
    let mut epochs: Vec<Vec<String>> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("# epoch ") {
            Some(_) => epochs.push(Vec::new()),
            None if line.starts_with('#') => {}
            None => epochs.last_mut().unwrap().push(line.to_owned()),
        }
    }
    epochs
}

fn json(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn an_order_that_no_seed_gives_is_recorded_and_told() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = Mounted::new(&fixture, &LEARN);
    let point = mounted.point.clone();
    let (list, order) = (fixture.path("order.json"), fixture.path("seen.txt"));
    let (list, order) = (list.to_str().unwrap(), order.to_str().unwrap());
    let none = fixture.run(3, &["order", "record", point.to_str().unwrap()]);
    assert!(none.contains("no loader has been seen"), "{none}");
    let mut loader = Loader::start(&mounted, list);
    loader.read_an_epoch();
    let process = loader.process;
    let process_word = process.to_string();
    let record = ["order", "record", point.to_str().unwrap(), "-o", order, "--json"];
    let record = [&record[..], &["--process", &process_word]].concat();
    await_first_epoch(&fixture, &mounted, process);
    loader.program.finish();
    wait_until("its end seen", || known(&mounted, process).is_none());
    let said = json(&fixture.run(0, &record));
    let samples = said["epochs"][0]["samples"].as_u64().unwrap();
    let epoch = serde_json::json!({"epoch": 0, "samples": samples, "learnt": false, "whole": true});
    assert_eq!((&said["epochs"], &said["process"]), (&Value::from(vec![epoch]), &process.into()));
    mounted.umount();

    // Two workers with two batches of 16 each under way are never further apart.
    let read: Vec<u64> = serde_json::from_slice(&fs::read(list).unwrap()).unwrap();
    let (names, seen) = (names(), epochs(&fs::read_to_string(order).unwrap()));
    for (at, name) in seen[0].iter().enumerate() {
        let near = &read[at.saturating_sub(96)..(at + 96).min(read.len())];
        assert!(near.iter().any(|&number| names[number as usize] == *name), "{at}: {name}");
    }
    let source = fixture.path("source");
    let check = ["order", "check", order, source.to_str().unwrap(), "--json"];
    let checked = json(&fixture.run(0, &check));
    let unread = (FILES - samples).into();
    assert_eq!((&checked["repeats"], &checked["unread"]), (&false.into(), &unread), "{checked}");

    let options = ["--ram", "2MiB", "--order", order, "--set", "mount.mode=keep-cache"];
    let mounted = Mounted::new(&fixture, &options);
    let mut loader = Loader::start(&mounted, list);
    loader.read_an_epoch();
    read_until(&mounted, &mut loader, |known| !known["known_after"].is_null());
    wait_until("what was told foreseen", || mounted.count("/orders/0/opens_predicted") >= FILES);
    let told = fixture.run(0, &["order", "record", point.to_str().unwrap()]);
    assert!(told.contains("order learnt"), "{told}");
    loader.program.finish();
    mounted.umount();
}

#[test]
fn an_order_that_was_learnt_is_recorded_as_it_is_drawn() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = Mounted::new(&fixture, &LEARN);
    let point = mounted.point.to_str().unwrap().to_owned();
    let mut loader = Loader::start(&mounted, "distributed");
    let process = loader.process;
    read_until(&mounted, &mut loader, |known| known["followed"] == true);
    loader.read_an_epoch();
    let order = fixture.path("read.txt");
    let order = order.to_str().unwrap();
    let pid = process.to_string();
    let record = ["order", "record", &point, "--process", &pid, "--epochs", "1", "-o", order];
    let said = fixture.run(0, &record);
    assert!(said.contains("3000 samples, order learnt"), "{said}");
    let recorded = epochs(&fs::read_to_string(order).unwrap());
    // The loader's own count says which epoch it was: some epochs may not have been seen.
    let (source, count) = (fixture.path("source"), loader.epochs.to_string());
    let distributed = "torch-distributed:seed=0,index=imagefolder";
    let show = ["order", "show", distributed, source.to_str().unwrap(), "--epochs", &count];
    let drawn = epochs(&fixture.run(0, &show));
    assert!(drawn.contains(&recorded[0]), "not an epoch of the sampler");
    let other = fixture.run(3, &["order", "record", &point, "--loader", "9999"]);
    assert!(other.contains("no such loader"), "{other}");
    loader.program.finish();
    mounted.umount();
}

#[test]
fn order_files_are_cut_and_put_together() {
    let fixture = Fixture::new();
    fixture.write_many("dir", 30, 10);
    let source = fixture.path("source");
    let path = |name: &str| fixture.path(name).to_str().unwrap().to_owned();
    let [all, one, two, both] = ["all", "one", "two", "both"].map(path);
    let show = ["order", "show", "torch-distributed", source.to_str().unwrap(), "--epochs", "3"];
    fixture.run(0, &[&show[..], &["-o", &all]].concat());
    for (rank, part) in [("0", &one), ("1", &two)] {
        let cut = ["order", "cut", &all, "--epochs", "1..", "--rank", rank, "--world", "2"];
        let said = json(&fixture.run(0, &[&cut[..], &["--json", "-o", part]].concat()));
        assert_eq!(said["epochs"][1], serde_json::json!({"epoch": 2, "samples": 15}));
    }
    fixture.run(0, &["order", "merge", "--by", "ranks", &one, &two, "-o", &both]);
    let text = |file: &str| fs::read_to_string(file).unwrap();
    assert_eq!(epochs(&text(&both)), epochs(&text(&all))[1..]);
    let said = fixture.run(0, &["order", "merge", "--by", "epochs", &both, &all]);
    let numbers: Vec<&str> = said.lines().filter(|line| line.contains("epoch")).collect();
    assert_eq!(numbers, ["# epoch 1", "# epoch 2", "# epoch 3", "# epoch 4", "# epoch 5"]);
    fs::write(&two, "dir/0001\ndir/none\n").unwrap();
    let check = ["order", "check", &two, source.to_str().unwrap()];
    let said = fixture.run(3, &check);
    assert!(said.contains("line 2: unknown path 'dir/none'"), "{said}");
    let wrong = fixture.run(3, &["order", "cut", &all, "--epochs", "7"]);
    assert!(wrong.contains("epochs 0..3"), "{wrong}");
    fixture.run(2, &["order", "cut", &all, "--rank", "2", "--world", "2"]);
    assert!(fs::metadata(path("none")).is_err());
}
