//! The directory `latent/`: codes that a trainer keeps.
//!
//! A file never changes, so the kernel keeps its pages. After an append `all` and `ids` lead to new files,
//! and readers of the old ones go on with those. Without an append each lookup finds the same file.

use std::collections::HashMap;
use std::sync::Arc;

use nix::errno::Errno;

use super::node::{FIRST_CODES, Node};
use super::snapshot::number;
use super::{Entry, EntryKind, ServedBuffer, lasting};
use crate::rehearsal::{CodeFile, CodeReader};
use crate::sync::Mutex;

/// The files that are not one code.
const ALL: &str = "all";
const NUMBERS: &str = "ids";
const APPEND: &str = "append";

struct Known {
    file: Arc<CodeFile>,
    lookups: u64,
}

/// The files of codes that the kernel knows.
#[derive(Default)]
struct KnownFiles {
    known: HashMap<u64, Known>,
    /// The latest file of a buffer and a name: the version of its codes, and its node.
    latest: HashMap<(usize, &'static str), (u64, u64)>,
    count: u64,
}

impl KnownFiles {
    fn keep(&mut self, file: CodeFile) -> (u64, Arc<CodeFile>) {
        let node = FIRST_CODES + self.count;
        self.count += 1;
        let file = Arc::new(file);
        self.known.insert(node, Known { file: Arc::clone(&file), lookups: 1 });
        (node, file)
    }

    fn whole(
        &mut self,
        buffer: usize,
        name: &'static str,
        codes: &CodeReader,
    ) -> (u64, Arc<CodeFile>) {
        if let Some((version, node)) = self.latest.get(&(buffer, name))
            && *version == codes.version()
            && let Some(known) = self.known.get_mut(node)
        {
            known.lookups += 1;
            return (*node, Arc::clone(&known.file));
        }
        let (version, codes) = codes.all();
        let file = if name == ALL { CodeFile::All(codes) } else { CodeFile::Numbers(codes) };
        let (node, file) = self.keep(file);
        self.latest.insert((buffer, name), (version, node));
        (node, file)
    }
}

/// The codes of all buffers, as files.
pub struct CodeFiles {
    codes: Vec<Option<Arc<CodeReader>>>,
    files: Mutex<KnownFiles>,
}

fn entry(node: u64, file: &CodeFile) -> Entry {
    Entry { node, kind: EntryKind::Codes(file.length()), lasting: false }
}

impl CodeFiles {
    pub(super) fn new(buffers: &[ServedBuffer]) -> Self {
        let codes = buffers.iter().map(|buffer| buffer.codes.clone()).collect();
        CodeFiles { codes, files: Mutex::default() }
    }

    fn codes(&self, buffer: usize) -> Option<&CodeReader> {
        self.codes.get(buffer)?.as_deref()
    }

    /// The directory of a buffer's codes, if it has any.
    pub(super) fn directory(&self, buffer: usize) -> Option<Node> {
        self.codes(buffer).map(|_| Node::Latent(buffer))
    }

    pub(super) fn lookup(&self, buffer: usize, name: &str) -> Result<Entry, Errno> {
        let codes = self.codes(buffer).ok_or(Errno::ENOENT)?;
        let (node, file) = match name {
            APPEND => return Ok(lasting(Node::Append(buffer), EntryKind::Append)),
            ALL => self.files.lock().whole(buffer, ALL, codes),
            NUMBERS => self.files.lock().whole(buffer, NUMBERS, codes),
            _ => {
                let code =
                    number(name).and_then(|number| codes.get(number)).ok_or(Errno::ENOENT)?;
                self.files.lock().keep(CodeFile::One(code))
            }
        };
        Ok(entry(node, &file))
    }

    /// The files of a buffer, without those of one code: there may be millions.
    pub(super) fn list(buffer: usize) -> Vec<(String, Entry)> {
        let unknown = Entry { node: FIRST_CODES, kind: EntryKind::Codes(0), lasting: false };
        let append = lasting(Node::Append(buffer), EntryKind::Append);
        let files = [(ALL, unknown), (NUMBERS, unknown), (APPEND, append)];
        files.map(|(name, entry)| (name.to_owned(), entry)).into()
    }

    /// The entry of a file.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has forgotten it.
    pub(super) fn entry(&self, node: u64) -> Result<Entry, Errno> {
        self.get(node).map(|file| entry(node, &file)).ok_or(Errno::ESTALE)
    }

    /// The content, if this is a file of codes.
    pub fn get(&self, node: u64) -> Option<Arc<CodeFile>> {
        self.files.lock().known.get(&node).map(|known| Arc::clone(&known.file))
    }

    /// Bytes of a code with its number, if this is the file that takes codes.
    pub fn bytes_of_one(&self, node: u64) -> Option<usize> {
        match Node::parse(node) {
            Some(Node::Append(buffer)) => self.codes(buffer).map(CodeReader::bytes_with_number),
            _ => None,
        }
    }

    pub(super) fn forget(&self, node: u64, lookups: u64) {
        let known = &mut self.files.lock().known;
        if let Some(file) = known.get_mut(&node) {
            file.lookups = file.lookups.saturating_sub(lookups);
            if file.lookups == 0 {
                known.remove(&node);
            }
        }
    }
}
