//! Files of a web server that are mounted.
//!
//! Goal: a loader of files reads a web server and cannot tell. Method: a real nginx serves the directory beside the
//! mount.

use std::fs;
use std::path::{Path, PathBuf};

use crate::archives::{COMPARE, pack, python};
use crate::fixture::{Fixture, content, wait_until};
use crate::mounted::Mounted;
use crate::nginx::Nginx;
use crate::programs::Watchdog;

const FILES: u64 = 60;

/// When files were written, in seconds since 1970.
const TIME: u64 = 1_700_000_000;

const IMMUTABLE: [&str; 2] = ["--set", "source.consistency=immutable"];

/// A fixture whose source a server serves.
struct Site {
    fixture: Fixture,
    nginx: Nginx,
    _watchdog: Watchdog,
}

impl Site {
    fn new() -> Self {
        let fixture = Fixture::new();
        let nginx = Nginx::serve(&fixture.source(""));
        let watchdog = Watchdog::over(nginx.child.id() as i32);
        Site { fixture, nginx, _watchdog: watchdog }
    }

    /// Images in a directory for each class. Returns their paths.
    fn make(&self) -> Vec<String> {
        let put = |nth: u64| {
            let path = format!("class{}/{nth}.jpg", nth % 3);
            self.nginx.put(&path, &content(nth, 1000 + 777 * nth as usize), TIME);
            path
        };
        (0..FILES).map(put).collect()
    }

    /// Writes a manifest, of which a line has paths and so many more fields.
    fn publish(&self, paths: &[String], more: usize) {
        let line = |path: &String| {
            let line = self.nginx.line(path);
            line.split('\t').take(1 + more).collect::<Vec<_>>().join("\t") + "\n"
        };
        let text: String = paths.iter().map(line).collect();
        self.nginx.put("files.tsv", text.as_bytes(), TIME);
    }

    fn url(&self) -> String {
        self.nginx.url("files.tsv")
    }

    fn point(&self) -> PathBuf {
        self.fixture.path("mount")
    }

    #[track_caller]
    fn mounted(&self, options: &[&str]) -> Mounted {
        Mounted::at(&self.fixture, Path::new(&self.url()), &self.point(), options)
    }

    /// What belady says when it refuses to mount a URL.
    #[track_caller]
    fn refused(&self, url: &str, options: &[&str]) -> String {
        let point = self.point();
        let words = [&["mount", url, point.to_str().unwrap()], options].concat();
        self.fixture.run(4, &words)
    }
}

#[test]
fn a_loader_of_images_reads_a_web_server_as_a_directory() {
    let site = Site::new();
    let paths = site.make();
    let order = "torch-random:seed=7,index=imagefolder";
    let prefetched = ["--ram", "64MiB", "--order", order];
    let none: [&str; 0] = [];
    // With sizes and ETags, and with paths only.
    for (more, options) in [(2, &none[..]), (0, &IMMUTABLE)] {
        site.publish(&paths, more);
        let mounted = site.mounted(&[options, &prefetched].concat());
        wait_until("all files are fetched", || {
            mounted.count("/source_times/operations/read/count") >= FILES
                && mounted.count("/fetching") == 0
        });
        let (source, shown) = (site.fixture.source(""), mounted.path(""));
        assert_eq!(python(COMPARE, &[&source, &shown]).trim(), FILES.to_string());
        let status = mounted.status();
        assert_eq!((&status["cold"], &status["source"]), (&0.into(), &site.url().as_str().into()));
        mounted.umount();
    }
    let found = site.fixture.run(0, &["order", "check", order, &site.url()]);
    assert!(found.contains("60 files in the dataset, 60 samples"), "{found}");
    let found = site.fixture.run(0, &["doctor", "--source", &site.url()]);
    assert!(found.contains(&site.url()) && found.contains(" ms a request"), "{found}");
}

