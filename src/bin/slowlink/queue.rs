//! What is on its way in one direction of a connection.
//!
//! The reader adds freight with the time of its arrival, the writer takes it. Bytes count until they are
//! written. While they fill the window, the reader waits. Then the sender's buffers fill, and the sender has
//! to wait, too.

use std::collections::VecDeque;

use belady::sync::{Condvar, Mutex};

use crate::timing::Nanos;

/// What travels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Freight {
    /// Some bytes of the stream.
    Bytes(Vec<u8>),
    /// The sender sends no more, but may still read.
    End,
    /// The sender is gone.
    Broken,
}

impl Freight {
    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Freight::Bytes(bytes) => bytes.len(),
            Freight::End | Freight::Broken => 0,
        }
    }
}

/// The freight between a reader and a writer.
pub(crate) struct Queue {
    window: usize,
    state: Mutex<State>,
    /// There is freight for the writer.
    added: Condvar,
    /// There is room for the reader.
    written: Condvar,
}

#[derive(Default)]
struct State {
    freight: VecDeque<(Nanos, Freight)>,
    /// Bytes that were added and not yet written.
    on_the_way: usize,
    is_abandoned: bool,
}

impl Queue {
    /// An empty queue for `window` bytes.
    pub(crate) fn new(window: usize) -> Self {
        Self {
            window,
            state: Mutex::default(),
            added: Condvar::default(),
            written: Condvar::default(),
        }
    }

    /// Waits until there is room, and returns for how many bytes. `None` if the queue is abandoned.
    pub(crate) fn room(&self) -> Option<usize> {
        let mut state = self.state.lock();
        loop {
            let room = self.window.saturating_sub(state.on_the_way);
            if state.is_abandoned {
                return None;
            }
            if room > 0 {
                return Some(room);
            }
            state = self.written.wait(state);
        }
    }

    /// Adds freight that arrives at `due`.
    pub(crate) fn add(&self, due: Nanos, freight: Freight) {
        let mut state = self.state.lock();
        state.on_the_way = state.on_the_way.saturating_add(freight.bytes());
        state.freight.push_back((due, freight));
        drop(state);
        self.added.notify_one();
    }

    /// Waits for the next freight and takes it. `None` if the queue is abandoned.
    pub(crate) fn take(&self) -> Option<(Nanos, Freight)> {
        let mut state = self.state.lock();
        while !state.is_abandoned {
            match state.freight.pop_front() {
                Some(next) => return Some(next),
                None => state = self.added.wait(state),
            }
        }
        None
    }

    /// Bytes that were taken are written.
    pub(crate) fn written(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.on_the_way = state.on_the_way.saturating_sub(bytes);
        drop(state);
        self.written.notify_one();
    }

    /// Drops all freight. Nobody waits here any more.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_abandoned = true;
        let freight = std::mem::take(&mut state.freight);
        drop(state);
        drop(freight);
        self.added.notify_all();
        self.written.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn bytes(count: usize) -> Freight {
        Freight::Bytes(vec![7; count])
    }

    #[test]
    fn freight_comes_out_in_order() {
        let queue = Queue::new(10);
        queue.add(5, bytes(3));
        queue.add(6, Freight::End);
        assert_eq!(queue.take(), Some((5, bytes(3))));
        assert_eq!(queue.take(), Some((6, Freight::End)));
    }

    #[test]
    fn bytes_need_room_until_they_are_written() {
        let queue = Queue::new(10);
        assert_eq!(queue.room(), Some(10));
        queue.add(0, bytes(6));
        assert_eq!(queue.room(), Some(4));
        queue.add(0, bytes(4));
        thread::scope(|scope| {
            let reader = scope.spawn(|| queue.room());
            assert_eq!(queue.take(), Some((0, bytes(6))));
            queue.written(6);
            assert_eq!(reader.join().unwrap(), Some(6));
        });
    }

    #[test]
    fn an_abandoned_queue_lets_everybody_go() {
        let (empty, full) = (Queue::new(10), Queue::new(10));
        full.add(0, bytes(10));
        thread::scope(|scope| {
            let writer = scope.spawn(|| empty.take());
            let reader = scope.spawn(|| full.room());
            empty.abandon();
            full.abandon();
            assert_eq!((writer.join().unwrap(), reader.join().unwrap()), (None, None));
        });
        assert_eq!(full.take(), None);
    }
}
