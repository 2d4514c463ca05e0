//! The command line.

use std::path::PathBuf;

use clap::builder::TypedValueParser as _;
use clap::{Args, Parser, Subcommand};

use crate::model::{Params, Preset};

/// Shows a directory through FUSE as a busy parallel filesystem would serve it.
///
/// Every operation takes the time that a model of the filesystem gives it: latencies, queues of
/// metadata and data servers, seeks, a shared link and a heavy tail. Read-only. The counters of
/// what reached the filesystem are in MOUNTPOINT/.slowpfs/stats.
#[derive(Debug, Parser)]
#[command(name = "slowpfs", version, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct Cli {
    /// A task other than mounting.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// What to mount, and how.
    #[command(flatten)]
    pub(crate) mount: Option<MountArgs>,
    /// Single numbers that differ from the preset. They are here because clap takes an optional group of
    /// arguments only if it has no groups inside.
    #[command(flatten)]
    pub(crate) overrides: Overrides,
}

/// Tasks other than mounting.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sends a command to a running slowpfs.
    ///
    /// stats | reset | preset NAME | fault eio|estale|hang|short|shrunk PATTERN [ops=OP,OP...] |
    /// fault slow FACTOR | fault clear
    Ctl {
        /// The socket that slowpfs was given with --control.
        socket: PathBuf,
        /// The command.
        #[arg(required = true)]
        words: Vec<String>,
    },
    /// Prints what the model predicts for readers of whole files, as JSON. Nothing is mounted.
    ///
    /// Each reader looks a file up, opens it and reads it in one request, one file after the other.
    Model(ModelArgs),
}

/// The load that the model is asked about.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// The filesystem.
    #[arg(long, value_enum, default_value_t = Preset::Busy)]
    pub(crate) preset: Preset,
    /// Seed of the tail.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Readers at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = 1..=4096)]
    pub(crate) readers: i64,
    /// Files that all readers together read.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) files: u64,
    /// Bytes of a file.
    #[arg(long, value_name = "N", default_value_t = 110_000)]
    pub(crate) bytes: u64,
    /// Single numbers that differ from the preset.
    #[command(flatten)]
    pub(crate) overrides: Overrides,
}

/// What to mount, and how.
#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// The directory to show.
    pub(crate) source: PathBuf,
    /// Where to show it.
    pub(crate) mountpoint: PathBuf,
    /// The filesystem to behave like.
    #[arg(long, value_enum, default_value_t = Preset::Busy)]
    pub(crate) preset: Preset,
    /// Seed of the tail.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Keep the pages of unchanged files in memory between opens, as a caching client does.
    #[arg(long)]
    pub(crate) client_cache: bool,
    /// Let every read reach the filesystem, past the pages of the kernel.
    #[arg(long, conflicts_with = "client_cache")]
    pub(crate) direct_io: bool,
    /// Read directories without the attributes of their entries.
    #[arg(long)]
    pub(crate) no_readdirplus: bool,
    /// Report times in whole seconds, as some filesystems keep them.
    #[arg(long)]
    pub(crate) coarse_times: bool,
    /// How long names and attributes are trusted, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = non_negative())]
    #[arg(overrides_with = "ttl")]
    pub(crate) ttl: f64,
    /// Readahead of the kernel on this mount, in KiB (root only).
    #[arg(long, value_name = "KIB")]
    pub(crate) ra_kb: Option<u32>,
    /// Threads that accept requests.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = 1..=64)]
    pub(crate) threads: i64,
    /// Write the counters to this file, as JSON, whenever they have changed.
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Listen for commands on this socket.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
    /// Write each operation to this file: microseconds, operation, inode, offset, length, path.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// Single numbers of the model that differ from the preset.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Model (instead of what the preset says; 0: no cost, no limit)")]
