//! Where the readers of an order stand: for the planner, whose orders are of blocks, and for the learner,
//! whose orders are of samples. Both are the *items* here.
//!
//! 1. A `Sequence` says at which places of its order an item is read.
//! 2. A `BitSet` says which places have been read.
//! 3. `Readers` say where each reader stands, and where the hindmost does.
//!
//! What an open means is not judged here, since two different questions are asked. The planner knows the
//! order and sees few opens: it asks whether an open counts as the read of its place, and which unseen places
//! were read before it (`plan/task`). The learner sees each open and doubts the order: it asks how much an
//! open says for one order out of billions (`learn/evidence`).

mod bit_set;
mod readers;
mod sequence;

pub(crate) use bit_set::BitSet;
pub(crate) use readers::{Reader, Readers};
pub(crate) use sequence::Sequence;
