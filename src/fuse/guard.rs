//! Makes a panic in an answer cost its request an `EIO`, and nothing else.
//!
//! The request loop of `fuser` would end with the thread that panics, and its readers would wait for ever.
//! So each request runs inside [`catch_panic`]. The panic drops the reply, on whichever thread the reply is by
//! then. A reply that is dropped unsent answers `EIO`.

use std::cell::Cell;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::watchdog::RequestProgress;

/// A filesystem whose requests are counted and may panic.
pub(super) struct Guarded<F> {
    filesystem: F,
    progress: Arc<RequestProgress>,
}

impl<F> Guarded<F> {
    pub(super) fn new(filesystem: F, progress: Arc<RequestProgress>) -> Self {
        Guarded { filesystem, progress }
    }
}

thread_local! {
    static IS_ANSWERING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is answering a request. If so, it may not wait for the kernel.
pub(super) fn is_answering() -> bool {
    IS_ANSWERING.get()
}

/// Runs the answer to a request and catches its panic. The panic hook logs the message.
fn catch_panic(request: &str, answer: impl FnOnce()) {
    IS_ANSWERING.set(true);
    if catch_unwind(AssertUnwindSafe(answer)).is_err() {
        tracing::error!(request, "a request panicked and was answered with EIO");
    }
    IS_ANSWERING.set(false);
}

/// Every request of the trait, whether the filesystem implements it or not. Only `batch_forget` is left
/// out: its default calls `forget` for each node.
macro_rules! requests {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $name(&self, request: &Request, $($argument: $kind),*) {
            self.progress.begin();
            catch_panic(stringify!($name), || self.filesystem.$name(request, $($argument),*));
            self.progress.end();
        })*
    };
}

impl<F: Filesystem> Filesystem for Guarded<F> {
    fn init(&mut self, request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.filesystem.init(request, config)
    }

    fn destroy(&mut self) {
        self.filesystem.destroy();
    }

