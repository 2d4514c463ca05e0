//! Servers that others administer, as a node uses them that has no shard of its own.
//!
//! 1. One of the servers tells all of them, with their slots (`CLUSTER NODES`). A server without a cluster is alone.
//! 2. Each of them is asked for its memory (`INFO`). Its limit, or `cluster.ram`, gives the bytes of samples that it
//!    holds.
//! 3. These servers are the members of the [`View`]. A member has the first tag whose slot it has. Its id and its homes
//!    follow from its tag: if another server takes its slots, nothing moves.
//! 4. Nodes write records of themselves to one of the servers, the *registry*. It is the member with the smallest id.
//!    The lists by which their daemons ask each other are there, too.
//! 5. Nodes do not administer the servers, and remove no blocks. A block that is not read for a while expires.
//!
//! Others can read and write these servers. So blocks, records and messages are encrypted with the secret of the
//! cluster ([`Seal`]).

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult, cmd, pipe};

use super::client::{Reach, Reached, Terms};
use super::connection::{Access, Connection, Encryption, Endpoint, FIRST, Login};
use super::control_connection::ControlConnection;
use super::member::{Seen, TAGS, capacity, number, used_at_most, view_name};
use super::nodes::{self, Health, Node};
use super::program::{LEAST, Version};
use super::record::{self, Record};
use super::shard::key;
use super::shards::Membership;
use super::status::{ClusterStatus, MemberState, MemberStatus, NodesStatus};
use super::values::{Keys, Seal};
use super::wants::{List, OwnList};
use super::{addresses, secret};
use crate::cluster::{self, Report, View};
use crate::config::{ClusterSettings, Servers};

/// How often servers are looked at, and this node tells of itself.
const LOOK_EVERY: Duration = Duration::from_secs(record::EVERY_S);

/// How long servers are asked at a look. The rest of them is asked at the next one.
const ASK_FOR: Duration = Duration::from_secs(2);

/// How long the registry remembers that there are nodes, in seconds.
const NODES_FOR_S: u64 = 3600;

/// Further nodes are not heard.
const NODES_MOST: usize = 4096;

/// The tag of a server without slots.
const ALONE: &str = "0";

/// A server.
struct Server {
    endpoint: Endpoint,
    health: Health,
    control: ControlConnection,
    memory: Option<Memory>,
}

/// The memory of a server in bytes.
#[derive(Clone, Copy)]
struct Memory {
    /// Its limit; 0 if it has none.
    most: u64,
    used: u64,
}

pub(super) struct ExistingServers {
    login: Login,
    encryption: Option<Encryption>,
    /// Bytes that all nodes use of all servers.
    most_bytes: Option<u64>,
    secret: String,
    terms: Terms,
    /// Tells the nodes with this secret from those of others.
    namespace: String,
    /// The id of this node.
    own: u64,
    /// The record that this node writes.
    record: Record,
    /// The software of the servers, with its version.
    software: String,
    /// The slot of each tag; none if the server is alone.
    slots: Vec<u16>,
    /// By their tags.
    servers: BTreeMap<String, Server>,
    /// The records of other nodes, and when they were read.
    others: Vec<(u64, Record, Instant)>,
    looked: Option<Instant>,
}

