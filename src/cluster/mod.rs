//! Which member of a cluster holds which sample.
//!
//! Every member computes the same plan from the same inputs, and asks nobody. The hash of a sample is that of its path,
//! since members number their files differently. A plan takes half a second for a million samples and 64 members. The time
//! grows with both numbers.
//!
//! 1. A [`View`] is the list of members, each with its capacity and its group.
//! 2. Samples are *covered* in the order of their hashes, until all capacity is used ([`Plan::new`]). A sample that is
//!    not covered is read from the source by its reader, and no member stores it.
//! 3. Each covered sample has a *home*, the member that wins its weighted draw (`draw`). A member that is full takes no
//!    part. If all samples are covered, the rest of the capacity is for second homes, in other groups first.
//! 4. If it is known who reads each sample next ([`Job`]), its home is that reader, as long as the reader has room
//!    ([`Plan::for_readers`]). Then samples move as they are read ([`Moves`]).
//! 5. [`Homes`] says which members may have a sample, and in which order they are asked. [`Search`] is one search.
//! 6. All nodes together may have a limit for the source. [`share`] is the part of one node.
//!
//! The draw is weighted rendezvous hashing (Schindelhauer and Schomaker 2005, "Weighted distributed hash tables"): if a
//! member comes or goes, little but its own share moves.

mod budget;
mod draw;
mod homes;
mod job;
mod keeping;
mod moves;
mod plan;
mod search;
mod told_homes;
mod uses;
mod view;

pub use budget::{Demand, share};
pub use homes::Homes;
pub use job::{Job, Rank, Report, Stream, Streams};
pub use keeping::{Kept, Worth};
pub use moves::{EpochHomes, Moves};
pub use plan::{Plan, SPARE, Samples};
pub use search::{Holder, Lack, Question, Role, Search, Step};
pub use told_homes::ToldHomes;
pub use uses::{Front, JobUses, Places, Uses};
pub use view::{BESIDE_DISK, Member, MemberNo, View};

/// Mixes the bits of a number, so that each of them depends on all (the finaliser of SplitMix64, Steele et al. 2014).
pub fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
