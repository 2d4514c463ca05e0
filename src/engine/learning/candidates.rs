//! The ways in which a loader may number the files of a source.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::learn::Candidate;
use crate::order::Listing;
use crate::order::index::{Filter, IndexOrder, Sorting, index_order};

/// How many top directories are taken for datasets of their own, the largest first: where there
/// are more, they are classes.
const TOPS_MAX: usize = 16;

/// Each sorting of the whole source and of each of its top directories; those that number the same
/// files in the same way once.
pub(super) fn candidates(listing: &Listing<'_>) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for root in std::iter::once(String::new()).chain(tops(listing)) {
        for (word, sorting) in Sorting::WORDS {
            let filter = Filter { root: root.clone(), ext: Vec::new() };
            // Not every sorting has files everywhere.
            let Ok(files) = index_order(listing, IndexOrder::Sorted(sorting), &filter) else {
                continue;
            };
            let samples: Arc<[u32]> = files.iter().map(|file| file.0).collect();
            if found.iter().any(|known| known.samples == samples) {
                continue;
            }
            let name = if root.is_empty() { word.into() } else { format!("{word} below {root}") };
            found.push(Candidate { name, samples });
        }
    }
    found
}

/// The top directories with the most files.
fn tops(listing: &Listing<'_>) -> Vec<String> {
    let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
    for entry in listing.entries() {
        if let Some(slash) = entry.path.iter().position(|byte| *byte == b'/') {
            *counts.entry(&entry.path[..slash]).or_default() += 1;
        }
    }
    let mut tops: Vec<(&[u8], usize)> = counts.into_iter().collect();
    tops.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    tops.truncate(TOPS_MAX);
    tops.into_iter().filter_map(|(top, _)| String::from_utf8(top.to_vec()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FileId;
    use crate::order::Entry;

    fn names(paths: &[&str]) -> Vec<String> {
        let entry = |(row, path): (usize, &&'static str)| Entry {
            path: path.as_bytes(),
            file: FileId(row as u32),
            size: 1,
        };
        let paths: Vec<&'static str> =
            paths.iter().map(|path| &*String::leak((*path).to_owned())).collect();
        let listing = Listing::new(paths.iter().enumerate().map(entry).collect());
        candidates(&listing).into_iter().map(|candidate| candidate.name).collect()
    }

    #[test]
    fn the_same_numbering_is_one_candidate() {
        assert_eq!(names(&["a/1", "a/2"]), ["path"]);
        assert_eq!(names(&[]), Vec::<String>::new());
    }

    #[test]
    fn top_directories_are_datasets_too() {
        let found = names(&["train/a/1.jpg", "train/b/2.jpg", "train/a/x.txt", "val/a/3.jpg"]);
        assert!(found.contains(&"imagefolder below train".to_owned()), "{found:?}");
        assert!(found.contains(&"path below train".to_owned()), "{found:?}");
        assert!(found.contains(&"path".to_owned()), "{found:?}");
    }
}
