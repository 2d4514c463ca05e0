//! Where the nodes of a cluster are, and which of them this one is.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use super::slurm;
use crate::config::{HostPort, Join, OwnAddress};

/// The addresses of a cluster's nodes, sorted. Names that are not known at this moment are left out.
///
/// # Errors
/// If no name is known, or Slurm does not tell the nodes of its job.
pub(super) fn find(join: &Join) -> Result<Vec<SocketAddr>, String> {
    let of = |name: &HostPort| (name.host.as_str(), name.port).to_socket_addrs();
    let mut found = Vec::new();
    let mut unknown = Vec::new();
    let mut add = |name: &HostPort, most: usize| match of(name) {
        Ok(addresses) => found.extend(addresses.take(most)),
        Err(error) => unknown.push(format!("{}: {error}", name.host)),
    };
    match join {
        Join::Off | Join::Servers(_) => {}
        // Each of them is one node, however many addresses it has.
        Join::Hosts(hosts) => hosts.iter().for_each(|host| add(host, 1)),
        Join::Dns(name) => add(name, usize::MAX),
        Join::Slurm => slurm::nodes()?.iter().for_each(|host| add(host, 1)),
    }
    // Some systems give a machine's own name a loopback address, which no other node reaches.
    if found.iter().any(|address| !address.ip().is_loopback()) {
        found.retain(|address| !address.ip().is_loopback());
    }
    found.sort_unstable();
    found.dedup();
    match found.is_empty() {
        true => Err(format!("the nodes of the cluster are not known: {}", unknown.join(", "))),
        false => Ok(found),
    }
}

/// The names of the nodes as they are written, which their certificates may have.
///
/// # Errors
/// As [`find`].
pub(super) fn names(join: &Join) -> Result<Vec<String>, String> {
    let hosts = match join {
        Join::Off => &[],
        Join::Servers(servers) => &servers.hosts[..],
        Join::Hosts(hosts) => hosts,
        Join::Dns(name) => std::slice::from_ref(name),
        Join::Slurm => slurm::nodes()?,
    };
    Ok(hosts.iter().map(|host| host.host.clone()).collect())
}

/// A search for the addresses in a thread of its own, since a name server may not answer for a long time.
#[derive(Default)]
pub(super) struct Search {
    /// What it finds; `None` if there is no search.
    found: Option<Receiver<Result<Vec<SocketAddr>, String>>>,
}

impl Search {
    /// Begins to search, unless the search before has not ended.
    pub(super) fn begin(
        &mut self,
        find: impl FnOnce() -> Result<Vec<SocketAddr>, String> + Send + 'static,
    ) {
        if self.found.is_some() {
            return;
        }
        let (send, found) = channel();
        let search = move || drop(send.send(find()));
        // If no thread can be started, a later search may have one.
        let started = thread::Builder::new().name("belady-names".into()).spawn(search);
        self.found = started.is_ok().then_some(found);
    }

    /// What a search has found, once it has ended.
    pub(super) fn take(&mut self) -> Option<Vec<SocketAddr>> {
        let ended = self.found.as_ref()?.try_recv();
        if ended == Err(TryRecvError::Empty) {
            return None;
        }
        self.found = None;
        ended.ok()?.ok()
    }
}

/// The address of this node among those of the cluster.
///
/// # Errors
/// If it cannot be told.
pub(super) fn own(wanted: OwnAddress, all: &[SocketAddr]) -> Result<SocketAddr, String> {
    let is_own = |address: &&SocketAddr| match wanted {
        OwnAddress::Found => TcpListener::bind((address.ip(), 0)).is_ok(),
        OwnAddress::Ip(ip) => address.ip() == ip,
        OwnAddress::Exact(exact) => **address == exact,
    };
    let mut found = all.iter().filter(is_own);
    let list = || all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    match (wanted, found.next(), found.next()) {
        (OwnAddress::Exact(exact), ..) => Ok(exact),
        (_, Some(own), None) => Ok(*own),
        (OwnAddress::Found, None, _) => {
            let list = list();
            Err(format!(
                "this machine has none of the cluster's addresses {list}: name the nodes by their addresses"
            ))
        }
        (OwnAddress::Ip(ip), None, _) => {
            Err(format!("cluster.address {ip} is none of the cluster's addresses {}", list()))
        }
        (_, Some(one), Some(other)) => Err(format!(
            "this machine has several addresses of the cluster, {one} and {other}: set cluster.address"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(join: &str) -> Result<Vec<SocketAddr>, String> {
        find(&join.parse().unwrap())
    }

    #[test]
    fn a_node_finds_itself_among_the_addresses() {
        let nodes = all("hosts:127.0.0.1:7200,127.0.0.1:7200").unwrap();
        assert_eq!(own(OwnAddress::Found, &nodes), Ok("127.0.0.1:7200".parse().unwrap()));
        let nodes = all("hosts:192.0.2.8,127.0.1.1,192.0.2.7,192.0.2.7:7100").unwrap();
        let far = ["192.0.2.7:7100", "192.0.2.8:7100"];
        assert_eq!(nodes, far.map(|node| node.parse().unwrap()), "no loopback beside others");
        let own = |wanted: &str| own(wanted.parse().unwrap(), &nodes);
        assert_eq!(own("192.0.2.7"), Ok(nodes[0]));
        assert_eq!(own("10.0.0.1:7"), Ok("10.0.0.1:7".parse().unwrap()));
        assert!(own("10.0.0.1").unwrap_err().contains("none of the cluster's addresses"));
    }

    #[test]
    fn a_search_that_hangs_is_not_waited_for() {
        let mut search = Search::default();
        let ended = |search: &mut Search| {
            while search.found.is_some() {
                if let Some(found) = search.take() {
                    return Some(found);
                }
                thread::yield_now();
            }
            None
        };
        let (answer, answers) = channel();
        search.begin(move || answers.recv().unwrap());
        assert_eq!(search.take(), None);
        search.begin(|| panic!("there is a search already"));
        let found = vec!["192.0.2.7:7100".parse().unwrap()];
        answer.send(Ok(found.clone())).unwrap();
        assert_eq!(ended(&mut search), Some(found));
        search.begin(|| Err("no name is known".to_owned()));
        assert_eq!(ended(&mut search), None, "the next search may find more");
    }

    #[test]
    fn what_cannot_be_told_is_said() {
        let far = all("hosts:192.0.2.7,192.0.2.8").unwrap();
        assert!(own(OwnAddress::Found, &far).unwrap_err().contains("192.0.2.7:7100, 192.0.2.8"));
        let two = all("hosts:127.0.0.1:7200,127.0.0.1:7300").unwrap();
        assert!(own(OwnAddress::Found, &two).unwrap_err().contains("set cluster.address"));
        assert!(all("dns:does-not-exist.invalid:7100").unwrap_err().contains("not known"));
        let known = all("hosts:127.0.0.1,does-not-exist.invalid").unwrap();
        assert_eq!(known.len(), 1);
    }
}
