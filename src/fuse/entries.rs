//! Answers about names and attributes: for how long the kernel may believe them.
//!
//! The kernel drops a name whose lookup fails, with its pages, and with all that is below a directory.
//! If the source cannot say what a name stands for, its pages are to stay for when it can again. So
//! the lookup is answered with what was known, to be believed for no time. The kernel asks for the
//! attributes before it opens, walks or tells anything, and that question gets the error.

use std::sync::Arc;
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyAttr, ReplyEntry};

use super::convert;
use super::known::Known;
use crate::catalog::{Attr, NodeId};
use crate::fs::{Dataset, NotFound};
use crate::source::Kind;

/// For how long a file is opened without asking where the kernel cannot be made to ask again.
const TRUST_MAX: Duration = Duration::from_secs(5);

/// For how long the kernel may believe a name. Where it could not be made to ask again, a file
/// is opened without asking for a short while only.
pub(super) fn entry_valid(dataset: &Dataset, known: &Known, attr: &Attr) -> Duration {
    let valid = dataset.entry_valid(attr);
    let bounded = !dataset.sees_opens() && attr.stat.kind == Kind::File && !known.expires();
    if bounded { valid.min(TRUST_MAX) } else { valid }
}

/// For how long the kernel may believe the attributes of a node that it knows.
fn attr_valid(known: &Known, attr: &Attr) -> Duration {
    if !attr.valid.is_zero() {
        known.doubt(attr.node, false);
    }
    let in_doubt = attr.valid.is_zero() && known.is_in_doubt(attr.node);
    if in_doubt { Duration::ZERO } else { Dataset::attr_valid(attr) }
}

/// An answer about a name: the kernel knows the node from then on.
pub(super) fn reply_entry(
    dataset: &Dataset,
    known: &Known,
    reply: ReplyEntry,
    result: Result<Attr, NotFound>,
) {
    let (attr, attrs, entry) = match result {
        Ok(attr) => {
            // Noted before it is decided, so that a file which is taken back meanwhile is told.
            known.looked_up(attr.node, true);
            (attr, attr_valid(known, &attr), entry_valid(dataset, known, &attr))
        }
        Err(NotFound { errno, known: before }) => {
            let Some(attr) = before.filter(|attr| known.contains(attr.node, false)) else {
                return reply.error(convert::errno(errno));
            };
            known.looked_up(attr.node, true);
            known.doubt(attr.node, true);
            (attr, Duration::ZERO, Duration::ZERO)
        }
    };
    if entry.is_zero() {
        known.expire(attr.node);
    }
    reply.entry_with_ttls(&attrs, &entry, &convert::attr(&attr), Generation(0));
}

/// Answers what the attributes of a node are, for a task or our own threads (none). `is_open`: by a
/// descriptor, whose file goes on to be what it was.
pub(super) fn reply_attr(
    dataset: &Arc<Dataset>,
    known: &Arc<Known>,
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
