//! The listing: the ring of tokens is cut into ranges, and some of them are read at once.
//!
//! A page that is not answered is asked for again with the paging state of the one before. A listing is whole, or it
//! is none.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scylla::response::PagingState;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::asked::Asked;
use super::fault::Fault;
use super::rows::{Listed, Row};
use crate::source::remote::{PATIENCE_OF_LISTINGS, patiently};

/// The rows of a page of a listing go there.
pub(super) type Pages = mpsc::Sender<Vec<Row>>;

/// Ranges of the ring, and how many of them are read at once.
const RANGES: u64 = 256;
const AT_ONCE: usize = 16;

/// Ranges that are read one after the other are as far apart as this, so that they are on different nodes.
const STRIDE: u64 = 97;

/// Rows that each reader of ranges looks at first. If no sizes are listed, more are needed for their mean.
const LOOKS: usize = 1;
const LOOKS_FOR_SIZES: usize = 8;

/// Rows that were looked at, and the bytes of their data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looked {
    rows: u64,
    bytes: u64,
}

impl Looked {
    /// The mean bytes of a row.
    pub(super) fn mean(self) -> Option<u64> {
        self.bytes.checked_div(self.rows)
    }
}

/// A range of tokens: those after the first one, up to the second one.
fn range(nth: u64) -> (i64, i64) {
    let begin = |nth: u64| i64::MIN.wrapping_add((nth * (u64::MAX / RANGES + 1)) as i64);
    let end = if nth + 1 < RANGES { begin(nth + 1) } else { i64::MAX };
    (begin(nth), end)
}

/// Sends all rows, in any order. If `looks`, some are read: their sizes and write times have to be those of the
/// data.
pub(super) async fn list(asked: &Arc<Asked>, looks: bool, pages: &Pages) -> Result<Looked, Fault> {
    let next = Arc::new(AtomicU64::new(0));
    let looks = match asked.tells_sizes() {
        _ if !looks => 0,
        true => LOOKS,
        false => LOOKS_FOR_SIZES,
    };
    let mut readers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (asked, next, pages) = (Arc::clone(asked), Arc::clone(&next), pages.clone());
        readers.spawn(async move { list_some(&asked, &next, looks, &pages).await });
    }
    let mut looked = Looked::default();
    while let Some(read) = readers.join_next().await {
        // The listing is not whole if the task panicked.
        let found = read.unwrap_or(Err(Fault::Gone))?;
        looked.rows += found.rows;
        looked.bytes += found.bytes;
    }
    Ok(looked)
}

/// Sends the rows of ranges that nobody else has begun, until there are none. The first rows are looked at.
async fn list_some(
    asked: &Asked,
    next: &AtomicU64,
    looks: usize,
    pages: &Pages,
) -> Result<Looked, Fault> {
    let mut looked = Looked::default();
    loop {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        if nth >= RANGES {
            return Ok(looked);
        }
        let range = range(nth * STRIDE % RANGES);
        let mut from = PagingState::start();
        loop {
            let ask = || asked.page(range, from.clone());
            let (page, then) = patiently(PATIENCE_OF_LISTINGS, ask).await?;
            let left = looks.saturating_sub(looked.rows as usize);
            for row in page.iter().take(left) {
                looked.rows += 1;
                looked.bytes += look(asked, &row.listed).await?;
            }
            // Nobody takes the rows if the listing has failed.
            let _ = pages.send(page).await;
            match then {
                ControlFlow::Continue(state) => from = state,
                ControlFlow::Break(()) => break,
            }
        }
    }
}

/// Reads a row, and compares its size and write time with those of the data. Returns the number of bytes.
async fn look(asked: &Asked, listed: &Listed) -> Result<u64, Fault> {
    match patiently(PATIENCE_OF_LISTINGS, || asked.read(listed)).await {
        Ok(bytes) => Ok(bytes.len() as u64),
        Err(Fault::Changed) => Ok(listed.size.unwrap_or_default()),
        Err(fault) => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ranges_cover_the_ring_once() {
        assert_eq!((range(0).0, range(RANGES - 1).1), (i64::MIN, i64::MAX));
        for nth in 1..RANGES {
            assert_eq!(range(nth - 1).1, range(nth).0);
            assert!(range(nth).0 < range(nth).1);
        }
        assert_eq!(range(128).0, 0);
        let order: BTreeSet<u64> = (0..RANGES).map(|nth| nth * STRIDE % RANGES).collect();
        assert_eq!(order.len() as u64, RANGES, "each is read");
    }
}
