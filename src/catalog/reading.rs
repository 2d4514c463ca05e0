//! Reading one directory of the source: its names, and what they stand for.
//!
//! Of single names the source may be unable to say what they stand for. Such a name is there all the same,
//! and is *unsure*: no more is known of it than its kind. If very many are unsure, the source fails.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nix::errno::Errno;

use super::row::{is_unsure, unsure};
use crate::ids::FileId;
use crate::limiter::MetadataLimits;
use crate::source::{Kind, Source, Stat, is_certain, is_prompt};
use crate::sync::{Condvar, Mutex};

/// So many names of a listing show whether their attributes have come along, at a source that is asked for one after
/// the other.
const NAMES_TO_TRY: usize = 2;

/// Threads that stat the names of a directory that a reader waits for if that is slow. The reader does not wait until
/// the best number is found, and a part of the source that hangs takes no more.
const THREADS_MIN: u32 = 16;
const THREADS_MAX: u32 = 64;

/// Names that each of them takes at a time: fewer if that keeps all threads busy to the end.
const CHUNK: usize = 64;
const CHUNK_MIN: usize = 4;

/// So many names may be unsure, or one in so many.
const UNSURE_MAX: usize = 64;
const UNSURE_SHARE: usize = 16;

/// Whether so many unsure names are too many.
pub(super) fn too_many_are(unsure: usize, names: usize) -> bool {
    unsure > UNSURE_MAX.max(names / UNSURE_SHARE)
}

/// What is known of a name by the source's answer; none if it is certainly not there, or not for us.
pub(super) fn known_stat(answer: Result<Stat, Errno>) -> Option<Stat> {
    match answer {
        Ok(stat) => Some(stat),
        Err(errno) => (!is_certain(errno)).then(|| unsure(Kind::File)),
    }
}

/// Names of a listing as they come, of which the attributes are asked for at once as long as that is prompt.
pub(super) struct Promptly {
    is_prompt: bool,
    names: usize,
}

impl Promptly {
    pub(super) fn at(source: &dyn Source) -> Self {
        let names = if source.asks_one_by_one() { NAMES_TO_TRY } else { usize::MAX };
        Promptly { is_prompt: true, names }
    }

    /// Has `ask` ask for the next names. Returns those that are left because that is slow.
    pub(super) fn ask<'a>(
        &mut self,
        names: &'a [OsString],
        mut ask: impl FnMut(&'a [OsString]),
    ) -> &'a [OsString] {
        let mut left = names;
        while self.is_prompt && !left.is_empty() {
            let (now, later) = left.split_at(self.names.min(left.len()));
            let began = Instant::now();
            ask(now);
            self.is_prompt = is_prompt(began.elapsed(), now.len());
            (left, self.names) = (later, usize::MAX);
        }
        left
    }
}

/// Directories that are being read: each by one thread at a time, and its other readers wait for that.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashSet<FileId>>,
    free: Condvar,
}

/// One thread's turn, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    directory: FileId,
    /// Whether the thread has waited for another one's.
    pub(super) waited: bool,
}

impl Turns {
    pub(super) fn take(&self, directory: FileId) -> Turn<'_> {
        let mut taken = self.taken.lock();
        let mut waited = false;
        while !taken.insert(directory) {
            waited = true;
            taken = self.free.wait(taken);
        }
        Turn { turns: self, directory, waited }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock();
        taken.remove(&self.directory);
        self.turns.free.notify_all();
    }
}

/// The names of a directory, each with what it stands for unless that was known.
#[derive(Default)]
struct Reading {
    found: Vec<(OsString, Option<Stat>)>,
    /// The first error that makes a name unsure.
    silent: Option<Errno>,
}

impl Reading {
    fn add(&mut self, names: &[OsString], stats: Vec<Result<Stat, Errno>>) {
        let mut errors = stats.iter().filter_map(|stat| stat.err());
        self.silent = self.silent.or_else(|| errors.find(|errno| !is_certain(*errno)));
        let named = names.iter().cloned().zip(stats);
        self.found.extend(named.filter_map(|(name, stat)| Some((name, Some(known_stat(stat)?)))));
    }

    /// Finds out the kinds of unsure names.
    fn find_kinds(&mut self, source: &dyn Source, path: &Path) -> Result<(), Errno> {
        let Some(errno) = self.silent else { return Ok(()) };
        let (kinds, all, mut count) = (source.listed_kinds(path), self.found.len(), 0);
        for (name, stat) in &mut self.found {
            if let Some(stat) = stat.as_mut().filter(|stat| is_unsure(stat)) {
                *stat = unsure(*kinds.get(name).ok_or(errno)?);
                count += 1;
            }
        }
        if too_many_are(count, all) { Err(errno) } else { Ok(()) }
    }
}

/// Reads the names of a directory, within limits. `split` separates known names from new ones: the source is asked what
/// the new ones stand for. Blocks.
pub(super) fn read_names(
    source: &dyn Source,
    limits: MetadataLimits,
    path: &Path,
    split: impl Fn(&[OsString]) -> (Vec<OsString>, Vec<OsString>),
) -> Result<Vec<(OsString, Option<Stat>)>, Errno> {
    let (mut reading, mut left, mut promptly) =
        (Reading::default(), Vec::new(), Promptly::at(source));
    source.list_in_parts(path, &mut |names| {
        let (known, new) = split(names);
        reading.found.extend(known.into_iter().map(|name| (name, None)));
        let later = promptly.ask(&new, |names| reading.add(names, source.stat_all(path, names)));
        left.extend_from_slice(later);
    })?;
    let stats = stat_many(source, limits, path, &left);
    reading.add(&left, stats);
    reading.find_kinds(source, path)?;
    Ok(reading.found)
}

/// What names of a directory stand for, asked by as many threads as that takes.
fn stat_many(
    source: &dyn Source,
    limits: MetadataLimits,
    path: &Path,
    names: &[OsString],
) -> Vec<Result<Stat, Errno>> {
    let threads = limits.stats.clamp(THREADS_MIN, THREADS_MAX) as usize;
    let chunk_min = if source.asks_one_by_one() { CHUNK_MIN } else { CHUNK };
    let chunk = names.len().div_ceil(2 * threads).clamp(chunk_min, CHUNK);
    let chunks: Vec<&[OsString]> = names.chunks(chunk).collect();
    let stats = ask_all(threads, chunks.len(), |nth| source.stat_all(path, chunks[nth]));
    stats.into_iter().flatten().collect()
}

/// The answers to the numbers below `count`, which so many threads at most ask for. Blocks.
pub(super) fn ask_all<T: Send>(
    threads: usize,
    count: usize,
    ask: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
    in_parallel("belady-stat", threads.min(count), || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= count {
                return;
            }
            let answer = ask(nth);
            found.lock().push((nth, answer));
        }
    });
    let mut found = found.into_inner();
    found.sort_unstable_by_key(|(nth, _)| *nth);
    found.into_iter().map(|(_, answer)| answer).collect()
}

/// Does `work` on so many threads, of which this is one. With fewer threads it takes longer.
fn in_parallel(name: &str, threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 1..threads {
            let _ = thread::Builder::new().name(name.into()).spawn_scoped(scope, &work);
        }
        work();
    });
}
