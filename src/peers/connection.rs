//! A connection to a server.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ConnectionAddr, ConnectionLike, ErrorKind, IntoConnectionInfo, Parser,
    RedisConnectionInfo, RedisResult, Value, cmd,
};
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

/// A connection to a server.
pub(super) enum Connection {
    Plain(redis::Connection),
    Encrypted(Box<Encrypted>),
}

/// A connection with TLS. The library's own one compares certificates with addresses, which few of them have.
pub(super) struct Encrypted {
    stream: StreamOwned<ClientConnection, TcpStream>,
    parser: Parser,
    is_open: bool,
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
        let address = self.address;
        match &self.encryption {
            None => {
                let place = ConnectionAddr::Tcp(address.ip().to_string(), address.port());
                connect(place, &self.login, waits)
            }
            Some(encryption) => {
                let mut encrypted = Encrypted::connect(address, encryption, waits)?;
                if let Some(words) = self.login.words() {
                    let mut login = cmd(words[0]);
                    let done = login.arg(&words[1..]).query::<()>(&mut encrypted);
                    done.map_err(|error| {
                        (ErrorKind::AuthenticationFailed, "the login", error.to_string())
                    })?;
                }
                Ok(Connection::Encrypted(Box::new(encrypted)))
            }
        }
    }
}

impl Login {
    /// The command that logs in; `None` if there is no login.
    pub(super) fn words(&self) -> Option<Vec<&str>> {
        let password = self.password.as_deref()?;
        Some(["AUTH"].into_iter().chain(self.user.as_deref()).chain([password]).collect())
    }
}

impl Encrypted {
    fn connect(address: SocketAddr, encryption: &Encryption, waits: Waits) -> RedisResult<Self> {
        let socket = TcpStream::connect_timeout(&address, waits.connect)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(waits.answer))?;
        socket.set_write_timeout(Some(waits.answer))?;
        let config = Arc::clone(&encryption.0);
        let tls =
            ClientConnection::new(config, address.ip().into()).map_err(std::io::Error::other)?;
        let stream = StreamOwned::new(tls, socket);
        Ok(Encrypted { stream, parser: Parser::new(), is_open: true })
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

impl ConnectionLike for Encrypted {
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

impl Connection {
    fn inner(&mut self) -> &mut dyn ConnectionLike {
        match self {
            Connection::Plain(plain) => plain,
            Connection::Encrypted(encrypted) => &mut **encrypted,
        }
    }

    /// Sets how long an answer may take.
    ///
    /// # Errors
    /// If that cannot be set.
    pub(super) fn set_read_timeout(&self, wait: Duration) -> std::io::Result<()> {
        match self {
            Connection::Plain(plain) => {
                plain.set_read_timeout(Some(wait)).map_err(std::io::Error::other)
            }
            Connection::Encrypted(encrypted) => encrypted.stream.sock.set_read_timeout(Some(wait)),
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, request: &[u8]) -> RedisResult<Value> {
        self.inner().req_packed_command(request)
    }

    fn req_packed_commands(
        &mut self,
        requests: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.inner().req_packed_commands(requests, offset, count)
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        self.inner().check_connection()
    }

    fn is_open(&self) -> bool {
        match self {
            Connection::Plain(plain) => plain.is_open(),
            Connection::Encrypted(encrypted) => encrypted.is_open,
        }
    }
}

/// Connects to a shard of this machine by its socket.
///
/// # Errors
/// If it does not answer, or refuses the login.
pub(super) fn connect_to_socket(socket: &Path, login: &Login) -> RedisResult<Connection> {
    let (directory, name) = (socket.parent(), socket.file_name());
    let (Some(directory), Some(name), true) =
        (directory, name, socket.as_os_str().len() > SOCKET_NAME_MOST)
    else {
        return connect(ConnectionAddr::Unix(socket.to_owned()), login, LONG);
    };
    let directory = File::open(directory)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    connect(ConnectionAddr::Unix(short), login, LONG)
}

fn connect(place: ConnectionAddr, login: &Login, waits: Waits) -> RedisResult<Connection> {
    // Redis 7.0 does not know the command that tells the name of a library.
    let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password);
    }
    // A request is not held back until the one before it is answered.
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = place.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp);
    let connection = Client::open(info)?.get_connection_with_timeout(waits.connect)?;
    connection.set_read_timeout(Some(waits.answer))?;
    connection.set_write_timeout(Some(waits.answer))?;
    Ok(Connection::Plain(connection))
}
