//! Runs what README.md and docs/ show of mounts, line by line.
//!
//! Goal: a reader who copies a block gets what the page says. Method: a page is a session. Its mounts stay
//! until it unmounts them. A block that only uses a mount finds one with a cache disk and a rehearsal buffer,
//! of which all files but one were read. Each command must succeed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::documents::{Block, MOUNT, Page, Scene, UNREAD, is_belady, pages};
use crate::fixture::{Choice, Fixture, program, said, wait_until};
use crate::mounted::Mounted;
use crate::object_server::ObjectServer;

/// Who has mounted the present mount.
#[derive(PartialEq, Eq)]
enum By {
    Page,
    Test,
}

/// The commands of a page, one after the other.
struct Session {
    mounted: Option<(Mounted, By)>,
    /// The server of the buckets that the page names.
    server: Option<ObjectServer>,
    scene: Scene,
    // The last field, so that it is dropped last: it takes away everything that is left.
    fixture: Fixture,
}

impl Session {
    fn new(page: &Page) -> Self {
        let fixture = Fixture::new();
        let scene = Scene::new(&fixture.path(""));
        let server = page.text.contains("belady mount s3://").then(|| {
            let server = ObjectServer::start();
            server.fill("imagenet", &scene.source);
            server.fill("shards", &scene.work.join("shards"));
            server
        });
        Session { mounted: None, server, scene, fixture }
    }

    /// A command of a page, with the runtime directory of this test.
    fn shell(&self, at: &str, command: &str) -> Command {
        let mut shell = self.scene.shell(at, command, &program("belady"));
        let belady = self.fixture.belady();
        shell.envs(belady.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.envs(self.server.iter().flat_map(ObjectServer::variables));
        shell
    }

    fn run(&mut self, at: &str, command: &str) {
        let unmounts = command.starts_with("belady umount ");
        if command.starts_with("belady mount ") {
            self.end_own();
            assert!(self.mounted.is_none(), "{at}: {command:?}: the last mount was not ended");
            let mut shell = self.shell(at, command);
            let mounted = Mounted::by(&self.fixture, &mut shell, &self.scene.mount);
            self.mounted = Some((mounted, By::Page));
            return;
        }
        if unmounts {
            assert!(self.mounted.is_some(), "{at}: {command:?}: nothing is mounted");
        } else if command.contains(MOUNT) {
            self.use_mount();
        } else {
            self.end_own();
        }
        let mut output = self.shell(at, command).output().unwrap();
        if unmounts {
            // A program that another test starts has copies of this one's open files until it runs.
            wait_until("nobody uses the mount", || {
                let in_use = said(&output).contains("is in use");
                if in_use {
                    output = self.shell(at, command).output().unwrap();
                }
                !in_use
            });
        }
        assert!(output.status.success(), "{at}: {command:?} has failed: {}", said(&output));
        if let Some((mounted, _)) = self.mounted.take_if(|_| unmounts) {
            mounted.wait_until_gone();
        }
    }

    /// Ends a mount that no page has asked for: the next command needs its place or its cache disk.
    fn end_own(&mut self) {
        if let Some((mounted, _)) = self.mounted.take_if(|(_, by)| *by == By::Test) {
            mounted.umount();
        }
    }

    /// Makes a mount of which everything was read and kept for rehearsal.
    fn use_mount(&mut self) {
        if self.mounted.is_some() {
            return;
        }
        let buffer = ["--set", "rehearsal.old.size=1000", "--set", "rehearsal.old.root=train"];
        let cache = ["--cache-dir", self.scene.cache.to_str().unwrap()];
        let mounted = Mounted::new(&self.fixture, &[&cache[..], &buffer].concat());
        read_as_a_loader(&mounted.path(""));
        let files = files(&self.scene.source.join("train")).len() - 1;
        let held = ["rehearse", "ls", mounted.point.to_str().unwrap(), "old", "--json"];
        wait_until("all was offered", || {
            let listed: Value = serde_json::from_str(&self.fixture.run(0, &held)).unwrap();
            listed.as_array().unwrap().len() == files
        });
        let loaders = || mounted.status()["loaders"].as_array().map_or(0, Vec::len);
        wait_until("its loader is seen", || loaders() > 0);
        self.mounted = Some((mounted, By::Test));
    }
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Reads all files but one in a random order, as one loader does.
fn read_as_a_loader(mount: &Path) {
    let (mut left, mut choice) = (files(mount), Choice(5));
    left.retain(|path| !path.ends_with(UNREAD));
    left.sort();
    while !left.is_empty() {
        let next = choice.below(left.len() as u64) as usize;
        fs::read(left.swap_remove(next)).unwrap();
    }
}

/// Runs what a page shows of mounts. Returns the number of commands.
fn run(page: &Page) -> usize {
    let blocks = page.blocks();
    if !blocks.iter().any(|block| block.is_shell() && block.mounts()) {
        return 0;
    }
    let mut session = Session::new(page);
    let mut run = 0;
    for block in blocks {
        session.scene.keep(&block);
        if block.is_shell() && block.mounts() {
            let Block { at, .. } = &block;
            for command in block.commands().iter().filter(|command| is_belady(command)) {
                session.run(at, command);
                run += 1;
            }
        }
    }
    session.end_own();
    assert!(session.mounted.is_none(), "{}: the last mount was not ended", page.name);
    run
}

#[test]
fn commands_of_the_documents_do_what_is_shown() {
    let run: usize = pages().iter().map(run).sum();
    assert!(run > 50, "only {run} commands");
}