impl ExistingServers {
    /// Looks for the servers. `own` is the id of this node.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub(super) fn join(
        settings: &ClusterSettings,
        servers: &Servers,
        own: u64,
    ) -> Result<Self, String> {
        let secret = secret::read_or_make(&settings.secret)?;
        let login = match settings.login.as_os_str().is_empty() {
            true => Login::default(),
            false => secret::read_login(&settings.login)?,
        };
        let hosts = addresses::names(&settings.join)?;
        let encryption = settings.tls.as_ref().map(|tls| tls.config(&hosts)).transpose()?;
        let encryption = encryption.map(Encryption);
        let (endpoint, found) = first_of(servers, &login, encryption.as_ref())?;
        let seal = Seal::cipher(&secret).map_err(|_| "values cannot be encrypted".to_owned())?;
        let namespace = Keys::new(&secret).key(b"nodes", b"", 0).upper();
        let mut known = ExistingServers {
            login,
            encryption,
            most_bytes: settings.servers_bytes,
            terms: Terms { seal, expires_s: Some(settings.expires.as_secs()) },
            namespace: format!("{namespace:016x}"),
            secret,
            own,
            record: Record { version: env!("CARGO_PKG_VERSION").to_owned(), ..Record::default() },
            software: found.software,
            slots: found.slots,
            servers: BTreeMap::new(),
            others: Vec::new(),
            looked: None,
        };
        known.set_servers(&endpoint, &found.nodes);
        Ok(known)
    }

    /// Looks who is there, and tells the other nodes of this one. To be called once a second.
    ///
    /// # Errors
    /// If no server can be used.
    pub(super) fn look(&mut self, digest: u64, report: Report) -> Result<Seen, String> {
        let record = Record { digest, ..std::mem::take(&mut self.record) };
        self.record = record.with(report);
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            self.look_at_servers()?;
            self.tell();
            self.looked = Some(Instant::now());
        }
        let (members, view) = self.members()?;
        // A view without servers that are only slow to answer would give samples other homes for a moment.
        let are_all_asked = self.servers.values().all(Server::is_asked);
        let registry = members.iter().min_by_key(|member| member.id).filter(|_| are_all_asked);
        let registry = registry.cloned();
        let nodes = registry.iter().flat_map(|registry| {
            let own = [self.own].into_iter();
            let nodes = own.chain(self.others.iter().map(|(id, ..)| *id));
            nodes.map(|id| (id, List { shard: registry.id, name: self.list(id) }))
        });
        let (own, keys) = (self.own, Keys::new(&self.secret));
        let reports = self.others.iter();
        let reports = reports.map(|(id, record, heard)| (*id, record.report(heard.elapsed())));
        let own_list = registry.as_ref().map(|registry| {
            let access = Access::Network(registry.endpoint.clone());
            OwnList::new(access, &registry.tag, self.list(self.own))
        });
        Ok(Seen {
            status: self.status(&view),
            reports: reports.collect(),
            reach: Reach {
                nodes: nodes.collect(),
                membership: registry.is_some().then_some(Membership { own, view, keys }),
                members,
                terms: self.terms.clone(),
            },
            own: None,
            own_list,
            is_full: false,
        })
    }

    /// Asks the servers for each other, and for their memory.
    ///
    /// # Errors
    /// If none of them answers.
    fn look_at_servers(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let has_time = || begun.elapsed() < ASK_FOR;
        let told = match self.slots.is_empty() {
            true => None,
            false => {
                let mut due = self.servers.values_mut().filter(|server| server.is_due());
                due.find_map(|server| has_time().then(|| server.nodes()).flatten())
            }
        };
        if let Some((endpoint, nodes)) = told {
            self.set_servers(&endpoint, &nodes);
        }
        for server in self.servers.values_mut().filter(|server| server.is_due()) {
            if has_time() {
                server.measure();
            }
        }
        let whys = self.servers.values().map(|server| server.control.why.as_deref());
        match whys.collect::<Option<Vec<&str>>>() {
            Some(whys) if whys.is_empty() => Err("no server has slots".to_owned()),
            Some(whys) => Err(format!("no server answers: {}", whys.join("; "))),
            None => Ok(()),
        }
    }

    /// From now on these are the servers. One of them, at this endpoint, has told so.
    fn set_servers(&mut self, told_by: &Endpoint, nodes: &[Node]) {
        let mut before = std::mem::take(&mut self.servers);
        if self.slots.is_empty() {
            let alone = before.remove(ALONE).unwrap_or_else(|| Server::new(told_by.clone()));
            self.servers.insert(ALONE.to_owned(), alone);
            return;
        }
        for node in nodes.iter().filter(|node| !node.is_replica) {
            let has = |slot: &u16| node.slots.iter().any(|(from, to)| (from..=to).contains(&slot));
            let own = node.is_self.then_some(told_by.address);
            let at = own.or(node.address);
            let tag = self.slots.iter().position(has);
            let Some((tag, address)) = tag.zip(at) else { continue };
            let (tag, login) = (tag.to_string(), self.login.clone());
            let same = before.remove(&tag).filter(|server| server.endpoint.address == address);
            let encryption = self.encryption.clone();
            let new = || Server::new(Endpoint { address, login, encryption });
            let server = Server { health: node.health, ..same.unwrap_or_else(new) };
            self.servers.insert(tag, server);
        }
    }

    /// The servers that take part, and their view.
    ///
    /// # Errors
    /// If nothing limits what belady may store.
    fn members(&self) -> Result<(Vec<Reached>, View), String> {
        let (mut reached, mut members) = (Vec::new(), Vec::new());
        let share =
            self.most_bytes.map(|most| used_at_most(most) / self.servers.len().max(1) as u64);
        for (tag, server) in &self.servers {
            let Some(memory) = server.memory.filter(|_| server.is_there()) else { continue };
            let limit = Some(memory.most).filter(|most| *most > 0);
            let bytes = limit.into_iter().chain(share).min().ok_or_else(|| {
                let address = server.endpoint.address;
                format!("the server at {address} has no limit for its memory: set cluster.ram")
            })?;
            let (id, capacity) = (number(format!("tag {tag}").as_bytes()), capacity(bytes));
            let (tag, endpoint) = (tag.clone(), server.endpoint.clone());
            reached.push(Reached { id, endpoint, tag });
            members.push(cluster::Member { id, capacity, disk: 0, seed: 0, group: 0 });
        }
        Ok((reached, View::new(members)))
    }

    /// Writes the record of this node to the registry, and reads those of the others. If that fails, the records before
    /// count for a while.
    fn tell(&mut self) {
        let told = self.exchange();
        if let Some(told) = told {
            let is_told = |id: u64| told.iter().any(|(other, ..)| *other == id);
            self.others.retain(|(id, ..)| !is_told(*id));
            self.others.extend(told);
        }
        let limit = Duration::from_secs(record::FOR_S);
        self.others.retain(|(_, _, heard)| heard.elapsed() < limit);
    }

    fn exchange(&mut self) -> Option<Vec<(u64, Record, Instant)>> {
        let (members, _) = self.members().ok()?;
        let registry = members.iter().min_by_key(|member| member.id)?;
        let all = key(&registry.tag, &format!("n:{}", self.namespace));
        let (own, keys) = (self.own, Keys::new(&self.secret));
        let text = self.terms.seal.close_text(&keys, &name(own), self.record.to_text().as_bytes());
        let exchange = |connection: &mut Connection| exchange(connection, &all, &name(own), &text);
        let server = self.servers.get_mut(&registry.tag)?;
        let told = server.control.ask(&server.endpoint, Duration::ZERO, exchange);
        let failed = |error: &RedisError| {
            tracing::debug!(%error, "other nodes cannot be told of this one");
        };
        let heard = Instant::now();
        let read = |(name, text): (String, Vec<u8>)| {
            let text = self.terms.seal.open_text(&keys, &name, text)?;
            Some((u64::from_str_radix(&name, 16).ok()?, Record::parse(&text)?, heard))
        };
        Some(told.inspect_err(failed).ok()?.into_iter().filter_map(read).collect())
    }

    /// The name of a node's list.
    fn list(&self, node: u64) -> String {
        format!("w:{}:{}", self.namespace, name(node))
    }

    fn status(&self, view: &View) -> ClusterStatus {
        let known = |other: &&Record| ![0, self.record.digest].contains(&other.digest);
        let others = self.others.iter().map(|(_, record, _)| record);
        let differing = others.filter(known).filter(|_| self.record.digest != 0).count();
        let nodes =
            NodesStatus { count: self.others.len() as u64 + 1, differing: differing as u64 };
        let mut members: Vec<MemberStatus> =
            self.servers.iter().map(|(tag, server)| server.status(tag, view)).collect();
        members.sort_by(|a, b| a.address.cmp(&b.address));
        ClusterStatus {
            server: Some(self.software.clone()),
            view: Some(view_name(view.id())),
            members,
            nodes: Some(nodes),
            ..ClusterStatus::default()
        }
    }
}

