//! Old samples of a mix are read ahead, in the order that was told.
//!
//! The planner fetches the samples of the dataset in an order over a mix. Old samples are no files of the dataset: it does not
//! know them. A thread looks where the readers of such orders are, and has the old samples that come next brought into memory,
//! from this node's cache disk or from the node that keeps them.

use std::collections::HashMap;
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

/// Bytes that are ahead of a reader at most.
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
    /// The first position of it that was not read ahead yet.
    next: usize,
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
                let order = ViewOrder { order: Arc::clone(order), files, epoch: None, next: 0 };
                followed.insert(stream, order);
            }
            None => drop(followed.remove(&stream)),
        }
    }

    pub(super) fn withdraw(&self, stream: StreamId) {
        self.followed.lock().remove(&stream);
    }

    /// Has the old samples read ahead that readers come to next.
    fn look(&self, published: &Published) {
        for (stream, order) in &mut *self.followed.lock() {
            if let Some(progress) = published.progress(*stream) {
                order.read_ahead(&self.readers, progress.epoch, progress.front as usize);
            }
        }
    }
}

impl ViewOrder {
    fn read_ahead(&mut self, readers: &Pool, epoch: u32, front: usize) {
        if self.epoch.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let samples = self.order.epochs(epoch).next().unwrap_or_default().to_vec();
            (self.epoch, self.next) = (Some((epoch, samples)), 0);
        }
        let Some((_, samples)) = &self.epoch else { return };
        let (mut at, mut bytes) = (front, 0);
        while at < samples.len() && bytes < AHEAD_BYTES {
            let file = self.order.samples().get(samples[at]).file;
            if let Some(sample) = self.files.old_sample(file) {
                bytes += u64::from(sample.bytes.length());
                if at >= self.next {
                    let sample = Arc::clone(sample);
                    // Its reader gets the error.
                    readers.submit(Urgency::Prefetch, move || _ = sample.bytes.warm());
                }
            }
            at += 1;
        }
        self.next = self.next.max(at);
    }
}

/// Starts the thread. It ends with the engine.
pub(super) fn start(core: &Arc<Core>, orders: &Arc<ViewOrders>, published: &Arc<Mutex<Published>>) {
    let (core, orders, published) = (Arc::clone(core), Arc::clone(orders), Arc::clone(published));
    let look = move || {
        while core.stop.pause(LOOK_EVERY) {
            // Most mounts follow none.
            if !orders.followed.lock().is_empty() {
                let published = published.lock().clone();
                orders.look(&published);
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("belady-mixes".into()).spawn(look) {
        tracing::warn!(%error, "old samples of mixes are not read ahead");
    }
}
