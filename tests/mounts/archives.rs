//! Archives that are mounted as the files in them.
//!
//! Goal: a loader of files reads archives and cannot tell. Method: the same images are extracted beside the mount of
//! archives that GNU tar and Python have written; torchvision compares both.

use std::path::Path;
use std::process::Command;

use nix::libc;

use crate::fixture::{Fixture, content, said, wait_until};
use crate::mounted::Mounted;

const CLASSES: u64 = 3;
const FILES: u64 = 90;

/// Compares the samples of an ImageFolder, their classes and their bytes.
pub(crate) const COMPARE: &str = r#"
import os, sys
from torchvision.datasets import ImageFolder

def read(path):
    with open(path, "rb") as file:
        return file.read()

def samples(top):
    dataset = ImageFolder(top, loader=read)
    names = [(os.path.relpath(path, top), label) for path, label in dataset.samples]
    return dataset.classes, names, [dataset[nth][0] for nth in range(len(dataset))]

extracted, shown = samples(sys.argv[1]), samples(sys.argv[2])
assert extracted == shown
print(len(shown[1]))
"#;

/// Writes a zip file without compression of the given files.
const ZIP: &str = r#"
import os, sys, zipfile
os.chdir(sys.argv[1])
with zipfile.ZipFile(sys.argv[2], "w") as archive:
    for name in sys.argv[3:]:
        archive.write(name)
"#;

pub(crate) fn python(script: &str, words: &[&Path]) -> String {
    let mut command = Command::new("/usr/bin/python3");
    let output = command.arg("-c").arg(script).args(words).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Reads a file until its new version is there. Until then each read gives the old one, or says that it has gone, and
/// never bytes of both.
pub(crate) fn read_until_new(path: &Path, old: &[u8], new: &[u8]) {
    wait_until("the new version is there", || match std::fs::read(path) {
        Ok(bytes) if bytes == new => true,
        Ok(bytes) => {
            assert_eq!(bytes, old);
            false
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
            false
        }
    });
}

/// Images in a directory for each class, extracted, and in four archives of the source: some of all classes in each.
fn make(fixture: &Fixture) {
    let extracted = fixture.path("extracted");
    let mut parts = vec![Vec::new(); 4];
    for nth in 0..FILES {
        let name = format!("class{}/{nth}.jpg", nth % CLASSES);
        let path = extracted.join(&name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content(nth, 1000 + 777 * nth as usize)).unwrap();
        parts[(nth / 5) as usize % 4].push(name);
    }
    for (nth, names) in parts.iter().enumerate() {
        let format = ["gnu", "pax", "ustar", "zip"][nth];
        if format == "zip" {
            let archive = fixture.source("3.zip");
            let names = names.iter().map(Path::new);
            let words: Vec<_> = [&*extracted, &*archive].into_iter().chain(names).collect();
            python(ZIP, &words);
            continue;
        }
        let archive = fixture.source(format!("{nth}.tar"));
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&extracted).arg(format!("--format={format}")).arg("-cf").arg(archive);
        let output = tar.args(names).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn a_loader_of_images_reads_archives_as_if_they_were_extracted() {
    let fixture = Fixture::new();
    make(&fixture);
    let order = "torch-random:seed=7,index=imagefolder";
    let mounted = Mounted::new(&fixture, &["--as", "files", "--ram", "64MiB", "--order", order]);
    let (extracted, shown) = (fixture.path("extracted"), mounted.path(""));
    wait_until("all files are fetched", || {
        mounted.count("/prefetched") >= FILES && mounted.count("/fetching") == 0
    });
    assert_eq!(python(COMPARE, &[&extracted, &shown]).trim(), FILES.to_string());
    let status = mounted.status();
    assert_eq!(status["cold"], 0, "{status}");
    // The archives themselves are another view of the same source.
    let plain = fixture.path("plain");
    std::fs::create_dir(&plain).unwrap();
    let source = fixture.source("");
    let plain = Mounted::at(&fixture, &source, &plain, &["--ram", "16MiB"]);
    let names = std::fs::read_dir(plain.path("")).unwrap().count();
    assert_eq!(names, 4);
    assert!(std::fs::metadata(mounted.path("class0/0.jpg")).is_ok());
    plain.umount();
    mounted.umount();
}

/// Packs a directory below `top` into a tar file.
pub(crate) fn pack(top: &Path, directory: &str, archive: &Path) {
    let mut tar = Command::new("tar");
    assert!(
        tar.arg("-C").arg(top).arg("-cf").arg(archive).arg(directory).status().unwrap().success()
    );
}

/// The archives are read in large parts, though the loader reads their members in a random order.
#[test]
fn members_that_lie_one_behind_the_other_come_with_one_read() {
    const MEMBERS: u64 = 400;
    let fixture = Fixture::new();
    let extracted = fixture.path("extracted");
    for nth in 0..MEMBERS {
        let path = extracted.join(format!("class{}/{nth}.jpg", nth % 2));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content(nth, 20_000 + nth as usize)).unwrap();
    }
    for class in ["class0", "class1"] {
        let archive = fixture.source(format!("{class}.tar"));
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&extracted).args(["--sort=name", "-cf"]).arg(archive).arg(class);
        assert!(tar.status().unwrap().success());
    }
    let order = "torch-random:seed=7,index=imagefolder";
    let mounted = Mounted::new(&fixture, &["--as", "files", "--ram", "64MiB", "--order", order]);
    wait_until("all files are fetched", || {
        mounted.count("/prefetched") >= MEMBERS && mounted.count("/fetching") == 0
    });
    let reads = mounted.count("/source_times/operations/read/count");
    assert!(reads <= MEMBERS / 4, "{reads} reads for {MEMBERS} files");
    assert_eq!(python(COMPARE, &[&extracted, &mounted.path("")]).trim(), MEMBERS.to_string());
    mounted.umount();
}

