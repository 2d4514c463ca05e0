//! Which loader a read belongs to, and what happens to a learned order when things change around it.
//!
//! Goal: however workers are started, they read for their loader. A told order and a learned one go side by
//! side. Files that come while a job runs end nothing. Method: real processes and torch loaders over one
//! mount, whose status and metrics are checked.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Fixture, content, wait_until};
use crate::loader::{FILES, LEARN, Loader, known, loaders, predicted, read_until, write_files};
use crate::mounted::Mounted;
use crate::programs::Program;

/// Reads the files of a list with two workers of a kind, and waits.
const POOL: &str = r#"
import multiprocessing, os, sys

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

if __name__ == "__main__":
    print(os.getpid(), flush=True)
    paths = [os.path.join(sys.argv[1], "dir", "%04d" % number) for number in range(200)]
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        print(sum(pool.map(read, paths, chunksize=5)), flush=True)
        sys.stdin.readline()
"#;

#[test]
fn workers_read_for_who_started_them() {
    let fixture = Fixture::new();
    fixture.write_many("dir", 200, 100);
    let script = fixture.path("pool.py");
    fs::write(&script, POOL).unwrap();
    let mounted = Mounted::new(&fixture, &LEARN);
    for kind in ["fork", "spawn", "forkserver"] {
        let mut command = Command::new("/usr/bin/python3");
        let mut pool = Program::start(command.arg(&script).arg(mounted.path("")).arg(kind));
        let process: u64 = pool.line().parse().unwrap();
        assert_eq!(pool.line(), "20000");
        wait_until("the pool seen", || !loaders(&mounted).is_empty());
        for loader in loaders(&mounted) {
            assert_eq!(loader["process"], process, "{kind}: {loader}");
        }
        pool.tell("");
        pool.finish();
        wait_until("its end seen", || loaders(&mounted).is_empty());
    }
    mounted.umount();
}

/// Reads the epochs of two datasets in turns, one of each for each line of its input.
const TWO: &str = r#"
import os, sys
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

def loader(name, seed):
    dataset = ImageFolder(os.path.join(sys.argv[1], name), loader=read)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=seed)
    return DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)

both = [loader("train", 0), loader("val", 7)]
print(os.getpid(), flush=True)
for epoch, _ in enumerate(sys.stdin):
    for one in both:
        one.sampler.set_epoch(epoch)
        for _ in one:
            pass
    print(epoch, flush=True)
"#;

#[test]
fn a_loader_is_learnt_beside_one_whose_order_is_told() {
    let fixture = Fixture::new();
    for number in 0..2000 {
        let part = if number < 500 { "train" } else { "val" };
        let name = format!("{part}/class{}/{number:04}.png", number % 2);
        fixture.write(&name, &content(number, 400));
    }
    let order = "torch-distributed:seed=0,index=imagefolder,root=train";
    let mounted = Mounted::new(&fixture, &[&LEARN[..], &["--order", order]].concat());
    let mut job = Program::python(TWO, &[mounted.path("").to_str().unwrap()]);
    let process: u64 = job.line().parse().unwrap();
    let mut epochs = 0;
    let mut read = || {
        job.tell("");
        assert_eq!(job.line(), epochs.to_string());
        epochs += 1;
        epochs
    };
    // The loader whose order is told is heard, too.
    let untold = || {
        let is_it = |loader: &Value| loader["process"] == process && loader["reads_told"] == false;
        loaders(&mounted).into_iter().filter(is_it).collect::<Vec<Value>>()
    };
    let learnt = || untold().into_iter().find(|loader| loader["followed"] == true);
    while learnt().is_none() {
        wait_until("no search", || untold().iter().all(|loader| loader["searching"] == false));
        assert!(read() < 40, "not learnt: {}", mounted.status());
    }
    let before = predicted(&learnt().unwrap());
    let belief = learnt().unwrap()["belief"].clone();
    assert!(belief.as_str().unwrap().contains("over 1500 samples"), "{belief}");
    // The first opens of an epoch may not be predicted, nor opens while the learner does not run.
    let mut last = read();
    wait_until("the learnt one foreseen", || {
        last = read();
        learnt().is_some_and(|loader| predicted(&loader) >= before + 1500)
    });
    let told = (last - 1) * 450;
    wait_until("the told one foreseen", || mounted.count("/orders/0/opens_predicted") >= told);
    assert_eq!(mounted.status()["orders"][0]["following"], true, "{}", mounted.status());
    let stats = fs::read_to_string(mounted.path(".belady/stats")).unwrap();
    let value = |name: &str, labels: &str| -> f64 {
        let row = stats.lines().find(|line| line.starts_with(&format!("belady_{name}{{{labels}")));
        let row = row.unwrap_or_else(|| panic!("no {name} of {labels} in {stats}"));
        row.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let learnt = learnt().unwrap();
    let label = format!("loader=\"{}\",process=\"{process}\"", learnt["loader"]);
    for labels in ["stream=\"default\"", &label] {
        assert_eq!(value("order_followed", labels), 1.0);
        assert!(value("order_opens_predicted_total", labels) >= 500.0);
    }
    let bits = value("learn_evidence_bits", &label);
    assert!(bits >= value("learn_evidence_needed_bits", &label) && bits > 20.0, "{bits}");
    assert!(value("learn_search_seconds_total", &label) >= 0.0);
    job.finish();
    mounted.umount();
}

#[test]
fn files_that_come_do_not_end_what_was_learnt() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let options = ["--set", "source.revalidate=1s"];
    let mounted = Mounted::new(&fixture, &[&LEARN[..], &options].concat());
    let mut loader = Loader::start(&mounted, "distributed");
    let counts = |words: &str| words.contains("the seed counts up");
    read_until(&mounted, &mut loader, |known| counts(known["belief"].as_str().unwrap()));
    fixture.write("class1/more.png", &content(1, 700));
    wait_until("learning begun anew", || {
        let _ = fs::read_dir(mounted.path("class1")).unwrap().count();
        mounted.log().contains("learning begins anew")
    });
    // The job has listed the files before, and goes on in the order of these files.
    wait_until("the same epochs foreseen", || {
        loader.read_an_epoch();
        known(&mounted, loader.process).is_some_and(|known| predicted(&known) >= FILES * 9 / 10)
    });
    let belief = known(&mounted, loader.process).unwrap()["belief"].clone();
    assert!(belief.as_str().unwrap().contains("over 3000 samples"), "{belief}");
    // The next job finds one file more.
    let mut next = Loader::start(&mounted, "distributed");
    let more = |words: &str| words.contains("over 3001 samples");
    let mut epochs = 0..;
    wait_until("the next job followed", || {
        next.program.tell("");
        assert_eq!(next.program.line(), format!("{} {}", epochs.next().unwrap(), FILES + 1));
        let known = known(&mounted, next.process);
        known.is_some_and(|known| more(known["belief"].as_str().unwrap()))
    });
    next.program.finish();
    loader.program.finish();
    mounted.umount();
}
