//! Asks the source for metadata, on threads that may wait for it.
//!
//! A question that hangs marks its name as hanging. If several names in a directory hang, the directory
//! counts as hanging. Further questions about that place wait without a thread, so that questions about
//! other places go on.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::waiting::{Pending, Reply, WaitingRequests, reply_interrupted};
use crate::cache::Cause;
use crate::catalog::NodeId;
use crate::source::{self, KeyedPool, Urgency};
use crate::sync::Mutex;

/// Questions at once for which no reader waits, and further ones for which a reader waits. Without belady
/// each reader would ask for itself.
const QUESTIONS: usize = 16;
const RESERVED: usize = 64;

/// A question that takes longer is held up: a question about another name gets its slot.
const PATIENCE: Duration = Duration::from_secs(1);

/// Questions at once, including those that are held up.
const QUESTIONS_MAX: usize = 4096;

/// How long a question about the mount itself may wait: programs that look at all mounts ask it.
const BRIEF_PATIENCE: Duration = Duration::from_millis(200);

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetadataKey {
    Directory(NodeId),
    /// A name in a directory, by its hash.
    Name(NodeId, u64),
    Space,
}

impl MetadataKey {
    /// A name in a directory, or a node that has no name any more.
    pub(super) fn of_name(directory: NodeId, name: impl Hash) -> Self {
        let hashes = BuildHasherDefault::<DefaultHasher>::default();
        MetadataKey::Name(directory, hashes.hash_one(name))
    }

    fn directory(self) -> Option<NodeId> {
        match self {
            MetadataKey::Directory(directory) | MetadataKey::Name(directory, _) => Some(directory),
            MetadataKey::Space => None,
        }
    }
}

impl source::JobKey for MetadataKey {
    fn is_near(&self, other: &Self) -> bool {
        self.directory() == other.directory()
    }
}

/// Blocks, free, available, files, free files, block size and longest name of a filesystem.
pub(super) type Space = [u64; 7];

/// The answer before the source was asked.
const UNKNOWN_SPACE: Space = [0, 0, 0, 0, 0, 4096, 255];

/// The source's last answer.
#[derive(Default)]
pub(super) struct LastSpace(Mutex<Option<Space>>);

impl LastSpace {
    pub(super) fn get(&self) -> Space {
        let known = *self.0.lock();
        known.unwrap_or(UNKNOWN_SPACE)
    }

    pub(super) fn set(&self, space: Space) {
        *self.0.lock() = Some(space);
    }
}

/// The threads that ask the source for metadata, and the table of requests that wait for them.
pub(super) struct Questions {
    pub(super) threads: KeyedPool<MetadataKey>,
    waiting: Arc<WaitingRequests>,
}

impl Questions {
    pub(super) fn new(waiting: &Arc<WaitingRequests>) -> Self {
        let threads = KeyedPool::new("belady-meta", PATIENCE, QUESTIONS, RESERVED, || ());
        Questions { threads: threads.with_limits(QUESTIONS_MAX, 1), waiting: Arc::clone(waiting) }
    }

    /// Asks a question for a task, which gets the answer unless it is killed before.
    pub(super) fn ask<T: 'static>(
        &self,
        key: MetadataKey,
        task: Option<u32>,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        question: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) {
        self.ask_for(of_question, key, task, reply, question);
    }

    /// The same. `cause` says by the answer why the reader has waited.
    pub(super) fn ask_for<T: 'static>(
        &self,
        cause: fn(&Result<T, Errno>) -> Cause,
        key: MetadataKey,
        task: Option<u32>,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        question: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) {
        let reply: Reply<T> = Box::new(reply);
        let pending = self.waiting.enter(task, key.directory(), reply, reply_interrupted);
        self.threads.submit(Urgency::Demand, key, move || answer(&pending, cause, question));
    }

    /// Asks a question for a request that may only wait briefly. If the source takes longer than
    /// [`BRIEF_PATIENCE`], the answer comes from memory. If the question's place hangs, it comes from memory
    /// at once: questions without a waiting request would pile up there.
    pub(super) fn ask_briefly<T: 'static>(
        &self,
        key: MetadataKey,
        task: Option<u32>,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        from_memory: impl Fn() -> Result<T, Errno> + Send + Sync + 'static,
        question: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) {
        let reply = Box::new(reply);
        let pending = self.waiting.enter_briefly(task, reply, BRIEF_PATIENCE, from_memory);
        self.threads.try_submit(Urgency::Demand, key, move |admitted| match admitted {
            Ok(()) => answer(&pending, of_question, question),
            Err(_) => pending.answer_late(),
        });
    }
}

/// Asks a question for a request, unless the request is answered already.
fn answer<T>(
    pending: &Pending<Reply<T>>,
    cause: fn(&Result<T, Errno>) -> Cause,
    question: impl FnOnce() -> Result<T, Errno>,
) {
    if !pending.is_unanswered() {
        return;
    }
    let answer = question();
    if let Some(reply) = pending.take(cause(&answer)) {
        reply(answer);
    }
}

/// Why a reader has waited for the answer to a question.
fn of_question<T>(answer: &Result<T, Errno>) -> Cause {
    Cause::Name.unless_failed(answer)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::cache::{Cache, Inbox};
    use crate::catalog::Catalog;
    use crate::fs::Dataset;
    use crate::source::{PosixSource, Source};

    #[test]
    fn a_name_has_one_key_whether_it_is_asked_for_by_name_or_by_number() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        for name in ["a", "b"] {
            std::fs::write(root.path().join("d").join(name), name).unwrap();
        }
        let source: Arc<dyn Source> = Arc::new(PosixSource::open(root.path(), 1).unwrap());
        let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, None).unwrap());
        let inbox = Arc::new(Inbox::new(1));
        let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), None);
        let find = |parent, name: &str| {
            catalog.lookup(parent, OsStr::new(name), true).unwrap().unwrap().node
        };
        let d = find(NodeId::ROOT, "d");
        let [a, b] = ["a", "b"].map(|name| find(d, name));
        let dataset = Dataset::new(Arc::clone(&catalog), cache, inbox, Arc::new(|_| ()), false);
        assert_eq!(dataset.key_of(a), MetadataKey::of_name(d, OsStr::new("a")));
        assert_eq!(dataset.key_of(d), MetadataKey::of_name(NodeId::ROOT, OsStr::new("d")));
        assert!(dataset.key_of(a) != dataset.key_of(b));
    }
}
