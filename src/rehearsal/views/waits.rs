//! Requests that wait for the cache disk, or for the owner, which may wait for the disk.
//!
//! They are in the table of waiting requests (`fs/waiting`): if the task is killed, they get `EINTR`, and if
//! the disk hangs, `EIO`. The bytes of a buffer are nowhere else.

use std::sync::Arc;

use nix::errno::Errno;

use super::Views;
use crate::fs::waiting::{Pending, Reply};
use crate::source::Urgency;

/// Threads that wait for the disk.
pub(super) const THREADS: usize = 4;

/// The reply to a waiting request, which is sent once.
pub struct Awaited<T>(Arc<Pending<Reply<T>>>);

impl<T> Awaited<T> {
    /// Sends the answer, unless there was one.
    pub fn answer(self, answer: Result<T, Errno>) {
        if let Some(reply) = self.0.take() {
            reply(answer);
        }
    }
}

impl Views {
    pub fn awaited<T: 'static>(
        &self,
        task: u32,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) -> Awaited<T> {
        let reply: Reply<T> = Box::new(reply);
        Awaited(match self.rights.get() {
            Some(rights) => rights.dataset().await_disk(task, reply),
            None => Arc::new(Pending::unseen(reply)),
        })
    }

    /// Has a thread do what may wait for the disk, for a task's request.
    pub fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        task: u32,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        work: impl FnOnce(&Views) -> Result<T, Errno> + Send + 'static,
    ) {
        // It would wait behind requests that hang.
        if self.rights.get().is_some_and(|rights| rights.dataset().disk_hangs()) {
            return reply(Err(Errno::EIO));
        }
        let (views, awaited) = (Arc::clone(self), self.awaited(task, reply));
        self.threads.submit(Urgency::Demand, move || {
            if awaited.0.waits() {
                awaited.answer(work(&views));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use super::super::tests::views_of;
    use super::*;
    use crate::cache::{Cache, Inbox};
    use crate::catalog::Catalog;
    use crate::disk::Directory;
    use crate::disk::tests::gated::{Gated, Gates};
    use crate::fs::{Dataset, Rights};
    use crate::rehearsal::{CodeFile, CodeStore};
    use crate::source::{PosixSource, Source};
    use crate::store::{Limits, Store, fresh_secret};

    /// Only a broken program takes this long.
    const LIMIT: Duration = Duration::from_secs(180);

    const CODE: [u8; 8] = *b"the code";

    /// A code on a disk with gates, and the dataset with the table of waiting requests.
    struct Stand {
        views: Arc<Views>,
        dataset: Arc<Dataset>,
        store: Arc<Store>,
        gates: Gates,
        file: Arc<CodeFile>,
        _directories: [tempfile::TempDir; 3],
    }

    impl Stand {
        fn new() -> Self {
            let directories = [(); 3].map(|()| tempfile::tempdir().unwrap());
            let [source, stored, beside] = directories.each_ref().map(tempfile::TempDir::path);
            let source: Arc<dyn Source> = Arc::new(PosixSource::open(source, 1).unwrap());
            let catalog = Catalog::scan(Arc::clone(&source), 1, None);
            let (catalog, inbox) = (Arc::new(catalog.unwrap()), Arc::new(Inbox::new(1)));
            let open = |path| Directory::open(path, false).unwrap();
            let store =
                Store::open(Arc::new(open(stored)), Limits::new(1 << 20, 0), fresh_secret());
            let store = Arc::new(store.unwrap());
            let tier = Some((1, Arc::clone(&store)));
            let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), tier);
            let dataset = Dataset::new(catalog, cache, inbox, Arc::new(|_| ()), false);
            let gates = Gates::default();
            let disk = store.beside(Arc::new(Gated(open(beside), gates.clone())));
            let mut codes = CodeStore::open(disk, CODE.len() as u32, 0).unwrap();
            codes.append(&[7_u64.to_le_bytes(), CODE].concat()).unwrap();
            let views = views_of(Some(Arc::clone(codes.shelf())));
            views.obey(Rights::new(&dataset));
            let file = views.codes(views.lookup_code(0, "7").unwrap().node).unwrap();
            Stand { views, dataset, store, gates, file, _directories: directories }
        }

        fn read(&self, task: u32) -> Receiver<Result<Vec<u8>, Errno>> {
            let (tell, told) = channel();
            let file = Arc::clone(&self.file);
            let reply = move |read| tell.send(read).unwrap();
            let read = move |_: &Views| file.read(0, CODE.len()).map_err(|_| Errno::ENODATA);
            self.views.on_disk(task, reply, read);
            told
        }

        fn look(&self, seconds: u64, is_killed: impl Fn(u32) -> bool) {
            self.dataset.waiting.look(Instant::now() + Duration::from_secs(seconds), is_killed);
        }
    }

    #[test]
    fn readers_wait_for_a_disk_until_they_are_killed_or_it_hangs() {
        let stand = Stand::new();
        let came = |told: &Receiver<_>| told.recv_timeout(LIMIT).unwrap();
        assert_eq!(came(&stand.read(1)), Ok(CODE.to_vec()));
        stand.gates.reads.shut(true);
        let [killed, alive] = [7, 8].map(|task| stand.read(task));
        stand.gates.reads.await_calls(2);
        stand.look(2, |task| task == 7);
        assert_eq!(came(&killed), Err(Errno::EINTR));
        assert!(alive.try_recv().is_err(), "the disk may answer yet");
        (0..1000).for_each(|_| stand.store.look());
        stand.look(4, |_| false);
        assert_eq!(came(&alive), Err(Errno::EIO));
        assert_eq!(came(&stand.read(9)), Err(Errno::EIO), "it is left alone");
        stand.gates.reads.shut(false);
        let start = Instant::now();
        while stand.store.reads_hang() {
            assert!(start.elapsed() < LIMIT, "it has answered");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(came(&stand.read(1)), Ok(CODE.to_vec()));
    }

    /// More readers wait than there are threads.
    #[test]
    fn readers_that_wait_for_a_thread_are_let_go_too() {
        let stand = Stand::new();
        stand.gates.reads.shut(true);
        let all: Vec<_> = (0..3 * THREADS as u32).map(|task| stand.read(task + 1)).collect();
        stand.gates.reads.await_calls(THREADS);
        stand.look(2, |_| true);
        for told in &all {
            assert_eq!(told.recv_timeout(LIMIT), Ok(Err(Errno::EINTR)));
        }
        stand.gates.reads.shut(false);
        assert_eq!(stand.read(1).recv_timeout(LIMIT), Ok(Ok(CODE.to_vec())));
    }
}
