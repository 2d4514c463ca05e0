//! How many directories are listed at once for their attributes. The limiter finds how many the store serves best.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Places for listings under way. Their number changes when one is taken or given back.
pub(super) struct Places {
    free: Semaphore,
    /// Free places, and those that are taken.
    all: AtomicU32,
}

impl Places {
    pub(super) fn new(count: u32) -> Self {
        Places { free: Semaphore::new(count as usize), all: AtomicU32::new(count) }
    }

    /// Waits for a place. There are to be so many at least.
    pub(super) async fn take(&self, wanted: u32) -> Option<SemaphorePermit<'_>> {
        let before = self.all.fetch_max(wanted, Relaxed);
        self.free.add_permits(wanted.saturating_sub(before) as usize);
        // It is never closed.
        self.free.acquire().await.ok()
    }

    /// Gives a place back. There are to be so many.
    pub(super) fn give_back(&self, place: Option<SemaphorePermit<'_>>, wanted: u32) {
        let change = |all: u32| match all.cmp(&wanted) {
            Ordering::Less => Some(wanted),
            Ordering::Equal => None,
            Ordering::Greater => Some(all - 1),
        };
        match self.all.fetch_update(Relaxed, Relaxed, change) {
            Ok(before) if before > wanted => place.into_iter().for_each(SemaphorePermit::forget),
            Ok(before) => self.free.add_permits((wanted - before) as usize),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_are_as_many_places_as_are_wanted() {
        let places = Places::new(2);
        let free = || places.free.available_permits();
        let (one, other) = (places.take(2).await, places.take(1).await);
        assert_eq!(free(), 0);
        places.give_back(one, 5);
        assert_eq!(free(), 4);
        // One is taken away with each that is given back.
        places.give_back(other, 3);
        assert_eq!(free(), 4);
        let third = places.take(3).await;
        places.give_back(third, 3);
        assert_eq!(free(), 3);
        let fourth = places.take(6).await;
        assert_eq!(free(), 5);
        places.give_back(fourth, 6);
        assert_eq!(free(), 6);
    }
}