#[test]
fn archives_on_a_web_server_are_shown_as_files() {
    let site = Site::new();
    let (images, archive) = (site.fixture.path("images"), site.fixture.path("archive.tar"));
    let put = |class: u64| {
        let directory = images.join(format!("class{class}"));
        fs::create_dir_all(&directory).unwrap();
        for nth in 0..FILES / 3 {
            let bytes = content(class, 1000 + 7_777 * nth as usize);
            fs::write(directory.join(format!("{nth}.jpg")), bytes).unwrap();
        }
        pack(&images, &format!("class{class}"), &archive);
        let path = format!("shards/{class}.tar");
        site.nginx.put(&path, &fs::read(&archive).unwrap(), TIME);
        path
    };
    let paths: Vec<String> = (0..3).map(put).collect();
    site.publish(&paths, 2);
    let mounted = site.mounted(&["--as", "files", "--ram", "64MiB"]);
    let shown = mounted.path("shards");
    assert_eq!(python(COMPARE, &[&images, &shown]).trim(), FILES.to_string());
    mounted.umount();
    site.publish(&paths, 0);
    let refused = site.refused(&site.url(), &[&IMMUTABLE[..], &["--as", "files"]].concat());
    assert!(refused.contains("the sizes of the archives"), "{refused}");
    let refused = site.refused(&site.nginx.url("shards/0.tar"), &["--as", "files"]);
    assert!(refused.contains("is an archive and not a manifest"), "{refused}");
}

#[test]
fn files_that_change_are_seen_when_the_manifest_names_them() {
    let site = Site::new();
    let paths = ["a/one", "a/two"].map(str::to_owned);
    paths.iter().for_each(|path| site.nginx.put(path, b"old", TIME));
    site.publish(&paths, 2);
    let mounted = site.mounted(&["--set", "source.revalidate=1s"]);
    for path in &paths {
        assert_eq!(fs::read(mounted.path(path)).unwrap(), b"old");
    }
    site.nginx.put("a/one", b"new", TIME + 1);
    site.nginx.put("b/three", b"added", TIME + 1);
    fs::remove_file(site.fixture.source("a/two")).unwrap();
    site.publish(&["a/one", "b/three"].map(str::to_owned), 2);
    wait_until("the new bytes", || fs::read(mounted.path("a/one")).ok() == Some(b"new".into()));
    wait_until("the file is gone", || !mounted.path("a/two").exists());
    wait_until("a new file", || fs::read(mounted.path("b/three")).ok() == Some(b"added".into()));
    mounted.umount();
}

#[test]
fn what_is_no_site_is_refused() {
    let site = Site::new();
    let refused = site.refused(&site.url(), &IMMUTABLE);
    assert!(refused.contains("the manifest is not there"), "{refused}");
    site.nginx.put("x", b"bytes", TIME);
    site.publish(&["x".to_owned()], 1);
    let refused = site.refused(&site.url(), &[]);
    assert!(refused.contains("set source.consistency=immutable"), "{refused}");
    site.publish(&["x".to_owned()], 2);
    site.nginx.put("x", b"other", TIME + 1);
    let refused = site.refused(&site.url(), &[]);
    assert!(refused.contains("the manifest is older than the file"), "{refused}");
    for (text, said) in [
        ("x\tmany\n", "line 1 of the manifest"),
        ("y\t5\n", "the manifest names y, and the server does not have it"),
        ("x\t5\n../y\t5\n", "leads out of the tree"),
    ] {
        site.nginx.put("files.tsv", text.as_bytes(), TIME);
        let refused = site.refused(&site.url(), &IMMUTABLE);
        assert!(refused.contains(said), "{refused}");
    }
    let secret = site.url().replace("http://", "http://me:some-word@");
    let refused = site.refused(&secret, &IMMUTABLE);
    assert!(refused.contains("a URL with credentials"), "{refused}");
    assert!(!refused.contains("some-word"), "{refused}");
    let refused = site.refused(&site.nginx.url(""), &IMMUTABLE);
    assert!(refused.contains("a URL without a manifest"), "{refused}");
}
