//! Requests that wait for the cache disk, or for the buffer thread, which may wait for the disk.
//!
//! They are in the table of waiting requests (`fs/waiting`): if the process is killed, they get `EINTR`, and
//! if the disk hangs, `EIO`. The bytes of a buffer are nowhere else.

use std::sync::{Arc, OnceLock};

use nix::errno::Errno;

use crate::cache::Cause;
use crate::fs::Rights;
use crate::fs::waiting::{Pending, Reply};
use crate::source::{Pool, Urgency};

/// Threads that wait for the disk.
const THREADS: usize = 4;

/// Threads that wait for other nodes.
const OF_NODES: usize = 8;

/// The reply to a waiting request, which is sent once.
pub struct WaitingReply<T>(Arc<Pending<Reply<T>>>);

impl<T> WaitingReply<T> {
    /// Sends the answer, unless there was one.
    pub fn answer(self, answer: Result<T, Errno>) {
        if let Some(reply) = self.0.take(Cause::Rehearsal.unless_failed(&answer)) {
            reply(answer);
        }
    }
}

impl WaitingReply<()> {
    /// Sends the outcome of a write, unless there was one. No reader has waited for it.
    pub fn written(self, outcome: Result<(), Errno>) {
        if let Some(reply) = self.0.take_unnoted() {
            reply(outcome);
        }
    }
}

pub struct WaitingRequests {
    /// Asks the source who may read a sample. Its dataset has the table.
    pub(super) rights: OnceLock<Rights>,
    threads: Pool,
    of_nodes: Pool,
}

impl WaitingRequests {
    pub(super) fn new() -> Self {
        let threads = Pool::new("belady-view", 0, THREADS);
        let of_nodes = Pool::new("belady-far", 0, OF_NODES);
        WaitingRequests { rights: OnceLock::new(), threads, of_nodes }
    }

    /// Has samples read only by users whom the source permits it. The first call counts.
    pub fn set_rights(&self, rights: Rights) {
        let _ = self.rights.set(rights);
    }

    pub fn reply<T: 'static>(
        &self,
        pid: u32,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) -> WaitingReply<T> {
        let reply: Reply<T> = Box::new(reply);
        WaitingReply(match self.rights.get() {
            Some(rights) => rights.dataset().await_disk(pid, reply),
            None => Arc::new(Pending::unlisted(reply)),
        })
    }

    /// Has a thread do work that may wait for the disk, for a process's request.
    pub fn on_disk<T: Send + 'static>(
        &self,
        pid: u32,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) {
        // It would wait behind requests that hang.
        if self.rights.get().is_some_and(|rights| rights.dataset().disk_hangs()) {
            return reply(Err(Errno::EIO));
        }
        submit(&self.threads, self.reply(pid, reply), work);
    }

    /// The same for work that may wait for other nodes.
    pub fn on_nodes<T: Send + 'static>(
        &self,
        pid: u32,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) {
        submit(&self.of_nodes, self.reply(pid, reply), work);
    }
}

fn submit<T: Send + 'static>(
    threads: &Pool,
    reply: WaitingReply<T>,
    work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) {
    threads.submit(Urgency::Demand, move || {
        if reply.0.is_unanswered() {
            reply.answer(work());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use super::super::Views;
    use super::super::tests::views_of;
    use super::*;
    use crate::cache::{Cache, Inbox};
    use crate::catalog::Catalog;
    use crate::disk::Directory;
    use crate::disk::tests::gated::{Gated, Gates};
    use crate::fs::Dataset;
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
            let disk = store.watch_directory(Arc::new(Gated(open(beside), gates.clone())));
            let mut codes = CodeStore::open(disk, CODE.len() as u32, 0).unwrap();
            codes.append(&[7_u64.to_le_bytes(), CODE].concat()).unwrap();
            let views = views_of(Some(Arc::clone(codes.reader())));
            views.waiting.set_rights(Rights::new(&dataset));
            let file = views.codes.get(views.codes.lookup(0, "7").unwrap().node).unwrap();
            Stand { views, dataset, store, gates, file, _directories: directories }
        }

        fn read(&self, pid: u32) -> Receiver<Result<Vec<u8>, Errno>> {
            let (send, received) = channel();
            let file = Arc::clone(&self.file);
            let reply = move |read| send.send(read).unwrap();
            let read = move || file.read(0, CODE.len()).map_err(|_| Errno::ENODATA);
            self.views.waiting.on_disk(pid, reply, read);
            received
        }

        fn look(&self, seconds: u64, is_killed: impl Fn(u32) -> bool) {
            self.dataset.waiting.tick(Instant::now() + Duration::from_secs(seconds), is_killed);
        }
    }

    #[test]
    fn readers_wait_for_a_disk_until_they_are_killed_or_it_hangs() {
        let stand = Stand::new();
        let answer = |received: &Receiver<_>| received.recv_timeout(LIMIT).unwrap();
        assert_eq!(answer(&stand.read(1)), Ok(CODE.to_vec()));
        stand.gates.reads.shut(true);
        let [killed, alive] = [7, 8].map(|pid| stand.read(pid));
        stand.gates.reads.await_calls(2);
        stand.look(2, |pid| pid == 7);
        assert_eq!(answer(&killed), Err(Errno::EINTR));
        assert!(alive.try_recv().is_err(), "the disk may answer yet");
        (0..1000).for_each(|_| stand.store.tick());
        stand.look(4, |_| false);
        assert_eq!(answer(&alive), Err(Errno::EIO));
        assert_eq!(answer(&stand.read(9)), Err(Errno::EIO), "it is left alone");
        stand.gates.reads.shut(false);
        let start = Instant::now();
        while stand.store.reads_hang() {
            assert!(start.elapsed() < LIMIT, "it has answered");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(answer(&stand.read(1)), Ok(CODE.to_vec()));
    }

    /// More readers wait than there are threads.
    #[test]
    fn readers_that_wait_for_a_thread_are_let_go_too() {
        let stand = Stand::new();
        stand.gates.reads.shut(true);
        let all: Vec<_> = (0..3 * THREADS as u32).map(|pid| stand.read(pid + 1)).collect();
        stand.gates.reads.await_calls(THREADS);
        stand.look(2, |_| true);
        for received in &all {
            assert_eq!(received.recv_timeout(LIMIT), Ok(Err(Errno::EINTR)));
        }
        stand.gates.reads.shut(false);
        assert_eq!(stand.read(1).recv_timeout(LIMIT), Ok(Ok(CODE.to_vec())));
    }
}
