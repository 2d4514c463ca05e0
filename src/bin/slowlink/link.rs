//! The link, which all connections share: a queue for each direction, the commands in force, and counters.
//!
//! Whatever is to arrive passes [`Link::await_arrival`]. There it waits for its time, and longer if the link
//! is stalled. Nothing of a connection that was cut arrives: it is not in the list of those present.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use belady::sync::{Condvar, Mutex};

use crate::timing::{Nanos, RateClock, nanos};

/// The numbers of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How long bytes travel, one way.
    pub(crate) delay: Nanos,
    /// The most that chance adds to that.
    pub(crate) jitter: Nanos,
    /// Bytes a second of a direction, if there is a limit.
    pub(crate) rate: Option<NonZeroU64>,
    /// The most bytes of a connection that are on their way in a direction.
    pub(crate) window: usize,
    /// Seed of the jitter.
    pub(crate) seed: u64,
}

/// One direction of the link.
pub(crate) struct Direction {
    clock: Mutex<RateClock>,
    /// Bytes that have arrived.
    arrived: AtomicU64,
}

impl Direction {
    fn new(rate: Option<NonZeroU64>) -> Self {
        Self { clock: Mutex::new(RateClock::new(rate)), arrived: AtomicU64::new(0) }
    }

    /// Counts bytes that arrive.
    pub(crate) fn arrived(&self, bytes: usize) {
        self.arrived.fetch_add(bytes as u64, Relaxed);
    }
}

#[derive(Default)]
struct State {
    is_stalled: bool,
    is_cut: bool,
    /// Connections since the start.
    admitted: u64,
    /// The sockets of each connection that is present.
    present: HashMap<u64, Vec<Arc<TcpStream>>>,
}

/// The link.
pub(crate) struct Link {
    pub(crate) shape: Shape,
    /// The addresses of the target. One of them has to answer.
    pub(crate) target: Vec<SocketAddr>,
    /// From clients to the target.
    pub(crate) up: Direction,
    /// From the target to clients.
    pub(crate) down: Direction,
    began: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

impl Link {
    /// An idle link.
    pub(crate) fn new(shape: Shape, target: Vec<SocketAddr>) -> Self {
        Self {
            shape,
            target,
            up: Direction::new(shape.rate),
            down: Direction::new(shape.rate),
            began: Instant::now(),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// The time on the link's clock.
    pub(crate) fn now(&self) -> Nanos {
        nanos(self.began.elapsed())
    }

    /// When bytes leave that join the queue of a direction now.
    pub(crate) fn depart(&self, direction: &Direction, bytes: usize) -> Nanos {
        let mut clock = direction.clock.lock();
        // Under the lock, so that bytes join in the order of their times.
        clock.depart(self.now(), bytes)
    }

    /// Waits until `due`, and until the link is not stalled. Returns whether the connection is still there.
    pub(crate) fn await_arrival(&self, connection: u64, due: Nanos) -> bool {
        let mut state = self.state.lock();
        while state.present.contains_key(&connection) {
            let left = due.saturating_sub(self.now());
            if state.is_stalled {
                state = self.changed.wait(state);
            } else if left > 0 {
                state = self.changed.wait_timeout(state, Duration::from_nanos(left));
            } else {
                return true;
            }
        }
        false
    }

    /// Gives a client's connection its number. `None` if the link is cut.
    pub(crate) fn admit(&self, client: Arc<TcpStream>) -> Option<u64> {
        let mut state = self.state.lock();
        if state.is_cut {
            return None;
        }
        let number = state.admitted;
        state.admitted += 1;
        state.present.insert(number, vec![client]);
        Some(number)
    }

    /// Adds the other socket of a connection, unless the connection was cut.
    pub(crate) fn extend(&self, connection: u64, target: Arc<TcpStream>) {
        if let Some(sockets) = self.state.lock().present.get_mut(&connection) {
            sockets.push(target);
        }
    }

    /// A connection has ended.
    pub(crate) fn forget(&self, connection: u64) {
        let sockets = self.state.lock().present.remove(&connection);
        // Not under the lock: the last owner of a socket closes it.
        drop(sockets);
    }

    /// Lets nothing arrive.
    pub(crate) fn stall(&self) {
        self.state.lock().is_stalled = true;
        self.changed.notify_all();
    }

    /// Closes all connections, and admits no new ones.
    pub(crate) fn cut(&self) {
        let mut state = self.state.lock();
        state.is_cut = true;
        let cut = std::mem::take(&mut state.present);
        drop(state);
        self.changed.notify_all();
        for socket in cut.values().flatten() {
            // Threads that read or write return. The last one closes the socket.
            let _ = socket.shutdown(Shutdown::Both);
        }
        // What was cut does not use the link after the cut.
        for direction in [&self.up, &self.down] {
            direction.clock.lock().clear();
        }
    }

    /// Ends a stall and a cut. What was due arrives now.
    pub(crate) fn resume(&self) {
        let mut state = self.state.lock();
        state.is_stalled = false;
        state.is_cut = false;
        drop(state);
        self.changed.notify_all();
    }

    /// The connections and the bytes since the start, for people and scripts.
    pub(crate) fn count(&self) -> String {
        let connections = self.state.lock().admitted;
        let (down, up) = (self.down.arrived.load(Relaxed), self.up.arrived.load(Relaxed));
        format!("connections {connections} bytes-down {down} bytes-up {up}")
    }
}
