//! slowlink: a TCP proxy that makes the way to a server as long and as narrow as it is over an ocean.
//!
//! A tool for tests and measurements. A kernel can delay packets, but many kernels are built without that.
//! slowlink needs nothing of the kernel: it delays bytes between two sockets. A connection passes through
//! these parts:
//!
//! 1. [`accept`] accepts a client at once.
//! 2. [`connection`] connects to the target when the client's first packet would arrive there. The client's
//!    bytes leave when the answer to that packet would be back.
//! 3. Each direction of the connection is a [`lane`] with two threads. One reads from a socket while the
//!    window has room ([`queue`]).
//! 4. [`timing`] tells when the bytes arrive. First they wait until all bytes before them have left, of
//!    whatever connection. Then they travel for the delay and some jitter.
//! 5. The other thread sleeps until then, and writes to the other socket. The end of a stream travels like
//!    bytes.
//!
//! [`link`] is what all connections share. [`control`] stalls and cuts it at run time.

mod cli;
mod connection;
mod control;
mod lane;
mod link;
mod queue;
mod timing;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use nix::sys::prctl;

use cli::Cli;
use connection::Connection;
use link::Link;

/// How long to wait after a client could not be accepted, most likely for want of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("slowlink: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until the process is killed.
fn run(cli: &Cli) -> Result<(), String> {
    // All threads inherit this. The default slack of 50 us would be added to every sleep.
    let _ = prctl::set_timerslack(1);
    let target = resolve(&cli.to).map_err(|e| format!("cannot resolve {}: {e}", cli.to))?;
    let cannot_listen = |at: &str, error: io::Error| format!("cannot listen at {at}: {error}");
    let listener = TcpListener::bind(&cli.listen).map_err(|e| cannot_listen(&cli.listen, e))?;
    let link = Arc::new(Link::new(cli.shape(), target));
    if let Some(path) = &cli.control {
        let listening = control::listen(path, link.clone());
        listening.map_err(|e| cannot_listen(&path.display().to_string(), e))?;
    }
    announce(&listener).map_err(|e| format!("cannot print the address: {e}"))?;
    accept(&listener, &link);
    Ok(())
}

fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(name.to_socket_addrs()?.collect())
}

/// Tells where clients have to connect. They may do so from here on.
fn announce(listener: &TcpListener) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "listening on {}", listener.local_addr()?)?;
    stdout.flush()
}

