//! `belady cluster`.

use std::fmt::Write;
use std::path::PathBuf;

use super::warmup::ask;
use super::{say, say_json};
use crate::config::Bytes;
use crate::control::Request;
use crate::engine::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::absolute;
use crate::peers::{ClusterStatus, MemberStatus, NodesStatus, TrafficStatus};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the nodes as this one sees them
    Ls(Args),
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(verb: &Verb) -> Result<()> {
    let Verb::Ls(args) = verb;
    let mountpoint = absolute(&args.mountpoint);
    let status: Status = ask(&mountpoint, &Request::Status)?;
    let cluster = status.cluster.ok_or_else(|| {
        let message = format!("the mount at {} has no cluster", mountpoint.display());
        Error::new(ErrorKind::Usage, message).hint("mount with --cluster hosts:A,B,...")
    })?;
    if args.json {
        say_json(&cluster);
    } else {
        say(table(&cluster).trim_end());
    }
    Ok(())
}

fn table(cluster: &ClusterStatus) -> String {
    let mut out = String::new();
    if let Some(why) = &cluster.why {
        let _ = writeln!(out, "no cluster: {why}");
        return out;
    }
    let width = cluster.members.iter().map(|member| member.address.len()).max();
    for member in &cluster.members {
        let MemberStatus { address, state, group, capacity, disk, used, why, differs } = member;
        let width = width.unwrap_or_default();
        let _ = write!(out, "{address:width$}  {:7}", state.word());
        if state.is_there() {
            let (used, capacity) = (Bytes(*used).human(), Bytes(*capacity).human());
            let _ = write!(out, "  {used} used, room for {capacity}");
            if *disk > 0 {
                let _ = write!(out, " and {} on disk", Bytes(*disk).human());
            }
        }
        if !group.is_empty() {
            let _ = write!(out, "  {group}");
        }
        if *differs {
            let _ = write!(out, "  its files are not the same: it shares those that are");
        }
        if let Some(why) = why {
            let _ = write!(out, "  {why}");
        }
        out.push('\n');
    }
    if let Some(nodes) = cluster.nodes {
        let _ = writeln!(out, "{}", users(nodes));
    }
    let view = cluster.view.as_deref().unwrap_or_default();
    let _ = writeln!(out, "view {view}");
    let TrafficStatus {
        missing,
        from_disks,
        waited,
        silent,
        passed_over,
        damaged,
        given,
        given_bytes,
        refused,
        moved,
        ..
    } = cluster.traffic;
    let _ = writeln!(out, "{}; {missing} not there", found(cluster));
    let given_bytes = Bytes(given_bytes).human();
    let _ = writeln!(out, "{given} samples ({given_bytes}) given, {refused} not taken");
    if cluster.moves_in.is_some() {
        let _ = writeln!(out, "{moved} samples were moved to the nodes that read them next");
    }
    if cluster.on_disks {
        let _ = writeln!(out, "{from_disks} times a node was asked for a sample on its disk");
    }
    let kind = if cluster.nodes.is_some() { "server" } else { "node" };
    if waited + silent + damaged > 0 {
        let _ = writeln!(
            out,
            "{waited} times another node was bringing a sample, {silent} times a {kind} did not answer, {damaged} \
             samples were damaged"
        );
    }
    if passed_over > 0 {
        let _ = writeln!(
            out,
            "{passed_over} times a {kind} was late, and the source was asked as well"
        );
    }
    out
}

/// The samples that were found, and how fast.
fn found(cluster: &ClusterStatus) -> String {
    let TrafficStatus { found_here, found_bytes_here, found, found_bytes, p99_us, .. } =
        cluster.traffic;
    let (here, others) = (Bytes(found_bytes_here).human(), Bytes(found_bytes).human());
    let wait = p99_us as f64 / 1000.0;
    let found = match cluster.nodes {
        Some(_) => format!("found {found} samples ({others}) at the servers"),
        None => {
            format!(
                "found {found_here} samples ({here}) at this node and {found} ({others}) at others"
            )
        }
    };
    format!("{found}; 99 of 100 answers within {wait:.1} ms")
}

/// How many nodes use existing servers.
fn users(nodes: NodesStatus) -> String {
    let NodesStatus { count, differing } = nodes;
    let mut text = match count {
        1 => "this node alone uses them".to_owned(),
        count => format!("{count} nodes use them"),
    };
    if differing > 0 {
        let _ = write!(
            text,
            "; of these have other files: {differing}, which share those that are the same"
        );
    }
    text
}

/// The line of `belady status`.
pub(super) fn line(cluster: &ClusterStatus) -> String {
    if let Some(why) = &cluster.why {
        return format!("off: {why}; it is tried again");
    }
    let (there, known) = cluster.counts();
    let server = cluster.server.as_deref().unwrap_or_default();
    let address = cluster.address.as_deref().unwrap_or_default();
    let mut line = match cluster.nodes {
        Some(nodes) => {
            format!("servers that answer: {there} of {known}, {server}; {}", users(nodes))
        }
        None => format!("{there} of {known} nodes; this one is {address}, by {server}"),
    };
    if cluster.traffic != TrafficStatus::default() {
        let _ = write!(line, "\n           {}", found(cluster));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::MemberState;

    fn member(address: &str, state: MemberState, why: Option<&str>) -> MemberStatus {
        MemberStatus {
            address: address.to_owned(),
            state,
            capacity: 3 << 20,
            used: 1 << 20,
            why: why.map(str::to_owned),
            ..MemberStatus::default()
        }
    }

    #[test]
    fn nodes_are_shown_with_what_is_wrong() {
        let members = vec![
            member("10.0.0.1:7100", MemberState::Here, None),
            member("10.0.0.22:7100", MemberState::Silent, Some("refused")),
        ];
        let cluster = ClusterStatus {
            server: Some("/bin/redis-server 7.0.15".to_owned()),
            address: Some("10.0.0.1:7100".to_owned()),
            view: Some("00ab".to_owned()),
            members,
            ..ClusterStatus::default()
        };
        let expected = "10.0.0.1:7100   here     1 MiB used, room for 3 MiB\n\
                        10.0.0.22:7100  silent   refused\nview 00ab\n\
                        found 0 samples (0 B) at this node and 0 (0 B) at others; 99 of 100 answers within 0.0 ms; \
                        0 not there\n0 samples (0 B) given, 0 not taken\n";
        assert_eq!(table(&cluster), expected);
        let shown = "1 of 2 nodes; this one is 10.0.0.1:7100, by /bin/redis-server 7.0.15";
        assert_eq!(line(&cluster), shown);
        let nodes = NodesStatus { count: 3, differing: 1 };
        let guest = ClusterStatus {
            server: Some("Redis 7.0.15".to_owned()),
            address: None,
            nodes: Some(nodes),
            members: vec![member("10.0.0.1:6379", MemberState::Member, None)],
            ..cluster
        };
        let shown = "servers that answer: 1 of 1, Redis 7.0.15; 3 nodes use them; of these have other files: 1, \
                     which share those that are the same";
        assert_eq!(line(&guest), shown);
        assert!(table(&guest).contains("room for 3 MiB\n3 nodes use them; of these"));
        let off = ClusterStatus { why: Some("no server".to_owned()), ..ClusterStatus::default() };
        assert_eq!(table(&off), "no cluster: no server\n");
        assert_eq!(line(&off), "off: no server; it is tried again");
    }
}
