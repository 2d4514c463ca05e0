//! Tells the planner which files lie one behind the other at the source, before it hears of an order. So it can have
//! several of them brought with one request.

use super::Core;
use crate::plan::Event;

/// Has the files found that lie one behind the other. In a cluster each of them comes from its home.
pub(super) fn note(core: &Core) {
    let settings = &core.settings;
    if settings.cluster.is_some() || settings.prefetch.request_bytes == 0 {
        return;
    }
    core.catalog.find_neighbours(|layout| {
        tracing::info!("files that lie one behind the other can come with one request");
        core.inbox.put(Event::Changed { layout, files: Vec::new() }, None);
    });
}
