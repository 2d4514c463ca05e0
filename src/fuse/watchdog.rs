//! Ends a connection that does not answer any more.
//!
//! 1. Each thread that answers requests counts the requests that it begins and finishes ([`RequestProgress`]).
//!    These threads never wait for the source, a path or the cache disk.
//! 2. Every 30 seconds a thread compares these counts. If five ticks in a row find every thread busy and no
//!    request finished, none will ever be answered: the threads wait for something that never comes.
//! 3. The connection is then ended, and the daemon with it. Readers get an error instead of a hang.
//!
//! Ticks are counted instead of time: there is no tick while the machine or the daemon stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct RequestProgress {
    begun: AtomicU64,
    done: AtomicU64,
}

impl RequestProgress {
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that a thread has finished. The reply may come later.
    pub(super) fn end(&self) {
        self.done.fetch_add(1, Ordering::Release);
    }

    /// The number of requests that threads are busy with, and of those that they have finished.
    fn counts(&self) -> (u64, u64) {
        let done = self.done.load(Ordering::Acquire);
        (self.begun.load(Ordering::Relaxed).saturating_sub(done), done)
    }
}

/// How long a connection may answer nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) every: Duration,
    /// The number of ticks in a row that find the same counts as the tick before.
    pub(super) ticks: u32,
}

impl Patience {
    pub(super) fn time(&self) -> Duration {
        self.every * self.ticks
    }
}

pub(super) const PATIENCE: Patience = Patience { every: Duration::from_secs(30), ticks: 4 };

