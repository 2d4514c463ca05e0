//! The planner decides which blocks are fetched, kept and dropped, and when. It takes events and gives
//! actions. Its caller, the *shell*, carries the actions out.
//!
//! 1. A stream gets an order. Ahead of its reader, each block that RAM lacks becomes an [`Action::Fetch`],
//!    soonest use first, many at once. If RAM has room to keep the block, it is charged as *kept*, and
//!    staging may run through the whole epoch. Otherwise the block is *staged* for its read alone, and the
//!    `window` bounds the staged bytes.
//! 2. A block that arrives from the source and will not stay in RAM is offered to the tiers below
//!    ([`Action::Place`]). If a tier below has room for all the data, every block is offered to it, so that
//!    no block is fetched twice from the source: the kernel may take pages back at any time. While many
//!    bytes wait to be written there, nothing is fetched ahead.
//! 3. An open moves the stream's position. If a read finds no pages, the shell fetches the block at once and
//!    then tells the planner ([`Event::Missed`]), which only charges the block. A read never waits for the
//!    planner.
//! 4. Blocks that are read soon are checked ([`Action::Check`]), and fetched again if their pages are gone.
//!    A loader that maps files opens them long before it reads them (`mapped`).
//! 5. When a file is closed and no staged read of it is left, the policy weighs its blocks against the kept
//!    ones. Each is kept, perhaps in place of another, or dropped. If opens cause no requests, a file counts
//!    as closed when its task is seen at another file.
//! 6. If orders cover few of the reads (only a validation's, say) or none is followed, blocks that this epoch
//!    has not read are fetched in place of blocks that it has read, in no particular order (`unread`).
//! 7. If a large file is read at random, only the requested pages are fetched (`divided`).
//!
//! [`PolicyKind::Auto`] means *unread first* if orders cover less than half of the reads, or if one stream
//! reads everything once an epoch. Unread first keeps a fixed share and never churns; no policy does better
//! there. Otherwise it means Bélády's rule over the nearest next use of all streams.
//!
//! The planner never fails and never blocks. Any sequence of events leaves its accounts true.

mod crowd;
mod cuts;
mod divided;
mod epoch;
mod event;
mod forecast;
mod intake;
mod late;
mod layout;
mod ledger;
mod mapped;
mod outside;
mod parted;
mod parts;
mod planner;
mod policy;
mod published;
mod readers;
mod residency;
mod runs;
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
pub use window::most_ahead;
