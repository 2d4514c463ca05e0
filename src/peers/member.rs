//! This node as a member of a cluster: its shard, and what it knows of the others.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Connection, ErrorKind, cmd};

use super::connection::{Login, SHORT, connect_to};
use super::nodes::{Health, Node};
use super::record::{self, Record};
use super::shard::{MEMBER, Shard, ShardSettings, member_password};
use super::status::{ClusterStatus, MemberState, MemberStatus};
use super::{Program, addresses, secret};
use crate::cluster::{self, View};
use crate::config::ClusterSettings;

/// Tags are the numbers below this.
const TAGS: usize = 1024;

/// How often shards of the list that are not known are told of this one.
const MEET_EVERY: Duration = Duration::from_secs(10);

/// The pause after which a member that did not answer is asked again. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A server's memory grows to this multiple of what its allocator counts, as values come and go.
const FRAGMENTED: (u64, u64) = (5, 4);

/// The part of a shard's memory that samples take at most.
const SAMPLES: (u64, u64) = (9, 10);

/// The connection to another member.
struct Link {
    connection: Option<Connection>,
    record: Option<Record>,
    /// Why it does not answer.
    why: Option<String>,
    pause: Duration,
    next: Instant,
}

pub(super) struct Member {
    settings: ClusterSettings,
    program: Program,
    secret: String,
    shard: Shard,
    /// The addresses of the cluster, as they were found last.
    addresses: Vec<SocketAddr>,
    /// The slot of each tag.
    slots: Vec<u16>,
    /// What this node tells of itself.
    record: Record,
    links: HashMap<SocketAddr, Link>,
    met: Option<Instant>,
    told: Option<Instant>,
}

