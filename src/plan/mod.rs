//! The planner: what is fetched, kept and dropped, and when. Events in, actions out.
//!
//! In the order it happens:
//!
//! 1. A stream is given an order. Ahead of its reader, each block that RAM does not
//!    hold becomes an [`Action::Fetch`], soonest use first, many under way at once. Where RAM has
//!    room to keep the block it is charged as *kept*, and staging may run through the whole epoch;
//!    else it is *staged* for its read alone, and such bytes are bounded by the `window`.
//! 2. What arrives from the source and will not stay in RAM is offered to the tiers below
//!    ([`Action::Place`]), where it stays. Where a tier below holds all the data, everything is
//!    offered to it: the kernel may take pages back at any time, and so nothing is fetched from
//!    the source twice. While much waits to be written there, nothing is fetched ahead.
//! 3. An open moves the stream's position. A read that finds nothing ([`Event::Missed`]) is
//!    already being fetched by the shell when the planner hears of it: the planner only accounts
//!    for it. A read never waits for the planner.
//! 4. The kernel may take any page back at any time. What is read soon is checked
//!    ([`Action::Check`]) and fetched again where it got lost.
//!    Who maps files opens them long before he reads them (`mapped`).
//! 5. When the last handle of a file is closed and no staged read of it is left, the policy weighs
//!    the block against what is kept: it is kept, in place of another perhaps, or dropped.
//!
//! 6. Where no order is followed, or only those of a small part of what is read (a validation's,
//!    say), what this epoch has not read yet is fetched in place of what it has, in no particular
//!    order (`unread`).
//! 7. Of a large file that is read at random only what is asked for is fetched (`parts`).
//!
//! The policy follows from what is known ([`PolicyKind::Auto`]). One stream that reads everything
//! once an epoch, or no order at all: unread first, which keeps a fixed share and never churns, for
//! nothing can do better there. Several streams or repeats: Bélády's rule over the nearest next use
//! of all streams.
//!
//! The planner is total: it never fails, never blocks, and any sequence of events leaves its
//! accounts true.

mod crowd;
mod divided;
mod epoch;
mod event;
mod forecast;
mod late;
mod layout;
mod ledger;
mod mapped;
mod parts;
mod planner;
mod policy;
mod published;
mod readers;
mod residency;
mod staging;
mod stream;
mod task;
mod tasks;
mod unread;
mod visibility;
mod warm;
mod window;

#[cfg(test)]
mod tests;

pub use crate::config::PolicyKind;
pub use event::{Accounts, Action, Counters, Event, Place, Settings, Tier};
pub use layout::Layout;
pub use planner::Planner;
pub(crate) use published::Published;
pub use residency::RAM;
pub use stream::StreamStatus;
pub use warm::Standing;
