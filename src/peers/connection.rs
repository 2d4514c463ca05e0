//! A connection to a server.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionLike, ErrorKind, Parser, RedisResult, Value, cmd};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// How long a connection may take, and each answer.
#[derive(Clone, Copy)]
pub(super) struct Waits {
    connect: Duration,
    answer: Duration,
}

/// Of other nodes: one that does not answer soon is a miss.
pub(super) const SHORT: Waits =
    Waits { connect: Duration::from_millis(300), answer: Duration::from_secs(1) };

/// Of servers that are asked for the first time, one after the other.
pub(super) const FIRST: Waits =
    Waits { connect: Duration::from_secs(2), answer: Duration::from_secs(2) };

/// Of a server on this machine: it is ended if it does not answer, and a busy machine may make it wait.
pub(super) const LONG: Waits =
    Waits { connect: Duration::from_secs(10), answer: Duration::from_secs(10) };

/// The longest name of a socket, in bytes.
const SOCKET_NAME_MOST: usize = 107;

/// A user of a server, and its password. Without a password there is no login. Without a user it is the default one.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl Login {
    pub(super) fn new(user: &str, password: &str) -> Self {
        Login { user: Some(user.to_owned()), password: Some(password.to_owned()) }
    }
}

/// How connections are encrypted.
#[derive(Clone)]
pub(super) struct Encryption(pub(super) Arc<ClientConfig>);

impl PartialEq for Encryption {
    /// Whether it is the very same one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The address of a server, and the login there.
#[derive(Clone, PartialEq)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) login: Login,
    /// `None`: the connection is not encrypted.
    pub(super) encryption: Option<Encryption>,
}

/// How a server is reached.
#[derive(Clone)]
pub(super) enum Access {
    /// One of this machine, by its socket.
    Socket(PathBuf, Login),
    Network(Endpoint),
}

/// A connection to a server, on which each request waits for its answer.
///
/// The library's own one compares certificates with addresses, which few of them have.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    parser: Parser,
    is_open: bool,
}

/// Bytes to a server and back.
trait Stream: Read + Write + Send {
    fn set_waits(&self, wait: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_waits(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))?;
        self.set_write_timeout(Some(wait))
    }
}

impl Stream for TcpStream {
    fn set_waits(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))?;
        self.set_write_timeout(Some(wait))
    }
}

impl Stream for StreamOwned<ClientConnection, TcpStream> {
    fn set_waits(&self, wait: Duration) -> io::Result<()> {
        self.sock.set_waits(wait)
    }
}

impl Access {
    /// Connects to the server.
    ///
    /// # Errors
    /// If it does not answer, or refuses the login.
    pub(super) fn connect(&self) -> RedisResult<Connection> {
        match self {
            Access::Socket(socket, login) => connect_to_socket(socket, login),
            Access::Network(endpoint) => endpoint.connect(LONG),
        }
    }
}

impl Endpoint {
    /// Connects to the server.
    ///
    /// # Errors
    /// If it does not answer, or refuses the login.
    pub(super) fn connect(&self, waits: Waits) -> RedisResult<Connection> {
        let socket = TcpStream::connect_timeout(&self.address, waits.connect)?;
        // A request is not held back until the one before it is answered.
        socket.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &self.encryption {
            None => Box::new(socket),
            Some(Encryption(config)) => {
                let tls = ClientConnection::new(Arc::clone(config), self.address.ip().into());
                Box::new(StreamOwned::new(tls.map_err(io::Error::other)?, socket))
            }
        };
        Connection::new(stream, &self.login, waits)
    }
}

impl Login {
    /// The command that logs in; `None` if there is no login.
    pub(super) fn words(&self) -> Option<Vec<&str>> {
        let password = self.password.as_deref()?;
        Some(["AUTH"].into_iter().chain(self.user.as_deref()).chain([password]).collect())
    }
}

impl Connection {
    /// Logs in.
    fn new(stream: Box<dyn Stream>, login: &Login, waits: Waits) -> RedisResult<Self> {
        stream.set_waits(waits.answer)?;
        let mut connection = Connection { stream, parser: Parser::new(), is_open: true };
        if let Some(words) = login.words() {
            let answer = cmd(words[0]).arg(&words[1..]).query::<()>(&mut connection);
            answer.map_err(|error| match error.is_io_error() {
                true => error,
                false => {
                    let why = error.to_string();
                    (ErrorKind::AuthenticationFailed, "the login is refused", why).into()
                }
            })?;
        }
        Ok(connection)
    }

    /// Sets how long an answer may take.
    ///
    /// # Errors
    /// If that cannot be set.
    pub(super) fn set_wait(&self, wait: Duration) -> io::Result<()> {
        self.stream.set_waits(wait)
    }

    fn send(&mut self, request: &[u8]) -> RedisResult<()> {
        let sent = self.stream.write_all(request).and_then(|()| self.stream.flush());
        self.is_open &= sent.is_ok();
        Ok(sent?)
    }

    fn receive(&mut self) -> RedisResult<Value> {
        let received = self.parser.parse_value(&mut self.stream);
        self.is_open &= received.is_ok();
        received
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, request: &[u8]) -> RedisResult<Value> {
        self.send(request)?;
        self.receive()
    }

    fn req_packed_commands(
        &mut self,
        requests: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.send(requests)?;
        let answers: Vec<Value> =
            (0..offset + count).map(|_| self.receive()).collect::<RedisResult<_>>()?;
        Ok(answers.into_iter().skip(offset).collect())
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        cmd("PING").query::<()>(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.is_open
    }
}

/// Connects to a shard of this machine by its socket.
///
/// # Errors
/// If it does not answer, or refuses the login.
pub(super) fn connect_to_socket(socket: &Path, login: &Login) -> RedisResult<Connection> {
    let (directory, name) = (socket.parent(), socket.file_name());
    let stream = match (directory, name, socket.as_os_str().len() > SOCKET_NAME_MOST) {
        (Some(directory), Some(name), true) => {
            let directory = File::open(directory)?;
            let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
            UnixStream::connect(short.join(name))?
        }
        _ => UnixStream::connect(socket)?,
    };
    Connection::new(Box::new(stream), login, LONG)
}
