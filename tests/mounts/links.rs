//! Datasets with links: loaders read the files that links lead to, and orders have these files.
//!
//! Goal: a sampler's positions stand for the files that torchvision's `ImageFolder` has at them, for every
//! kind of link. Method: a tree with each kind. Its numbering is compared with the library's, and its loader
//! is followed over a mount.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use crate::fixture::{Fixture, content, wait_until};
use crate::mounted::Mounted;
use crate::programs::Program;

/// Files of each class that has files of its own.
const OWN: u64 = 100;

/// Samples: of two classes with files of their own, of one class that is a link to a directory, and of one
/// that has only links and further names.
const SAMPLES: u64 = 3 * OWN + 3 * LINKED;
const LINKED: u64 = 20;

/// Prints the name of each number, then reads whole epochs, one for each line of its input.
const LOADER: &str = r#"
import os, sys
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

dataset = ImageFolder(sys.argv[1], loader=read)
for path, _ in dataset.samples:
    print(os.path.relpath(path, sys.argv[1]))
sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=3)
loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
print("ready", flush=True)
for epoch, _ in enumerate(sys.stdin):
    sampler.set_epoch(epoch)
    print(epoch, sum(len(labels) for _, labels in loader), flush=True)
"#;

fn write_files(fixture: &Fixture) {
    for number in 0..OWN {
        fixture.write(&format!("a/{number:04}.png"), &content(number, 3000));
        fixture.write(&format!("b/deep/{number:04}.png"), &content(number, 5000));
    }
    symlink("a", fixture.source("c")).unwrap();
    fs::create_dir(fixture.source("d")).unwrap();
    // A broken link. The loader ignores it, since its name is not that of an image.
    symlink("nowhere", fixture.source("d/dangling")).unwrap();
    for number in 0..LINKED {
        let target = format!("../c/{number:04}.png");
        symlink(target, fixture.source(format!("d/link{number}.png"))).unwrap();
        let from = fixture.source(format!("b/deep/{number:04}.png"));
        fs::hard_link(from, fixture.source(format!("d/name{number}.png"))).unwrap();
        let outside = fixture.path(&format!("outside{number}.png"));
        fs::write(&outside, content(number, 100)).unwrap();
        symlink(outside, fixture.source(format!("d/out{number}.png"))).unwrap();
    }
}

/// One name of a file is removed, by which the catalog knows it, and another name stays.
#[test]
fn a_file_is_read_by_the_name_that_is_left_of_it() {
    for consistency in ["source.consistency=immutable", "source.revalidate=1h"] {
        let fixture = Fixture::new();
        fixture.write("d/first", &content(1, 5000));
        fs::hard_link(fixture.source("d/first"), fixture.source("d/second")).unwrap();
        let mounted =
            Mounted::new(&fixture, &["--set", consistency, "--set", "prefetch.enabled=false"]);
        fs::remove_file(fixture.source("d/first")).unwrap();
        assert!(fs::read(mounted.path("d/second")).unwrap() == content(1, 5000), "{consistency}");
        mounted.umount();
    }
}

#[test]
fn an_order_over_links_is_the_librarys() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let order = "torch-distributed:seed=3,index=imagefolder";
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", order]);
    let mut loader = Program::python(LOADER, &[mounted.path("").to_str().unwrap()]);
    let mut numbered = Vec::new();
    loop {
        match loader.line() {
            line if line == "ready" => break,
            path => {
                assert!(!path.is_empty(), "the loader has ended");
                numbered.push(fs::metadata(fixture.source(path)).unwrap().ino());
            }
        }
    }
    assert_eq!(numbered.len() as u64, SAMPLES);
    let (source, file) = (fixture.path("source"), fixture.path("shown"));
    let (source, file) = (source.to_str().unwrap(), file.to_str().unwrap());
    let index = "sequential:index=imagefolder";
    fixture.run(0, &["order", "show", index, source, "--output", file]);
    let shown = fs::read_to_string(file).unwrap();
    let lines = shown.lines().filter(|line| !line.starts_with('#'));
    let shown: Vec<u64> =
        lines.map(|path| fs::metadata(fixture.source(path)).unwrap().ino()).collect();
    assert!(shown == numbered, "the numbers are others");
    let said = fixture.run(0, &["order", "check", order, source]);
    assert!(said.contains(&format!("{} files in the dataset", 2 * OWN)), "{said}");
    assert!(said.contains(&format!("{SAMPLES} samples")) && said.contains("several"), "{said}");
    assert!(!said.contains("not read"), "{said}");

    for epoch in 0..2 {
        loader.tell("");
        assert_eq!(loader.line(), format!("{epoch} {SAMPLES}"));
    }
    loader.finish();
    // Files outside are not read through the mount. A few opens are missed if opens are no requests, and each
    // worker counts as strayed until it is trusted.
    let seen = 2 * (SAMPLES - LINKED);
    let predicted = || mounted.count("/orders/0/opens_predicted");
    wait_until("all reads seen", || predicted() + seen / 10 >= seen);
    let status = mounted.status();
    assert_eq!((&status["orders"][0]["following"], &status["failed"]), (&true.into(), &0.into()));
    mounted.umount();
}

#[test]
fn files_are_named_by_any_of_their_paths() {
    let fixture = Fixture::new();
    write_files(&fixture);
    // Links that form loops.
    symlink("../d", fixture.source("b/around")).unwrap();
    symlink("../b", fixture.source("d/around")).unwrap();
    symlink(".", fixture.source("self")).unwrap();
    let point = fixture.path("mount");
    symlink(point.join("a/0007.png"), fixture.source("absolute")).unwrap();
    let mounted = Mounted::new(&fixture, &[]);
    let written = ["c/0001.png", "d/name3.png", "d/around/deep/0002.png", "b/around/link4.png"];
    let file = fixture.path("written");
    fs::write(&file, written.join("\n") + "\nabsolute\n").unwrap();
    fixture.run(0, &["order", "set", point.to_str().unwrap(), file.to_str().unwrap()]);
    wait_until("the order taken", || mounted.status()["orders"][0]["length"] == 5);
    for name in written {
        assert_eq!(fs::read(mounted.path(name)).unwrap(), fs::read(fixture.source(name)).unwrap());
    }
    assert_eq!(fs::read(mounted.path("absolute")).unwrap(), content(7, 3000));
    fixture.run(0, &["warmup", point.to_str().unwrap()]);
    mounted.umount();
}
