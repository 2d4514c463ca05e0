//! Memory that buffers have let go of, for the next ones.
//!
//! The kernel finds and clears each page that is new to a process. So the memory of large buffers is used again. The
//! newest memory is taken first. It may still be in a processor's cache.

use std::collections::VecDeque;

use crate::sync::Mutex;

/// Bytes that are kept for the next buffers.
const MOST: usize = 8 << 20;

/// Smaller memory is not kept: the allocator gives it quickly.
const SMALLEST: usize = 32 << 10;

static SPARE: Mutex<Spare> = Mutex::new(Spare::new(MOST));

/// Empty memory for at least so many bytes. It may have room for more.
pub fn memory_for(length: usize) -> Vec<u8> {
    let found = if length < SMALLEST { None } else { SPARE.lock().take(length) };
    found.unwrap_or_else(|| Vec::with_capacity(length))
}

/// Lets go of memory.
pub(super) fn let_go(memory: Vec<u8>) {
    if memory.capacity() >= SMALLEST {
        let past = SPARE.lock().add(memory);
        // Under no lock.
        drop(past);
    }
}

struct Spare {
    /// The oldest is first.
    memory: VecDeque<Vec<u8>>,
    bytes: usize,
    most: usize,
}

impl Spare {
    const fn new(most: usize) -> Self {
        Spare { memory: VecDeque::new(), bytes: 0, most }
    }

    /// Takes memory for so many bytes that has room for at most a quarter more: all of it counts as used, however few
    /// bytes are in it.
    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        let fits = |memory: &Vec<u8>| (length..=length + length / 4).contains(&memory.capacity());
        let place = self.memory.iter().rposition(fits)?;
        let mut memory = self.memory.remove(place)?;
        self.bytes -= memory.capacity();
        memory.clear();
        Some(memory)
    }

    /// Adds memory. Returns what is too much now.
    fn add(&mut self, memory: Vec<u8>) -> Vec<Vec<u8>> {
        self.bytes += memory.capacity();
        self.memory.push_back(memory);
        let mut past = Vec::new();
        while self.bytes > self.most
            && let Some(oldest) = self.memory.pop_front()
        {
            self.bytes -= oldest.capacity();
            past.push(oldest);
        }
        past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_memory_that_fits_is_taken_and_the_oldest_is_given_up() {
        let mut spare = Spare::new(100);
        let memory = |capacity, byte| {
            let mut memory = Vec::with_capacity(capacity);
            memory.push(byte);
            memory
        };
        let places = [memory(40, 1), memory(30, 2), memory(30, 3)];
        let at: Vec<*const u8> = places.iter().map(Vec::as_ptr).collect();
        for memory in places {
            assert!(spare.add(memory).is_empty());
        }
        assert!(spare.take(41).is_none() && spare.take(23).is_none());
        let taken = spare.take(25).unwrap();
        assert!(taken.is_empty() && taken.capacity() == 30 && taken.as_ptr() == at[2]);
        let past = spare.add(memory(90, 4));
        assert_eq!(past.iter().map(Vec::as_ptr).collect::<Vec<_>>(), at[..2]);
        assert_eq!(spare.bytes, 90);
        // More than all that is kept.
        assert_eq!(spare.add(memory(101, 5)).len(), 2);
        assert_eq!(spare.bytes, 0);
    }

    #[test]
    fn memory_has_room_for_what_is_asked_and_holds_nothing() {
        for length in [0, 1, SMALLEST, 100_000, 2 * MOST] {
            let mut memory = memory_for(length);
            assert!(memory.is_empty() && memory.capacity() >= length);
            memory.resize(length, 7);
            let_go(memory);
        }
        assert!(memory_for(100_000).is_empty());
    }
}