impl Member {
    /// Starts the shard of this node, or adopts it. `place` is a directory for its files.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn join(
        settings: &ClusterSettings,
        place: &Path,
        search_path: &OsStr,
    ) -> Result<Self, String> {
        let program = match settings.server.as_os_str().is_empty() {
            true => Program::find(search_path),
            false => Program::at(&settings.server),
        }?;
        let addresses = addresses::find(&settings.join)?;
        let address = addresses::own(settings.address, &addresses)?;
        let secret = secret::read_or_make(&settings.secret)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(place);
        made.map_err(|error| format!("{}: {error}", place.display()))?;
        let memory_bytes = settings.ram_bytes / FRAGMENTED.0 * FRAGMENTED.1;
        let of_shard = ShardSettings {
            directory: place,
            address,
            memory_bytes,
            secret: &secret,
            outlives: true,
        };
        let mut shard = Shard::start(&program, &of_shard)?;
        let tags = (0..TAGS).map(|tag| shard.slot_of(&tag.to_string()));
        let slots = tags.collect::<Result<_, _>>()?;
        let record = Record {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            group: settings.group.clone(),
            capacity: memory_bytes / SAMPLES.1 * SAMPLES.0,
            used: 0,
        };
        Ok(Member {
            settings: settings.clone(),
            program,
            secret,
            shard,
            addresses,
            slots,
            record,
            links: HashMap::new(),
            met: None,
            told: None,
        })
    }

    /// The server's process.
    pub(super) fn server(&self) -> u32 {
        self.shard.pid()
    }

    /// Looks who is there, and tells the others of this node. To be called once a second.
    ///
    /// # Errors
    /// If the own shard does not answer.
    pub(super) fn look(&mut self) -> Result<ClusterStatus, String> {
        let nodes = self.nodes()?;
        if let Err(why) = self.act(&nodes) {
            // Another node may have taken a slot meanwhile, or most shards do not answer. It is tried again.
            tracing::debug!(%why, "the shard refuses");
        }
        Ok(self.status(&nodes))
    }

    /// Does what is due.
    fn act(&mut self, nodes: &[Node]) -> Result<(), String> {
        if self.own_tag(nodes).is_none() {
            self.take_tag(nodes)?;
        }
        if self.met.is_none_or(|met| met.elapsed() >= MEET_EVERY) {
            self.met = Some(Instant::now());
            self.meet(nodes)?;
        }
        self.forget_failed(nodes)?;
        if self.told.is_none_or(|told| told.elapsed() >= Duration::from_secs(record::EVERY_S)) {
            self.told = Some(Instant::now());
            self.hear(nodes);
            self.tell(nodes)?;
        }
        Ok(())
    }

    /// The shards that the own one knows, one for each address. If a shard is gone for good, since another one is at
    /// its address by now, it is forgotten.
    fn nodes(&mut self) -> Result<Vec<Node>, String> {
        let nodes = self.shard.nodes()?;
        if !nodes.iter().any(|node| node.is_self) {
            return Err(format!("the shard at {} does not know itself", self.shard.address()));
        }
        let at = |health: Health, node: &Node| {
            let mut others = nodes.iter().filter(|other| other.id != node.id);
            others.any(|other| other.address == node.address && other.health == health)
        };
        let is_replaced = |node: &Node| {
            let is_elsewhere = node.address.is_none() || at(Health::Connected, node);
            node.health == Health::Failed && !node.is_self && is_elsewhere
        };
        // It is known already, and does not answer.
        let is_met_again = |node: &Node| {
            let known = [Health::Connected, Health::Suspected, Health::Failed];
            node.health == Health::Meeting && known.iter().any(|health| at(*health, node))
        };
        let (replaced, rest): (Vec<Node>, Vec<Node>) = nodes.iter().cloned().partition(is_replaced);
        let rest = rest.into_iter().filter(|node| !is_met_again(node)).collect();
        replaced.iter().for_each(|node| drop(self.shard.forget(&node.id)));
        Ok(rest)
    }

    /// The tag of a shard, by the slot that it has.
    fn tag(&self, node: &Node) -> Option<String> {
        let has =
            |slot: &u16| node.slots.iter().any(|(first, last)| (first..=last).contains(&slot));
        self.slots.iter().position(has).map(|tag| tag.to_string())
    }

    fn own_tag(&self, nodes: &[Node]) -> Option<String> {
        nodes.iter().find(|node| node.is_self).and_then(|node| self.tag(node))
    }

    /// Takes a tag that nobody has. It begins with the one of its place in the list, so that the members of a list choose
    /// different ones.
    fn take_tag(&mut self, nodes: &[Node]) -> Result<(), String> {
        let own = self.shard.address();
        let place = self.addresses.iter().position(|address| *address == own);
        let begin = place.unwrap_or(self.addresses.len());
        let is_free = |tag: &usize| {
            let slot = self.slots[*tag];
            let mut taken = nodes.iter().flat_map(|node| &node.slots);
            let is_taken = taken.any(|(first, last)| (first..=last).contains(&&slot));
            // Two tags may have one slot. Then it is the slot of the first of them.
            let is_first = self.slots.iter().position(|other| *other == slot) == Some(*tag);
            !is_taken && is_first
        };
        let tag = (0..TAGS).map(|number| (begin + number) % TAGS).find(is_free);
        let tag = tag.ok_or("all slots of the cluster are taken")?;
        self.shard.take_slot(&tag.to_string())
    }

    /// Tells the shards of the list that it does not know of itself.
    fn meet(&mut self, nodes: &[Node]) -> Result<(), String> {
        if let Ok(found) = addresses::find(&self.settings.join) {
            self.addresses = found;
        }
        let own = self.shard.address();
        let is_known = |address: &SocketAddr| {
            let mut known = nodes.iter().filter(|node| node.health == Health::Connected);
            known.any(|node| node.address == Some(*address))
        };
        let unknown =
            self.addresses.iter().filter(|address| **address != own && !is_known(address));
        unknown
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|address| self.shard.meet(address))
    }

    /// Forgets shards that have failed, if the others are too few for the own shard to take values: then those do not
    /// count any more. It is told of them again.
    fn forget_failed(&mut self, nodes: &[Node]) -> Result<(), String> {
        let failed = nodes.iter().filter(|node| node.health == Health::Failed && !node.is_self);
        let failed: Vec<&Node> = failed.collect();
        if !failed.is_empty() && !self.shard.takes_values()? {
            failed.iter().for_each(|node| drop(self.shard.forget(&node.id)));
        }
        Ok(())
    }

    /// Writes the own record. A shard that has just started does not take it yet.
    fn tell(&mut self, nodes: &[Node]) -> Result<(), String> {
        let Some(tag) = self.own_tag(nodes) else { return Ok(()) };
        self.record.used = self.shard.used_bytes()?;
        if self.shard.takes_values()? {
            self.shard.set(&Record::key(&tag), &self.record.to_text(), record::FOR_S)?;
        }
        Ok(())
    }

    /// Reads the records of the others.
    fn hear(&mut self, nodes: &[Node]) {
        let there = nodes.iter().filter(|node| !node.is_self);
        let there = there.filter_map(|node| Some((node.address?, node)));
        let there: HashMap<SocketAddr, &Node> = there.collect();
        self.links.retain(|address, _| there.contains_key(address));
        for (address, node) in there {
            let tag = self.tag(node);
            let link = self.links.entry(address).or_insert_with(Link::new);
            match tag {
                Some(tag) if node.health == Health::Connected => {
                    link.hear(address, &Record::key(&tag), &self.secret);
                }
                _ => link.record = None,
            }
        }
    }

    fn status(&self, nodes: &[Node]) -> ClusterStatus {
        let mut members: Vec<MemberStatus> =
            nodes.iter().filter_map(|node| self.member_status(node)).collect();
        let known: Vec<String> = members.iter().map(|member| member.address.clone()).collect();
        let missing = self.addresses.iter().map(SocketAddr::to_string);
        let missing = missing.filter(|address| !known.contains(address));
        members.extend(missing.map(|address| MemberStatus {
            address,
            state: MemberState::Missing,
            ..MemberStatus::default()
        }));
        members.sort_by(|a, b| a.address.cmp(&b.address));
        let there = nodes.iter().filter_map(|node| {
            let record = match node.is_self {
                true => &self.record,
                false => self.heard_of(node)?,
            };
            let (capacity, group) = (record.capacity, number(record.group.as_bytes()) as u32);
            Some(cluster::Member { id: number(node.id.as_bytes()), capacity, group })
        });
        ClusterStatus {
            why: None,
            server: Some(self.program.to_string()),
            address: Some(self.shard.address().to_string()),
            view: Some(format!("{:016x}", View::new(there.collect()).id())),
            members,
        }
    }

    /// What another member told of itself a short while ago.
    fn heard_of(&self, node: &Node) -> Option<&Record> {
        let link = self.links.get(&node.address?)?;
        link.record.as_ref().filter(|_| node.health == Health::Connected)
    }

    fn member_status(&self, node: &Node) -> Option<MemberStatus> {
        let address = node.address?;
        let record = if node.is_self { Some(&self.record) } else { self.heard_of(node) };
        let why = self.links.get(&address).and_then(|link| link.why.clone());
        let state = match node.health {
            _ if node.is_self => MemberState::Here,
            Health::Failed => MemberState::Failed,
            Health::Connected if record.is_some() => MemberState::Member,
            Health::Connected if why.is_some() => MemberState::Silent,
            Health::Suspected => MemberState::Silent,
            Health::Connected => MemberState::Joining,
            // It was told of this node, and has not answered.
            Health::Meeting => MemberState::Missing,
        };
        let Record { group, capacity, used, .. } = record.cloned().unwrap_or_default();
        Some(MemberStatus { address: address.to_string(), state, group, capacity, used, why })
    }
}

