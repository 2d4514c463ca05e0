//! The planner: what is fetched, kept and dropped, and when. Events in, actions out.
//!
//! In the order it happens:
//!
//! 1. A stream is given an order. Ahead of its reader, each block that RAM does not
//!    hold becomes an [`Action::Fetch`], soonest use first, many under way at once. Where RAM has
//!    room to keep the block it is charged as *kept*, and staging may run through the whole epoch;
//!    else it is *staged* for its read alone, and such bytes are bounded by the `window`.
//! 2. What arrives from the source and will not stay in RAM is offered to the tiers below
//!    ([`Action::Place`]), where it stays. If a tier below has room for all the data, everything is
//!    offered to it: the kernel may take pages back at any time, and so nothing is fetched from
//!    the source twice. While much waits to be written there, nothing is fetched ahead.
//! 3. An open moves the stream's position. If a read finds no pages, the shell fetches the block at once
//!    and then tells the planner ([`Event::Missed`]). The planner only charges the block. A read never
//!    waits for the planner.
//! 4. The kernel may take any page back at any time. What is read soon is checked
//!    ([`Action::Check`]) and fetched again if its pages are gone. A loader that maps files opens them
//!    long before it reads them (`mapped`).
//! 5. When a file is closed and no staged read of it is left, the policy weighs the block against what is
//!    kept: it is kept, in place of another perhaps, or dropped. If opens are no requests, a file is closed
//!    when its task is seen at another one.
//! 6. Where no order is followed, or only those of a small part of what is read (a validation's,
//!    say), what this epoch has not read yet is fetched in place of what it has, in no particular
//!    order (`unread`).
//! 7. If a large file is read at random, only the requested pages are fetched (`divided`).
//!
//! With [`PolicyKind::Auto`] the planner chooses the policy. It takes *unread first* if orders cover less
//! than half of what is read, or if one stream reads everything once an epoch. Unread first keeps a fixed
//! share and never churns; no policy does better there. Otherwise it takes Bélády's rule over the nearest
//! next use of all streams.
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