pub(crate) struct Overrides {
    /// Latency of a lookup and of a page of a directory.
    #[arg(long, value_name = "MS", value_parser = non_negative())]
    lookup_ms: Option<f64>,
    /// Latency of getattr, readlink, statfs and extended attributes.
    #[arg(long, value_name = "MS", value_parser = non_negative())]
    getattr_ms: Option<f64>,
    /// Latency of an open.
    #[arg(long, value_name = "MS", value_parser = non_negative())]
    open_ms: Option<f64>,
    /// Latency of a read.
    #[arg(long, value_name = "MS", value_parser = non_negative())]
    read_ms: Option<f64>,
    /// Cost for its data server of a read that does not continue the previous one.
    #[arg(long, value_name = "MS", value_parser = non_negative())]
    seek_ms: Option<f64>,
    /// Data servers.
    #[arg(long, value_name = "N", value_parser = 1..=4096)]
    slots: Option<i64>,
    /// Metadata servers.
    #[arg(long, value_name = "N", value_parser = 1..=4096)]
    mds_slots: Option<i64>,
    /// Cost of an operation for its metadata server.
    #[arg(long, value_name = "US", value_parser = non_negative())]
    mds_us: Option<f64>,
    /// Rate of the link that all reads share, in MB/s.
    #[arg(long, value_name = "MBS", value_parser = non_negative())]
    mbs: Option<f64>,
    /// Rate at which a data server delivers one read, in MB/s.
    #[arg(long, value_name = "MBS", value_parser = non_negative())]
    stream_mbs: Option<f64>,
    /// Probability that an operation is slow.
    #[arg(long, value_name = "P", value_parser = non_negative())]
    tail_p: Option<f64>,
    /// Factor on latency and seek of a slow operation.
    #[arg(long, value_name = "X", value_parser = non_negative())]
    tail_x: Option<f64>,
}

impl Overrides {
    /// `params` with these numbers instead.
    pub(crate) fn apply(self, params: Params) -> Params {
        let count = |given: Option<i64>, or: usize| {
            given.and_then(|n| usize::try_from(n).ok()).unwrap_or(or)
        };
        Params {
            lookup_ms: self.lookup_ms.unwrap_or(params.lookup_ms),
            getattr_ms: self.getattr_ms.unwrap_or(params.getattr_ms),
            open_ms: self.open_ms.unwrap_or(params.open_ms),
            read_ms: self.read_ms.unwrap_or(params.read_ms),
            seek_ms: self.seek_ms.unwrap_or(params.seek_ms),
            slots: count(self.slots, params.slots),
            mds_slots: count(self.mds_slots, params.mds_slots),
            mds_us: self.mds_us.unwrap_or(params.mds_us),
            mbs: self.mbs.unwrap_or(params.mbs),
            stream_mbs: self.stream_mbs.unwrap_or(params.stream_mbs),
            tail_p: self.tail_p.unwrap_or(params.tail_p),
            tail_x: self.tail_x.unwrap_or(params.tail_x),
        }
    }
}

/// Accepts a duration or a rate: 0 to 10^9.
fn non_negative() -> impl clap::builder::TypedValueParser<Value = f64> {
    clap::builder::StringValueParser::new().try_map(|text| match text.parse::<f64>() {
        Ok(number) if (0.0..=1e9).contains(&number) => Ok(number),
        _ => Err("a number from 0 to 10^9 is needed"),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn overrides_change_single_numbers() {
        let cli = Cli::try_parse_from(["slowpfs", "a", "b", "--open-ms", "7", "--slots=3"]);
        let cli = cli.expect("it parses");
        let params = cli.overrides.apply(cli.mount.expect("it mounts").preset.params());
        let expected = Params { open_ms: 7.0, slots: 3, ..Preset::Busy.params() };
        assert_eq!(params, expected);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [&["slowpfs", "a"][..], &["slowpfs", "a", "b", "--ttl", "-1"], &["slowpfs"]] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
        let ctl = Cli::try_parse_from(["slowpfs", "ctl", "s", "fault", "clear"]);
        assert!(matches!(ctl.expect("it parses").command, Some(Command::Ctl { .. })));
    }
}
