//! The URL of a keyspace, which of its rows are shown, and who asks for them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;

use super::template::Template;
use super::tls;
use crate::config::SourceConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::source::address::{self, KnownOptions, Options};
use crate::source::tree::hash;
use crate::tls::Tls;

const PORT: u16 = 9042;

const USERNAME: &str = "cassandra_username";
const PASSWORD: &str = "cassandra_password";
/// The datacenter whose nodes are asked.
const DATACENTER: &str = "cassandra_datacenter";

/// How names of options begin that ask for TLS. One that is not known is refused: it may be meant to protect.
const TLS: [&str; 2] = ["cassandra_tls", "cassandra_ssl"];

const RIGHTS: &str = "set CASSANDRA_USERNAME and CASSANDRA_PASSWORD, or name a file with them in \
                      source.credentials; the user needs GRANT SELECT ON both tables";

/// The roles are rows of a keyspace. It has one replica by default, and that node may be away.
const ROLES: &str = "a node is away that has rows which the server needs, such as its roles; is \
                     the keyspace system_auth on more than one node?";

const REACH: &str =
    "does the server run there, and is the address right? If it wants TLS, set CASSANDRA_TLS_CA";

const NAMES: &str =
    "are the keyspace of the URL, source.rows, source.path, source.data and source.size right?";

const REACH_WITH_TLS: &str = "does the server run there, with TLS? If it wants to know who asks, set \
                              CASSANDRA_TLS_CERT and CASSANDRA_TLS_KEY";

const TRUST: &str = "has CASSANDRA_TLS_CA the certificate that signed those of the nodes, and is a \
                     name or an address of the URL in them?";

/// Which rows of a keyspace are files.
#[derive(Clone)]
pub(super) struct Shown {
    /// The table that is listed.
    pub(super) rows: String,
    pub(super) path: Template,
    /// The table and the column that have the bytes.
    pub(super) data: (String, String),
    /// The column that has their number; empty: there is none.
    pub(super) size: String,
}

impl Shown {
    /// Reads the settings of a source.
    ///
    /// # Errors
    /// If one is missing, or is not as it should be.
    fn of(source: &SourceConfig) -> Result<Self> {
        let refuse = |what: String| {
            Error::new(ErrorKind::Config, what).hint(
                "write them as rows = \"metadata_train\", path = \"{label}/{id}.JPEG\", \
                 data = \"data_train.data\" and size = \"bytes\"",
            )
        };
        if source.rows.is_empty() {
            return Err(refuse(
                "source.rows is not set: it is the table that is listed".to_owned(),
            ));
        }
        let path = Template::parse(&source.path)
            .map_err(|why| refuse(format!("source.path {:?} is no path: {why}", source.path)))?;
        let (table, column) = source
            .data
            .split_once('.')
            .filter(|(table, column)| !table.is_empty() && !column.is_empty())
            .ok_or_else(|| refuse(format!("source.data {:?} is not TABLE.COLUMN", source.data)))?;
        let data = (table.to_owned(), column.to_owned());
        Ok(Shown { rows: source.rows.clone(), path, data, size: source.size.clone() })
    }
}

/// A keyspace of a cluster, and what of it is shown.
#[derive(Clone)]
pub struct Cluster {
    hosts: Vec<String>,
    port: u16,
    keyspace: String,
    shown: Shown,
    name: PathBuf,
    identity: u128,
    options: Options,
    tls: Option<Tls>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.name.display())
    }
}

