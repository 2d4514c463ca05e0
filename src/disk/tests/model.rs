//! A disk in memory that records what is written, and knows what a crash may leave of it.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use nix::libc;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt};

use super::super::{Blob, Disk, Space, Use};

/// Bytes that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

#[derive(Clone)]
enum Op {
    Create {
        name: String,
        file: usize,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    SyncNames,
    Write {
        file: usize,
        offset: usize,
        bytes: Arc<[u8]>,
    },
    Cut {
        file: usize,
        length: usize,
    },
    Punch {
        file: usize,
        offset: usize,
        length: usize,
    },
    Sync {
        file: usize,
    },
    /// A sync that failed: the kernel treats earlier writes as done.
    Lost {
        file: usize,
    },
}

#[derive(Clone, Default)]
struct State {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
    ops: Vec<Op>,
    /// The error of every call that writes, and of every call that reads.
    write_fails: Option<i32>,
    read_fails: Option<i32>,
    sync_fails: Option<i32>,
    unreadable: Option<String>,
    /// The file of which every sync fails.
    unsyncable: Option<String>,
    /// A name in the next listing that has no file.
    ghost: Option<String>,
    names_fail: Option<i32>,
    closed: Option<String>,
    /// Every write ends in the middle, and names cannot be synced.
    tears: bool,
    space: Option<Space>,
}

#[derive(Clone, Default)]
pub(crate) struct Model(Arc<Mutex<State>>);

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Number of writes, syncs and changes of names.
    pub(crate) fn ops(&self) -> usize {
        self.lock().ops.len()
    }

    pub(crate) fn fail_writes(&self, errno: Option<i32>) {
        self.lock().write_fails = errno;
    }

    /// Makes syncs of files fail. No later sync makes earlier writes durable either.
    pub(crate) fn fail_syncs(&self, errno: Option<i32>) {
        self.lock().sync_fails = errno;
    }

    pub(crate) fn fail_reads(&self, errno: Option<i32>) {
        self.lock().read_fails = errno;
    }

    pub(crate) fn fail_reads_of(&self, name: Option<&str>) {
        self.lock().unreadable = name.map(str::to_owned);
    }

    /// Makes syncs of this file fail, as [`fail_syncs`](Self::fail_syncs).
    pub(crate) fn fail_syncs_of(&self, name: Option<&str>) {
        self.lock().unsyncable = name.map(str::to_owned);
    }

    /// Adds a name without a file to the next listing.
    pub(crate) fn list_once(&self, name: &str) {
        self.lock().ghost = Some(name.to_owned());
    }

    pub(crate) fn fail_names(&self, errno: Option<i32>) {
        self.lock().names_fail = errno;
    }

    /// Changes a file without an operation.
    pub(crate) fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.found(name).unwrap();
        change(self.lock().file(file));
    }

    pub(crate) fn close(&self, name: Option<&str>) {
        self.lock().closed = name.map(str::to_owned);
    }

    pub(crate) fn tear(&self, tears: bool) {
        self.lock().tears = tears;
    }

    pub(crate) fn set_space(&self, space: Option<Space>) {
        self.lock().space = space;
    }

    /// What a crash after `cut` operations may leave: all that was synced, and a random part of the rest,
    /// whole or torn.
    pub(crate) fn crash(&self, cut: usize, random: &mut ChaCha8Rng) -> Model {
        let ops = self.lock().ops[..cut].to_vec();
        // Some crashes lose nearly everything, some nearly nothing.
        let kept = [0.0, 0.1, 0.5, 0.9, 1.0][random.random_range(0..5)];
        let mut left = State::default();
        for (at, op) in ops.iter().enumerate() {
            let later = ops[at..].iter().take_while(|later| !later.loses(op));
            let lasts = { later }.any(|later| later.makes_last(op));
            let torn = !lasts && (at + 1 == cut || random.random_bool(0.3));
            if lasts || torn || random.random_bool(kept) {
                left.apply(op, torn.then_some((kept, &mut *random)));
            }
        }
        left.files.resize_with(self.lock().files.len(), Vec::new);
        left.ops.clear();
        Model(Arc::new(Mutex::new(left)))
    }
}

impl Op {
    /// Whether no operation after this one makes an earlier one durable.
    fn loses(&self, op: &Op) -> bool {
        matches!(self, Op::Lost { file } if Op::Sync { file: *file }.makes_last(op))
    }

    /// Whether this operation makes an earlier one durable.
    fn makes_last(&self, op: &Op) -> bool {
        match (self, op) {
            (
                Op::Sync { file },
                Op::Write { file: f, .. } | Op::Cut { file: f, .. } | Op::Punch { file: f, .. },
            ) => f == file,
            (Op::SyncNames, Op::Create { .. } | Op::Rename { .. } | Op::Remove { .. }) => true,
            _ => false,
        }
    }
}

impl State {
    fn file(&mut self, file: usize) -> &mut Vec<u8> {
        if self.files.len() <= file {
            self.files.resize_with(file + 1, Vec::new);
        }
        &mut self.files[file]
    }