/// Stops the thread that ticks when it is dropped.
pub(super) struct Watchdog(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

impl Watchdog {
    /// Watches a connection that has `threads` threads to answer its requests. Calls `end` if none of them
    /// finishes a request for too long.
    pub(super) fn watch(
        progress: Arc<RequestProgress>,
        threads: usize,
        patience: Patience,
        end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (dropped, over) = mpsc::channel();
        let run_watch = move || run(&over, patience, threads as u64, || progress.counts(), end);
        if let Err(error) = thread::Builder::new().name("belady-watchdog".into()).spawn(run_watch) {
            tracing::warn!(%error, "nothing watches over the mount");
        }
        Watchdog(dropped)
    }
}

/// Ticks until `over` is closed. Calls `end` if all threads are busy and none of them finishes a request.
fn run(
    over: &Receiver<()>,
    Patience { every, ticks }: Patience,
    threads: u64,
    counts: impl Fn() -> (u64, u64),
    end: impl FnOnce(),
) {
    let (mut seen, mut same) = (None, 0);
    while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let (under_way, done) = counts();
        let now = (under_way >= threads).then_some(done);
        same = if now.is_some() && now == seen { same + 1 } else { 0 };
        seen = now;
        if same >= ticks {
            return end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::{Mutex, RwLock};
    use std::time::{Instant, UNIX_EPOCH};

    use fuser::{
        Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
        LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
    };
    use nix::sys::signal::Signal;
    use nix::sys::statvfs::statvfs;

    use super::super::{MountHandle, UnservedMount, abort_at, device_at, is_mounted, unmount};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(180);

    const BRIEF: Patience = Patience { every: Duration::from_millis(1), ticks: 4 };

    /// Feeds one count to each tick. Returns the number of ticks after which the connection is ended.
    fn ended_at(counts: &[(u64, u64)]) -> Option<usize> {
        let (open, over) = mpsc::channel();
        let (open, taken, ended) = (Cell::new(Some(open)), Cell::new(0), Cell::new(None));
        let counts = || {
            let at = taken.replace(taken.get() + 1);
            if at + 1 == counts.len() {
                drop(open.take());
            }
            counts[at]
        };
        run(&over, BRIEF, 2, counts, || ended.set(Some(taken.get())));
        ended.get()
    }

    #[test]
    fn only_a_connection_whose_threads_all_stand_still_is_ended() {
        assert_eq!(ended_at(&[(0, 7); 20]), None, "nothing is asked");
        assert_eq!(ended_at(&[(1, 7); 20]), None, "one thread is left");
        let busy: Vec<(u64, u64)> = (0..20).map(|done| (2, done)).collect();
        assert_eq!(ended_at(&busy), None, "requests are answered");
        let pauses = [(2, 7), (2, 7), (2, 7), (2, 7), (1, 8)].repeat(5);
        assert_eq!(ended_at(&pauses), None, "one is answered in time");
        let stands = [&busy[..3], &[(2, 7); 20]].concat();
        assert_eq!(ended_at(&stands), Some(3 + 5));
    }

    /// A directory with one name in it, the directory `data`. The first field says whether lookups of
    /// `data` hang: they are left unanswered.
    #[derive(Clone, Default)]
    struct Above(Arc<Mutex<(bool, Vec<ReplyEntry>)>>);

    #[derive(Clone, Default)]
    struct Locked(Arc<RwLock<()>>);

    fn attr(ino: INodeNo, kind: FileType) -> FileAttr {
        let time = UNIX_EPOCH;
        FileAttr {
            ino,
            size: 1 << 20,
            blocks: 1,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn found(reply: ReplyEntry) {
        reply.entry(&Duration::ZERO, &attr(INodeNo(2), FileType::Directory), Generation(0));
    }

    impl Filesystem for Above {
        fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
            let mut state = self.0.lock().unwrap();
            match name == "data" {
                true if state.0 => state.1.push(reply),
                true => found(reply),
                false => reply.error(Errno::ENOENT),
            }
        }

        fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
            reply.attr(&Duration::ZERO, &attr(ino, FileType::Directory));
        }
    }

    impl Filesystem for Locked {
        fn lookup(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
            let attr = attr(INodeNo(2), FileType::RegularFile);
            reply.entry(&Duration::ZERO, &attr, Generation(0));
        }

        fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
            let kind = if ino.0 == 1 { FileType::Directory } else { FileType::RegularFile };
            reply.attr(&Duration::ZERO, &attr(ino, kind));
        }

        fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
        }

        fn read(
            &self,
            _request: &Request,
            _ino: INodeNo,
            _fh: FileHandle,
            _offset: u64,
            _size: u32,
            _flags: OpenFlags,
            _owner: Option<LockOwner>,
            reply: ReplyData,
        ) {
            let _lock = self.0.read().unwrap();
            reply.data(&[7]);
        }
    }

    fn unserved<F: Filesystem>(filesystem: F, at: &Path) -> UnservedMount<F> {
        let mut config = Config::default();
        config.n_threads = Some(2);
        config.mount_options = vec![MountOption::FSName("test".into())];
        UnservedMount::mount(filesystem, at, &config).unwrap()
    }

    /// A mount that is removed at the end of the test, however it ends.
    struct Test(MountHandle, Arc<RequestProgress>);

    impl Test {
        fn new(filesystem: impl Filesystem, at: &Path) -> Self {
            let unserved = unserved(filesystem, at);
            let progress = Arc::clone(&unserved.progress);
            Test(unserved.serve().unwrap(), progress)
        }
    }

    impl Drop for Test {
        fn drop(&mut self) {
            let _ = self.0.unmount(true);
        }
    }

    #[track_caller]
    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LIMIT, "waited in vain for {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_mount_that_is_well_stays_where_no_path_leads_to_it_and_one_that_is_stuck_is_taken_away() {
        let root = tempfile::tempdir().unwrap();
        let (above, locked) = (Above::default(), Locked::default());
        let _outer = Test::new(above.clone(), root.path());
        let at = root.path().join("data");
        let inner = Test::new(locked.clone(), &at);
        let file = Arc::new(File::open(at.join("file")).unwrap());
        let (device, (ends, ended)) = (device_at(&at).unwrap(), mpsc::channel());
        let cut_off = at.clone();
        let end = move || {
            abort_at(&cut_off, device);
            ends.send(()).unwrap();
        };
        let _watchdog = Watchdog::watch(Arc::clone(&inner.1), 2, BRIEF, end);
        // No path leads to it.
        above.0.lock().unwrap().0 = true;
        let walked = at.clone();
        let walk = thread::spawn(move || statvfs(&walked).is_ok());
        wait_until("a path that hangs", || !above.0.lock().unwrap().1.is_empty());
        let mut byte = [0];
        for _ in 0..50 * BRIEF.ticks {
            thread::sleep(BRIEF.every);
            assert_eq!(file.read_at(&mut byte, 0).ok(), Some(1));
        }
        assert!(ended.try_recv().is_err() && !inner.0.is_over() && !walk.is_finished());
        // No request is answered.
        let held = locked.0.write().unwrap();
        let read = || {
            let file = Arc::clone(&file);
            thread::spawn(move || file.read_at(&mut [0], 0).is_err())
        };
        let readers = [(); 2].map(|()| read());
        assert!(ended.recv_timeout(LIMIT).is_ok(), "it is cut off");
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()), "readers get an error");
        drop(held);
        wait_until("the end of its threads", || inner.0.is_over());
        let mut above = above.0.lock().unwrap();
        above.0 = false;
        above.1.drain(..).for_each(found);
        drop(above);
        assert!(!walk.join().unwrap());
        assert_eq!(device_at(&at), Some(device), "its daemon has yet to unmount it");
        assert!(inner.0.unmount(true).is_ok());
        assert_eq!(device_at(&at), None);
    }

    #[test]
    fn a_mount_may_answer_nothing_for_two_minutes() {
        assert_eq!(PATIENCE.time(), Duration::from_secs(120));
    }

    /// Where the daemon of the next test mounts.
    const AT: &str = "BELADY_TEST_MOUNT_STUCK_AT";

    /// A daemon whose requests wait for a lock for ever.
    #[test]
    #[ignore = "it is a process of the next test"]
    fn a_daemon_that_is_stuck() {
        let Some(at) = std::env::var_os(AT) else { return };
        let locked = Locked::default();
        let _mounted = unserved(locked.clone(), Path::new(&at)).serve_with(BRIEF).unwrap();
        let _held = locked.0.write().unwrap();
        println!("\nit serves");
        loop {
            thread::park();
        }
    }

    /// A daemon and its mount. Both are removed at the end of the test, however it ends.
    struct Stuck<'a>(Child, &'a Path);

    impl Drop for Stuck<'_> {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
            let _ = unmount(self.1, true);
        }
    }

    #[test]
    fn a_daemon_that_is_stuck_ends_and_its_readers_get_an_error() {
        let root = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "fuse::watchdog::tests::a_daemon_that_is_stuck";
        command.args(["--exact", name, "--ignored", "--nocapture"]).env(AT, root.path());
        let mut stuck = Stuck(command.stdout(Stdio::piped()).spawn().unwrap(), root.path());
        let said = BufReader::new(stuck.0.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap() == "it serves"));
        let file = Arc::new(File::open(root.path().join("file")).unwrap());
        let readers = [(); 2].map(|()| {
            let file = Arc::clone(&file);
            thread::spawn(move || file.read_at(&mut [0], 0).is_err())
        });
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()), "readers get an error");
        let (start, mut ended) = (Instant::now(), None);
        while ended.is_none() {
            assert!(start.elapsed() < LIMIT, "the daemon goes on");
            thread::sleep(Duration::from_millis(5));
            ended = stuck.0.try_wait().unwrap();
        }
        assert_eq!(ended.and_then(|ended| ended.signal()), Some(Signal::SIGTERM as i32));
        drop((file, stuck));
        assert!(!is_mounted(root.path()));
    }
}