impl Cluster {
    /// Reads a URL `cassandra://HOST,HOST:PORT/KEYSPACE`. The settings say which rows are shown. Name and password
    /// come from a file if one is given, or else from the environment.
    ///
    /// # Errors
    /// If the URL is another one or has credentials. If a setting is wrong. If the file cannot be used.
    pub(in crate::source) fn parse(text: &str, source: &SourceConfig) -> Result<Self> {
        let url = address::parse(text, RIGHTS)?;
        let keyspace = url.path().trim_matches('/');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if keyspace.is_empty() || !keyspace.bytes().all(is_plain) {
            return Err(address::refuse("a URL without a keyspace"));
        }
        let (host, port) = (url.host_str().unwrap_or_default(), url.port().unwrap_or(PORT));
        let hosts: Vec<String> = host.split(',').map(str::to_owned).collect();
        if hosts.iter().any(String::is_empty) {
            return Err(address::refuse("a URL with an empty name of a host"));
        }
        let shown = Shown::of(source)?;
        let name = format!("cassandra://{host}:{port}/{keyspace}");
        let mut sorted: Vec<&str> = hosts.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let place = format!("cassandra://{}:{port}/{keyspace}", sorted.join(","));
        let what = [&place, &source.rows, &source.path, &source.data, &source.size];
        let options = options(&source.credentials)?;
        Ok(Cluster {
            identity: identity(&what.map(|text| text.as_bytes())),
            hosts,
            port,
            keyspace: keyspace.to_owned(),
            shown,
            name: name.into(),
            tls: tls::of(&options)?,
            options,
        })
    }

    pub(in crate::source) fn name(&self) -> &Path {
        &self.name
    }

    /// A number that is the same for the same rows, whoever asks for them.
    pub(in crate::source) fn identity(&self) -> u128 {
        self.identity
    }

    pub(super) fn keyspace(&self) -> &str {
        &self.keyspace
    }

    pub(super) fn shown(&self) -> &Shown {
        &self.shown
    }

    /// The addresses of the nodes that are asked first.
    pub(super) fn addresses(&self) -> impl Iterator<Item = String> {
        self.hosts.iter().map(|host| format!("{host}:{}", self.port))
    }

    /// Name and password.
    pub(super) fn user(&self) -> Option<(&str, &str)> {
        Some((self.options.get(USERNAME)?, self.options.get(PASSWORD)?))
    }

    pub(super) fn datacenter(&self) -> Option<&str> {
        self.options.get(DATACENTER).map(String::as_str)
    }

    /// What the driver needs for TLS; `None`: connections are without it.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(super) fn tls(&self) -> Result<Option<Arc<ClientConfig>>> {
        let config = self.tls.as_ref().map(|tls| tls.config(&self.hosts));
        config.transpose().map_err(tls::refuse)
    }

    /// The error of a mount whose server does not answer as it should.
    pub(super) fn refuse(&self, why: &str) -> Error {
        let message = format!("cannot use the source {}: {why}", self.name.display());
        let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
        let hint = if says(&["chieve consistency"]) {
            ROLES
        } else if says(&["there is no"]) {
            NAMES
        } else if says(&["ertificate", "TLS"]) {
            TRUST
        } else if says(&["uthenticat", "uthoriz", "credentials", "ermission", "assword"]) {
            RIGHTS
        } else if self.tls.is_some() {
            REACH_WITH_TLS
        } else {
            REACH
        };
        Error::new(ErrorKind::Source, message).hint(hint)
    }
}

fn identity(what: &[&[u8]]) -> u128 {
    let of_rows = [what, &[b"rows".as_slice()]].concat();
    u128::from(hash(&of_rows)) << 64 | u128::from(hash(what))
}

