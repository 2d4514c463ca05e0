//! Orders with the real loader: it reads what is predicted.
//!
//! Goal: an unmodified `DataLoader` finds its samples ready, epoch after epoch, and each is read from the
//! source once. Method: torch with workers and a distributed sampler over a mount over `slowpfs`, which
//! counts requests. Then a loader reads in another order.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::Value;

use crate::fixture::{Choice, Fixture, check_many, content, wait_until};
use crate::kernel::Kernel;
use crate::modes::resident;
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::Program;

/// Files of the dataset, in two classes.
const FILES: u64 = 400;

/// Reads whole epochs through torch, one for each line of its input. Compares the bytes with the source, not
/// read through the mount.
const LOADER: &str = r#"
import os, sys
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

mount, source, world, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def read(path):
    with open(path, "rb") as ours, open(os.path.join(source, os.path.relpath(path, mount)), "rb") as theirs:
        data = ours.read()
        assert data == theirs.read(), path
    return len(data)

dataset = ImageFolder(mount, loader=read)
sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True, seed=7)
loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
for epoch, _ in enumerate(sys.stdin):
    sampler.set_epoch(epoch)
    print(epoch, sum(len(labels) for _, labels in loader), flush=True)
"#;

fn write_images(fixture: &Fixture) {
    for number in 0..FILES {
        let size = 500 + (number as usize * 37) % 9000;
        fixture.write(&format!("class{}/{number:04}.png", number % 2), &content(number, size));
    }
}

fn loader(fixture: &Fixture, mounted: &Mounted, world: u32, rank: u32) -> Program {
    let (mount, source) = (mounted.path(""), fixture.path("source"));
    let (world, rank) = (world.to_string(), rank.to_string());
    Program::python(LOADER, &[mount.to_str().unwrap(), source.to_str().unwrap(), &world, &rank])
}

/// Each file has been read from the source once, and again only if the kernel had taken its pages back.
#[track_caller]
fn read_about_once(slow: &Slowpfs, mounted: &Mounted) {
    let (mut status, mut fetched) = (Value::Null, 0);
    wait_until("all fetches counted", || {
        status = mounted.status();
        let count = |key: &str| status[key].as_u64().unwrap();
        fetched = count("prefetched") + count("demanded") + count("lost") + count("restored");
        slow.count("open") == fetched && count("fetching") == 0
    });
    let count = |key: &str| status[key].as_u64().unwrap();
    assert_eq!((count("prefetched"), count("failed")), (FILES, 0), "{status}");
    assert!(count("demanded") <= FILES / 5, "{status}");
}

/// Waits until all files have been fetched ahead: a loader that reads earlier causes fetches on demand.
#[track_caller]
fn wait_until_fetched(mounted: &Mounted) {
    wait_until("all is there", || {
        mounted.count("/prefetched") == FILES && mounted.count("/fetching") == 0
    });
}

/// Whether `reads` reads have been counted. If each open is a request, all of them must be. Otherwise an open
/// may be missed while its file becomes tracked again.
fn counted(mounted: &Mounted, key: &str, reads: u64) -> bool {
    let status = mounted.status();
    let count = status.pointer(key).and_then(Value::as_u64).unwrap();
    if status["mode"] == "push" { count + reads / 10 >= reads } else { count == reads }
}

/// The status of the order with this name.
fn order_of(status: &Value, name: &str) -> Value {
    let orders = status["orders"].as_array().unwrap();
    orders.iter().find(|order| order["stream"] == name).unwrap().clone()
}

#[test]
fn a_torch_loader_is_predicted_and_the_source_read_once() {
    let fixture = Fixture::new();
    write_images(&fixture);
    let slow = Slowpfs::new(&fixture, &["--open-ms", "2", "--read-ms", "2"]);
    let order = "torch-distributed:seed=7,index=imagefolder";
    let options = ["--ram", "64MiB", "--order", order];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let mut loader = loader(&fixture, &mounted, 1, 0);
    wait_until_fetched(&mounted);
    for epoch in 0..3 {
        loader.tell("");
        assert_eq!(loader.line(), format!("{epoch} {FILES}"));
    }
    loader.finish();
    wait_until("all reads seen", || counted(&mounted, "/opens", 3 * FILES));
    wait_until("the epoch over", || mounted.count("/orders/0/epoch") == 3);
    let status = mounted.status();
    let order = order_of(&status, "default");
    assert_eq!(order["following"], true, "{status}");
    wait_until("all foreseen", || counted(&mounted, "/orders/0/opens_predicted", 3 * FILES));
    read_about_once(&slow, &mounted);
    mounted.umount();
}

