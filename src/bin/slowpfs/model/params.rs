//! The numbers of the model, and the presets that name useful sets of them.

use clap::ValueEnum;

/// A named set of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// No delays: the cost of the pass-through itself.
    Idle,
    /// A parallel filesystem that many jobs share. With 110 KB files one reader gets a good 100 files a
    /// second, sixteen get nearly what the link carries, 1,800.
    Busy,
    /// As busy, with a heavy tail: one request in a hundred takes twenty times as long. One reader gets about
    /// 100 files a second, sixteen get about 1,500.
    Bad,
    /// A remote site: 100 ms round trips and a 200 Mbit/s link, but no queues.
    Wan,
}

impl Preset {
    /// The preset called `name` on the command line or on the control socket.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// Its name as the command line spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Bad => "bad",
            Self::Wan => "wan",
        }
    }

    pub(crate) fn params(self) -> Params {
        match self {
            Self::Idle => Params::IDLE,
            Self::Busy => Params {
                lookup_ms: 0.5,
                getattr_ms: 0.5,
                open_ms: 2.0,
                read_ms: 1.0,
                seek_ms: 4.0,
                slots: 16,
                mds_slots: 8,
                mds_us: 200.0,
                mbs: 200.0,
                stream_mbs: 0.0,
                ..Params::IDLE
            },
            Self::Bad => Params { tail_p: 0.01, tail_x: 20.0, ..Self::Busy.params() },
            Self::Wan => Params {
                lookup_ms: 100.0,
                getattr_ms: 100.0,
                open_ms: 100.0,
                read_ms: 100.0,
                slots: 256,
                mds_slots: 256,
                mbs: 25.0,
                ..Params::IDLE
            },
        }
    }
}

/// All parameters of the model. Zero means "no such cost" for a time and "no limit" for a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Params {
    /// Latency of a lookup, also of one page of a directory.
    pub(crate) lookup_ms: f64,
    /// Latency of a getattr, also of readlink, statfs and extended attributes.
    pub(crate) getattr_ms: f64,
    /// Latency of an open.
    pub(crate) open_ms: f64,
    /// Latency of a read.
    pub(crate) read_ms: f64,
    /// Time of a data server to reach data that does not follow the previous read.
    pub(crate) seek_ms: f64,
    /// Data servers.
    pub(crate) slots: usize,
    /// Metadata servers.
    pub(crate) mds_slots: usize,
    /// Time of a metadata server for one operation.
    pub(crate) mds_us: f64,
    /// The shared link, in MB/s (10^6 bytes).
    pub(crate) mbs: f64,
    /// Rate at which one data server delivers one request, in MB/s.
    pub(crate) stream_mbs: f64,
    /// Probability that an operation is slow.
    pub(crate) tail_p: f64,
    /// Factor on the latency and the seek of a slow operation.
    pub(crate) tail_x: f64,
}

impl Params {
    /// No costs.
    pub(crate) const IDLE: Self = Self {
        lookup_ms: 0.0,
        getattr_ms: 0.0,
        open_ms: 0.0,
        read_ms: 0.0,
        seek_ms: 0.0,
        slots: 16,
        mds_slots: 8,
        mds_us: 0.0,
        mbs: 0.0,
        stream_mbs: 0.0,
        tail_p: 0.0,
        tail_x: 1.0,
    };
}
