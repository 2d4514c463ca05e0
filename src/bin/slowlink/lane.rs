//! One direction of a connection: a thread that reads, and one that writes.
//!
//! The reader reads a chunk, asks when it arrives, and adds it to the queue. The writer takes the chunk,
//! waits for its time, and writes it. There are three ends:
//!
//! * The sender closes its stream. The writer closes the stream of the receiver when that news arrives. The
//!   other direction goes on.
//! * The sender is gone, which a failed read shows. When that news arrives, the writer closes both sockets.
//! * The receiver is gone, which a failed write shows. The news needs one delay to the sender. Until then the
//!   sender may fill the window. Then the writer closes both sockets.
//!
//! Sockets that are closed end the threads of both lanes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::link::{Direction, Link};
use crate::queue::{Freight, Queue};
use crate::timing::Arrivals;

/// The most bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// One direction of a connection.
pub(crate) struct Lane<'a> {
    link: &'a Link,
    direction: &'a Direction,
    /// The number of the connection.
    connection: u64,
    from: &'a TcpStream,
    to: &'a TcpStream,
    queue: Queue,
}

impl<'a> Lane<'a> {
    /// From the client of a connection to the target.
    pub(crate) fn up(
        link: &'a Link,
        connection: u64,
        client: &'a TcpStream,
        target: &'a TcpStream,
    ) -> Self {
        let queue = Queue::new(link.shape.window);
        Self { link, direction: &link.up, connection, from: client, to: target, queue }
    }

    /// From the target of a connection to the client.
    pub(crate) fn down(
        link: &'a Link,
        connection: u64,
        client: &'a TcpStream,
        target: &'a TcpStream,
    ) -> Self {
        let queue = Queue::new(link.shape.window);
        Self { link, direction: &link.down, connection, from: target, to: client, queue }
    }

    /// The thread that reads. `stream` is another one for each lane.
    pub(crate) fn read(&self, stream: u64) {
        let shape = &self.link.shape;
        let mut arrivals = Arrivals::new(shape.delay, shape.jitter, shape.seed, stream);
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Some(room) = self.queue.room() {
            let freight = receive(self.from, &mut buffer[..room.min(CHUNK_BYTES)]);
            let departed = self.link.depart(self.direction, freight.bytes());
            let is_last = !matches!(freight, Freight::Bytes(_));
            self.queue.add(arrivals.arrive(departed), freight);
            if is_last {
                return;
            }
        }
    }

    /// The thread that writes.
    pub(crate) fn write(&self) {
        let mut to = self.to;
        while let Some((due, freight)) = self.queue.take() {
            if !self.link.await_arrival(self.connection, due) {
                break;
            }
            match freight {
                Freight::Bytes(bytes) => {
                    // Counted first: a receiver that has the bytes must find them counted.
                    self.direction.arrived(bytes.len());
                    if to.write_all(&bytes).is_err() {
                        self.await_news_of_loss();
                        break;
                    }
                    self.queue.written(bytes.len());
                }
                Freight::End => {
                    // It fails if the receiver is gone. Then the other lane ends by itself.
                    let _ = self.to.shutdown(Shutdown::Write);
                    return;
                }
                Freight::Broken => break,
            }
        }
        self.abandon();
    }

    /// Waits until the sender would know that the receiver is gone.
    fn await_news_of_loss(&self) {
        let known = self.link.now().saturating_add(self.link.shape.delay);
        // A connection that is cut meanwhile ends all the same.
        self.link.await_arrival(self.connection, known);
    }

    /// Closes both sockets for both directions, and ends the threads of this lane.
    pub(crate) fn abandon(&self) {
        for socket in [self.from, self.to] {
            // It fails if the other side has closed it already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.queue.abandon();
    }
}

/// Reads what there is, but at least one byte.
fn receive(mut from: &TcpStream, buffer: &mut [u8]) -> Freight {
    loop {
        match from.read(buffer) {
            Ok(0) => return Freight::End,
            Ok(bytes) => return Freight::Bytes(buffer[..bytes].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Freight::Broken,
        }
    }
}