/// Accepts clients for ever.
fn accept(listener: &TcpListener, link: &Arc<Link>) {
    for client in listener.incoming() {
        match client {
            // A link that is cut admits no client, and the socket is closed here.
            Ok(client) => {
                if let Some(connection) = Connection::admit(link, client) {
                    connection.start();
                }
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{Shutdown, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::link::Shape;

    /// A time that only a broken program takes.
    const LIMIT: Duration = Duration::from_secs(180);
    const MS: u64 = 1_000_000;

    /// A server that sends back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let (mut from, mut to) = (&stream, &stream);
                    // A client that is gone gets nothing.
                    let _ = io::copy(&mut from, &mut to);
                });
            }
        });
        address
    }

    /// A link to a target, and where its clients connect.
    fn link_to(shape: Shape, target: SocketAddr) -> (Arc<Link>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let link = Arc::new(Link::new(shape, vec![target]));
        let served = link.clone();
        thread::spawn(move || accept(&listener, &served));
        (link, address)
    }

    fn shape(delay: u64) -> Shape {
        Shape { delay, jitter: 0, rate: None, window: 1 << 20, seed: 0 }
    }

    fn client(address: SocketAddr) -> TcpStream {
        let client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        client
    }

    /// Sends a byte, and waits until it is back.
    fn ping(mut client: &TcpStream) {
        client.write_all(&[7]).unwrap();
        let mut back = [0];
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, [7]);
    }

    /// Whether the other side has closed the connection, in whatever way.
    fn is_closed(mut client: &TcpStream) -> bool {
        match client.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    #[test]
    fn bytes_and_ends_of_streams_pass_in_both_directions() {
        let narrow = Shape { jitter: MS / 2, window: 10_000, ..shape(MS / 10) };
        let (link, address) = link_to(narrow, echo());
        let client = client(address);
        let sent: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
        let mut got = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut to = &client;
                to.write_all(&sent).unwrap();
                // The echo ends when it sees this.
                to.shutdown(Shutdown::Write).unwrap();
            });
            let mut from = &client;
            from.read_to_end(&mut got).unwrap();
        });
        assert!(got == sent);
        assert_eq!(link.count(), "connections 1 bytes-down 300000 bytes-up 300000");
    }

    #[test]
    fn a_connection_costs_a_round_trip_and_a_request_another() {
        let (_link, address) = link_to(shape(20 * MS), echo());
        let began = Instant::now();
        let client = client(address);
        ping(&client);
        assert!(began.elapsed() >= Duration::from_millis(80));
        let began = Instant::now();
        ping(&client);
        assert!(began.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn all_connections_share_the_rate() {
        let rate = std::num::NonZeroU64::new(10);
        let (_link, address) = link_to(Shape { rate, ..shape(0) }, echo());
        let began = Instant::now();
        let clients = [client(address), client(address)];
        for mut client in &clients {
            client.write_all(&[7]).unwrap();
        }
        for mut client in &clients {
            client.read_exact(&mut [0]).unwrap();
        }
        // At ten bytes a second the second byte is at the target after 200 ms, and comes back after that.
        assert!(began.elapsed() >= Duration::from_millis(300));
    }

    #[test]
    fn nothing_arrives_on_a_stalled_link_until_it_goes_on() {
        let (link, address) = link_to(shape(0), echo());
        let client = client(address);
        ping(&client);
        link.stall();
        (&client).write_all(&[7]).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let error = (&client).read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        link.resume();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!((&client).read(&mut [0]).unwrap(), 1);
    }

    #[test]
    fn a_cut_closes_connections_and_refuses_new_ones() {
        let (link, address) = link_to(shape(0), echo());
        let before = client(address);
        ping(&before);
        link.cut();
        assert!(is_closed(&before));
        assert!(is_closed(&client(address)));
        link.resume();
        ping(&client(address));
    }

    #[test]
    fn a_cut_reaches_what_is_under_way_and_what_is_stalled() {
        let (link, address) = link_to(shape(u64::MAX), echo());
        let unconnected = client(address);
        // The number counts admitted clients, so this one can be cut.
        while !link.count().starts_with("connections 1 ") {
            thread::yield_now();
        }
        link.cut();
        assert!(is_closed(&unconnected));
        let (link, address) = link_to(shape(0), echo());
        let stalled = client(address);
        ping(&stalled);
        link.stall();
        (&stalled).write_all(&[7]).unwrap();
        link.cut();
        assert!(is_closed(&stalled));
    }

    #[test]
    fn a_target_that_refuses_closes_the_client() {
        // Port 1 is never given to a program that asks for any port.
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let (_link, address) = link_to(shape(MS), nobody);
        assert!(is_closed(&client(address)));
    }

    #[test]
    fn a_client_that_leaves_ends_what_the_target_sends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_link, address) = link_to(shape(MS), listener.local_addr().unwrap());
        let client = client(address);
        let (mut target, _) = listener.accept().unwrap();
        target.set_write_timeout(Some(LIMIT)).unwrap();
        target.write_all(&[7; 1000]).unwrap();
        (&client).read_exact(&mut [0; 1000]).unwrap();
        drop(client);
        // Without an end, or with one that is only passed on as no more to read, this would go on for ever.
        let error = loop {
            if let Err(error) = target.write_all(&[7; 1000]) {
                break error;
            }
        };
        assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }
}
