//! The ways in which a loader may number the files of a source.
//!
//! A dataset is all files below some directory, or those of a kind, sorted in some way. Each numbering costs
//! memory and a part of every search, so only the likeliest are tried. Their directories have the most files
//! and are not far below the source. A directory of derived samples is like a source of its own. Of each directory they
//! number:
//!
//! - all files;
//! - the files of usual kinds;
//! - the files of each of the commonest kinds;
//! - the files that are not hidden.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::ids::FileId;
use crate::learn::Numbering;
use crate::order::index::{Filter, IndexOrder, Sorting, index_order};
use crate::order::{Entry, Listing, OrderSpec};

/// How many directories below the source are taken for datasets of their own.
const ROOTS_MAX: usize = 16;

/// How often each level below the source halves the rank of a directory, which is its number of files. So the
/// classes of a dataset come after other datasets.
const DEPTH_WEIGHS: u32 = 2;

/// How many of the commonest kinds of files are datasets of their own, and the least part of the files.
const KINDS_MAX: usize = 2;
const COMMON: usize = 8;

/// The least part of the files that a usual kind has. Lists and notes beside a dataset are fewer.
const USUAL: usize = 100;

/// How many times the files of the source, or of a directory of derived samples, its numberings together have at most.
const COPIES_MAX: usize = 16;

/// Each sorting of the files that may be a dataset, the likeliest first, and each numbering once.
pub(super) fn numberings(listing: &Listing<'_>) -> Vec<Numbering> {
    listing.apart().iter().flat_map(|part| numberings_of(part)).collect()
}

/// The numberings of one source.
fn numberings_of(listing: &Listing<'_>) -> Vec<Numbering> {
    let all = listing.entries();
    if all.is_empty() {
        return Vec::new();
    }
    let rows = (0..).zip(all).map(|(row, entry)| Entry { file: FileId(row), ..*entry }).collect();
    let rows = Listing::new(rows);
    let orders = orders(&rows);
    let mut found = Found { numberings: Vec::new(), left: COPIES_MAX * all.len() };
    // By rank, with the path.
    let mut roots = BinaryHeap::from([(usize::MAX, Reverse(&b""[..]), 0)]);
    for _ in 0..=ROOTS_MAX {
        let Some((_, Reverse(root), depth)) = roots.pop() else { break };
        let (root, files, directories) = root_of(&rows, root);
        for (directory, count) in directories.into_iter().filter(|(_, count)| *count > 1) {
            let rank = count >> (DEPTH_WEIGHS * (depth + 1)).min(usize::BITS - 1);
            roots.push((rank, Reverse(directory), depth + 1));
        }
        let mut take = |files: &Listing<'_>, ext: &[String], place: &str, is_told: bool| {
            for (sorting, rows) in sorted_rows(files, ext.to_vec(), &orders) {
                let samples = rows.iter().map(|row| all[row.index()].file.0).collect();
                let spec = || spec(sorting, root, ext);
                let spec = is_told.then(spec).flatten();
                found.take(Numbering { name: format!("{}{place}", sorting.name()), samples, spec });
            }
        };
        for ext in kinds(&files) {
            take(&files, &ext, &place(root, &ext), true);
        }
        if let Some(visible) = visible(&files) {
            take(&visible, &[], &format!(" without hidden files{}", place(root, &[])), false);
        }
    }
    found.numberings
}

struct Found {
    numberings: Vec<Numbering>,
    /// How many more samples they may have together.
    left: usize,
}

impl Found {
    /// Takes a numbering, if it is new and there is room for it.
    fn take(&mut self, numbering: Numbering) {
        let samples = &numbering.samples;
        let known = self.numberings.iter().any(|known| known.samples == *samples);
        if let Some(left) = self.left.checked_sub(samples.len()).filter(|_| !known) {
            self.left = left;
            self.numberings.push(numbering);
        }
    }
}

/// The files that are not hidden, if some are.
fn visible<'a>(files: &Listing<'a>) -> Option<Listing<'a>> {
    let is_hidden = |entry: &Entry<'_>| {
        entry.path.split(|byte| *byte == b'/').any(|name| name.starts_with(b"."))
    };
    let mut entries = files.entries().to_vec();
    entries.retain(|entry| !is_hidden(entry));
    (entries.len() < files.entries().len()).then(|| Listing::new(entries))
}

/// The rows of all files in each order that is the same below every directory. A million names are sorted for
/// seconds, and so only once.
fn orders(rows: &Listing<'_>) -> Vec<(Sorting, Vec<FileId>)> {
    let sortings = Sorting::WORDS.into_iter().filter(|(_, sorting)| sorting.sorts_by_path_only());
    let sorted = |sorting| index_order(rows, IndexOrder::Sorted(sorting), &Filter::default());
    sortings.filter_map(|(_, sorting)| Some((sorting, sorted(sorting).ok()?))).collect()
}

