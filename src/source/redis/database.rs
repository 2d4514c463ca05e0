//! The URL of a database, and who asks it.

use std::fmt;
use std::path::{Path, PathBuf};

use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::error::{Error, ErrorKind, Result};
use crate::source::address::{self, KnownOptions, Options};
use crate::source::tree::hash;

const PORT: u16 = 6379;

const USERNAME: &str = "redis_username";
const PASSWORD: &str = "redis_password";

const RIGHTS: &str = "set REDIS_USERNAME and REDIS_PASSWORD, or name a file with them in \
                      source.credentials; the user needs ~PREFIX* +@read +@connection +multi +exec";

/// The keys of a database that begin with a prefix.
#[derive(Clone)]
pub struct Database {
    host: String,
    port: u16,
    number: i64,
    prefix: String,
    name: PathBuf,
    options: Options,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({})", self.name.display())
    }
}

impl Database {
    /// Reads a URL `redis://HOST:PORT/NUMBER/PREFIX`. Name and password come from the environment, or from a file if
    /// one is given.
    ///
    /// # Errors
    /// If the URL is another one, or has credentials, or if the file cannot be used.
    pub(in crate::source) fn parse(text: &str, credentials: &Path) -> Result<Self> {
        let url = address::parse(text, RIGHTS)?;
        // A key may have any letters, so it is taken as it is written.
        let (_, rest) = text.split_once("://").unwrap_or_default();
        let place = rest.split_once('/').and_then(|(_, place)| place.split_once('/'));
        let place = place.and_then(|(number, prefix)| {
            Some((number.parse().ok()?, prefix.trim_end_matches('/')))
        });
        let (number, prefix): (i64, &str) = place
            .filter(|(number, prefix)| *number >= 0 && !prefix.is_empty())
            .ok_or_else(|| address::refuse("a URL without a database and a prefix"))?;
        let (host, port) = (url.host_str().unwrap_or_default(), url.port().unwrap_or(PORT));
        let known = KnownOptions {
            prefix: "redis_",
            name_of: &|name| [USERNAME, PASSWORD].contains(&name).then(|| name.to_owned()),
            key: &[USERNAME, PASSWORD],
        };
        Ok(Database {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            number,
            prefix: prefix.to_owned(),
            name: format!("redis://{host}:{port}/{number}/{prefix}").into(),
            options: known.read(credentials)?,
        })
    }

    pub(in crate::source) fn name(&self) -> &Path {
        &self.name
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What its prefix is in, and the last name of its prefix; `None` if nothing is above that.
    pub(in crate::source) fn split(&self) -> Option<(Self, String)> {
        let (above, last) = self.prefix.rsplit_once('/')?;
        let prefix = above.trim_end_matches('/').to_owned();
        // The prefix is the end of the name.
        let name = self.name.parent()?.to_owned();
        (!prefix.is_empty()).then(|| (Database { prefix, name, ..self.clone() }, last.to_owned()))
    }

    /// A number that is the same for the same values, whoever asks for them.
    pub(in crate::source) fn identity(&self) -> u128 {
        let name = self.name.as_os_str().as_encoded_bytes();
        u128::from(hash(&[name, b"database"])) << 64 | u128::from(hash(&[name]))
    }

    /// A client that is not connected yet.
    pub(super) fn client(&self) -> Result<Client> {
        let mut settings = RedisConnectionInfo::default().set_db(self.number);
        if let Some(name) = self.options.get(USERNAME) {
            settings = settings.set_username(name);
        }
        if let Some(password) = self.options.get(PASSWORD) {
            settings = settings.set_password(password);
        }
        let address = ConnectionAddr::Tcp(self.host.clone(), self.port);
        let client = address
            .into_connection_info()
            .map(|info: ConnectionInfo| {
                // A request is not held back until the one before it is answered.
                let tcp = TcpSettings::default().set_nodelay(true);
                info.set_redis_settings(settings).set_tcp_settings(tcp)
            })
            .and_then(Client::open);
        client.map_err(|error| self.refuse(&error.to_string()))
    }

    /// The error of a mount whose server does not answer as it should.
    pub(super) fn refuse(&self, why: &str) -> Error {
        let message = format!("cannot use the source {}: {why}", self.name.display());
        let is_refused = ["NOAUTH", "WRONGPASS", "NOPERM", "uthenticat", "Password"]
            .iter()
            .any(|word| why.contains(word));
        let hint = match is_refused {
            true => RIGHTS,
            false => "does the server run there, and is the address right?",
        };
        Error::new(ErrorKind::Source, message).hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_server_a_database_and_a_prefix() {
        let parse = |text: &str| Database::parse(text, Path::new(""));
        let database = parse("redis://host/2/data/imagenet/").unwrap();
        let Database { host, port, number, prefix, .. } = &database;
        assert_eq!((&**host, *port, *number, &**prefix), ("host", 6379, 2, "data/imagenet"));
        assert_eq!(database.name(), Path::new("redis://host:6379/2/data/imagenet"));
        let (above, last) = database.split().unwrap();
        assert_eq!((&*above.prefix, &*last), ("data", "imagenet"));
        assert_eq!(above.identity(), parse("redis://host/2/data").unwrap().identity());
        assert!(above.split().is_none());
        assert_eq!(parse("redis://[::1]:7/0/x").unwrap().host, "::1");
        assert_eq!(parse("redis://host/0/my ü").unwrap().prefix, "my ü");
        for text in [
            "redis://host",
            "redis://host/0",
            "redis://host/x/y",
            "redis://host/-1/x",
            "redis://me:SECRET@host/0/x",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
    }
}
