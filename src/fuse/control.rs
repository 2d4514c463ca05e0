//! The control files: virtual files that show the state of the daemon and take orders.
//!
//! A file is rendered when it is opened, and it is read past the page cache. So each open shows the state
//! of its moment, at its exact size. Written text is taken when its descriptor is closed. If the text is
//! refused, the close fails with `EINVAL`.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{FileType, FopenFlags, OpenAccMode, ReplyData};
use nix::errno::Errno;

use super::convert::daemon_attr;
use super::virtual_files::{DirEntry, Node, OpenResult, Tree, part};
use super::write_buffer::{ChargedBytes, WriteForm};
use crate::fs::NAME_MAX;
use crate::fs::waiting::Reply;

pub type Render = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

pub type Accept = Box<dyn Fn(&[u8]) -> Result<(), ()> + Send + Sync>;

pub struct ControlFile {
    pub name: &'static str,
    pub render: Render,
    /// Takes the text that is written. If none, the file cannot be written.
    pub accept: Option<Accept>,
}

const ROOT: u64 = 1;

/// The control files. Node 1 is the directory, and file `n` is node `n + 2`.
pub(super) struct Control(pub(super) Arc<Vec<ControlFile>>);

fn file(files: &[ControlFile], node: u64) -> Result<&ControlFile, Errno> {
    let index = node.checked_sub(2).and_then(|index| usize::try_from(index).ok());
    index.and_then(|index| files.get(index)).ok_or(Errno::ENOENT)
}

impl Control {
    fn find(&self, number: u64) -> Result<Node, Errno> {
        let (kind, perm) = match file(&self.0, number) {
            Ok(file) if file.accept.is_some() => (FileType::RegularFile, 0o600),
            Ok(_) => (FileType::RegularFile, 0o400),
            Err(_) if number == ROOT => (FileType::Directory, 0o500),
            Err(why) => return Err(why),
        };
        let attr = daemon_attr(number, kind, perm, 0, SystemTime::now());
        Ok(Node { attr, valid: Duration::ZERO, name_valid: Duration::ZERO })
    }

    fn numbered(&self) -> impl Iterator<Item = (u64, &ControlFile)> {
        (ROOT + 1..).zip(self.0.iter())
    }
}

impl Tree for Control {
    type File = Vec<u8>;

    fn lookup(self: &Arc<Self>, _parent: u64, name: &OsStr, _task: u32, found: Reply<Node>) {
        found(match self.numbered().find(|(_, file)| name == file.name) {
            Some((number, _)) => self.find(number),
            None if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
            None => Err(Errno::ENOENT),
        });
    }

    fn node(self: &Arc<Self>, node: u64, reply: Reply<Node>) {
        reply(self.find(node));
    }

    fn list(self: &Arc<Self>, _node: u64, _task: u32, reply: Reply<Vec<DirEntry>>) {
        let name = |(number, file): (u64, &ControlFile)| {
            (file.name.to_owned(), number, FileType::RegularFile)
        };
        reply(Ok(self.numbered().map(name).collect()));
    }

    fn open(&self, node: u64, mode: OpenAccMode) -> Result<OpenResult<Vec<u8>>, Errno> {
        let file = file(&self.0, node)?;
        let form = file.accept.is_some().then_some(WriteForm::Text);
        if mode != OpenAccMode::O_RDONLY && form.is_none() {
            return Err(Errno::EACCES);
        }
        Ok(((file.render)(), form, FopenFlags::FOPEN_DIRECT_IO))
    }

    fn read(&self, _: u64, content: Arc<Vec<u8>>, at: (u64, u32), _task: u32, reply: ReplyData) {
        reply.data(part(&content, at));
    }

    fn check_setattr(&self, _node: u64, _size: Option<u64>) -> Result<(), Errno> {
        Ok(())
    }

    /// Runs on a thread of its own: taking an order may take a while, and the connection goes on meanwhile.
    fn accept(&self, node: u64, whole: Arc<ChargedBytes>, done: Reply) {
        let files = Arc::clone(&self.0);
        let take = move || {
            let accept = file(&files, node).ok().and_then(|file| file.accept.as_ref());
            let taken = accept.map(|accept| accept(&whole.bytes).map_err(|()| Errno::EINVAL));
            done(taken.unwrap_or(Err(Errno::EBADF)));
        };
        // If no thread can be started, the reply is dropped, and the close fails with EIO.
        let _ = std::thread::Builder::new().name("belady-control".into()).spawn(take);
    }
}