/// The rows of the files with these endings in each order. Some sortings have no files in some places. Of the
/// sortings by classes only torchvision's is used with endings.
fn sorted_rows(
    files: &Listing<'_>,
    ext: Vec<String>,
    orders: &[(Sorting, Vec<FileId>)],
) -> Vec<(Sorting, Vec<FileId>)> {
    let filter = Filter { root: String::new(), ext };
    let sorted = |sorting| index_order(files, IndexOrder::Sorted(sorting), &filter).ok();
    let mut taken = vec![false; orders.first().map_or(0, |(_, rows)| rows.len())];
    let is_of_kind =
        |path| filter.ext.is_empty() || filter.ext.iter().any(|ext| ext.as_bytes() == ending(path));
    for file in files.entries().iter().filter(|file| is_of_kind(file.path)) {
        taken[file.file.index()] = true;
    }
    let numbering = |sorting: Sorting| {
        if let Some((_, rows)) = orders.iter().find(|(of, _)| *of == sorting) {
            return Some(rows.iter().copied().filter(|row| taken[row.index()]).collect());
        }
        let is_used = filter.ext.is_empty() || sorting == Sorting::ImageFolder;
        is_used.then(|| sorted(sorting)).flatten()
    };
    let sortings = Sorting::WORDS.into_iter();
    sortings.filter_map(|(_, sorting)| Some((sorting, numbering(sorting)?))).collect()
}

/// The files below a directory, by their paths from there, and its subdirectories by their whole paths, each
/// with the number of its files. If all files are below one subdirectory, that is taken instead.
fn root_of<'a>(
    listing: &Listing<'a>,
    root: &'a [u8],
) -> (&'a [u8], Listing<'a>, BTreeMap<&'a [u8], usize>) {
    let mut files: Vec<Entry<'a>> = listing.entries().to_vec();
    files.retain(|entry| is_below(entry.path, root));
    let mut root = files.first().map_or(root, |first| parent(first.path));
    for file in &files {
        while !is_below(file.path, root) {
            root = parent(root);
        }
    }
    let start = if root.is_empty() { 0 } else { root.len() + 1 };
    let mut directories = BTreeMap::new();
    for file in &mut files {
        let path = &file.path[start..];
        if let Some(slash) = path.iter().position(|byte| *byte == b'/') {
            *directories.entry(&file.path[..start + slash]).or_default() += 1;
        }
        file.path = path;
    }
    (root, Listing::new(files), directories)
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

/// The sets of endings that make a dataset of these files: first none, which is all files, then those of usual
/// kinds, and each of the commonest. If all files have the same ending, there is only the first.
fn kinds(files: &Listing<'_>) -> Vec<Vec<String>> {
    let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
    let all = files.entries().len();
    for entry in files.entries() {
        *counts.entry(ending(entry.path)).or_default() += 1;
    }
    let mut kinds = vec![Vec::new()];
    if counts.len() > 1 {
        let mut counts: Vec<(&[u8], usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| Reverse(*count));
        let of = |part: usize| {
            let often = counts.iter().filter(move |(_, count)| part * count >= all);
            let named = often.filter(|(ending, _)| !ending.is_empty());
            named.filter_map(|(ending, _)| String::from_utf8(ending.to_vec()).ok())
        };
        let usual: Vec<String> = of(USUAL).collect();
        kinds.extend((!usual.is_empty()).then_some(usual));
        kinds.extend(of(COMMON).take(KINDS_MAX).map(|ending| vec![ending]));
        kinds.dedup();
    }
    kinds
}

/// The end of a file's name from its last dot on.
fn ending(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.iter().rposition(|byte| *byte == b'.').map_or(b"", |dot| &name[dot..])
}

/// The spec of this numbering, if the directory's name can stand in one.
fn spec(sorting: Sorting, root: &[u8], ext: &[String]) -> Option<OrderSpec> {
    let root = std::str::from_utf8(root).ok()?.to_owned();
    let filter = Filter { root, ext: ext.to_vec() };
    let spec = OrderSpec::sequential(sorting, filter);
    let again = spec.to_string().parse::<OrderSpec>();
    again.is_ok_and(|again| again == spec).then_some(spec)
}

/// The words for these files after the word for their sorting.
fn place(root: &[u8], ext: &[String]) -> String {
    let kinds = if ext.is_empty() { String::new() } else { format!(" of {}", ext.join(" ")) };
    let below = String::from_utf8_lossy(root);
    if below.is_empty() { kinds } else { format!("{kinds} below {below}") }
}

#[cfg(test)]
mod tests;
