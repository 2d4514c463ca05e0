//! Predicts when each block is read next, and chooses the policy.
//!
//! 1. The orders that are followed give the next read. If they cover too few of the reads, the
//!    blocks that this epoch has not read are expected in it, all others in the next one (`unread`).
//! 2. With [`PolicyKind::Auto`] the policy follows from this.

use std::sync::Arc;

use super::layout::Layout;
use super::outside::Outside;
use super::policy::NextUse;
use super::stream::Stream;
use super::unread::Unread;
use crate::config::PolicyKind;
use crate::ids::{BlockId, StreamId};

/// The streams, and the reads of this epoch.
pub(super) struct Forecast {
    layout: Arc<Layout>,
    slots: Vec<Option<Stream>>,
    pub(super) unread: Unread,
    pub(super) outside: Outside,
    /// The configured policy.
    asked: PolicyKind,
    policy: PolicyKind,
    /// Whether `unread` predicts the next reads in place of the orders.
    orders_say_little: bool,
    /// The planner's clock: number of counted opens.
    pub(super) ticks: u64,
}

impl Forecast {
    pub(super) fn new(asked: PolicyKind, layout: &Arc<Layout>) -> Self {
        Forecast {
            layout: Arc::clone(layout),
            slots: Vec::new(),
            unread: Unread::new(layout.blocks()),
            outside: Outside::default(),
            asked,
            policy: PolicyKind::None,
            orders_say_little: true,
            ticks: 0,
        }
    }

    pub(super) fn lay_out(&mut self, layout: &Arc<Layout>) {
        self.layout = Arc::clone(layout);
        self.unread.grow(layout.blocks());
    }

    pub(super) fn stream(&self, id: StreamId) -> Option<&Stream> {
        self.slots.get(id.index())?.as_ref()
    }

    pub(super) fn stream_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.slots.get_mut(id.index())?.as_mut()
    }

    pub(super) fn set(&mut self, id: StreamId, stream: Option<Stream>) {
        if self.slots.len() <= id.index() {
            self.slots.resize_with(id.index() + 1, || None);
        }
        self.slots[id.index()] = stream;
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = &Stream> + Clone {
        self.slots.iter().flatten()
    }

    pub(super) fn streams_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.slots.iter_mut().flatten()
    }

    pub(super) fn numbered(&self) -> impl Iterator<Item = (StreamId, &Stream)> + Clone {
        let numbered = self.slots.iter().zip(0..);
        numbered.filter_map(|(stream, id)| Some((StreamId(id), stream.as_ref()?)))
    }

    pub(super) fn numbered_mut(&mut self) -> impl Iterator<Item = (StreamId, &mut Stream)> {
        let numbered = self.slots.iter_mut().zip(0..);
        numbered.filter_map(|(stream, id)| Some((StreamId(id), stream.as_mut()?)))
    }

    fn following(&self) -> impl Iterator<Item = &Stream> + Clone {
        self.streams().filter(|stream| stream.is_following())
    }

    /// Whether an order that is followed has the block.
    pub(super) fn is_foreseen(&self, block: BlockId) -> bool {
        self.following().any(|stream| stream.contains(block))
    }

    /// Whether an order that is followed has the block for a range of its file.
    pub(super) fn is_of_range(&self, block: BlockId) -> bool {
        self.following().any(|stream| stream.is_ranged() && stream.contains(block))
    }

    /// The reads until all streams that are being read have ended their epochs. Idle streams, such as a
    /// validation loader's, are expected to begin then.
    pub(super) fn left_to_readers(&self) -> u64 {
        let read = self.streams().filter(|stream| stream.is_read());
        read.map(|stream| u64::from(stream.left())).max().unwrap_or_default()
    }

    /// The policy in force.
    pub(super) fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// Whether blocks that this epoch has not read are fetched in place of blocks that it has read.
    pub(super) fn is_unread_first(&self) -> bool {
        self.orders_say_little && self.policy == PolicyKind::UnreadFirst
    }

    pub(super) fn orders_say_little(&self) -> bool {
        self.orders_say_little
    }

    /// Whether no order is followed, or the orders cover less than half of what an epoch reads. A block
    /// outside the orders may then still be read.
    fn cover_little(&self) -> bool {
        let lengths = self.following().map(|stream| u64::from(stream.len()));
        self.following().next().is_none()
            || 2 * lengths.sum::<u64>() < u64::from(self.unread.size())
    }

    pub(super) fn choose_policy(&mut self) {
        self.orders_say_little = self.cover_little();
        let is_once = self.following().count() == 1 && self.following().all(Stream::is_permutation);
        self.policy = match self.asked {
            PolicyKind::Auto if self.orders_say_little || is_once => PolicyKind::UnreadFirst,
            PolicyKind::Auto => PolicyKind::Belady,
            asked => asked,
        };
    }

    /// Counts a read for the epoch. Returns whether other blocks are expected at other times than before.
    pub(super) fn count(&mut self, block: BlockId) -> bool {
        let changed = self.unread.note_read(block);
        changed
            && (self.orders_say_little || self.cover_little())
            && self.policy == PolicyKind::UnreadFirst
    }

    /// When a block is read next. `unstaged`: reads for which it is staged already do not count.
    pub(super) fn next_use(&self, block: BlockId, unstaged: bool) -> NextUse {
        if self.orders_say_little {
            // A large file is read as a whole.
            let first = self.layout.blocks_of(self.layout.unit_of(block)).next();
            return NextUse::At(self.unread.next_read(first.unwrap_or(block)));
        }
        if self.outside.is_expected(block) {
            return NextUse::At(0);
        }
        let by_epoch = self.policy == PolicyKind::UnreadFirst;
        let uses = self.streams().filter_map(|stream| {
            let (ticks, epochs) = stream.next_use(block, unstaged)?;
            let epoch = u64::from(stream.number()) + epochs;
            Some(if by_epoch { epoch } else { self.ticks + ticks })
        });
        uses.min().map_or(NextUse::Never, NextUse::At)
    }

    /// Ticks until an order reads the block next.
    pub(super) fn soonest(&self, block: BlockId) -> Option<u64> {
        let uses = self.streams().filter_map(|stream| stream.next_use(block, false));
        uses.map(|(ticks, _)| ticks).min()
    }
}