    /// Does an operation. Of a torn write, it writes only some sectors.
    fn apply(&mut self, op: &Op, torn: Option<(f64, &mut ChaCha8Rng)>) {
        match op {
            Op::Create { name, file } => drop(self.names.insert(name.clone(), *file)),
            Op::Rename { from, to } => {
                // A crash may have lost the first name and not this one.
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            Op::Remove { name } => drop(self.names.remove(name)),
            Op::Write { file, offset, bytes } => {
                let (bytes, offset) = (Arc::clone(bytes), *offset);
                let content = self.file(*file);
                content.resize(content.len().max(offset + bytes.len()), 0);
                let Some((kept, random)) = torn else {
                    return content[offset..offset + bytes.len()].copy_from_slice(&bytes);
                };
                let mut at = 0;
                while at < bytes.len() {
                    let end = (offset + at + 1).next_multiple_of(SECTOR).min(offset + bytes.len());
                    if random.random_bool(kept) {
                        content[offset + at..end].copy_from_slice(&bytes[at..end - offset]);
                    }
                    at = end - offset;
                }
            }
            Op::Cut { file, length } => self.file(*file).truncate(*length),
            Op::Punch { file, offset, length } => {
                let (offset, length) = (*offset, *length);
                let content = self.file(*file);
                let end = content.len().min(offset + length);
                content[offset.min(end)..end].fill(0);
            }
            Op::SyncNames | Op::Sync { .. } | Op::Lost { .. } => {}
        }
    }
}

struct ModelFile {
    model: Model,
    file: usize,
}

fn fails(errno: Option<i32>) -> Result<()> {
    errno.map_or(Ok(()), |errno| Err(Error::from_raw_os_error(errno)))
}

impl Model {
    fn record(&self, mut op: Op) -> Result<()> {
        let mut state = self.lock();
        fails(state.write_fails)?;
        if matches!(op, Op::SyncNames) {
            fails(state.names_fail)?;
        }
        if let (true, Op::SyncNames | Op::Write { .. }) = (state.tears, &op) {
            if let Op::Write { bytes, .. } = &mut op {
                *bytes = bytes[..bytes.len() / 2].into();
                state.apply(&op, None);
                state.ops.push(op);
            }
            return fails(Some(libc::EIO));
        }
        state.apply(&op, None);
        state.ops.push(op);
        Ok(())
    }

    fn found(&self, name: &str) -> Result<usize> {
        let found = self.lock().names.get(name).copied();
        found.ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))
    }
}

impl Disk for Model {
    fn names(&self) -> Result<Vec<(String, u64)>> {
        let mut state = self.lock();
        let ghost = state.ghost.take().map(|name| (name, 64));
        let length = |file: &usize| state.files[*file].len() as u64;
        let there = state.names.iter().map(|(name, file)| (name.clone(), length(file)));
        Ok(there.chain(ghost).collect())
    }

    fn create(&self, name: &str, _: Use) -> Result<Arc<dyn Blob>> {
        assert!(self.found(name).is_err(), "{name} is there already");
        let file = self.lock().files.len();
        self.record(Op::Create { name: name.into(), file })?;
        self.lock().file(file);
        Ok(Arc::new(ModelFile { model: self.clone(), file }))
    }

    fn open(&self, name: &str, _: Use) -> Result<Arc<dyn Blob>> {
        let closed = self.lock().closed.as_deref() == Some(name);
        fails(closed.then_some(libc::EMFILE))?;
        Ok(Arc::new(ModelFile { model: self.clone(), file: self.found(name)? }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.found(from)?;
        self.record(Op::Rename { from: from.into(), to: to.into() })
    }

    /// Lends a copy.
    fn open_passthrough(&self, name: &str, length: u64) -> Result<OwnedFd> {
        let file = self.found(name)?;
        self.record(Op::Cut { file, length: length as usize })?;
        let mut copy = tempfile::tempfile()?;
        copy.write_all(&self.lock().files[file])?;
        Ok(copy.into())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.found(name)?;
        self.record(Op::Remove { name: name.into() })
    }

    fn sync_names(&self) -> Result<()> {
        self.record(Op::SyncNames)
    }

    fn space(&self) -> Result<Space> {
        Ok(self.lock().space.unwrap_or(Space { bytes: 1 << 40, total: 1 << 40, files: None }))
    }
}

impl Blob for ModelFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let state = self.model.lock();
        fails(state.read_fails)?;
        let unreadable = state.unreadable.as_ref().and_then(|name| state.names.get(name));
        fails((unreadable == Some(&self.file)).then_some(libc::EIO))?;
        let content = &state.files[self.file];
        let end = offset as usize + bytes.len();
        let found = content.get(offset as usize..end);
        bytes.copy_from_slice(found.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.model.record(Op::Write {
            file: self.file,
            offset: offset as usize,
            bytes: bytes.into(),
        })
    }

    fn cut(&self, length: u64) -> Result<()> {
        self.model.record(Op::Cut { file: self.file, length: length as usize })
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        let (offset, length) = (offset as usize, length as usize);
        self.model.record(Op::Punch { file: self.file, offset, length })
    }

    fn sync(&self) -> Result<()> {
        let fails = {
            let state = self.model.lock();
            let unsyncable = state.unsyncable.as_ref().and_then(|name| state.names.get(name));
            state.sync_fails.or((unsyncable == Some(&self.file)).then_some(libc::EIO))
        };
        if let Some(errno) = fails {
            self.model.record(Op::Lost { file: self.file })?;
            return Err(Error::from_raw_os_error(errno));
        }
        self.model.record(Op::Sync { file: self.file })
    }
}

/// Bytes that follow from a number.
pub(crate) fn bytes(seed: u128, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut random: ChaCha8Rng = rand::SeedableRng::seed_from_u64(seed as u64);
    random.fill_bytes(&mut bytes);
    bytes
}
