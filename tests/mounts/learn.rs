//! Orders that were not told, with the real loader.
//!
//! Goal: a mount without an order finds out in which order a stock loader reads, says why it believes so, and
//! has the samples of the next epochs ready. A loader without an order is never followed. Method: torch with
//! workers, which is told epoch by epoch to go on until its order is known. Its seeds are found in moments,
//! since a search of all seeds takes minutes.

use std::process::Command;

use crate::fixture::{Fixture, wait_until};
use crate::loader::{
    FILES, LEARN, Loader, known, loaders, names, predicted, read_until, write_files,
    write_files_below,
};
use crate::mounted::Mounted;
use crate::programs::Program;

/// Has a loader read until its order is known, and then checks that its reads are predicted.
#[track_caller]
pub(crate) fn learn_and_check(mounted: &Mounted, loader: &mut Loader, belief: &str) {
    let process = loader.process;
    let before = read_until(mounted, loader, |known| known["followed"] == true);
    assert!(before["belief"].as_str().unwrap().contains(belief), "{before}");
    assert!(before["bits"].as_f64() >= before["needed"].as_f64(), "{before}");
    // The first files of an epoch are read before the learner knows that it has begun. If the learner's
    // thread does not run during an epoch, all of its files are.
    let begun = predicted(&before);
    wait_until("two epochs foreseen", || {
        loader.read_an_epoch();
        known(mounted, process).is_some_and(|now| predicted(&now) >= begun + 2 * FILES)
    });
    let after = known(mounted, process).unwrap();
    assert_eq!(after["followed"], true, "{after}");
    assert!(mounted.status()["orders"].as_array().unwrap().is_empty());
}

#[test]
fn the_order_of_a_distributed_sampler_is_found_out() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = Mounted::new(&fixture, &LEARN);
    let mut loader = Loader::start(&mounted, "distributed");
    learn_and_check(&mounted, &mut loader, "torch permutation of seed ");
    let point = mounted.point.to_str().unwrap();
    let said = fixture.run(0, &["order", "status", point]);
    assert!(said.contains("imagefolder order") && said.contains("opens predicted"), "{said}");
    loader.program.finish();
    wait_until("its end seen", || known(&mounted, loader.process).is_none());
    mounted.umount();
}

#[test]
fn a_dataset_far_below_the_source_is_found_out() {
    let fixture = Fixture::new();
    write_files_below(&fixture, "ILSVRC/Data/CLS-LOC/train/");
    for number in 0..100 {
        fixture.write(&format!("ILSVRC/Data/CLS-LOC/val/{number}.png"), b"not read");
        fixture.write(&format!("ILSVRC/Annotations/{number}.xml"), b"not read");
    }
    fixture.write("LOC_synset_mapping.txt", b"not read");
    let mounted = Mounted::new(&fixture, &LEARN);
    let mut loader = Loader::below(&mounted, "ILSVRC/Data/CLS-LOC/train", "distributed");
    learn_and_check(&mounted, &mut loader, "imagefolder below ILSVRC/Data/CLS-LOC/train");
    loader.program.finish();
    mounted.umount();
}

/// Samples in the order of a list that is beside them, and a `DistributedSampler` over its rows.
const LISTED: &str = r#"
import csv, json, os, sys
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

top, name = sys.argv[1], sys.argv[2]
with open(os.path.join(top, name), newline="") as file:
    if name.endswith(".csv"):
        rows = [row["file"] for row in csv.DictReader(file)]
    elif name.endswith(".json"):
        rows = [row["image"] for row in json.load(file)]
    else:
        rows = [line.split()[0] for line in file]

class Rows(Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, at):
        with open(os.path.join(top, rows[at]), "rb") as file:
            return len(file.read())

sampler = DistributedSampler(Rows(), num_replicas=1, rank=0)
loader = DataLoader(Rows(), batch_size=16, sampler=sampler, num_workers=2)
print(os.getpid(), flush=True)
for epoch, _ in enumerate(sys.stdin):
    sampler.set_epoch(epoch)
    print(epoch, sum(len(sizes) for sizes in loader), flush=True)
"#;

#[test]
fn a_list_that_a_job_reads_numbers_its_samples() {
    // No sorting gives this order.
    let names = names();
    let path = |row: u64| names[(row * 1_009 % FILES) as usize].clone();
    let rows = |line: &dyn Fn(String) -> String, between: &str| {
        (0..FILES).map(|row| line(path(row))).collect::<Vec<_>>().join(between)
    };
    let lists = [
        ("samples.csv", format!("label,file\n{}\n", rows(&|path| format!("1,{path}"), "\n"))),
        ("samples.txt", rows(&|path| format!("{path} 1"), "\n")),
        ("samples.json", {
            let line = |path| format!(r#"{{"label": 1, "image": "{path}"}}"#);
            format!("[{}]", rows(&line, ", "))
        }),
    ];
    for (name, text) in lists {
        let fixture = Fixture::new();
        write_files(&fixture);
        fixture.write(name, text.as_bytes());
        let mounted = Mounted::new(&fixture, &LEARN);
        let arguments = [mounted.path("").to_str().unwrap().to_owned(), name.to_owned()];
        let arguments = [&*arguments[0], &*arguments[1]];
        let mut loader = Loader::over(Program::python(LISTED, &arguments));
        learn_and_check(&mounted, &mut loader, &format!("in the list {name}'s order"));
        loader.program.finish();
        mounted.umount();
    }
}

#[test]
fn a_seeded_loader_is_found_out_beside_a_walk() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = Mounted::new(&fixture, &LEARN);
    let mut loader = Loader::start(&mounted, "42");
    let walk = || {
        let mut find = Command::new("find");
        let output = find.arg(mounted.path("")).args(["-type", "f", "-size", "+1c"]).output();
        assert!(output.unwrap().status.success());
    };
    walk();
    learn_and_check(&mounted, &mut loader, "torch permutation of seed 42");
    walk();
    loader.read_an_epoch();
    // The end of a process is noticed a moment later.
    wait_until("nothing else is believed", || {
        let mut others = loaders(&mounted).into_iter().filter(|l| l["process"] != loader.process);
        others.all(|other| (&other["followed"], &other["bits"]) == (&false.into(), &0.0.into()))
    });
    loader.program.finish();
    mounted.umount();
}

#[test]
fn nothing_is_learnt_where_that_is_off_or_told() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let told = ["--order", "torch-distributed:seed=0,index=imagefolder"];
    for options in [["--set", "order.learn=off"], told] {
        let mounted = Mounted::new(&fixture, &options);
        let mut loader = Loader::start(&mounted, "distributed");
        loader.read_an_epoch();
        loader.read_an_epoch();
        let told = options == told;
        let foreseen = || mounted.count("/orders/0/opens_predicted");
        if told {
            wait_until("what was told foreseen", || foreseen() >= FILES);
        }
        let loaders = loaders(&mounted);
        assert!(loaders.iter().all(|loader| loader["followed"] == false), "{loaders:?}");
        assert!(told || loaders.is_empty(), "{loaders:?}");
        loader.program.finish();
        mounted.umount();
    }
}
