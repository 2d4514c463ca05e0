//! The real `belady` binary on real mounts, with real files, faults and loaders.
//!
//! Goal: whatever a training job, an administrator or a failing source does, a reader gets only bytes of the
//! source, and nothing is left behind. Method: each test has a directory of its own ([`fixture`]). Over it the
//! test mounts `belady`, and `slowpfs` if the source is to fail ([`mounted`]). Tests wait for conditions,
//! with limits that only a broken program reaches.
//!
//! Needs root and /dev/fuse; without them these tests fail and do not skip.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod archives;
mod beneath;
mod buckets;
mod cache_dir;
mod cassandra;
mod certificates;
mod cgroup;
mod changes;
mod cluster;
mod cluster_disks;
mod cluster_existing;
mod cluster_faults;
mod cluster_jobs;
mod cluster_network;
mod cluster_rehearsal;
mod commands;
mod control;
#[path = "../cql_server/mod.rs"]
pub mod cql_server;
mod derived;
mod derived_commands;
mod docs;
mod doctor;
#[path = "../documents/mod.rs"]
mod documents;
mod doubts;
mod escapes;
mod failing_disk;
mod faults;
mod fixture;
mod force;
#[path = "../free_ports/mod.rs"]
mod free_ports;
mod hanging;
mod http;
mod idle;
mod in_flight;
mod kernel;
mod killed;
mod large;
mod large_bucket;
mod learn;
mod life;
mod limits;
mod links;
mod loader;
mod memory;
mod metadata;
mod modes;
mod mounted;
#[path = "../nginx/mod.rs"]
mod nginx;
mod object_server;
mod order;
mod parts;
mod passthrough;
mod programs;
mod ranges;
mod read;
mod readers;
mod readonly;
mod record;
mod redis;
mod refused;
mod rehearsal;
mod remount;
mod replay;
mod report;
mod run;
mod samplers;
mod scan;
mod second;
mod sharing;
mod source;
mod store;
mod tensorflow;
mod tree;
mod trust;
mod waits;
mod warmup;
