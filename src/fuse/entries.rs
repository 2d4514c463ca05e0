//! Answers lookups and questions for attributes, and decides how long the kernel may believe the answers.
//!
//! If a lookup fails, the kernel drops the name, its pages, and all that is below a directory. If the
//! source cannot say what a name stands for, its pages are to stay until it can again. So the lookup is
//! answered with what was known, with a lifetime of zero. Before the kernel opens or walks the node, or
//! reports anything of it, it asks for the attributes. That question gets the error.

use std::sync::Arc;
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyAttr, ReplyEntry};

use super::convert;
use super::known::KnownNodes;
use crate::catalog::{Attr, NodeId};
use crate::fs::{Dataset, NotFound};
use crate::source::Kind;

/// How long a file is opened without a request if the kernel cannot be made to ask again.
const TRUST_MAX: Duration = Duration::from_secs(5);

/// How long the kernel may believe a name. If it cannot be made to ask again, the time is short for files
/// whose opens are no requests.
pub(super) fn bounded_entry_valid(dataset: &Dataset, known: &KnownNodes, attr: &Attr) -> Duration {
    let valid = dataset.entry_valid(attr);
    let bounded =
        !dataset.opens_are_requests() && attr.stat.kind == Kind::File && !known.can_expire();
    if bounded { valid.min(TRUST_MAX) } else { valid }
}

fn attr_valid(known: &KnownNodes, attr: &Attr) -> Duration {
    if !attr.valid.is_zero() {
        known.set_in_doubt(attr.node, false);
    }
    let in_doubt = attr.valid.is_zero() && known.is_in_doubt(attr.node);
    if in_doubt { Duration::ZERO } else { Dataset::attr_valid(attr) }
}

/// Answers a lookup. The kernel knows the node from then on.
pub(super) fn reply_entry(
    dataset: &Dataset,
    known: &KnownNodes,
    reply: ReplyEntry,
    result: Result<Attr, NotFound>,
) {
    let (attr, attrs, entry) = match result {
        Ok(attr) => {
            // Noted before the answer is decided. If the name is taken back meanwhile, the kernel is told.
            known.note_lookup(attr.node, true);
            (attr, attr_valid(known, &attr), bounded_entry_valid(dataset, known, &attr))
        }
        Err(NotFound { errno, known: before }) => {
            let Some(attr) = before.filter(|attr| known.contains(attr.node, false)) else {
                return reply.error(convert::errno(errno));
            };
            known.note_lookup(attr.node, true);
            known.set_in_doubt(attr.node, true);
            (attr, Duration::ZERO, Duration::ZERO)
        }
    };
    if entry.is_zero() {
        known.take_untracked(attr.node);
    }
    reply.entry_with_ttls(&attrs, &entry, &convert::attr(&attr), Generation(0));
}

/// Answers what the attributes of a node are. `task` is none for our own threads. `is_open` says that a
/// descriptor asks, whose file stays what it was.
pub(super) fn reply_attr(
    dataset: &Arc<Dataset>,
    known: &Arc<KnownNodes>,
    ino: INodeNo,
    is_open: bool,
    task: Option<u32>,
    reply: ReplyAttr,
) {
    let (known, node) = (Arc::clone(known), NodeId(ino.0));
    let in_doubt = !is_open && known.is_in_doubt(node);
    dataset.getattr(node, task, in_doubt, move |result| match result {
        Ok(attr) => reply.attr(&attr_valid(&known, &attr), &convert::attr(&attr)),
        Err(errno) => reply.error(convert::errno(errno)),
    });
}
