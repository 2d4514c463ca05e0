//! A connection to a shard.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
};

/// How long a connection may take, and each answer.
#[derive(Clone, Copy)]
pub(super) struct Waits {
    connect: Duration,
    answer: Duration,
}

/// Of other nodes: one that does not answer soon is a miss.
pub(super) const SHORT: Waits =
    Waits { connect: Duration::from_millis(300), answer: Duration::from_secs(1) };

/// Of a server on this machine: it is ended if it does not answer, and a busy machine may make it wait.
pub(super) const LONG: Waits =
    Waits { connect: Duration::from_secs(10), answer: Duration::from_secs(10) };

/// The longest name of a socket, in bytes.
const SOCKET_NAME_MOST: usize = 107;

/// A user of a shard, and its password.
pub(super) struct Login<'a> {
    pub(super) user: &'a str,
    pub(super) password: &'a str,
}

/// Connects to a shard of this machine by its socket.
///
/// # Errors
/// If it does not answer, or refuses the login.
pub(super) fn connect_to_socket(socket: &Path, login: &Login<'_>) -> RedisResult<Connection> {
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

/// Connects to a shard over the network.
///
/// # Errors
/// As [`connect_to_socket`].
pub(super) fn connect_to(
    address: SocketAddr,
    login: &Login<'_>,
    waits: Waits,
) -> RedisResult<Connection> {
    connect(ConnectionAddr::Tcp(address.ip().to_string(), address.port()), login, waits)
}

fn connect(address: ConnectionAddr, login: &Login<'_>, waits: Waits) -> RedisResult<Connection> {
    // Redis 7.0 does not know the command that tells the name of a library.
    let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    let settings = settings.set_username(login.user).set_password(login.password);
    // A request is not held back until the one before it is answered.
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = address.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp);
    let connection = Client::open(info)?.get_connection_with_timeout(waits.connect)?;
    connection.set_read_timeout(Some(waits.answer))?;
    connection.set_write_timeout(Some(waits.answer))?;
    Ok(connection)
}