impl Server {
    fn new(endpoint: Endpoint) -> Self {
        Server {
            endpoint,
            health: Health::Connected,
            control: ControlConnection::new(),
            memory: None,
        }
    }

    /// The servers of its cluster, if it answers.
    fn nodes(&mut self) -> Option<(Endpoint, Vec<Node>)> {
        let ask = |connection: &mut Connection| cmd("CLUSTER").arg("NODES").query(connection);
        let answer: String = self.control.ask(&self.endpoint, Duration::ZERO, ask).ok()?;
        Some((self.endpoint.clone(), nodes::parse(&answer)))
    }

    /// Asks it for its memory. If it does not answer, what it told before counts.
    fn measure(&mut self) {
        if let Ok(memory) = self.control.ask(&self.endpoint, Duration::ZERO, Memory::of) {
            self.memory = Some(memory);
        }
    }

    /// Whether it is to be asked now.
    fn is_due(&self) -> bool {
        self.control.next <= Instant::now()
    }

    /// Whether it has been asked for its memory, or cannot be.
    fn is_asked(&self) -> bool {
        self.memory.is_some() || self.control.why.is_some() || !self.is_there()
    }

    /// Whether the other servers think that it is there.
    fn is_there(&self) -> bool {
        matches!(self.health, Health::Connected | Health::Suspected)
    }

