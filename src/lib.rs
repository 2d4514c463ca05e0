//! A userspace filesystem that reads training data ahead of the loader.
//!
//! The pure rooms hold no I/O, clock, lock or task. The other rooms move bytes as the pure rooms decide.
//! `ARCHITECTURE.md` is the map, and names the pure rooms.

pub mod buffer;
pub mod cache;
pub mod catalog;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod control;
pub mod derive;
pub mod disk;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod fs;
pub mod fuse;
pub mod ids;
pub mod input;
pub mod learn;
pub mod learning;
pub mod limiter;
pub mod mount;
pub mod order;
pub mod page_size;
pub mod paths;
pub mod peers;
pub mod plan;
pub mod privileges;
pub mod process;
pub mod profiler;
pub mod rehearsal;
pub mod run;
pub mod sandbox;
pub mod sim;
pub mod source;
pub mod stall;
pub mod state_directory;
pub mod store;
pub mod sync;
pub mod tls;
pub mod track;
pub mod whatif;
