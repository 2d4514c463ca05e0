//! Bytes that wait in memory to be stored, whether the planner has yet to hear of them or the disk
//! to take them: one budget for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Buffer;
use crate::catalog::NodeId;

/// Bytes that may wait; what arrives beyond is not stored. The planner fetches no more ahead long
/// before.
const BYTES_MAX: usize = 128 << 20;

/// The bytes that wait.
#[derive(Default)]
pub(super) struct Backlog(Arc<AtomicUsize>);

/// Bytes that are counted until this is dropped.
struct Charge {
    backlog: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.backlog.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The bytes of a block that has arrived, and the version of its file that they are.
#[derive(Clone)]
pub struct Arrival {
    /// The version.
    pub node: NodeId,
    /// The block's bytes.
    pub bytes: Arc<Buffer>,
    _charge: Arc<Charge>,
}

impl Backlog {
    /// Bytes that have arrived, to be stored perhaps; none where too many wait.
    pub(super) fn arrival(&self, node: NodeId, bytes: &Arc<Buffer>) -> Option<Arrival> {
        let charge = Charge { backlog: Arc::clone(&self.0), bytes: bytes.len() };
        let before = self.0.fetch_add(charge.bytes, Ordering::Relaxed);
        let room = before + charge.bytes <= BYTES_MAX;
        room.then(|| Arrival { node, bytes: Arc::clone(bytes), _charge: Arc::new(charge) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_counted_until_the_last_copy_is_gone() {
        let backlog = Backlog::default();
        let bytes = Arc::new(Buffer::from(vec![0; BYTES_MAX / 4]));
        let arrive = || backlog.arrival(NodeId(1), &bytes);
        let waiting: Vec<Arrival> = (0..4).map_while(|_| arrive()).collect();
        assert_eq!(waiting.len(), 4);
        assert!(arrive().is_none());
        let copy = waiting[0].clone();
        drop(waiting);
        assert_eq!((0..4).map_while(|_| arrive()).count(), 4);
        let waiting: Vec<Arrival> = (0..4).map_while(|_| arrive()).collect();
        assert_eq!(waiting.len(), 3, "a copy still waits");
        drop((copy, waiting));
        assert_eq!(backlog.0.load(Ordering::Relaxed), 0);
    }
}
