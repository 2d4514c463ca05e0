//! How the nodes of a cluster find each other.

use core::net::{IpAddr, SocketAddr};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::check::config_error;
use crate::error::Error;

/// The port of a shard if none is written. Its cluster bus is at the next one.
const PORT: u16 = 7100;

/// The port of a server that others administer, if none is written.
const SERVER_PORT: u16 = 6379;

const FORMS: &str =
    "write hosts:HOST,HOST:PORT..., dns:NAME:PORT, slurm or redis[s]://HOST:PORT,HOST:PORT...";

/// A node as it is written: a name or an address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

/// How the nodes of a cluster find each other: the value of `cluster.join`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Join {
    /// There is no cluster.
    #[default]
    Off,
    /// `hosts:A,B`: these are its nodes.
    Hosts(Vec<HostPort>),
    /// `dns:NAME:PORT`: all addresses of this name are its nodes.
    Dns(HostPort),
    /// `slurm`: the nodes of the Slurm job that the mount is made in.
    Slurm,
    /// `redis://A,B`: nodes have no shards of their own, and use these servers.
    Servers(Servers),
}

/// Servers that others administer. One of them tells the other ones of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    pub hosts: Vec<HostPort>,
    /// Whether they are asked over TLS.
    pub tls: bool,
}

/// Where a node's shard is reached: the value of `cluster.address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnAddress {
    /// The one of the cluster's addresses that this machine has.
    Found,
    /// The one of the cluster's addresses with this IP address.
    Ip(IpAddr),
    /// This one.
    Exact(SocketAddr),
}

impl Join {
    pub fn is_off(&self) -> bool {
        *self == Join::Off
    }

    /// The servers of others, if it uses those.
    pub fn servers(&self) -> Option<&Servers> {
        match self {
            Join::Servers(servers) => Some(servers),
            Join::Off | Join::Hosts(_) | Join::Dns(_) | Join::Slurm => None,
        }
    }
}

impl FromStr for HostPort {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        HostPort::parse(text, PORT)
    }
}

impl HostPort {
    /// Reads `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
    fn parse(text: &str, default_port: u16) -> Result<Self, Error> {
        let refused = || config_error(format!("{} is no host", shown(text))).hint(FORMS);
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(refused)?)),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(default_port), |port| port.parse().map_err(|_| refused()))?;
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || ".-_:".contains(letter);
        let is_none = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
        if host.is_empty() || !host.chars().all(is_name) || is_none || !is_shard_port(port) {
            return Err(refused());
        }
        Ok(HostPort { host: host.to_owned(), port })
    }
}

/// What was written, unless it looks like a URL, which may have a password in it.
fn shown(text: &str) -> String {
    match text.contains('@') || text.contains("//") {
        true => "a URL".to_owned(),
        false => format!("{text:?}"),
    }
}

/// Whether a shard can have this port. Its bus needs the next one.
fn is_shard_port(port: u16) -> bool {
    port != 0 && port != u16::MAX
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Join {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            None if text.is_empty() => Ok(Join::Off),
            None if text == "slurm" => Ok(Join::Slurm),
            Some(("hosts", list)) => {
                list.split(',').map(str::parse).collect::<Result<_, _>>().map(Join::Hosts)
            }
            Some(("dns", name)) => name.parse().map(Join::Dns),
            Some(("redis" | "valkey", list)) => Servers::parse(list, false).map(Join::Servers),
            Some(("rediss" | "valkeys", list)) => Servers::parse(list, true).map(Join::Servers),
            _ => {
                let message = format!("cluster.join: {} names no nodes", shown(text));
                Err(config_error(message).hint(FORMS))
            }
        }
    }
}

impl Servers {
    /// Reads `//HOST:PORT,HOST:PORT...`.
    fn parse(text: &str, tls: bool) -> Result<Self, Error> {
        let refused = |what: &str| config_error(format!("cluster.join: {what}"));
        let list = text.strip_prefix("//").ok_or_else(|| refused("no URL").hint(FORMS))?;
        if list.contains('@') {
            return Err(refused("a URL with a password").hint(
                "write USER:PASSWORD into a file of your own, and name it in cluster.login",
            ));
        }
        let list = list.strip_suffix('/').unwrap_or(list);
        if list.contains(['/', '?', '#']) {
            return Err(refused("a URL with more than servers").hint(FORMS));
        }
        let hosts = list.split(',').map(|host| HostPort::parse(host, SERVER_PORT));
        Ok(Servers { hosts: hosts.collect::<Result<_, _>>()?, tls })
    }
}

