//! The life of a connection.
//!
//! 1. The client is connected at once, since the kernel does that. It may send, but nothing is read yet.
//! 2. One delay later its first packet would be at the target. Now the target is connected.
//! 3. Another delay later the client would have the answer. Over a real link it could only now send its first
//!    byte. So now the lanes begin. If the target refused, the client's connection is closed instead.
//! 4. The lanes carry bytes until both have ended.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::{self, Scope, ScopedJoinHandle};

use crate::lane::Lane;
use crate::link::Link;

/// The stack of a thread. There are four for each connection, and none of them calls deeply.
const STACK_BYTES: usize = 256 << 10;

/// A connection that the link has admitted. The link forgets it when it is dropped.
pub(crate) struct Connection {
    link: Arc<Link>,
    number: u64,
    client: Arc<TcpStream>,
}

impl Connection {
    /// `None` if the link is cut.
    pub(crate) fn admit(link: &Arc<Link>, client: TcpStream) -> Option<Self> {
        let client = Arc::new(client);
        let number = link.admit(client.clone())?;
        Some(Self { link: link.clone(), number, client })
    }

    /// Serves the connection in threads of its own.
    pub(crate) fn start(self) {
        let builder = thread::Builder::new().name("connection".into()).stack_size(STACK_BYTES);
        // If no thread can be started, the client sees its connection close.
        let _ = builder.spawn(move || self.run());
    }

    fn run(&self) {
        if let Some(target) = self.connect() {
            // Otherwise the kernel might keep small chunks back for longer than they are to take.
            for socket in [&self.client, &target] {
                let _ = socket.set_nodelay(true);
            }
            self.carry(&target);
        }
    }

    /// Connects to the target, and returns when the client would know. `None` if it refuses, or after a cut.
    fn connect(&self) -> Option<Arc<TcpStream>> {
        if !self.one_way() {
            return None;
        }
        let target = TcpStream::connect(self.link.target.as_slice()).ok().map(Arc::new);
        if let Some(target) = &target {
            self.link.extend(self.number, target.clone());
        }
        if self.one_way() { target } else { None }
    }

    /// Waits as long as a packet travels. Returns whether the connection is still there.
    fn one_way(&self) -> bool {
        let due = self.link.now().saturating_add(self.link.shape.delay);
        self.link.await_arrival(self.number, due)
    }

    /// Carries bytes until both directions have ended.
    fn carry(&self, target: &TcpStream) {
        let up = &Lane::up(&self.link, self.number, &self.client, target);
        let down = &Lane::down(&self.link, self.number, &self.client, target);
        let stream = self.number.wrapping_mul(2);
        thread::scope(|scope| {
            let started = spawn(scope, move || up.read(stream))
                .and_then(|_| spawn(scope, move || up.write()))
                .and_then(|_| spawn(scope, move || down.read(stream.wrapping_add(1))));
            match started {
                Ok(_) => down.write(),
                Err(_) => [up, down].into_iter().for_each(Lane::abandon),
            }
        });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.link.forget(self.number);
    }
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, ()>> {
    thread::Builder::new().name("lane".into()).stack_size(STACK_BYTES).spawn_scoped(scope, work)
}
