//! Whom a shard knows: the answer to CLUSTER NODES.

use std::net::SocketAddr;

/// What a shard thinks of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Connected,
    /// It does not answer this shard.
    Suspected,
    /// Most shards agree that it does not answer.
    Failed,
    /// They do not know each other yet.
    Meeting,
}

/// A shard, as another one knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub id: String,
    /// Where its clients connect. None if that is not known.
    pub address: Option<SocketAddr>,
    /// Whether it is the shard that was asked.
    pub is_self: bool,
    /// Whether it has no slots of its own, since another shard has taken the same one.
    pub is_replica: bool,
    pub health: Health,
    /// The slots that it has, each range with its last slot.
    pub slots: Vec<(u16, u16)>,
}

/// Reads the lines of an answer. Lines that are none of a node are left out.
pub(super) fn parse(answer: &str) -> Vec<Node> {
    answer.lines().filter_map(parse_line).collect()
}

/// A line has an id, `IP:PORT@BUS,NAME`, flags, the node's primary, two times, an epoch, the state of the link, and
/// slots.
fn parse_line(line: &str) -> Option<Node> {
    let mut words = line.split_whitespace();
    let (id, address, flags) = (words.next()?, words.next()?, words.next()?);
    let link = words.nth(4)?;
    let has = |flag| flags.split(',').any(|word| word == flag);
    let is_self = has("myself");
    let health = match () {
        // Another shard answers at the address of one that has no address.
        () if has("fail") || has("noaddr") => Health::Failed,
        () if has("handshake") => Health::Meeting,
        () if has("fail?") => Health::Suspected,
        () if is_self || link == "connected" => Health::Connected,
        () => Health::Suspected,
    };
    Some(Node {
        id: id.to_owned(),
        address: parse_address(address),
        is_self,
        is_replica: has("slave"),
        health,
        slots: words.filter_map(parse_slots).collect(),
    })
}

/// `IP:PORT@BUS,NAME`. An IPv6 address has no brackets here.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, bus) = text.split_once('@')?;
    let (ip, port) = address.rsplit_once(':')?;
    let port = match port.parse().ok()? {
        // Over its socket, a shard tells no port that asks for TLS. The one of its bus is the next one.
        0 => bus.split(',').next()?.parse::<u16>().ok()?.checked_sub(1)?,
        port => port,
    };
    Some(SocketAddr::new(ip.parse().ok()?, port))
}

/// One slot, or a range of them. A slot that moves, in brackets, is left out.
fn parse_slots(text: &str) -> Option<(u16, u16)> {
    match text.split_once('-') {
        Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
        None => text.parse().ok().map(|slot| (slot, slot)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_who_is_there_and_which_slots_they_have() {
        let answer = "\
            a1 10.0.0.1:7100@7101 myself,master - 0 0 3 connected 64\n\
            b2 fd00::2:7100@7101,host,shard-id=9 master - 0 1690000000000 2 connected 0 128-130 [5->-b2]\n\
            c3 10.0.0.3:7100@7101 master,fail? - 1690000000000 0 1 connected 192\n\
            d4 10.0.0.4:7100@7101 master,fail - 1690000000000 0 1 disconnected\n\
            e5 10.0.0.5:7100@7101 handshake - 1690000000000 0 0 connected\n\
            f6 :0@0 master,noaddr - 0 0 0 disconnected\n\
            g7 10.0.0.7:0@7101,host master - 0 0 1 disconnected\n\
            h8 10.0.0.8:7100@7101 slave a1 0 1690000000000 3 connected\n\
            \n\
            not a node\n";
        let found = parse(answer);
        let health: Vec<_> = found.iter().map(|node| (&*node.id, node.health)).collect();
        assert_eq!(
            health,
            [
                ("a1", Health::Connected),
                ("b2", Health::Connected),
                ("c3", Health::Suspected),
                ("d4", Health::Failed),
                ("e5", Health::Meeting),
                ("f6", Health::Failed),
                ("g7", Health::Suspected),
                ("h8", Health::Connected),
            ]
        );
        assert_eq!(found.iter().filter(|node| node.is_self).count(), 1);
        let replicas: Vec<_> = found.iter().filter(|node| node.is_replica).collect();
        assert_eq!(replicas.iter().map(|node| &*node.id).collect::<Vec<_>>(), ["h8"]);
        assert_eq!(found[0].slots, [(64, 64)]);
        assert_eq!(found[1].slots, [(0, 0), (128, 130)]);
        assert_eq!(found[1].address, Some("[fd00::2]:7100".parse().unwrap()));
        assert_eq!(found[5].address, None);
        assert_eq!(found[6].address, Some("10.0.0.7:7100".parse().unwrap()));
    }
}
