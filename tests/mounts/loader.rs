//! A stock torch loader whose order is not told, and the mount's report about it.
//!
//! The loader reads one whole epoch whenever it is told to, so that a test decides how far it is.

use serde_json::Value;

use crate::fixture::{Fixture, content, wait_until};
use crate::mounted::Mounted;
use crate::programs::Program;

/// Files of the dataset, in three classes.
pub(crate) const FILES: u64 = 3000;

/// Only popular seeds are searched, and on a busy machine, too.
pub(crate) const LEARN: [&str; 6] =
    ["--ram", "2MiB", "--set", "order.learn=no-crack", "--set", "order.learn-nice=0"];

/// The most epochs that are read until an order is known. Searches may end before each.
pub(crate) const EPOCHS_MAX: u64 = 40;

/// Reads whole epochs through torch, one for each line of its input. First it prints its process id.
const LOADER: &str = r#"
import json, os, random, sys
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

dataset = ImageFolder(sys.argv[1], loader=read)
sampler = None
if sys.argv[2] == "distributed":
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)
elif sys.argv[2].startswith("/"):
    if not os.path.exists(sys.argv[2]):
        order = list(range(len(dataset)))
        random.SystemRandom().shuffle(order)
        with open(sys.argv[2], "w") as file:
            json.dump(order, file)
    with open(sys.argv[2]) as file:
        order = json.load(file)
    # Of workers that have ended nobody can ask whose they are.
    loader = DataLoader(dataset, batch_size=16, sampler=order, num_workers=2, persistent_workers=True)
else:
    generator = torch.Generator().manual_seed(int(sys.argv[2]))
    loader = DataLoader(dataset, batch_size=16, shuffle=True, generator=generator, num_workers=2)
print(os.getpid(), flush=True)
for epoch, _ in enumerate(sys.stdin):
    if sampler is not None:
        sampler.set_epoch(epoch)
    print(epoch, sum(len(labels) for _, labels in loader), flush=True)
"#;

/// A loader, its process, and the number of epochs that it has read.
pub(crate) struct Loader {
    pub(crate) program: Program,
    pub(crate) process: u64,
    pub(crate) epochs: u64,
}

impl Loader {
    /// Starts a loader. Its order is `distributed`, the seed of a generator of its own, or a file with an
    /// order that no seed gives. The file is made if it is missing.
    pub(crate) fn start(mounted: &Mounted, kind: &str) -> Self {
        Self::below(mounted, "", kind)
    }

    /// The same for the classes below a directory.
    pub(crate) fn below(mounted: &Mounted, directory: &str, kind: &str) -> Self {
        Self::over(Program::python(LOADER, &[mounted.path(directory).to_str().unwrap(), kind]))
    }

    /// A program that prints its process id and then reads an epoch for each line.
    pub(crate) fn over(mut program: Program) -> Self {
        let process = program.line().parse().unwrap();
        Loader { program, process, epochs: 0 }
    }

    #[track_caller]
    pub(crate) fn read_an_epoch(&mut self) {
        self.program.tell("");
        assert_eq!(self.program.line(), format!("{} {FILES}", self.epochs));
        self.epochs += 1;
    }
}

/// Waits until nearly all of a loader's first epoch has been seen. If a worker ends before the learner hears
/// of it, its loader cannot be found out any more. A few opens are missed if opens are no requests.
#[track_caller]
pub(crate) fn await_first_epoch(fixture: &Fixture, mounted: &Mounted, process: u64) {
    let (point, process_word) = (mounted.point.to_str().unwrap(), process.to_string());
    let order = fixture.path("seen.txt");
    let output = ["-o", order.to_str().unwrap(), "--json", "--process", &process_word];
    let record = [&["order", "record", point][..], &output].concat();
    wait_until("the process known", || known(mounted, process).is_some());
    wait_until("its epoch seen", || {
        let said: Value = serde_json::from_str(&fixture.run(0, &record)).unwrap();
        said["epochs"][0]["samples"].as_u64().unwrap() >= FILES * 9 / 10
    });
}

fn name(number: u64) -> String {
    format!("class{}/{number:04}.png", number % 3)
}

pub(crate) fn write_files(fixture: &Fixture) {
    write_files_below(fixture, "");
}

/// Writes the classes below a directory. The directory's name ends with a slash.
pub(crate) fn write_files_below(fixture: &Fixture, directory: &str) {
    for number in 0..FILES {
        let size = 300 + (number as usize * 37) % 3000;
        fixture.write(&format!("{directory}{}", name(number)), &content(number, size));
    }
}

/// The files as the dataset class numbers them.
pub(crate) fn names() -> Vec<String> {
    (0..3).flat_map(|class| (0..FILES).filter(move |n| n % 3 == class).map(name)).collect()
}

pub(crate) fn loaders(mounted: &Mounted) -> Vec<Value> {
    mounted.status()["loaders"].as_array().unwrap().clone()
}

/// What the mount knows of a process's reading.
pub(crate) fn known(mounted: &Mounted, process: u64) -> Option<Value> {
    loaders(mounted).into_iter().find(|loader| loader["process"] == process)
}

pub(crate) fn predicted(loader: &Value) -> u64 {
    loader["progress"]["opens_predicted"].as_u64().unwrap_or(0)
}

/// Has a loader read until what is known of it is as wanted, and returns that.
#[track_caller]
pub(crate) fn read_until(
    mounted: &Mounted,
    loader: &mut Loader,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let process = loader.process;
    loop {
        if let Some(known) = known(mounted, process).filter(&wanted) {
            return known;
        }
        assert!(loader.epochs < EPOCHS_MAX, "not learnt: {}", mounted.status());
        wait_until("no search", || {
            loader.epochs == 0
                || known(mounted, process).is_some_and(|known| known["searching"] == false)
        });
        loader.read_an_epoch();
    }
}
