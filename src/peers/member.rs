//! This node as a member of a cluster: its shard, and what it knows of the others.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{ErrorKind, cmd};

use super::addresses::Search;
use super::client::{Reach, Reached, Terms};
use super::connection::{Connection, Encryption, Endpoint};
use super::control_connection::ControlConnection;
use super::nodes::{Health, Node};
use super::own_shard::OwnShard;
use super::record::{self, Record};
use super::shard::{Shard, ShardSettings, make_directory, member_login};
use super::shards::Membership;
use super::status::{ClusterStatus, MemberState, MemberStatus};
use super::values::{Keys, Seal};
use super::wants::{List, OwnList};
use super::{Program, addresses, secret};
use crate::cluster::{self, Report, View};
use crate::config::ClusterSettings;
use crate::process::Process;

/// Tags are the numbers below this.
pub(super) const TAGS: usize = 1024;

/// How often shards of the list that are not known are told of this one.
const MEET_EVERY: Duration = Duration::from_secs(10);

/// After this time a shard is patient with others, even if it does not take values yet.
const IMPATIENT_FOR: Duration = Duration::from_secs(20);

/// How often members are asked of which nothing is known yet, and how often this one tells of itself meanwhile.
const SOON: Duration = Duration::from_secs(1);

/// How long a shard without a tag waits until it knows those of the others.
const CLAIM_WAIT: Duration = Duration::from_secs(3);

/// After this time a shard that does not answer is forgotten, if the rest is too few to agree that it has failed.
const FORGET_AFTER: Duration = Duration::from_secs(15);

/// How long the others are asked at a look. The rest of them is asked at the next one.
const HEAR_FOR: Duration = Duration::from_secs(2);

/// A server's memory grows to this multiple of what its allocator counts, as values come and go.
const FRAGMENTED: (u64, u64) = (5, 4);

/// Bytes on their way from and to a shard, which count as its memory: a quarter of it at most.
const ON_THE_WAY: u64 = 24 << 20;

/// The part of the rest that samples take at most. The allocator gives a value of 100 kB a tenth more on average, and a
/// shard may hold a fiftieth more than its capacity.
const SAMPLES: (u64, u64) = (17, 20);

/// The part of that with which a shard counts as full.
const FULL: (u64, u64) = (19, 20);

/// Another member.
struct Other {
    /// The member's shard.
    id: String,
    control: ControlConnection,
    /// What it told last, and when.
    record: Option<Record>,
    heard: Instant,
}

/// What a look at the cluster has shown.
pub(super) struct Seen {
    pub(super) status: ClusterStatus,
    pub(super) reach: Reach,
    /// This node's own shard, if it has one and knows its tag.
    pub(super) own: Option<OwnShard>,
    pub(super) own_list: Option<OwnList>,
    /// Whether the own shard has hardly any room left.
    pub(super) is_full: bool,
    /// The reports of the others, by their ids.
    pub(super) reports: Vec<(u64, Report)>,
}

