//! Servers that can carry what the nodes of a cluster share.
//!
//! Each node has one server of Redis's protocol, its *shard*, or all use servers that others administer
//! (`existing`). The servers find each other and watch each other by
//! themselves: that is Redis's cluster bus. No shard is copied, and no sample is written to a disk.
//!
//! 1. [`Program::find`] looks for a server program that is new enough.
//! 2. `Shard::start` runs it with a configuration of our own, and waits until it answers. Whoever knows the cluster's
//!    secret may read and write samples there, and look at the cluster. Only who has started the shard may do more.
//! 3. A key of a member has its tag in it, so that the member's shard has it (the hash tags of Redis). A shard takes
//!    the slot of its tag (`Shard::take_slot`), and no other one. So no key ever moves by itself.
//! 4. A shard is told of the other ones (`Shard::meet`), and `Shard::nodes` shows whom it knows.
//! 5. Each member writes a `record` of itself into its own shard every few seconds, and reads those of the others.
//!    The records give the [`View`](crate::cluster::View). It is the same for all members that have the same records.
//!
//! [`Peers`] does this for a mount, in a thread, and passes blocks to and from the shards of all members ([`Shards`]). Through
//! the shards the daemons also ask each other for things that no shard has ([`Wants`]).
//! [`try_out`] tries two shards on this machine.

mod addresses;
mod breaker;
mod client;
mod connection;
mod control_connection;
mod existing;
mod member;
mod membership;
mod nodes;
mod own_shard;
mod pipeline;
mod program;
mod record;
mod secret;
mod shard;
mod shards;
mod slurm;
mod status;
mod trial;
mod values;
mod wants;

pub use membership::Peers;
pub use program::Program;
pub use shard::{end_left, kill_server, left_server};
pub use shards::{Answer, Ask, COPY_MOST, Give, Listed, Membership, Note, Shards, TakeNote};
pub use status::{
    ClusterStatus, HomesStatus, MemberState, MemberStatus, NodesStatus, TrafficStatus,
};
pub use trial::{Trial, try_out};
pub use values::{Key, Keys};
pub use wants::{Answering, Deliver, Provider, Want, Wants};

/// Bytes from the kernel's generator, in hexadecimal digits: a password that nobody guesses.
///
/// # Errors
/// If the kernel gives none.
fn fresh_password() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