#[test]
fn two_ranks_read_by_two_streams_of_one_mount() {
    let fixture = Fixture::new();
    write_images(&fixture);
    let slow = Slowpfs::new(&fixture, &[]);
    let stream =
        |rank| format!("rank{rank}=torch-distributed:seed=7,world=2,rank={rank},index=imagefolder");
    let (first, second) = (stream(0), stream(1));
    let options = ["--ram", "64MiB", "--stream", &first, "--stream", &second];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let mut loaders = [0, 1].map(|rank| loader(&fixture, &mounted, 2, rank));
    wait_until_fetched(&mounted);
    for epoch in 0..2 {
        // The loaders read in step, as ranks do that exchange gradients.
        loaders.iter_mut().for_each(|loader| loader.tell(""));
        for loader in &mut loaders {
            assert_eq!(loader.line(), format!("{epoch} {}", FILES / 2));
        }
    }
    loaders.into_iter().for_each(|loader| drop(loader.finish()));
    wait_until("all reads seen", || counted(&mounted, "/opens", 2 * FILES));
    let over = |nth| {
        mounted.count(&format!("/orders/{nth}/epoch")) == 2
            && counted(&mounted, &format!("/orders/{nth}/opens_predicted"), FILES)
    };
    wait_until("the epochs over", || over(0) && over(1));
    let status = mounted.status();
    for rank in ["rank0", "rank1"] {
        assert_eq!(order_of(&status, rank)["following"], true, "{status}");
    }
    read_about_once(&slow, &mounted);
    mounted.umount();
}

/// An order file with these epochs over `d/0000` and so on.
fn order_file(fixture: &Fixture, name: &str, epochs: &[Vec<u64>]) -> String {
    let mut text = String::new();
    for (epoch, samples) in epochs.iter().enumerate() {
        text += &format!("# epoch {epoch}\n");
        text.extend(samples.iter().map(|number| format!("d/{number:04}\n")));
    }
    let path = fixture.path(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut choice = Choice(seed);
    let mut numbers: Vec<u64> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last as usize, choice.below(last + 1) as usize);
    }
    numbers
}

fn read_in_order(mounted: &Mounted, samples: &[u64], size: usize) {
    for number in samples {
        let bytes = fs::read(mounted.path(format!("d/{number:04}"))).unwrap();
        assert!(bytes == content(*number, size), "d/{number:04}");
    }
}

#[test]
fn an_order_file_with_epochs_is_followed() {
    let fixture = Fixture::new();
    fixture.write_many("d", 200, 3000);
    let epochs: Vec<Vec<u64>> = (0..3).map(|epoch| shuffled(200, epoch)).collect();
    let file = order_file(&fixture, "order.txt", &epochs);
    let mounted = Mounted::new(&fixture, &["--ram", "1MiB", "--order", &file]);
    // The first epoch follows the last one.
    for (reads, epoch) in [(200, 0), (400, 1), (600, 2), (800, 0)] {
        read_in_order(&mounted, &epochs[epoch], 3000);
        // No loader has read an epoch before the planner hears that the epoch has begun.
        wait_until("all reads seen", || counted(&mounted, "/orders/0/opens_predicted", reads));
    }
    // If opens are not seen, the end of the last epoch shows only when another epoch begins.
    let mut next = epochs[1].chunks(8);
    wait_until("the epoch over", || {
        next.next().into_iter().for_each(|next| read_in_order(&mounted, next, 3000));
        mounted.count("/orders/0/epoch") == 4
    });
    let order = order_of(&mounted.status(), "default");
    assert_eq!(order["following"], true, "{order}");
    mounted.umount();
}

/// Does what `find`, `du` and `ls -l` do.
fn walk(mounted: &Mounted) {
    for entry in fs::read_dir(mounted.path("d")).unwrap() {
        entry.unwrap().metadata().unwrap();
    }
}

