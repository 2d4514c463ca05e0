//! Derived samples: made from samples, once for all who read them.
//!
//! Goal: a loader over `.derived/NAME` reads what was made of each sample just ahead of it, and nothing else: never a
//! sample of another recipe or version. Method: images that Pillow wrote; their pixels tell which one was read, and
//! `status` tells how many were made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use belady::derive::Image;
use nix::libc;
use serde_json::Value;

use crate::archives::{pack, python};
use crate::fixture::{Fixture, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::rehearsal::wait_for_offers;
use crate::sharing::{Cluster, values_of};

const FILES: usize = 120;
const CLASS: usize = 60;
const SMALL: &str = r#"derived=[{name="small", resize=20}]"#;

fn image(name: &str) -> Vec<u8> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/images");
    fs::read(vectors.join(name)).unwrap()
}

/// Images in two classes. Those with even numbers are wide, the others tall.
fn make(fixture: &Fixture) {
    for nth in 0..FILES {
        let name = if nth % 2 == 0 { "wide.jpg" } else { "tall.jpg" };
        fixture.write(&format!("train/c{}/{nth:03}.jpg", nth / CLASS), &image(name));
    }
}

fn path_of(nth: usize) -> PathBuf {
    format!(".derived/small/train/c{}/{nth:03}.jpg", nth / CLASS).into()
}

fn sides(path: &Path) -> (u32, u32) {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let image = Image::decode(&bytes).unwrap();
    (image.width, image.height)
}

/// Reads all samples, which are resized to a shorter side of so many pixels.
#[track_caller]
fn check_all(mounted: &Mounted, shorter: u32) {
    for nth in 0..FILES {
        let expected =
            if nth % 2 == 0 { (shorter * 64 / 45, shorter) } else { (shorter, shorter * 66 / 41) };
        assert_eq!(sides(&mounted.path(path_of(nth))), expected, "{nth}");
    }
}

fn made(mounted: &Mounted) -> Value {
    mounted.status()["derived"][0].clone()
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn derived_samples_are_found_by_name_and_made_once() {
    let fixture = Fixture::new();
    make(&fixture);
    fixture.write("train/c0/notes.txt", b"no image");
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--set", SMALL]);
    assert_eq!(names(&mounted.point), ["train"], "it is not listed");
    assert_eq!(names(&mounted.path(".derived")), ["small"]);
    assert_eq!(names(&mounted.path(".derived/small/train")), ["c0", "c1"]);
    assert_eq!(names(&mounted.path(".derived/small/train/c0")).len(), CLASS, "images alone");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| check_all(&mounted, 20));
        }
    });
    let after = made(&mounted);
    assert_eq!((&after["name"], &after["made"]), (&"small".into(), &FILES.into()), "{after}");
    assert_eq!(after["failed"], 0);
    let size = fs::metadata(mounted.path(path_of(0))).unwrap().len();
    assert_eq!(fs::read(mounted.path(path_of(0))).unwrap().len() as u64, size);
    assert_eq!(fs::read(mounted.path("train/c0/000.jpg")).unwrap(), image("wide.jpg"));
    let said = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(said.contains("derived  small: 120 made"), "{said}");
    mounted.umount();
}

/// A loader of torchvision over derived samples.
const LOADER: &str = r#"
import sys, torch
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor
dataset = ImageFolder(sys.argv[1], transform=lambda image: min(pil_to_tensor(image).shape[1:]))
sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=1, rank=0)
loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2)
for epoch in range(int(sys.argv[2])):
    sampler.set_epoch(epoch)
    assert sum(int((batch == 20).sum()) for batch, _ in loader) == len(dataset)
"#;

#[test]
fn samples_of_a_told_order_are_made_ahead_of_their_reader() {
    let fixture = Fixture::new();
    make(&fixture);
    let order = "torch-distributed:seed=0,index=imagefolder,root=.derived/small/train";
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", order, "--set", SMALL]);
    wait_until("all are made", || made(&mounted)["made"] == FILES);
    python(LOADER, &[&mounted.path(".derived/small/train"), Path::new("2")]);
    let status = mounted.status();
    assert_eq!(status["derived"][0]["made"], FILES, "{status}");
    assert_eq!(status["cold"], 0, "{status}");
    mounted.umount();
}