impl Link {
    fn new() -> Self {
        Link { connection: None, record: None, why: None, pause: PAUSE_MIN, next: Instant::now() }
    }

    /// Reads the member's record, unless it did not answer a short while ago.
    fn hear(&mut self, address: SocketAddr, key: &str, secret: &str) {
        if Instant::now() < self.next {
            return;
        }
        match self.read(address, key, secret) {
            Ok(text) => {
                self.record = text.as_deref().and_then(Record::parse);
                (self.why, self.pause) = (None, PAUSE_MIN);
            }
            Err(error) => {
                (self.connection, self.record) = (None, None);
                self.why = Some(match error.kind() {
                    ErrorKind::AuthenticationFailed => "it has another secret".to_owned(),
                    _ => error.to_string(),
                });
                self.next = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }

    fn read(
        &mut self,
        address: SocketAddr,
        key: &str,
        secret: &str,
    ) -> redis::RedisResult<Option<Vec<u8>>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let password = member_password(secret, address);
                connect_to(address, &Login { user: MEMBER, password: &password }, SHORT)?
            }
        };
        let text = cmd("GET").arg(key).query(&mut connection)?;
        self.connection = Some(connection);
        Ok(text)
    }
}

/// A number for a name, the same on all nodes.
fn number(name: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| cluster::mix(hash ^ u64::from(*byte));
    name.iter().fold(name.len() as u64 + 1, add)
}