/// What the environment or a file says of who asks.
fn options(credentials: &Path) -> Result<Options> {
    let is_tls = |name: &str| TLS.iter().any(|begin| name.starts_with(begin));
    let is_known = |name: &str| [USERNAME, PASSWORD, DATACENTER].contains(&name) || is_tls(name);
    let known = KnownOptions {
        prefix: "cassandra_",
        name_of: &|name| is_known(name).then(|| name.to_owned()),
        key: &[USERNAME, PASSWORD],
    };
    let options = known.read(credentials)?;
    let is_odd = |name: &&String| is_tls(name) && !tls::OPTIONS.contains(&name.as_str());
    if let Some(name) = options.keys().find(is_odd) {
        let message = format!("cannot use the option {name}: there is none of this name");
        return Err(Error::new(ErrorKind::Source, message).hint(format!(
            "the options of TLS are {}",
            tls::OPTIONS.join(", ").to_ascii_uppercase()
        )));
    }
    let is_nothing = |name: &&str| {
        let value = std::env::var_os(name.to_ascii_uppercase());
        value.is_some_and(|value| value.is_empty() || value.to_str().is_none())
    };
    // Who sets it wants to be protected.
    if let Some(name) = tls::OPTIONS.iter().find(|name| is_nothing(name)) {
        let message = format!("{} is set, but is no path", name.to_ascii_uppercase());
        return Err(Error::new(ErrorKind::Source, message).hint("set it to a path, or unset it"));
    }
    if options.contains_key(USERNAME) != options.contains_key(PASSWORD) {
        let message = "a name without a password for Cassandra, or a password without a name";
        return Err(Error::new(ErrorKind::Source, message).hint(RIGHTS));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> SourceConfig {
        SourceConfig {
            rows: "metadata_train".to_owned(),
            path: "{or_label}/{id}.JPEG".to_owned(),
            data: "data_train.data".to_owned(),
            size: "bytes".to_owned(),
            ..SourceConfig::default()
        }
    }

    fn parse(text: &str) -> Result<Cluster> {
        Cluster::parse(text, &settings())
    }

    #[test]
    fn urls_name_nodes_and_a_keyspace() {
        let cluster = parse("cassandra://db1,db2:9142/imagenet/").unwrap();
        assert_eq!(cluster.addresses().collect::<Vec<_>>(), ["db1:9142", "db2:9142"]);
        assert_eq!(cluster.keyspace(), "imagenet");
        assert_eq!(cluster.name(), Path::new("cassandra://db1,db2:9142/imagenet"));
        let reordered = parse("cassandra://db2,db1:9142/imagenet").unwrap();
        assert_eq!(reordered.identity(), cluster.identity(), "the order of hosts says nothing");
        let six = parse("cassandra://[::1]/x").unwrap();
        assert_eq!(six.addresses().collect::<Vec<_>>(), ["[::1]:9042"]);
        for text in [
            "cassandra://host",
            "cassandra://host/",
            "cassandra://host/a/b",
            "cassandra://host/a%20b",
            "cassandra://a,,b/x",
            "cassandra://a:1,b:2/x",
            "cassandra://me:SECRET@host/x",
            "cassandra://host/x?ssl=1",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn settings_say_which_rows_are_shown() {
        let url = "cassandra://host/imagenet";
        let shown = parse(url).unwrap().shown;
        assert_eq!((&*shown.rows, &*shown.size), ("metadata_train", "bytes"));
        assert_eq!(shown.data, ("data_train".to_owned(), "data".to_owned()));
        let refused = |source: SourceConfig, why: &str| {
            let error = Cluster::parse(url, &source).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(SourceConfig { rows: String::new(), ..settings() }, "source.rows is not set");
        refused(SourceConfig { path: "{x".to_owned(), ..settings() }, "a { has no }");
        refused(SourceConfig { data: "data".to_owned(), ..settings() }, "is not TABLE.COLUMN");
        let other = SourceConfig { rows: "metadata_val".to_owned(), ..settings() };
        let other = Cluster::parse(url, &other).unwrap();
        assert_ne!(other.identity(), parse(url).unwrap().identity());
    }

    #[test]
    fn who_may_not_ask_is_told_where_names_belong() {
        let cluster = parse("cassandra://host/imagenet").unwrap();
        let refused = cluster.refuse("Provided username cassandra and/or password are incorrect");
        let refused = refused.to_string();
        assert!(refused.contains("are incorrect") && refused.contains("CASSANDRA_USERNAME"));
        let away = cluster.refuse("Unable to perform authentication: Cannot achieve consistency");
        assert!(away.to_string().contains("system_auth"), "{away}");
        let away = cluster.refuse("Connection refused");
        assert!(away.to_string().contains("does the server run there"), "{away}");
    }
}