#[test]
fn the_order_of_a_loader_over_derived_samples_is_found_out() {
    let fixture = Fixture::new();
    make(&fixture);
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--set", SMALL]);
    // It stays until nobody can write to it any more.
    let mut loader = Command::new("/usr/bin/python3")
        .arg("-c")
        .arg(format!("{LOADER}sys.stdin.read()\n"))
        .arg(mounted.path(".derived/small/train"))
        .arg("3")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("its order is found out", || {
        let status = mounted.status();
        let mut loaders = status["loaders"].as_array().unwrap().iter();
        loaders.any(|loader| {
            let root = "root=.derived/small/train";
            loader["followed"] == true && loader["spec"].to_string().contains(root)
        })
    });
    drop(loader.stdin.take());
    assert!(loader.wait().unwrap().success());
    mounted.umount();
}

#[test]
fn an_order_over_the_whole_source_has_no_derived_samples() {
    let fixture = Fixture::new();
    make(&fixture);
    let mounted =
        Mounted::new(&fixture, &["--ram", "64MiB", "--order", "sequential", "--set", SMALL]);
    wait_until("the order is followed", || mounted.status()["orders"][0]["length"] == FILES);
    for nth in 0..FILES {
        fs::read(mounted.path(format!("train/c{}/{nth:03}.jpg", nth / CLASS))).unwrap();
    }
    let at = mounted.point.to_str().unwrap();
    fixture.run(0, &["warmup", at, "--deadline", "1m"]);
    assert_eq!(made(&mounted)["made"], 0, "{}", mounted.status());
    fixture.run(0, &["warmup", at, "--glob", ".derived/small/**/*.jpg", "--deadline", "1m"]);
    assert_eq!(made(&mounted)["made"], FILES);
    mounted.umount();
}

#[test]
fn a_sample_of_which_nothing_can_be_made_is_an_error_of_its_own() {
    let fixture = Fixture::new();
    make(&fixture);
    let whole = image("wide.jpg");
    fixture.write("train/c0/002.jpg", &whole[..700]);
    let order = "sequential:root=.derived/small";
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", order, "--set", SMALL]);
    let error = fs::read(mounted.path(path_of(2))).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    for nth in (0..FILES).filter(|nth| *nth != 2) {
        sides(&mounted.path(path_of(nth)));
    }
    let status = made(&mounted);
    assert_eq!(status["made"], FILES - 1);
    let failure = &status["failures"][0];
    assert_eq!(failure["path"], "train/c0/002.jpg", "{status}");
    assert!(failure["reason"].as_str().unwrap().contains("ends too early"), "{status}");
    let said = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(said.contains("train/c0/002.jpg: the JPEG is broken"), "{said}");
    // Once the file is whole, so is its sample.
    fixture.write("train/c0/002.jpg", &whole);
    wait_until("the new version is there", || fs::read(mounted.path(path_of(2))).is_ok());
    check_all(&mounted, 20);
    mounted.umount();
}

#[test]
fn another_version_of_an_original_is_another_sample() {
    let fixture = Fixture::new();
    make(&fixture);
    let options = ["--ram", "64MiB", "--set", "source.revalidate=100ms", "--set", SMALL];
    let mounted = Mounted::new(&fixture, &options);
    check_all(&mounted, 20);
    fixture.write("train/c0/000.jpg", &image("tall.jpg"));
    let (before, after) = ((20 * 64 / 45, 20), (20, 20 * 66 / 41));
    wait_until("the new version is there", || match fs::read(mounted.path(path_of(0))) {
        Ok(bytes) => {
            let image = Image::decode(&bytes).unwrap();
            let sides = (image.width, image.height);
            assert!(sides == before || sides == after, "{sides:?}");
            sides == after
        }
        Err(error) => error.raw_os_error() != Some(libc::ESTALE) && panic!("{error}"),
    });
    // Names are checked again and again, and nothing is made for that.
    let count = made(&mounted)["made"].as_u64().unwrap();
    for _ in 0..3 {
        thread::sleep(std::time::Duration::from_millis(150));
        for nth in 0..FILES {
            fs::metadata(mounted.path(path_of(nth))).unwrap();
        }
    }
    assert_eq!(made(&mounted)["made"], count);
    mounted.umount();
}