    requests! {
        lookup(parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        forget(ino: INodeNo, lookups: u64);
        getattr(ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr);
        setattr(ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>,
            size: Option<u64>, atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>,
            ctime: Option<SystemTime>, fh: Option<FileHandle>, crtime: Option<SystemTime>,
            chgtime: Option<SystemTime>, bkuptime: Option<SystemTime>,
            flags: Option<BsdFileFlags>, reply: ReplyAttr);
        readlink(ino: INodeNo, reply: ReplyData);
        mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry);
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry);
        unlink(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        rmdir(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        symlink(parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry);
        rename(parent: INodeNo, name: &OsStr, to: INodeNo, to_name: &OsStr, flags: RenameFlags,
            reply: ReplyEmpty);
        link(ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        open(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        read(ino: INodeNo, fh: FileHandle, offset: u64, size: u32, flags: OpenFlags,
            owner: Option<LockOwner>, reply: ReplyData);
        write(ino: INodeNo, fh: FileHandle, offset: u64, data: &[u8], write_flags: WriteFlags,
            flags: OpenFlags, owner: Option<LockOwner>, reply: ReplyWrite);
        flush(ino: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty);
        release(ino: INodeNo, fh: FileHandle, flags: OpenFlags, owner: Option<LockOwner>,
            flush: bool, reply: ReplyEmpty);
        fsync(ino: INodeNo, fh: FileHandle, data: bool, reply: ReplyEmpty);
        opendir(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        readdir(ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory);
        readdirplus(ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus);
        releasedir(ino: INodeNo, fh: FileHandle, flags: OpenFlags, reply: ReplyEmpty);
        fsyncdir(ino: INodeNo, fh: FileHandle, data: bool, reply: ReplyEmpty);
        statfs(ino: INodeNo, reply: ReplyStatfs);
        setxattr(ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32,
            reply: ReplyEmpty);
        getxattr(ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);
        listxattr(ino: INodeNo, size: u32, reply: ReplyXattr);
        removexattr(ino: INodeNo, name: &OsStr, reply: ReplyEmpty);
        access(ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty);
        create(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32,
            reply: ReplyCreate);
        getlk(ino: INodeNo, fh: FileHandle, owner: LockOwner, start: u64, end: u64, kind: i32,
            pid: u32, reply: ReplyLock);
        setlk(ino: INodeNo, fh: FileHandle, owner: LockOwner, start: u64, end: u64, kind: i32,
            pid: u32, sleep: bool, reply: ReplyEmpty);
        bmap(ino: INodeNo, block_size: u32, index: u64, reply: ReplyBmap);
        ioctl(ino: INodeNo, fh: FileHandle, flags: IoctlFlags, command: u32, data: &[u8],
            size: u32, reply: ReplyIoctl);
        poll(ino: INodeNo, fh: FileHandle, notifier: PollNotifier, events: PollEvents,
            flags: PollFlags, reply: ReplyPoll);
        fallocate(ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32,
            reply: ReplyEmpty);
        lseek(ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek);
        copy_file_range(ino: INodeNo, fh: FileHandle, offset: u64, to: INodeNo, to_fh: FileHandle,
            to_offset: u64, length: u64, flags: CopyFileRangeFlags, reply: ReplyWrite);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;

    use fuser::{Config, Session, SessionACL};
    use nix::errno::Errno;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    /// Panics on the request thread, or on another thread that holds the reply.
    struct Panicking;

    impl Filesystem for Panicking {
        fn statfs(&self, _request: &Request, _ino: INodeNo, _reply: ReplyStatfs) {
            panic!("injected into a request");
        }

        fn readlink(&self, _request: &Request, _ino: INodeNo, reply: ReplyData) {
            let elsewhere = std::thread::spawn(move || {
                let _reply = reply;
                panic!("injected beside a request");
            });
            assert!(elsewhere.join().is_err());
        }
    }

    struct Kernel(File, u64);

    const STATFS: u32 = 17;
    const READLINK: u32 = 5;
    const GETATTR: u32 = 3;
    const INIT: u32 = 26;

    impl Kernel {
        /// Sends a request about the root, and returns the errno of its reply.
        fn ask(&mut self, opcode: u32, body: &[u8]) -> Errno {
            self.1 += 1;
            let mut message = (40 + body.len() as u32).to_ne_bytes().to_vec();
            message.extend(opcode.to_ne_bytes());
            message.extend(self.1.to_ne_bytes());
            message.extend(1u64.to_ne_bytes());
            message.extend([0; 16]);
            message.extend(body);
            self.0.write_all(&message).unwrap();
            let mut reply = [0; 256];
            assert!(self.0.read(&mut reply).unwrap() >= 16);
            assert_eq!(reply[8..16], self.1.to_ne_bytes(), "the reply is to this request");
            Errno::from_raw(-i32::from_ne_bytes(reply[4..8].try_into().unwrap()))
        }
    }

    #[test]
    fn whoever_answers_a_request_is_known_for_so_long() {
        let mut was_answering = false;
        catch_panic("one", || was_answering = is_answering());
        assert!(was_answering && !is_answering());
        catch_panic("one that panics", || panic!("injected into a request"));
        assert!(!is_answering());
    }

    #[test]
    fn a_panic_is_an_error_of_its_request_and_the_next_one_is_answered() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs): (OwnedFd, OwnedFd) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let guarded = Guarded::new(Panicking, Arc::default());
        let serving = std::thread::spawn(move || {
            let session = Session::from_fd(guarded, theirs, SessionACL::All, Config::default());
            session.unwrap().run()
        });
        let mut kernel = Kernel(File::from(ours), 0);
        let mut init = [7u32, 31, 0, 0].map(u32::to_ne_bytes).concat();
        init.resize(64, 0);
        assert_eq!(kernel.ask(INIT, &init), Errno::from_raw(0));
        for _ in 0..3 {
            assert_eq!(kernel.ask(STATFS, &[]), Errno::EIO);
            assert_eq!(kernel.ask(READLINK, &[]), Errno::EIO);
            assert_eq!(kernel.ask(GETATTR, &[0; 16]), Errno::ENOSYS, "the loop goes on");
        }
        drop(kernel);
        assert!(serving.join().is_ok(), "the end of a connection is no panic");
    }
}