    fn status(&self, tag: &str, view: &View) -> MemberStatus {
        let state = match self.health {
            Health::Failed => MemberState::Failed,
            _ if self.control.why.is_some() => MemberState::Silent,
            _ if self.memory.is_some() => MemberState::Member,
            _ => MemberState::Joining,
        };
        let id = number(format!("tag {tag}").as_bytes());
        let mut members = view.members().iter();
        let capacity = members.find(|member| member.id == id).map_or(0, |member| member.capacity);
        MemberStatus {
            address: self.endpoint.address.to_string(),
            state,
            capacity,
            used: self.memory.map_or(0, |memory| memory.used),
            why: self.control.why.clone(),
            ..MemberStatus::default()
        }
    }
}

impl Memory {
    fn of(connection: &mut Connection) -> RedisResult<Self> {
        let said: String = cmd("INFO").arg("memory").query(connection)?;
        let number = |name| rest_of_line(&said, name).and_then(|text| text.parse().ok());
        let (most, used) = (number("maxmemory:"), number("used_memory:"));
        Ok(Memory { most: most.unwrap_or_default(), used: used.unwrap_or_default() })
    }
}

/// A server's answer about itself and the others.
struct Found {
    software: String,
    slots: Vec<u16>,
    nodes: Vec<Node>,
}

/// The first of the servers that answers.
fn first_of(
    servers: &Servers,
    login: &Login,
    encryption: Option<&Encryption>,
) -> Result<(Endpoint, Found), String> {
    let (mut addresses, mut refused): (Vec<SocketAddr>, _) = (Vec::new(), Vec::new());
    for host in &servers.hosts {
        match (host.host.as_str(), host.port).to_socket_addrs() {
            Ok(found) => addresses.extend(found),
            Err(error) => refused.push(format!("{}: {error}", host.host)),
        }
    }
    for address in addresses {
        let endpoint = Endpoint { address, login: login.clone(), encryption: encryption.cloned() };
        match endpoint.connect(FIRST).and_then(|mut connection| examine(&mut connection)) {
            Ok(Ok(found)) if found.slots.is_empty() && servers.hosts.len() > 1 => {
                return Err(format!("the server at {address} has no cluster: name one server"));
            }
            Ok(Ok(found)) => return Ok((endpoint, found)),
            Ok(Err(why)) => refused.push(format!("the server at {address} {why}")),
            Err(error) => refused.push(format!("the server at {address}: {error}")),
        }
    }
    Err(refused.join("; "))
}

