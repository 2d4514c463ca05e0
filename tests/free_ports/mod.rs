//! Ports for tests whose programs have to be told theirs beforehand.
//!
//! They are none of those that programs get by chance. Tests of other processes begin elsewhere in the list.

use std::fs;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many pairs of ports this process has tried.
static TRIED: AtomicUsize = AtomicUsize::new(0);

/// Ports that no program gets by chance.
fn ports() -> Range<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let by_chance: Vec<u16> = text.split_whitespace().map(|port| port.parse().unwrap()).collect();
    let (below, above) = (10_000..by_chance[0], by_chance[1].saturating_add(1)..u16::MAX);
    if below.len() > above.len() { below } else { above }
}

/// Free ports of 127.0.0.1. The one after each of them is free as well.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let ports = ports();
    let pairs = ports.len() / 2;
    assert!(pairs > 0, "all ports are given to programs by chance");
    let begin = std::process::id() as usize * 64;
    let candidates = std::iter::repeat_with(|| {
        let pair = (begin + TRIED.fetch_add(1, Ordering::Relaxed)) % pairs;
        ports.start + 2 * pair as u16
    });
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let free = candidates.take(pairs).filter(|port| is_free(*port) && is_free(port + 1));
    let free: Vec<u16> = free.take(count).collect();
    assert_eq!(free.len(), count, "too few ports are free");
    free
}