pub(super) struct Member {
    settings: ClusterSettings,
    program: Program,
    secret: String,
    /// How connections are encrypted, if they are.
    encryption: Option<Encryption>,
    shard: Shard,
    /// The addresses of the cluster, as they were found last.
    addresses: Vec<SocketAddr>,
    search: Search,
    /// The slot of each tag.
    slots: Vec<u16>,
    /// What this node tells of itself.
    record: Record,
    others: HashMap<SocketAddr, Other>,
    /// Since when the shard has known no others, and whom it knew before.
    anew: Instant,
    /// When the shard was started, until it is patient with others.
    impatient: Option<Instant>,
    known_before: Vec<SocketAddr>,
    /// Since when shards do not answer the own one, by their ids.
    suspected: HashMap<String, Instant>,
    forget_after: Duration,
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
        let hosts = addresses::names(&settings.join)?;
        let encryption = settings.tls.as_ref().map(|tls| tls.config(&hosts)).transpose()?;
        make_directory(place)?;
        let memory_bytes = used_at_most(settings.ram_bytes);
        let of_shard = ShardSettings {
            directory: place,
            address,
            memory_bytes,
            secret: &secret,
            tls: settings.tls.as_ref(),
            outlives: true,
        };
        let mut shard = Shard::start(&program, &of_shard)?;
        let tags = (0..TAGS).map(|tag| shard.slot_of(&tag.to_string()));
        let slots = tags.collect::<Result<_, _>>()?;
        let record = Record {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            group: settings.group.clone(),
            capacity: capacity(memory_bytes),
            ..Record::default()
        };
        Ok(Member {
            settings: settings.clone(),
            program,
            secret,
            encryption: encryption.map(Encryption),
            shard,
            addresses,
            search: Search::default(),
            slots,
            record,
            others: HashMap::new(),
            anew: Instant::now(),
            impatient: Some(Instant::now()),
            known_before: Vec::new(),
            suspected: HashMap::new(),
            forget_after: FORGET_AFTER,
            met: None,
            told: None,
        })
    }

    /// The server's process.
    pub(super) fn server(&self) -> Process {
        self.shard.process()
    }

    /// Looks who is there. Tells the others of this node, of the digest of its catalog, and what its readers do. To be
    /// called once a second.
    ///
    /// # Errors
    /// If the own shard does not answer.
    pub(super) fn look(&mut self, digest: u64, report: Report) -> Result<Seen, String> {
        let record = Record { digest, ..std::mem::take(&mut self.record) };
        self.record = record.with(report);
        let nodes = self.nodes()?;
        if let Err(why) = self.act(&nodes) {
            // Another node may have taken a slot meanwhile, or most shards do not answer. It is tried again.
            tracing::debug!(%why, "the shard refuses");
        }
        let (reached, view) = self.members(&nodes);
        let own = nodes.iter().find(|node| node.is_self).map(id);
        let own = own.filter(|own| reached.iter().any(|reached| reached.id == *own));
        let tag = self.own_tag(&nodes);
        let others = nodes.iter().filter(|node| !node.is_self);
        let report = |node: &Node| {
            let ago = self.others.get(&node.address?)?.heard.elapsed();
            Some((id(node), self.heard_of(node)?.report(ago)))
        };
        let reports = others.filter_map(report).collect();
        let keys = Keys::new(&self.secret);
        let status = self.status(&nodes, &view);
        let reach = Reach {
            membership: own.map(|own| Membership { own, view, keys }),
            nodes: reached.iter().map(|it| (it.id, List::of(it.id))).collect(),
            members: reached,
            terms: Terms { seal: Seal::Checksum, expires_s: None },
        };
        let own = tag.map(|tag| OwnShard { access: self.shard.access(), tag });
        Ok(Seen {
            status,
            reach,
            own_list: own.as_ref().map(OwnList::own),
            own,
            is_full: self.record.used >= self.record.capacity / FULL.1 * FULL.0,
            reports,
        })
    }

    /// How the member at this address is asked.
    fn endpoint(&self, address: SocketAddr) -> Endpoint {
        let login = member_login(&self.secret, address);
        Endpoint { address, login, encryption: self.encryption.clone() }
    }

    /// The members that take part, and their view.
    fn members(&self, nodes: &[Node]) -> (Vec<Reached>, View) {
        let (mut reached, mut members) = (Vec::new(), Vec::new());
        for node in nodes {
            let record = if node.is_self { Some(&self.record) } else { self.heard_of(node) };
            let (Some(record), Some(tag), id) = (record, self.tag(node), id(node)) else {
                continue;
            };
            let address = if node.is_self { Some(self.shard.address()) } else { node.address };
            let Some(address) = address else { continue };
            let Record { capacity, disk, seed, ref group, .. } = *record;
            let group = number(group.as_bytes()) as u32;
            let endpoint = self.endpoint(address);
            reached.push(Reached { id, endpoint, tag });
            members.push(cluster::Member { id, capacity, disk, seed, group });
        }
        (reached, View::new(members))
    }

    /// Does what is due.
    fn act(&mut self, nodes: &[Node]) -> Result<(), String> {
        if nodes.iter().any(|node| node.is_self && node.is_replica) {
            return self.start_anew(nodes);
        }
        // The own record is first, since others may be slow. They have to be known before it takes a tag.
        let steps = [Self::tell, Self::meet, Self::claim, Self::forget_failed];
        let done = steps.map(|step| step(self, nodes));
        self.hear(nodes);
        done.into_iter().collect()
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

    /// Takes a tag if it has none. Before that, it waits a short time for the others to tell theirs.
    fn claim(&mut self, nodes: &[Node]) -> Result<(), String> {
        if self.own_tag(nodes).is_some() {
            return Ok(());
        }
        match self.anew.elapsed() >= CLAIM_WAIT || self.knows_all_tags(nodes) {
            true => self.take_tag(nodes),
            false => Ok(()),
        }
    }

    /// Whether all others that it can know have told their tags.
    fn knows_all_tags(&self, nodes: &[Node]) -> bool {
        let has_told = |address: &SocketAddr| {
            let mut there = nodes.iter().filter(|node| node.address == Some(*address));
            there.any(|node| node.health == Health::Connected && self.tag(node).is_some())
        };
        let own = self.shard.address();
        let all = self.addresses.iter().chain(&self.known_before);
        all.filter(|address| **address != own).all(has_told)
    }

    /// Ends the state of a replica: if two shards have one tag, the servers make the one that loses it a replica of the
    /// other one. It takes another tag when it knows the others again.
    fn start_anew(&mut self, nodes: &[Node]) -> Result<(), String> {
        self.shard.reset()?;
        self.anew = Instant::now();
        let known = nodes.iter().filter(|node| node.health == Health::Connected && !node.is_self);
        self.known_before = known.filter_map(|node| node.address).collect();
        self.meet_all(self.known_before.clone())
    }

    /// Takes a tag that nobody has. It begins with the one of its place in the list, so that the members of a list
    /// choose different ones. A node that is not in the list begins anywhere.
    fn take_tag(&mut self, nodes: &[Node]) -> Result<(), String> {
        let own = self.shard.address();
        let place = self.addresses.iter().position(|address| *address == own);
        let begin = place.unwrap_or_else(|| number(own.to_string().as_bytes()) as usize % TAGS);
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

    /// Tells the shards of the list that it does not know of itself, if that is due.
    fn meet(&mut self, nodes: &[Node]) -> Result<(), String> {
        if let Some(found) = self.search.take() {
            self.addresses = found;
        }
        if self.met.is_some_and(|met| met.elapsed() < MEET_EVERY) {
            return Ok(());
        }
        self.met = Some(Instant::now());
        let join = self.settings.join.clone();
        self.search.begin(move || addresses::find(&join));
        let own = self.shard.address();
        let is_known = |address: &SocketAddr| {
            let mut known = nodes.iter().filter(|node| node.health == Health::Connected);
            known.any(|node| node.address == Some(*address))
        };
        let unknown =
            self.addresses.iter().filter(|address| **address != own && !is_known(address));
        self.meet_all(unknown.copied().collect())
    }

    /// Tells these shards of itself. If some cannot be told, the others are.
    fn meet_all(&mut self, addresses: Vec<SocketAddr>) -> Result<(), String> {
        let met: Vec<_> = addresses.into_iter().map(|address| self.shard.meet(address)).collect();
        met.into_iter().collect()
    }

    /// Forgets shards that have failed, if the others are too few for the own shard to take values: then those do not
    /// count any more. It is told of them again. If half of the shards are gone at once, the rest is too few to agree
    /// that these have failed. Then each forgets those that have not answered for a while.
    fn forget_failed(&mut self, nodes: &[Node]) -> Result<(), String> {
        self.note_suspected(nodes);
        let is_lost = |node: &&Node| match node.health {
            Health::Failed => !node.is_self,
            Health::Suspected => self.is_silent(node),
            Health::Connected | Health::Meeting => false,
        };
        let lost: Vec<&Node> = nodes.iter().filter(is_lost).collect();
        if lost.is_empty() || self.shard.takes_values()? {
            return Ok(());
        }
        let forgotten: Vec<_> = lost.iter().map(|node| self.shard.forget(&node.id)).collect();
        forgotten.into_iter().collect()
    }

    fn note_suspected(&mut self, nodes: &[Node]) {
        let suspected = nodes.iter().filter(|node| node.health == Health::Suspected);
        let since = suspected.map(|node| {
            let before = self.suspected.get(&node.id).copied();
            (node.id.clone(), before.unwrap_or_else(Instant::now))
        });
        self.suspected = since.collect();
    }

    /// Whether a shard has not answered the own one for a while.
    fn is_silent(&self, node: &Node) -> bool {
        self.suspected.get(&node.id).is_some_and(|since| since.elapsed() >= self.forget_after)
    }

    /// Writes the own record, if that is due. A shard that has just started does not take it yet.
    fn tell(&mut self, nodes: &[Node]) -> Result<(), String> {
        let knows_all = self.others.values().all(|other| other.record.is_some());
        let pause = if knows_all { Duration::from_secs(record::EVERY_S) } else { SOON };
        if self.told.is_some_and(|told| told.elapsed() < pause) {
            return Ok(());
        }
        let Some(tag) = self.own_tag(nodes) else { return Ok(()) };
        self.told = Some(Instant::now());
        self.record.used = self.shard.used_bytes()?;
        let takes_values = self.shard.takes_values()?;
        if self.impatient.is_some_and(|since| takes_values || since.elapsed() >= IMPATIENT_FOR) {
            self.shard.be_patient()?;
            self.impatient = None;
        }
        if takes_values {
            self.shard.set(&Record::key(&tag), &self.record.to_text(), record::FOR_S)?;
        }
        Ok(())
    }

    /// Reads the records of the others.
    fn hear(&mut self, nodes: &[Node]) {
        // A server that was started anew is there twice for a while: last is the one that answers.
        let (answering, silent): (Vec<&Node>, Vec<&Node>) = nodes
            .iter()
            .filter(|node| !node.is_self)
            .partition(|node| node.health == Health::Connected);
        let there = silent.into_iter().chain(answering);
        let there: HashMap<SocketAddr, &Node> =
            there.filter_map(|node| Some((node.address?, node))).collect();
        self.others
            .retain(|address, other| there.get(address).is_some_and(|node| node.id == other.id));
        let mut asked = Vec::new();
        for (address, node) in there {
            let tag = self.tag(node);
            let other = self.others.entry(address).or_insert_with(|| Other::new(&node.id));
            match tag {
                Some(tag) if node.health == Health::Connected => {
                    asked.push((address, Record::key(&tag)));
                }
                tag => {
                    other.control.rest();
                    other.record = other.record.take().filter(|_| tag.is_some());
                }
            }
        }
        let endpoint = |(address, key)| (self.endpoint(address), key);
        let asked = asked.into_iter().map(endpoint).collect();
        hear_in_turn(&mut self.others, asked, HEAR_FOR);
    }

    fn status(&self, nodes: &[Node], view: &View) -> ClusterStatus {
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
        ClusterStatus {
            why: None,
            server: Some(self.program.to_string()),
            address: Some(self.shard.address().to_string()),
            view: Some(view_name(view.id())),
            members,
            ..ClusterStatus::default()
        }
    }

    /// What another member told of itself a short while ago.
    fn heard_of(&self, node: &Node) -> Option<&Record> {
        let other = self.others.get(&node.address?)?;
        // A short pause of a member moves no homes.
        other.told().filter(|_| matches!(node.health, Health::Connected | Health::Suspected))
    }

    fn member_status(&self, node: &Node) -> Option<MemberStatus> {
        let address = node.address?;
        let record = if node.is_self { Some(&self.record) } else { self.heard_of(node) };
        let why = self.others.get(&address).and_then(|other| other.control.why.clone());
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
        let record = record.cloned().unwrap_or_default();
        let Record { group, capacity, disk, used, digest, .. } = record;
        let differs = ![0, self.record.digest].contains(&digest) && self.record.digest != 0;
        let address = address.to_string();
        Some(MemberStatus { address, state, group, capacity, disk, used, why, differs })
    }
}

impl Other {
    fn new(id: &str) -> Self {
        Other {
            id: id.to_owned(),
            control: ControlConnection::new(),
            record: None,
            heard: Instant::now(),
        }
    }

    /// What the member told of itself, as long as that counts.
    fn told(&self) -> Option<&Record> {
        let counts = self.heard.elapsed() < Duration::from_secs(record::FOR_S);
        self.record.as_ref().filter(|_| counts)
    }

    /// Reads the member's record. If it does not answer, what it told before counts for a while.
    fn hear(&mut self, endpoint: &Endpoint, key: &str) {
        let read = |connection: &mut Connection| cmd("GET").arg(key).query(connection);
        match self.control.ask::<Option<Vec<u8>>>(endpoint, SOON, read) {
            Ok(text) => {
                self.record = text.as_deref().and_then(Record::parse);
                self.heard = Instant::now();
                if self.record.is_some() {
                    self.control.next = self.heard + Duration::from_secs(record::EVERY_S);
                }
            }
            Err(error) if error.kind() == ErrorKind::AuthenticationFailed => {
                self.record = None;
                self.control.why = Some("it has another secret".to_owned());
            }
            Err(_) => {}
        }
    }
}

/// Reads the records of members that are due, each under its key, until the time is over. First are those that
/// answered last time, then those that have waited longest, so that each has its turn.
fn hear_in_turn(
    others: &mut HashMap<SocketAddr, Other>,
    asked: Vec<(Endpoint, String)>,
    most: Duration,
) {
    let begun = Instant::now();
    let due = asked.into_iter().filter_map(|(endpoint, key)| {
        let control = &others.get(&endpoint.address).filter(|it| it.control.next <= begun)?.control;
        Some((!control.is_connected(), control.next, endpoint, key))
    });
    let mut due: Vec<_> = due.collect();
    due.sort_by_key(|(is_new, next, endpoint, _)| (*is_new, *next, endpoint.address));
    for (_, _, endpoint, key) in due {
        let other = others.get_mut(&endpoint.address);
        other.into_iter().for_each(|other| other.hear(&endpoint, &key));
        if begun.elapsed() >= most {
            break;
        }
    }
}

/// The bytes that a server may count as used, so that its process takes `bytes`.
pub(super) fn used_at_most(bytes: u64) -> u64 {
    bytes / FRAGMENTED.0 * FRAGMENTED.1
}

/// Bytes of samples that a shard with this memory holds.
pub(super) fn capacity(memory_bytes: u64) -> u64 {
    (memory_bytes - ON_THE_WAY.min(memory_bytes / 4)) / SAMPLES.1 * SAMPLES.0
}

/// The number of a view as it is shown.
pub(super) fn view_name(id: u64) -> String {
    format!("{id:016x}")
}

/// The number of a member, the same on all nodes.
fn id(node: &Node) -> u64 {
    number(node.id.as_bytes())
}

/// A number for a name, the same on all nodes.
pub(super) fn number(name: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| cluster::mix(hash ^ u64::from(*byte));
    name.iter().fold(name.len() as u64 + 1, add)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::thread;

    use super::*;
    use crate::config::OwnAddress;
    use crate::peers::tests::free_addresses;

    /// A time that only a broken program takes.
    const LIMIT: Duration = Duration::from_secs(180);

    /// A node with this list of nodes. Its files are below a directory.
    fn join(top: &Path, own: SocketAddr, list: &[SocketAddr]) -> Member {
        let list: Vec<String> = list.iter().map(SocketAddr::to_string).collect();
        let settings = ClusterSettings {
            join: format!("hosts:{}", list.join(",")).parse().unwrap(),
            ram_bytes: 16 << 20,
            servers_bytes: None,
            login: PathBuf::new(),
            tls: None,
            expires: Duration::ZERO,
            secret: top.join("secret"),
            address: OwnAddress::Exact(own),
            group: String::new(),
            source_rate: None,
            disk: true,
            follow: true,
            server: PathBuf::new(),
        };
        let place = top.join(own.port().to_string());
        Member::join(&settings, &place, &std::env::var_os("PATH").unwrap()).unwrap()
    }

    /// Has all nodes look until what they see is as expected.
    fn look_until(
        what: &str,
        members: &mut [Member],
        is_so: impl Fn(&mut [Member], &[ClusterStatus]) -> bool,
    ) {
        let begun = Instant::now();
        loop {
            let seen: Vec<_> = members
                .iter_mut()
                .map(|member| member.look(0, Report::default()).unwrap().status)
                .collect();
            if is_so(members, &seen) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{what}: {seen:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Links to these addresses, of which none has been asked.
    fn endpoint(address: SocketAddr) -> Endpoint {
        Endpoint { address, login: member_login("secret", address), encryption: None }
    }

    fn others(addresses: &[SocketAddr]) -> HashMap<SocketAddr, Other> {
        addresses.iter().map(|address| (*address, Other::new("x"))).collect()
    }

    #[test]
    fn what_a_member_told_counts_after_a_late_answer() {
        // Nobody listens there.
        let address = free_addresses(1)[0];
        let mut other = Other::new("x");
        let record = Record { capacity: 7, ..Record::default() };
        other.record = Some(record.clone());
        other.hear(&endpoint(address), "key");
        assert!(other.control.why.is_some() && other.control.next > other.heard);
        assert_eq!(other.told(), Some(&record));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(record::FOR_S));
        other.heard = long_ago.expect("this machine runs for longer than that");
        assert_eq!(other.told(), None);
        other.control.rest();
        assert_eq!(other.control.why, None);
    }

    #[test]
    fn each_silent_member_has_its_turn() {
        // They take connections, and never answer.
        let silent: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let silent = silent.iter().map(|listener| listener.local_addr().unwrap());
        let addresses: Vec<SocketAddr> = silent.collect();
        let mut others = others(&addresses);
        let asked = |others: &HashMap<SocketAddr, Other>| {
            others.values().filter(|other| other.control.why.is_some()).count()
        };
        for count in 1..=3 {
            let all = addresses.iter().map(|it| (endpoint(*it), "key".to_owned())).collect();
            hear_in_turn(&mut others, all, Duration::ZERO);
            assert_eq!(asked(&others), count, "one has used all of the time");
        }
        let none = addresses.iter().map(|it| (endpoint(*it), "key".to_owned())).collect();
        let wait = |other: &mut Other| {
            (other.control.why, other.control.next) = (None, Instant::now() + LIMIT);
        };
        others.values_mut().for_each(wait);
        hear_in_turn(&mut others, none, LIMIT);
        assert_eq!(asked(&others), 0, "none is due");
    }

    fn tags(members: &mut [Member]) -> Vec<Option<String>> {
        let tag = |member: &mut Member| {
            let nodes = member.shard.nodes().unwrap();
            member.own_tag(&nodes)
        };
        members.iter_mut().map(tag).collect()
    }

    #[test]
    fn of_two_shards_with_one_tag_one_takes_another_tag() {
        let top = tempfile::tempdir().unwrap();
        let all = free_addresses(2);
        // Each is the first one of its own list.
        let mut members = [all[0], all[1]].map(|own| join(top.path(), own, &[own]));
        members.iter_mut().for_each(|member| drop(member.look(0, Report::default()).unwrap()));
        assert_eq!(tags(&mut members), [Some("0".to_owned()), Some("0".to_owned())]);
        members[0].shard.meet(all[1]).unwrap();
        look_until("both are members", &mut members, |members, seen| {
            let tags = tags(members);
            let are_there = seen.iter().all(|seen| seen.counts() == (2, 2));
            are_there && tags[0].is_some() && tags[1].is_some() && tags[0] != tags[1]
        });
    }

    #[test]
    fn half_of_the_shards_go_on_without_the_others() {
        let top = tempfile::tempdir().unwrap();
        let all = free_addresses(4);
        let mut members: Vec<_> = all.iter().map(|own| join(top.path(), *own, &all)).collect();
        let count = |count: usize| {
            move |_: &mut [Member], seen: &[ClusterStatus]| {
                seen.iter().all(|seen| seen.counts() == (count, 4))
            }
        };
        look_until("all are there", &mut members, count(4));
        members.truncate(2);
        let take_values = |members: &mut [Member]| {
            members
                .iter_mut()
                .map(|member| member.shard.takes_values().unwrap())
                .collect::<Vec<_>>()
        };
        let begun = Instant::now();
        while take_values(&mut members) != [false, false] {
            assert!(begun.elapsed() < LIMIT, "two of four are no majority");
            thread::sleep(Duration::from_millis(20));
        }
        members.iter_mut().for_each(|member| member.forget_after = Duration::from_millis(500));
        look_until("they forget the others", &mut members, |members, seen| {
            take_values(members) == [true, true] && count(2)(members, seen)
        });
    }
}
