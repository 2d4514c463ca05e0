//! Old samples of a mix are read ahead, in the order that was told.
//!
//! The planner fetches the samples of the dataset in an order over a mix. Old samples are no files of the dataset: it does not
//! know them. A thread looks where the readers of such orders are, and has the old samples that come next brought into memory,
//! from this node's cache disk or from the node that keeps them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::Core;
use crate::ids::StreamId;
use crate::order::Order;
use crate::plan::Published;
use crate::rehearsal::ViewListing;
use crate::source::{Pool, Urgency};
use crate::sync::Mutex;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Bytes that are ahead of all readers at most.
const AHEAD_BYTES: u64 = 16 << 20;

const READERS: usize = 4;

/// The orders over mixes that are followed.
pub(super) struct ViewOrders {
    followed: Mutex<HashMap<StreamId, ViewOrder>>,
    readers: Pool,
}

/// An order over a view.
struct ViewOrder {
    order: Arc<Order>,
    files: ViewListing,
    /// The epoch that was looked at last, with its samples.
    epoch: Option<(u32, Vec<u32>)>,
    /// The first position of it that was not looked at yet.
    next: usize,
    /// The old samples before that which no reader has come to: their positions and bytes, and the sum of these.
    ahead: VecDeque<(usize, u64)>,
    ahead_bytes: u64,
}

impl ViewOrders {
    pub(super) fn new() -> Self {
        let readers = Pool::new("belady-mix", READERS, 0);
        ViewOrders { followed: Mutex::default(), readers }
    }

    /// A stream follows this order from now on. `files` has the files of the view that it is over, if it is over one.
    pub(super) fn follow(&self, stream: StreamId, order: &Arc<Order>, files: Option<ViewListing>) {
        let mut followed = self.followed.lock();
        match files {
            Some(files) => {
                let (epoch, next, ahead, ahead_bytes) = Default::default();
                let order = Arc::clone(order);
                let order = ViewOrder { order, files, epoch, next, ahead, ahead_bytes };
                followed.insert(stream, order);
            }
            None => drop(followed.remove(&stream)),
        }
    }

    pub(super) fn withdraw(&self, stream: StreamId) {
        self.followed.lock().remove(&stream);
    }

    /// Has the old samples read ahead that readers come to next.
    fn look(&self, published: &Mutex<Published>) {
        let mut followed = self.followed.lock();
        let progress = |stream: &StreamId| {
            let published = published.lock();
            published.progress(*stream).map(|progress| (progress.epoch, progress.front as usize))
        };
        let most = AHEAD_BYTES / followed.len().max(1) as u64;
        for (stream, order) in &mut *followed {
            if let Some((epoch, front)) = progress(stream) {
                order.read_ahead(&self.readers, most, epoch, front);
            }
        }
    }
}

impl ViewOrder {
    fn read_ahead(&mut self, readers: &Pool, most: u64, epoch: u32, front: usize) {
        if self.epoch.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let samples = self.order.epochs(epoch).next().unwrap_or_default().to_vec();
            (self.epoch, self.next) = (Some((epoch, samples)), 0);
            (self.ahead, self.ahead_bytes) = Default::default();
        }
        let Some((_, samples)) = &self.epoch else { return };
        while let Some((position, bytes)) = self.ahead.front().copied()
            && position < front
        {
            self.ahead.pop_front();
            self.ahead_bytes -= bytes;
        }
        self.next = self.next.max(front);
        while self.ahead_bytes < most
            && let Some(id) = samples.get(self.next)
        {
            if let Some(sample) = self.files.old_sample(self.order.samples().get(*id).file) {
                let (sample, bytes) = (Arc::clone(sample), u64::from(sample.bytes.length()));
                self.ahead.push_back((self.next, bytes));
                self.ahead_bytes += bytes;
                // Its reader gets the error.
                readers.submit(Urgency::Prefetch, move || _ = sample.bytes.warm());
            }
            self.next += 1;
        }
    }
}

/// Starts the thread. It ends with the engine.
pub(super) fn start(core: &Arc<Core>, orders: &Arc<ViewOrders>, published: &Arc<Mutex<Published>>) {
    let (core, orders, published) = (Arc::clone(core), Arc::clone(orders), Arc::clone(published));
    let look = move || {
        while core.stop.pause(LOOK_EVERY) {
            // Most mounts follow none.
            if !orders.followed.lock().is_empty() {
                orders.look(&published);
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("belady-mixes".into()).spawn(look) {
        tracing::warn!(%error, "old samples of mixes are not read ahead");
    }
}
