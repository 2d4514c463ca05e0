//! Orders that nobody told, with the real loader.
//!
//! Goal: a mount without an order finds out in which one a stock loader reads, says why it believes
//! so, and has the next epochs' samples ready; who reads in no order is never followed. Method:
//! torch with workers, told epoch by epoch to go on until its order is known; seeds that are found
//! in moments, since the search of all takes minutes.

use std::process::Command;

use serde_json::Value;

use crate::ground::{Ground, content, wait_until};
use crate::mounted::Mounted;
use crate::programs::Program;

const FILES: u64 = 3000;

/// So many epochs are read at most until the order is known; before each, searches may end.
const EPOCHS_MAX: u64 = 10;

/// Popular seeds alone, and searched on a busy machine too.
const LEARN: [&str; 6] =
    ["--ram", "2MiB", "--set", "order.learn=no-crack", "--set", "order.learn-nice=0"];

/// Reads whole epochs through torch, one for each line of its input; says first who it is.
const LOADER: &str = r#"
import os, sys
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

dataset = ImageFolder(sys.argv[1], loader=read)
if sys.argv[2] == "distributed":
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)
else:
    sampler = None
    generator = torch.Generator().manual_seed(int(sys.argv[2]))
    loader = DataLoader(dataset, batch_size=16, shuffle=True, generator=generator, num_workers=2)
print(os.getpid(), flush=True)
for epoch, _ in enumerate(sys.stdin):
    if sampler is not None:
        sampler.set_epoch(epoch)
    print(epoch, sum(len(labels) for _, labels in loader), flush=True)
"#;

/// A loader, its process and how many epochs it has read.
struct Loader {
    program: Program,
    process: u64,
    epochs: u64,
}

impl Loader {
    fn start(mounted: &Mounted, kind: &str) -> Self {
        let mut program = Program::python(LOADER, &[mounted.path("").to_str().unwrap(), kind]);
        let process = program.line().parse().unwrap();
        Loader { program, process, epochs: 0 }
    }

    #[track_caller]
    fn read_an_epoch(&mut self) {
        self.program.tell("");
        assert_eq!(self.program.line(), format!("{} {FILES}", self.epochs));
        self.epochs += 1;
    }
}

fn plant(ground: &Ground) {
    for number in 0..FILES {
        let size = 300 + (number as usize * 37) % 3000;
        ground.plant(&format!("class{}/{number:04}.png", number % 3), &content(number, size));
    }
}

fn loaders(mounted: &Mounted) -> Vec<Value> {
    mounted.status()["loaders"].as_array().unwrap().clone()
}

/// What is known of a process's reading.
fn known(mounted: &Mounted, process: u64) -> Option<Value> {
    loaders(mounted).into_iter().find(|loader| loader["process"] == process)
}

fn predicted(loader: &Value) -> u64 {
    loader["progress"]["opens_predicted"].as_u64().unwrap_or(0)
}

/// Has a loader read until its order is known, and then checks that what it reads is foreseen.
#[track_caller]
fn is_learnt(mounted: &Mounted, loader: &mut Loader, belief: &str) {
    let process = loader.process;
    let before = loop {
        if let Some(known) = known(mounted, process).filter(|known| known["followed"] == true) {
            break known;
        }
        assert!(loader.epochs < EPOCHS_MAX, "not learnt: {}", mounted.status());
        wait_until("no search", || {
            known(mounted, process).is_none_or(|known| known["searching"] == false)
        });
        loader.read_an_epoch();
    };
    assert!(before["belief"].as_str().unwrap().contains(belief), "{before}");
    assert!(before["bits"].as_f64() >= before["needed"].as_f64(), "{before}");
    // The first of an epoch are read before it is known to have begun.
    let begun = predicted(&before);
    for _ in 0..3 {
        loader.read_an_epoch();
    }
    let enough = || known(mounted, process).is_some_and(|now| predicted(&now) >= begun + 2 * FILES);
    wait_until("two of three epochs foreseen", enough);
    let after = known(mounted, process).unwrap();
    assert_eq!(after["followed"], true, "{after}");
    assert!(mounted.status()["orders"].as_array().unwrap().is_empty());
}

#[test]
fn the_order_of_a_distributed_sampler_is_found_out() {
    let ground = Ground::new();
    plant(&ground);
    let mounted = Mounted::new(&ground, &LEARN);
    let mut loader = Loader::start(&mounted, "distributed");
    is_learnt(&mounted, &mut loader, "torch permutation of seed ");
    let point = mounted.point.to_str().unwrap();
    let said = ground.ends(0, &["order", "status", point]);
    assert!(said.contains("imagefolder order") && said.contains("opens predicted"), "{said}");
    loader.program.finish();
    wait_until("its end seen", || known(&mounted, loader.process).is_none());
    mounted.umount();
}

#[test]
fn a_seeded_loader_is_found_out_beside_a_walk() {
    let ground = Ground::new();
    plant(&ground);
    let mounted = Mounted::new(&ground, &LEARN);
    let mut loader = Loader::start(&mounted, "42");
    let walk = || {
        let mut find = Command::new("find");
        let output = find.arg(mounted.path("")).args(["-type", "f", "-size", "+1c"]).output();
        assert!(output.unwrap().status.success());
    };
    walk();
    is_learnt(&mounted, &mut loader, "torch permutation of seed 42");
    walk();
    loader.read_an_epoch();
    let others = loaders(&mounted).into_iter().filter(|l| l["process"] != loader.process);
    for other in others {
        assert_eq!((&other["followed"], &other["bits"]), (&false.into(), &0.0.into()), "{other}");
    }
    loader.program.finish();
    mounted.umount();
}

#[test]
fn nothing_is_learnt_where_that_is_off_or_told() {
    let ground = Ground::new();
    plant(&ground);
    let told = ["--order", "torch-distributed:seed=0,index=imagefolder"];
    for options in [["--set", "order.learn=off"], told] {
        let mounted = Mounted::new(&ground, &options);
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
