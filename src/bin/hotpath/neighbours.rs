//! How contiguous the pages of cached files are in memory.
//!
//! Adjacent pages are copied several times faster than scattered pages. Which of the two a file gets depends
//! on the free memory of the machine. So a comparison of two caches means little without this figure: the
//! share of pages that the file's next page follows in memory. `/proc/self/pagemap` tells where the pages of
//! a mapping are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use belady::page_size::page_bytes;
use serde_json::{Value, json};

use super::reads::with_pages;

/// The bits of a pagemap entry that are the page's number.
const NUMBER: u64 = (1 << 55) - 1;

/// Counts pairs of pages that follow each other in a file, and the pairs that also follow each other in
/// memory.
pub(super) fn measure(paths: &[PathBuf]) -> io::Result<Value> {
    let map = File::open("/proc/self/pagemap")?;
    let (mut pairs, mut side_by_side) = (0, 0);
    for path in paths {
        let numbers = with_pages(path, |address, length| {
            let page = page_bytes() as usize;
            let mut entries = vec![0; length.div_ceil(page) * 8];
            map.read_exact_at(&mut entries, (address / page * 8) as u64)?;
            let entries = entries.as_chunks::<8>().0.iter();
            Ok(entries.map(|entry| u64::from_ne_bytes(*entry) & NUMBER).collect::<Vec<_>>())
        })?;
        // Without permission, every page is reported as page 0.
        let known = |pair: &&[u64]| pair.iter().all(|number| *number != 0);
        for pair in numbers.windows(2).filter(known) {
            pairs += 1;
            side_by_side += u64::from(pair[1] == pair[0] + 1);
        }
    }
    Ok(json!({ "pairs": pairs, "side_by_side": side_by_side }))
}
