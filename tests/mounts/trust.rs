//! Names on kernels that cannot be told to ask for them again (before Linux 6.2).
//!
//! Goal: what such a kernel is told to believe expires by itself, so that trust is taken back and changes of
//! the source show. Method: a connection that does without that request is mounted in this process. Nothing
//! behind it tells the kernel of changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belady::cache::{Cache, Inbox};
use belady::catalog::{Catalog, NodeId};
use belady::fs::Dataset;
use belady::fuse::{Connection, MountSettings};
use belady::ids::FileId;
use belady::source::{PosixSource, Source};

use crate::changes::{version, version_of};
use crate::fixture::{Fixture, wait_until};

/// A file of the source, mounted.
struct Setup {
    fixture: Fixture,
    cache: Arc<Cache>,
    connection: Connection,
    path: PathBuf,
}

impl Setup {
    fn new(period: Option<Duration>) -> Self {
        let fixture = Fixture::new();
        fixture.write("file", &version(1, 10_000));
        let source: Arc<dyn Source> =
            Arc::new(PosixSource::open(&fixture.path("source"), 4).unwrap());
        let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, period).unwrap());
        let inbox = Arc::new(Inbox::new(4));
        let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), None);
        let dataset = Dataset::new(catalog, Arc::clone(&cache), inbox, Arc::new(|_| ()), false);
        let settings = MountSettings {
            source_name: "trust".into(),
            allow_other: false,
            push_pages: true,
            passthrough_dir: None,
            expire_names: false,
            threads: 2,
            options: Vec::new(),
        };
        let connection = Connection::mount(dataset, &fixture.path("mount"), &settings).unwrap();
        let path = fixture.path("mount/file");
        let setup = Setup { fixture, cache, connection, path };
        let pusher = Arc::clone(setup.connection.pusher().unwrap());
        assert!(pusher.disable_open_requests(Some(Path::new("file"))), "opens are requests");
        setup.cache.page_cache().connect(pusher, Box::new(|_, _, then| then(Ok(()))));
        setup
    }

    /// Whether the kernel asks for the name when the file is opened.
    fn asks(&self) -> bool {
        let lookups =
            || self.connection.requests().by_kind().find(|kind| kind.0 == "lookup").unwrap();
        let before = lookups();
        fs::metadata(&self.path).unwrap();
        lookups() != before
    }

    fn turn(&self, untracked: bool) {
        let attr = self.cache.catalog().lookup(NodeId::ROOT, "file".as_ref(), true);
        let file: FileId = attr.unwrap().unwrap().node.file().unwrap();
        self.cache.page_cache().set_untracked(file, untracked);
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = self.connection.unmount(true);
    }
}

#[test]
fn a_name_is_believed_for_a_while_and_trust_that_is_taken_back_ends() {
    let setup = Setup::new(None);
    assert_eq!(version_of(&fs::read(&setup.path).unwrap(), 0), 1);
    setup.turn(true);
    wait_until("a name that is believed", || !setup.asks());
    wait_until("the end of the belief", || setup.asks());
    wait_until("a name that is believed again", || !setup.asks());
    setup.turn(false);
    wait_until("an open that is seen", || setup.asks());
    assert!((0..100).all(|_| setup.asks()), "each open is seen from then on");
}

#[test]
fn a_change_shows_though_nobody_tells_the_kernel() {
    let setup = Setup::new(Some(Duration::from_secs(1)));
    for number in 1..4 {
        setup.fixture.write("../replacement", &version(number, 10_000));
        fs::rename(setup.fixture.path("replacement"), setup.fixture.source("file")).unwrap();
        wait_until("the change", || {
            let read = fs::read(&setup.path);
            // An older version may be gone before its name is.
            let seen = read.map(|bytes| version_of(&bytes, 0));
            assert!(seen.as_ref().map_or(true, |seen| *seen <= number));
            seen.is_ok_and(|seen| seen == number)
        });
        setup.turn(true);
    }
}