#[test]
fn an_order_outlives_walks_through_the_directories() {
    let fixture = Fixture::new();
    fixture.write_many("d", 1000, 3000);
    let epochs: Vec<Vec<u64>> = (0..3).map(|epoch| shuffled(1000, epoch)).collect();
    let file = order_file(&fixture, "order.txt", &epochs);
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", &file]);
    for (epoch, samples) in epochs.iter().enumerate() {
        for _ in 0..3 {
            thread::scope(|scope| {
                scope.spawn(|| walk(&mounted));
            });
        }
        let job = || read_in_order(&mounted, samples, 3000);
        thread::scope(|scope| {
            scope.spawn(job);
        });
        // The last few opens may show only when the next epoch begins, and a few others are missed.
        let reads = 1000 * (epoch as u64 + 1) * 9 / 10;
        let predicted = || mounted.count("/orders/0/opens_predicted");
        wait_until("all reads seen", || predicted() >= reads);
        assert_eq!(mounted.status()["orders"][0]["following"], true);
    }
    mounted.umount();
}

#[test]
fn pages_that_get_lost_are_there_again_before_they_are_read() {
    Kernel::BOTH.into_iter().for_each(lose_pages);
}

/// If the kernel does not tell which pages it has, a lost page shows when it is read.
fn lose_pages(kernel: Kernel) {
    let fixture = Fixture::new();
    fixture.write_many("d", 400, 9000);
    let order = shuffled(400, 5);
    let file = order_file(&fixture, "order.txt", std::slice::from_ref(&order));
    let (source, point) = (fixture.path("source"), fixture.path("mount"));
    let mut command = fixture.belady();
    command.arg("mount").args([&source, &point]).args(["--ram", "64MiB", "--order", &file]);
    let mounted = Mounted::by(&fixture, kernel.for_command(&mut command), &point);
    read_in_order(&mounted, &order[..40], 9000);
    wait_until("all staged", || {
        let status = mounted.status();
        (&status["ram"]["kept"], &status["fetching"]) == (&(400 * 3 * 4096).into(), &0.into())
    });
    // A block that has just arrived counts as present for two seconds.
    thread::sleep(Duration::from_secs(4));
    // Another task drops the pages, of too few files for the order to be given up.
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in order[200..240].iter().rev() {
                let file = fs::File::open(mounted.path(format!("d/{number:04}"))).unwrap();
                let gone = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                posix_fadvise(&file, 4096, 4096, gone).unwrap();
            }
        });
    });
    read_in_order(&mounted, &order[40..180], 9000);
    // The kernel may have taken a page or two back by itself.
    if kernel.counts_pages() {
        wait_until("what is gone found", || mounted.count("/restored") >= 40);
        let there = |number: &u64| resident(&mounted.path(format!("d/{number:04}"))) == 3;
        wait_until("it there again", || order[200..240].iter().all(there));
    }
    read_in_order(&mounted, &order[180..], 9000);
    if !kernel.counts_pages() {
        wait_until("what is gone missed", || mounted.count("/lost") >= 40);
        assert_eq!(mounted.count("/restored"), 0);
    }
    mounted.umount();
}

#[test]
fn a_wrong_order_is_noticed_and_a_right_one_can_be_given() {
    let fixture = Fixture::new();
    fixture.write_many("d", 400, 2000);
    let wrong = order_file(&fixture, "wrong.txt", &[(0..400).collect()]);
    let mounted = Mounted::new(&fixture, &["--ram", "1MiB", "--order", &wrong]);
    read_in_order(&mounted, &shuffled(400, 8), 2000);
    let following = || mounted.status()["orders"][0]["following"].clone();
    wait_until("the order given up", || following() == false);
    check_many(&mounted.path(""), "d", 400, 2000);
    let right = order_file(&fixture, "right.txt", &[shuffled(400, 9)]);
    let point = mounted.point.to_str().unwrap().to_owned();
    fixture.run(0, &["order", "set", &point, &right]);
    let predicted = || mounted.count("/orders/0/opens_predicted");
    wait_until("the order in force", || following() == true && predicted() == 0);
    read_in_order(&mounted, &shuffled(400, 9), 2000);
    // The end of an epoch may show only when another epoch begins.
    read_in_order(&mounted, &shuffled(400, 9)[..8], 2000);
    wait_until("all reads seen", || counted(&mounted, "/orders/0/opens_predicted", 408));
    fixture.run(0, &["order", "withdraw", &point]);
    read_in_order(&mounted, &shuffled(400, 10), 2000);
    assert_eq!(mounted.status()["orders"][0]["spec"], Value::Null);
    mounted.umount();
}
