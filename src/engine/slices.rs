//! Has large files cut along the ranges that an order reads.
//!
//! 1. A block of a mebibyte has many samples of a large file in it, each read at another time. If RAM has no room
//!    for all the data, the block would be fetched for each of them. So the file gets blocks that follow the
//!    samples.
//! 2. The catalog numbers the new blocks.
//! 3. The kernel is told not to read far ahead. That holds for all files of the mount.
//! 4. The kernel may have pages that were charged with the old blocks. They are dropped.
//! 5. The planner hears of the new blocks before it hears of the order.
//!
//! If the mount has a cache disk or is in a cluster, files stay as they are. There a block has a name that holds
//! for blocks of a mebibyte.

use std::time::Duration;

use super::Core;
use crate::order::{Order, SampleTable};
use crate::plan::Event;

/// How long the drop of a file's pages is waited for. If a page is dropped later, its next read may be unseen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Cuts the files of an order if RAM, which has `ram` bytes, cannot hold all the data.
pub(super) fn cut_along(core: &Core, order: &Order, ram: u64) {
    let (settings, page_cache) = (&core.settings, core.cache.page_cache());
    let is_kept_elsewhere = settings.cache.disk.is_some() || settings.cluster.is_some();
    let all_fits = core.catalog.layout().pages_bytes_of_all() <= ram;
    let is_ranged = matches!(order.samples(), SampleTable::Ranges(_));
    if !is_ranged || is_kept_elsewhere || all_fits || !page_cache.keeps_pages() {
        return;
    }
    let before = core.catalog.layout();
    let files = core.catalog.cut_along(order);
    if files.is_empty() {
        return;
    }
    tracing::info!(files = files.len(), "large files are cut along the samples of the order");
    page_cache.expect_random_reads();
    page_cache.forget_files(&files, &before);
    page_cache.drop_files(&files, PATIENCE);
    core.inbox.put(Event::Changed { layout: core.catalog.layout(), files }, None);
}