/// Asks a server about itself. The inner error says why it cannot be used.
fn examine(connection: &mut Connection) -> RedisResult<Result<Found, String>> {
    let said: String = cmd("INFO").arg("server").query(connection)?;
    let valkey = rest_of_line(&said, "valkey_version:").map(|version| ("Valkey", version));
    let redis = || rest_of_line(&said, "redis_version:").map(|version| ("Redis", version));
    let Some((software, written)) = valkey.or_else(redis) else {
        return Ok(Err("does not tell its version".to_owned()));
    };
    let software = format!("{software} {written}");
    if Version::parse(written).is_none_or(|version| version < LEAST) {
        return Ok(Err(format!("is {software}: {LEAST} is needed")));
    }
    let said: String = cmd("INFO").arg("cluster").query(connection)?;
    if rest_of_line(&said, "cluster_enabled:") != Some("1") {
        let said: String = cmd("INFO").arg("replication").query(connection)?;
        let found = Found { software, slots: Vec::new(), nodes: Vec::new() };
        return Ok(match rest_of_line(&said, "role:") {
            Some("master") => Ok(found),
            role => Err(format!("is no primary but {}", role.unwrap_or("something else"))),
        });
    }
    let mut slots = pipe();
    for tag in 0..TAGS {
        slots.cmd("CLUSTER").arg("KEYSLOT").arg(key(&tag.to_string(), ""));
    }
    let slots: Vec<u16> = slots.query(connection)?;
    let nodes: String = cmd("CLUSTER").arg("NODES").query(connection)?;
    Ok(Ok(Found { software, slots, nodes: nodes::parse(&nodes) }))
}

/// Writes a record under the name of its node, and returns those of the other nodes, by their names. `all` is the key
/// of the names.
fn exchange(
    connection: &mut Connection,
    all: &str,
    own: &str,
    record: &[u8],
) -> RedisResult<Vec<(String, Vec<u8>)>> {
    let key_of = |name: &str| format!("{all}:{name}");
    let mut tell = pipe();
    tell.cmd("SET").arg(key_of(own)).arg(record).arg("EX").arg(record::FOR_S).ignore();
    tell.cmd("SADD").arg(all).arg(own).ignore();
    tell.cmd("EXPIRE").arg(all).arg(NODES_FOR_S).ignore();
    // A server that is full takes nothing, and still has the others' records.
    let refused = tell.query::<()>(connection).err();
    if let Some(error) = refused.filter(|error| error.is_io_error()) {
        return Err(error);
    }
    let mut names: Vec<String> = cmd("SMEMBERS").arg(all).query(connection)?;
    names.retain(|name| name != own);
    names.truncate(NODES_MOST);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<String> = names.iter().map(|name| key_of(name)).collect();
    let texts: Vec<Option<Vec<u8>>> = cmd("MGET").arg(&keys).query(connection)?;
    let (mut told, mut gone) = (Vec::new(), Vec::new());
    for (name, text) in names.into_iter().zip(texts) {
        match text {
            Some(text) => told.push((name, text)),
            None => gone.push(name),
        }
    }
    if !gone.is_empty() {
        cmd("SREM").arg(all).arg(&gone).query::<()>(connection)?;
    }
    Ok(told)
}

/// The name of a node.
fn name(node: u64) -> String {
    format!("{node:016x}")
}

/// The rest of the line that begins so.
fn rest_of_line<'a>(said: &'a str, begin: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.strip_prefix(begin)).map(str::trim_end)
}
