//! A connection to a shard.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use redis::{
    Client, Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
};

/// How long a connection may take, and each answer.
const CONNECT_WAIT: Duration = Duration::from_millis(300);
const ANSWER_WAIT: Duration = Duration::from_secs(1);

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
    connect(ConnectionAddr::Unix(socket.to_owned()), login)
}

/// Connects to a shard over the network.
///
/// # Errors
/// As [`connect_to_socket`].
pub(super) fn connect_to(address: SocketAddr, login: &Login<'_>) -> RedisResult<Connection> {
    connect(ConnectionAddr::Tcp(address.ip().to_string(), address.port()), login)
}

fn connect(address: ConnectionAddr, login: &Login<'_>) -> RedisResult<Connection> {
    // Redis 7.0 does not know the command that tells the name of a library.
    let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    let settings = settings.set_username(login.user).set_password(login.password);
    let info = address.into_connection_info()?.set_redis_settings(settings);
    let connection = Client::open(info)?.get_connection_with_timeout(CONNECT_WAIT)?;
    connection.set_read_timeout(Some(ANSWER_WAIT))?;
    connection.set_write_timeout(Some(ANSWER_WAIT))?;
    Ok(connection)
}
