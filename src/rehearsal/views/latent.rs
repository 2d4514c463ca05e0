//! The directory `latent/`: codes that a trainer keeps.
//!
//! A file never changes, so the kernel keeps its pages. After an append `all` and `ids` lead to new files,
//! and readers of the old ones go on with those. Without an append each lookup finds the same file.

use std::collections::HashMap;
use std::sync::Arc;

use nix::errno::Errno;

use super::place::{LATENT, Place};
use super::{Entry, EntryKind, Views};
use crate::rehearsal::notes::Note;
use crate::rehearsal::{CodeFile, Shelf};

/// The files that are not one code.
const ALL: &str = "all";
const NUMBERS: &str = "ids";
const APPEND: &str = "append";

/// Takes the result of an append: how many codes.
pub type Appended = Box<dyn FnOnce(Result<usize, Errno>) + Send>;

struct Known {
    file: Arc<CodeFile>,
    lookups: u64,
}

/// The files of codes that the kernel knows.
#[derive(Default)]
pub(super) struct Files {
    known: HashMap<u64, Known>,
    /// The latest file of a buffer and a name: the version of its codes, and its node.
    latest: HashMap<(usize, &'static str), (u64, u64)>,
    count: u64,
}

impl Files {
    fn keep(&mut self, file: CodeFile) -> (u64, Arc<CodeFile>) {
        let node = LATENT + self.count;
        self.count += 1;
        let file = Arc::new(file);
        self.known.insert(node, Known { file: Arc::clone(&file), lookups: 1 });
        (node, file)
    }

    fn whole(&mut self, buffer: usize, name: &'static str, shelf: &Shelf) -> (u64, Arc<CodeFile>) {
        if let Some((of, node)) = self.latest.get(&(buffer, name))
            && *of == shelf.version()
            && let Some(known) = self.known.get_mut(node)
        {
            known.lookups += 1;
            return (*node, Arc::clone(&known.file));
        }
        let (version, codes) = shelf.all();
        let file = if name == ALL { CodeFile::All(codes) } else { CodeFile::Numbers(codes) };
        let (node, file) = self.keep(file);
        self.latest.insert((buffer, name), (version, node));
        (node, file)
    }

    pub(super) fn forget(&mut self, node: u64, lookups: u64) {
        if let Some(known) = self.known.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                self.known.remove(&node);
            }
        }
    }
}

fn entry(node: u64, file: &CodeFile) -> Entry {
    Entry { node, kind: EntryKind::Codes(file.length()), lasting: false }
}

pub(super) fn append(buffer: usize) -> Entry {
    Entry { node: Place::Append(buffer).node(), kind: EntryKind::Append, lasting: true }
}

impl Views {
    fn shelf(&self, buffer: usize) -> Option<&Shelf> {
        self.buffers.get(buffer)?.latent.as_deref()
    }

    /// The directory of a buffer's codes, if it has any.
    pub(super) fn latent(&self, buffer: usize) -> Option<Place> {
        self.shelf(buffer).map(|_| Place::Latent(buffer))
    }

    pub(super) fn lookup_code(&self, buffer: usize, name: &str) -> Result<Entry, Errno> {
        let shelf = self.shelf(buffer).ok_or(Errno::ENOENT)?;
        let (node, file) = match name {
            APPEND => return Ok(append(buffer)),
            ALL => self.codes.lock().whole(buffer, ALL, shelf),
            NUMBERS => self.codes.lock().whole(buffer, NUMBERS, shelf),
            _ => {
                let number = name.parse().ok().filter(|number: &u64| number.to_string() == name);
                let code = number.and_then(|number| shelf.get(number)).ok_or(Errno::ENOENT)?;
                self.codes.lock().keep(CodeFile::One(code))
            }
        };
        Ok(entry(node, &file))
    }

    /// The files in it, without those of one code: there may be millions.
    pub(super) fn list_codes(buffer: usize) -> Vec<(String, Entry)> {
        let unknown = Entry { node: LATENT, kind: EntryKind::Codes(0), lasting: false };
        let files = [(ALL, unknown), (NUMBERS, unknown), (APPEND, append(buffer))];
        files.map(|(name, entry)| (name.to_owned(), entry)).into()
    }

    /// The entry of a file of codes.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has forgotten it.
    pub(super) fn code_entry(&self, node: u64) -> Result<Entry, Errno> {
        self.codes(node).map(|file| entry(node, &file)).ok_or(Errno::ESTALE)
    }

    /// The content, if this is a file of codes.
    pub fn codes(&self, node: u64) -> Option<Arc<CodeFile>> {
        self.codes.lock().known.get(&node).map(|known| Arc::clone(&known.file))
    }

    /// Bytes of a code with its number, if this is the file that takes codes.
    pub fn bytes_of_one(&self, node: u64) -> Option<usize> {
        match Place::of(node) {
            Some(Place::Append(buffer)) => self.shelf(buffer).map(Shelf::bytes_with_number),
            _ => None,
        }
    }

    /// Has codes appended to this file's buffer, and then calls `done`.
    pub fn append(&self, node: u64, bytes: Vec<u8>, done: Appended) {
        match Place::of(node) {
            Some(Place::Append(buffer)) => self.tell(Note::Appended { buffer, bytes, done }),
            _ => done(Err(Errno::EBADF)),
        }
    }
}
