//! The blocks that the ranks of a job read in each epoch, by the numbers of this node's catalog.

use std::sync::Arc;

use crate::cluster::{Job, MemberNo, Places, View};
use crate::error::{Error, ErrorKind, Result};
use crate::order::spec::SequenceSpec;
use crate::order::{EpochIter, Listing, Order, OrderSpec};
use crate::plan::Layout;

/// The orders of a job's ranks.
pub(super) struct JobOrders {
    ranks: Vec<Order>,
    layout: Arc<Layout>,
    /// The epochs of all ranks from this one on.
    next: u32,
    coming: Vec<EpochIter>,
}

impl JobOrders {
    /// # Errors
    /// If an order of the job does not fit the files.
    pub(super) fn of(job: &Job, listing: &Listing<'_>, layout: &Arc<Layout>) -> Result<Self> {
        let mut ranks: Vec<Order> = Vec::with_capacity(job.ranks.len());
        for rank in &job.ranks {
            // The index is the same for all ranks.
            let order = match ranks.first() {
                Some(first) => of_rank(first, &rank.order)?,
                None => rank.order.resolve(listing, &[])?,
            };
            ranks.push(order);
        }
        Ok(JobOrders { ranks, layout: Arc::clone(layout), next: 0, coming: Vec::new() })
    }

    /// All blocks that the job may read.
    pub(super) fn blocks(&self) -> impl Iterator<Item = usize> {
        let first = self.ranks.iter().take(1);
        first.flat_map(|order| order.ids().flat_map(|id| blocks_of(order, id, &self.layout)))
    }

    /// The blocks that the ranks read in an epoch: each with the rank, and its position among those of the rank.
    pub(super) fn reads(&mut self, epoch: u32) -> Vec<(usize, u16, u32)> {
        if self.coming.is_empty() || self.next != epoch {
            self.coming = self.ranks.iter().map(|order| order.epochs(epoch)).collect();
        }
        self.next = epoch.wrapping_add(1);
        let mut reads = Vec::new();
        for ((order, epochs), rank) in self.ranks.iter().zip(&mut self.coming).zip(0..) {
            let ids = epochs.next().unwrap_or_default();
            let blocks = ids.iter().flat_map(|id| blocks_of(order, *id, &self.layout));
            reads.extend(blocks.zip(0..).map(|(block, position)| (block, rank, position)));
        }
        reads
    }

    pub(super) fn places(&mut self, epoch: u32) -> Places {
        Places::new(self.layout.blocks(), self.reads(epoch).into_iter())
    }
}

fn blocks_of(order: &Order, id: u32, layout: &Layout) -> impl Iterator<Item = usize> {
    let sample = order.samples().get(id);
    let length = sample.length.unwrap_or(u64::MAX);
    let known = layout.blocks();
    let blocks = layout.blocks_in(sample.file, sample.offset, length);
    blocks.map(|block| block.index()).filter(move |block| *block < known)
}

fn of_rank(first: &Order, spec: &OrderSpec) -> Result<Order> {
    let drawn = match &spec.sequence {
        SequenceSpec::Sampler(sampler) => first.redrawn(sampler.clone()),
        SequenceSpec::File(_) => None,
    };
    drawn.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, format!("{spec} is not drawn"))))
}

/// Which member reads each block, in each epoch of a job that deals blocks out to its ranks.
pub(super) struct NextReaders {
    orders: JobOrders,
    /// The member of each rank, if it is in the view.
    members: Vec<Option<MemberNo>>,
    /// By block, whether other jobs read it, too.
    is_shared: Vec<bool>,
}

impl NextReaders {
    /// The readers of a job, beside `others`.
    ///
    /// # Errors
    /// The orders, if several readers have most of what the job reads.
    pub(super) fn of<'a>(
        job: &Job,
        orders: JobOrders,
        others: impl Iterator<Item = &'a JobOrders>,
        view: &View,
    ) -> std::result::Result<Self, JobOrders> {
        if !job.is_dealt() {
            return Err(orders);
        }
        let mut is_shared = vec![false; orders.layout.blocks()];
        for other in others {
            other.blocks().for_each(|block| is_shared[block] = true);
        }
        let (mut all, mut shared) = (0, 0);
        for block in orders.blocks() {
            (all, shared) = (all + 1, shared + usize::from(is_shared[block]));
        }
        let member = |id: &u64| view.numbers().find(|number| view.member(*number).id == *id);
        let members = job.ranks.iter().map(|rank| rank.members.first().and_then(member)).collect();
        match 2 * shared <= all {
            true => Ok(NextReaders { orders, members, is_shared }),
            false => Err(orders),
        }
    }

    /// The member that reads each block in an epoch. Nobody does if several jobs read it, or if it is not known.
    pub(super) fn in_epoch(&mut self, epoch: u32) -> Vec<Option<MemberNo>> {
        let mut readers = vec![None; self.is_shared.len()];
        for (block, rank, _) in self.orders.reads(epoch) {
            if !self.is_shared[block] && readers[block].is_none() {
                // Padding repeats blocks. The first rank counts.
                readers[block] = self.members[usize::from(rank)];
            }
        }
        readers
    }
}
