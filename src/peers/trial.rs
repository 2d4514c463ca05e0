//! A trial of two shards on one machine.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::connection::{Connection, Endpoint, LONG, Login};
use super::nodes::Health;
use super::shard::{MEMBER, Shard, ShardSettings, key, member_login};
use super::{Program, fresh_password};

/// The memory of a trial's shard.
const MEMORY_BYTES: u64 = 64 << 20;

/// A sample of usual size, and how often it is read.
const SAMPLE_BYTES: usize = 110_000;
const READS: usize = 64;

/// How long two shards may take until they know each other and take values.
const MEET_WAIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often a port is tried, since other programs take ports, too.
const PORTS_MOST: usize = 100;
const STARTS_MOST: usize = 3;

/// What a trial has shown.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// From the start of the second shard until both took values.
    pub met: Duration,
    /// The median of the reads of a sample of 110 kB from the other shard.
    pub read: Duration,
}

/// Starts two shards at an address of this machine, has them meet, and passes a sample from one to the other as members
/// of a cluster do. Nothing of them is left.
///
/// # Errors
/// What did not work.
pub fn try_out(program: &Program, ip: IpAddr) -> Result<Trial, String> {
    let failed = |error: std::io::Error| format!("the trial: {error}");
    let top = tempfile::Builder::new().prefix("belady-").tempdir().map_err(failed)?;
    let secret = fresh_password().map_err(failed)?;
    let mut one = start(program, &top.path().join("0"), ip, &secret)?;
    let begun = Instant::now();
    let mut other = start(program, &top.path().join("1"), ip, &secret)?;
    one.take_slot("0")?;
    other.take_slot("1")?;
    one.meet(other.address())?;
    while !(knows(&mut one, &other)? && knows(&mut other, &one)?) {
        if begun.elapsed() > MEET_WAIT {
            let (a, b) = (one.address(), other.address());
            return Err(format!("the shards at {a} and {b} do not find each other"));
        }
        thread::sleep(LOOK_EVERY);
    }
    let met = begun.elapsed();
    let read = pass_sample(other.address(), &secret)
        .map_err(|error| format!("the shard at {}: {error}", other.address()))?;
    Ok(Trial { met, read })
}

/// Starts a shard at free ports.
fn start(program: &Program, directory: &Path, ip: IpAddr, secret: &str) -> Result<Shard, String> {
    std::fs::create_dir(directory).map_err(|error| format!("the trial: {error}"))?;
    let mut started = Err("no start".to_owned());
    for _ in 0..STARTS_MOST {
        let address = free_address(ip)?;
        let memory_bytes = MEMORY_BYTES;
        let settings =
            ShardSettings { directory, address, memory_bytes, secret, tls: None, outlives: false };
        started = Shard::start(program, &settings);
        if started.is_ok() {
            break;
        }
    }
    started
}

/// An address with a free port, whose next one is free as well.
fn free_address(ip: IpAddr) -> Result<SocketAddr, String> {
    let refused = |error| format!("no port of {ip} can be used: {error}");
    for _ in 0..PORTS_MOST {
        let free = TcpListener::bind((ip, 0)).map_err(refused)?;
        let address = free.local_addr().map_err(refused)?;
        let next = address.port().checked_add(1);
        if next.is_some_and(|next| TcpListener::bind((ip, next)).is_ok()) {
            return Ok(address);
        }
    }
    Err(format!("{ip} has no two free ports in a row"))
}

/// Whether a shard takes values, and knows that another one has a slot and answers.
fn knows(shard: &mut Shard, other: &Shard) -> Result<bool, String> {
    let nodes = shard.nodes()?;
    let is_there = nodes.iter().any(|node| {
        let is_other = node.address == Some(other.address());
        is_other && node.health == Health::Connected && !node.slots.is_empty()
    });
    Ok(is_there && shard.takes_values()?)
}

/// Leases a key, stores a sample under it and reads it, as a member. Returns the median time of a read.
fn pass_sample(at: SocketAddr, secret: &str) -> Result<Duration, String> {
    let words = |error: redis::RedisError| error.to_string();
    let endpoint = Endpoint { address: at, login: member_login(secret, at), encryption: None };
    let mut member = endpoint.connect(LONG).map_err(words)?;
    let key = key("1", "sample");
    for expected in [Value::Nil, Value::BulkString(b"lease".to_vec())] {
        let mut lease = cmd("SET");
        lease.arg(&key).arg("lease").arg("NX").arg("GET").arg("PX").arg(60_000);
        if lease.query::<Value>(&mut member).map_err(words)? != expected {
            return Err("a lease is not as expected".to_owned());
        }
    }
    let sample: Vec<u8> = (0..SAMPLE_BYTES).map(|at| (at * 31 % 251) as u8).collect();
    cmd("SET").arg(&key).arg(&sample).query::<()>(&mut member).map_err(words)?;
    let mut reads = Vec::with_capacity(READS);
    for _ in 0..READS {
        let begun = Instant::now();
        let read: Vec<u8> = cmd("GET").arg(&key).query(&mut member).map_err(words)?;
        reads.push(begun.elapsed());
        if read != sample {
            return Err("a sample came back with other bytes".to_owned());
        }
    }
    reads.sort_unstable();
    check_refusals(&mut member, at, secret)?;
    Ok(reads[READS / 2])
}

/// Makes sure that a member can neither administer the shard nor use other keys, and that nobody else can log in.
fn check_refusals(member: &mut Connection, at: SocketAddr, secret: &str) -> Result<(), String> {
    let commands: [&[&str]; 4] = [
        &["CONFIG", "GET", "maxmemory"],
        &["FLUSHALL"],
        &["CLUSTER", "FORGET", "0"],
        &["GET", "{1}:other"],
    ];
    for words in commands {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let refused = command.query::<Value>(member).err();
        if refused.is_none_or(|error| error.code() != Some("NOPERM")) {
            return Err(format!("a member is not refused {}", words.join(" ")));
        }
    }
    let strangers = [(MEMBER, "guess"), (MEMBER, secret), ("default", ""), ("default", secret)];
    for (user, password) in strangers {
        let stranger =
            Endpoint { address: at, login: Login::new(user, password), encryption: None };
        if stranger.connect(LONG).is_ok() {
            return Err(format!("the user {user} can log in with another password"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_address_can_be_bound_with_the_next_one() {
        let address = free_address("127.0.0.1".parse().unwrap()).unwrap();
        assert_ne!(address.port(), 0);
        assert!(free_address("192.0.2.1".parse().unwrap()).is_err(), "it is no address of ours");
    }
}