#[test]
fn stored_samples_are_those_of_one_recipe() {
    let fixture = Fixture::new();
    make(&fixture);
    let cache = fixture.path("cache");
    let mount = |recipe: &str| {
        let order = "sequential:root=.derived/small";
        let cache = cache.to_str().unwrap();
        let options = ["--ram", "64MiB", "--disk", "64MiB", "--cache-dir", cache, "--order", order];
        let options = [&options[..], &["--set", "cache.min-free=0%", "--set", recipe]].concat();
        Mounted::new(&fixture, &options)
    };
    let first = mount(SMALL);
    check_all(&first, 20);
    wait_until("all are stored", || {
        first.status()["disk"]["stored"].as_u64().unwrap() >= FILES as u64 * 4096
    });
    first.umount();
    let second = mount(SMALL);
    check_all(&second, 20);
    assert_eq!(made(&second)["made"], 0, "{}", second.status());
    second.umount();
    let third = mount(r#"derived=[{name="small", resize=16}]"#);
    check_all(&third, 16);
    assert_eq!(made(&third)["made"], FILES);
    third.umount();
}

#[test]
fn stored_samples_are_found_without_their_sizes() {
    let fixture = Fixture::new();
    make(&fixture);
    let cache = fixture.path("cache");
    let mount = || {
        let options = ["--ram", "64MiB", "--disk", "64MiB", "--cache-dir", cache.to_str().unwrap()];
        let sets = ["--set", "cache.min-free=0%", "--set", SMALL];
        let order = ["--order", "sequential:root=.derived/small"];
        Mounted::new(&fixture, &[&options[..], &sets, &order].concat())
    };
    let first = mount();
    check_all(&first, 20);
    wait_until("all are stored", || {
        first.status()["disk"]["stored"].as_u64().unwrap() >= FILES as u64 * 4096
    });
    first.umount();
    forget_catalog(&cache);
    let second = mount();
    check_all(&second, 20);
    assert_eq!(made(&second)["made"], 0, "{}", second.status());
    second.umount();
}

/// Removes the catalog from a cache directory. It knows the sizes of samples.
pub(crate) fn forget_catalog(cache: &Path) {
    let is_catalog = |path: &PathBuf| path.ends_with("catalog");
    let catalogs: Vec<PathBuf> = walk(cache).into_iter().filter(is_catalog).collect();
    assert_eq!(catalogs.len(), 1);
    fs::remove_file(&catalogs[0]).unwrap();
}

/// All files below a directory.
fn walk(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn one_node_of_a_cluster_makes_a_sample_and_all_have_it() {
    let of_node = |_| ["--set", SMALL].map(str::to_owned).to_vec();
    let cluster = Cluster::of(make, 3, of_node);
    let made_by = |node: usize| made(&cluster.nodes[node].mounted)["made"].as_u64().unwrap();
    check_all(&cluster.nodes[0].mounted, 20);
    assert_eq!(made_by(0), FILES as u64);
    wait_until("all are given", || cluster.traffic("given") >= FILES as u64);
    [1, 2].iter().for_each(|node| check_all(&cluster.nodes[*node].mounted, 20));
    let late = cluster.late();
    assert!(made_by(1) + made_by(2) <= late, "{} of {late}", made_by(1) + made_by(2));
}

/// Bytes of a sample: more than a block.
const LONG: usize = 1_100_000;

/// What a command makes of the text `nth`.
fn long(nth: usize) -> Vec<u8> {
    [nth.to_string().into_bytes(), vec![b'x'; LONG]].concat()
}

#[test]
fn samples_of_several_blocks_are_made_by_one_node_of_a_cluster() {
    const TEXTS: usize = 12;
    let make = |fixture: &Fixture| {
        (0..TEXTS).for_each(|nth| {
            fixture.write(&format!("t/{nth:02}.txt"), nth.to_string().as_bytes());
        });
    };
    let recipe = r#"derived=[{name="long", from="t/*", command="cat; head -c 1100000 /dev/zero | tr '\\0' x", suffix=".long"}]"#;
    let of_node = |_| ["--set", recipe].map(str::to_owned).to_vec();
    let cluster = Cluster::of(make, 3, of_node);
    let made_by = |node: usize| made(&cluster.nodes[node].mounted)["made"].as_u64().unwrap();
    let check = |node: usize| {
        for nth in 0..TEXTS {
            let path =
                cluster.nodes[node].mounted.path(format!(".derived/long/t/{nth:02}.txt.long"));
            assert!(fs::read(path).unwrap() == long(nth), "{nth} at {node}");
        }
    };
    check(0);
    assert_eq!(made_by(0), TEXTS as u64);
    // All are at two nodes, by names that are known before their sizes are, unless a node was late.
    let late = || cluster.late() + cluster.traffic("refused");
    wait_until("all are given", || {
        let values = (0..3).flat_map(|node| values_of(&cluster, node));
        let given = values.filter(|(_, length)| *length > LONG).count();
        given as u64 + 2 * late() >= 2 * TEXTS as u64
    });
    [1, 2].into_iter().for_each(check);
    let (made, late) = (made_by(1) + made_by(2), late());
    assert!(made <= 2 * late, "{made} of {late}");
}

#[test]
fn wrong_recipes_are_refused() {
    let fixture = Fixture::new();
    make(&fixture);
    let (source, at) = (fixture.path("source"), fixture.path("mount"));
    let mount = |recipe: &str| {
        let words = ["mount", source.to_str().unwrap(), at.to_str().unwrap(), "--set", recipe];
        fixture.run(3, &words)
    };
    for (recipe, reason) in [
        (r#"derived=[{resize=20}]"#, "is not a plain name"),
        (r#"derived=[{name="a/b"}]"#, "is not a plain name"),
        (r#"derived=[{name="a"}, {name="a"}]"#, "two [[derived]]"),
        (r#"derived=[{name="a", resize=20, crop=30}]"#, "crop 30 is more than"),
        (r#"derived=[{name="a", quality=0}]"#, "is not from 1 to 100"),
        (r#"derived=[{name="a", format="gif"}]"#, "gif"),
        (r#"derived=[{name="a", from="../x"}]"#, "leads out of the source"),
        (r#"derived=[{name="a", size=3}]"#, "unknown key"),
        (r#"derived=3"#, "is a list of derived samples"),
    ] {
        let said = mount(recipe);
        assert!(said.contains(reason), "{recipe}: {said}");
    }
}

#[test]
fn samples_are_made_of_the_files_in_archives() {
    let fixture = Fixture::new();
    make(&fixture);
    pack(&fixture.path("source"), "train", &fixture.path("train.tar"));
    let archives = fixture.path("archives");
    fs::create_dir(&archives).unwrap();
    fs::rename(fixture.path("train.tar"), archives.join("train.tar")).unwrap();
    let options = ["--as", "files", "--ram", "64MiB", "--set", SMALL];
    let mounted = Mounted::at(&fixture, &archives, &fixture.path("mount"), &options);
    check_all(&mounted, 20);
    assert_eq!(made(&mounted)["made"], FILES);
    mounted.umount();
}

#[test]
fn a_rehearsal_buffer_may_hold_derived_samples() {
    const KEPT: usize = 50;
    let fixture = Fixture::new();
    make(&fixture);
    let cache = fixture.path("cache");
    let size = format!("rehearsal.old.size={KEPT}");
    let sets = [SMALL, &size, "rehearsal.old.root=.derived/small/train"];
    let mut options = vec!["--ram", "64MiB", "--cache-dir", cache.to_str().unwrap()];
    options.extend(sets.iter().flat_map(|set| ["--set", set]));
    let mounted = Mounted::new(&fixture, &options);
    check_all(&mounted, 20);
    wait_for_offers(&fixture, FILES as u64);
    let view = mounted.path("rehearsal/old/epoch-1");
    let classes = names(&view).into_iter().map(|class| view.join(class));
    let kept: Vec<PathBuf> = classes
        .flat_map(|class| names(&class).into_iter().map(move |name| class.join(name)))
        .collect();
    assert_eq!(kept.len(), KEPT);
    for path in kept {
        let (width, height) = sides(&path);
        assert_eq!(width.min(height), 20, "{}", path.display());
    }
    mounted.umount();
}

#[test]
fn derived_samples_are_at_a_path_of_the_user_as_well() {
    let fixture = Fixture::new();
    make(&fixture);
    let at = fixture.path("small");
    let recipe = format!(r#"derived=[{{name="small", resize=20, at={at:?}}}]"#);
    let options = ["--ram", "64MiB", "--set", &recipe];
    let mounted = Mounted::new(&fixture, &options);
    assert_eq!(sides(&at.join("train/c0/000.jpg")), (20 * 64 / 45, 20));
    mounted.umount();
    wait_until("the link is gone", || fs::symlink_metadata(&at).is_err());
    fs::write(&at, "of the user").unwrap();
    let (source, point) = (fixture.path("source"), fixture.path("mount"));
    let words = ["mount", source.to_str().unwrap(), point.to_str().unwrap()];
    let said = fixture.run(6, &[&words[..], &options].concat());
    assert!(said.contains("exists already"), "{said}");
    assert_eq!(fs::read(&at).unwrap(), b"of the user");
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}

/// The scan has found a file, and waits for a directory. So it has not come to the derived samples.
#[test]
fn derived_samples_are_there_before_the_source_is_scanned() {
    let fixture = Fixture::new();
    make(&fixture);
    fixture.write("first", b"bytes");
    fixture.write("held/file", b"bytes");
    let slow = Slowpfs::new(&fixture, &[]);
    slow.ctl(&["fault", "hang", "held", "ops=opendir"]);
    let options = ["--ram", "64MiB", "--set", SMALL];
    let mounted = Mounted::early(&fixture, &slow.point, &fixture.path("mount"), &options);
    check_all(&mounted, 20);
    slow.ctl(&["fault", "clear"]);
    mounted.umount();
}