/// One node reads all headers, and gives what it knows to another one.
#[test]
fn the_catalog_of_archives_is_exported_and_imported() {
    let fixture = Fixture::new();
    make(&fixture);
    let [file, cache, source] =
        [fixture.path("catalog"), fixture.path("cache"), fixture.source("")];
    let [file, cache, source] = [&file, &cache, &source].map(|path| path.to_str().unwrap());
    let told = fixture.run(0, &["catalog", "export", "--as", "files", source, file]);
    assert!(told.contains(&format!("{FILES} files")), "{told}");
    let words = ["catalog", "import", "--as", "files", file, source, "--cache-dir", cache];
    fixture.run(0, &words);
    let told = fixture.run(0, &["catalog", "export", source, file, "--cache-dir", cache]);
    assert!(told.contains("4 files"), "the archives themselves are another source: {told}");
    let order = "torch-random:seed=7,index=imagefolder";
    let found = fixture.run(0, &["order", "check", "--as", "files", order, source]);
    assert!(found.contains("90 files in the dataset, 90 samples"), "{found}");
    let mut shown = fixture.belady();
    shown.args(["order", "show", order, source]).env("BELADY_SOURCE_VIEW", "files");
    let shown = said(&shown.output().unwrap());
    assert_eq!(shown.matches(".jpg").count() as u64, FILES, "{shown}");
    fixture.run(2, &["order", "check", "--as", "archives", order, source]);
    let mounted =
        Mounted::new(&fixture, &["--as", "files", "--ram", "64MiB", "--cache-dir", cache]);
    let (extracted, shown) = (fixture.path("extracted"), mounted.path(""));
    assert_eq!(python(COMPARE, &[&extracted, &shown]).trim(), FILES.to_string());
    wait_until("the catalog is checked", || mounted.status()["catalog"] == "checked");
    mounted.umount();
}

#[test]
fn one_archive_is_mounted_and_changes_under_its_readers() {
    let fixture = Fixture::new();
    make(&fixture);
    let (archive, point) = (fixture.source("0.tar"), fixture.path("mount"));
    let options = ["--as", "files", "--ram", "64MiB", "--set", "source.revalidate=1s"];
    let mounted = Mounted::at(&fixture, &archive, &point, &options);
    let first = mounted.path("class0/0.jpg");
    assert_eq!(std::fs::read(&first).unwrap(), content(0, 1000));
    let (extracted, other) = (fixture.path("extracted"), fixture.path("new.tar"));
    std::fs::write(extracted.join("class0/0.jpg"), b"new").unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&extracted).arg("-cf").arg(&other).args(["class0/0.jpg", "class1/1.jpg"]);
    assert!(tar.status().unwrap().success());
    std::fs::rename(&other, &archive).unwrap();
    read_until_new(&first, &content(0, 1000), b"new");
    wait_until("files that are gone are not shown", || {
        let gone = std::fs::metadata(mounted.path("class2/2.jpg"));
        gone.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    });
    mounted.umount();
}

/// GNU tar writes holes in pax form as an ordinary file of another content.
#[test]
fn a_tar_file_with_holes_is_refused() {
    let fixture = Fixture::new();
    let file = std::fs::File::create(fixture.path("holes")).unwrap();
    file.set_len(1 << 20).unwrap();
    for format in ["gnu", "posix"] {
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(fixture.path("")).args(["--sparse", &format!("--format={format}")]);
        assert!(
            tar.arg("-cf").arg(fixture.source("a.tar")).arg("holes").status().unwrap().success()
        );
        let (source, point) = (fixture.source(""), fixture.path("mount"));
        let words = ["mount", source.to_str().unwrap(), point.to_str().unwrap(), "--as", "files"];
        let said = fixture.run(4, &words);
        assert!(said.contains("has holes"), "{format}: {said}");
    }
}

#[test]
fn a_source_without_archives_is_refused() {
    let fixture = Fixture::new();
    fixture.write("a.jpg", b"1");
    let (source, point) = (fixture.source(""), fixture.path("mount"));
    let words = ["mount", source.to_str().unwrap(), point.to_str().unwrap(), "--as", "files"];
    let said = fixture.run(4, &words);
    assert!(said.contains("there is no .tar and no .zip file"), "{said}");
    let file = fixture.source("a.jpg");
    let words = ["mount", file.to_str().unwrap(), point.to_str().unwrap(), "--as", "files"];
    let said = fixture.run(4, &words);
    assert!(said.contains("is no .tar and no .zip file"), "{said}");
}