/// Hosts with a comma between them.
fn list(hosts: &[HostPort]) -> String {
    hosts.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Join::Off => Ok(()),
            Join::Dns(name) => write!(f, "dns:{name}"),
            Join::Slurm => f.write_str("slurm"),
            Join::Hosts(hosts) => write!(f, "hosts:{}", list(hosts)),
            Join::Servers(Servers { hosts, tls }) => {
                write!(f, "{}://{}", if *tls { "rediss" } else { "redis" }, list(hosts))
            }
        }
    }
}

impl TryFrom<String> for Join {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Join> for String {
    fn from(join: Join) -> String {
        join.to_string()
    }
}

impl FromStr for OwnAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = || {
            config_error(format!("cluster.address: {text:?} is no address"))
                .hint("write IP or IP:PORT, such as 10.0.0.7 or 10.0.0.7:7100")
        };
        let may_be =
            |exact: &SocketAddr| !exact.ip().is_unspecified() && is_shard_port(exact.port());
        match (text.is_empty(), text.parse::<IpAddr>(), text.parse()) {
            (true, ..) => Ok(OwnAddress::Found),
            (_, Ok(ip), _) if !ip.is_unspecified() => Ok(OwnAddress::Ip(ip)),
            (_, _, Ok(exact)) if may_be(&exact) => Ok(OwnAddress::Exact(exact)),
            _ => Err(refused()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_written_as_hosts_or_as_a_name() {
        let join: Join = "hosts:a,b.example:7200,[fd00::1],[fd00::2]:7300".parse().unwrap();
        let Join::Hosts(hosts) = &join else { panic!("{join:?}") };
        let hosts: Vec<_> = hosts.iter().map(|host| (&*host.host, host.port)).collect();
        let expected = [("a", 7100), ("b.example", 7200), ("fd00::1", 7100), ("fd00::2", 7300)];
        assert_eq!(hosts, expected);
        let again: Join = join.to_string().parse().unwrap();
        assert_eq!(again, join);
        let dns: Join = "dns:belady.default.svc:7100".parse().unwrap();
        assert_eq!(dns.to_string(), "dns:belady.default.svc:7100");
        assert_eq!("slurm".parse::<Join>().unwrap().to_string(), "slurm");
        assert!("".parse::<Join>().unwrap().is_off());
        for text in ["redis://a,[fd00::1]:7300", "redis://a:6379,[fd00::1]:7300/", "valkey://a"] {
            let join: Join = text.parse().unwrap();
            let host = &join.servers().unwrap().hosts[0];
            assert_eq!((&*host.host, host.port), ("a", 6379));
            assert_eq!(join.to_string().parse::<Join>().unwrap(), join);
        }
        let secure: Join = "rediss://a:7".parse().unwrap();
        assert!(secure.servers().unwrap().tls && secure.to_string() == "rediss://a:7");
    }

    #[test]
    fn other_texts_are_refused_without_a_password() {
        for text in [
            "a,b",
            "hosts:",
            "hosts:a,,b",
            "hosts:a:0",
            "hosts:a:65535",
            "hosts:a:x",
            "hosts:a b",
            "hosts:[fd00::1]7",
            "hosts:0.0.0.0",
            "hosts:a,[::]:7200",
            "dns:0.0.0.0:7100",
            "dns:",
            "slurm:1",
            "other:x",
        ] {
            assert!(text.parse::<Join>().is_err(), "{text}");
        }
        for (text, said) in [
            ("redis://me:SECRET@host:6379", "cluster.login"),
            ("valkey://me:SECRET@host:6379", "cluster.login"),
            ("redis://host/SECRET", "more than servers"),
            ("redis:host", "no URL"),
            ("redis://", "is no host"),
            ("redis://a,0.0.0.0", "is no host"),
            ("other://me:SECRET@host", "names no nodes"),
            ("me:SECRET@host", "names no nodes"),
            ("hosts:a,redis://me:SECRET@host", "is no host"),
            ("dns:me:SECRET@host", "is no host"),
        ] {
            let error = text.parse::<Join>().unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("SECRET") && shown.contains(said), "{shown}");
        }
    }

    #[test]
    fn an_own_address_may_have_a_port() {
        assert_eq!("".parse::<OwnAddress>().unwrap(), OwnAddress::Found);
        let ip = "10.0.0.7".parse().unwrap();
        assert_eq!("10.0.0.7".parse::<OwnAddress>().unwrap(), OwnAddress::Ip(ip));
        let exact = "10.0.0.7:7100".parse().unwrap();
        assert_eq!("10.0.0.7:7100".parse::<OwnAddress>().unwrap(), OwnAddress::Exact(exact));
        for text in ["ib0", "10.0.0.7:0", "10.0.0.7:65535", "0.0.0.0", "[::]:7100", "::"] {
            assert!(text.parse::<OwnAddress>().is_err(), "{text}");
        }
    }
}
