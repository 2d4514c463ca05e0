//! The state of a cache disk, as it is reported.

use std::fmt;

use serde::{Serialize, Serializer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    Normal,
    /// It has failed lately.
    Unstable,
    /// Other programs need its space.
    Full,
    OverQuota,
    /// A limit on the size of files is reached.
    OverFileLimit,
    Failing,
    Deleted,
    /// It does not answer reads.
    Hanging,
    /// It does not answer some other call.
    NotStoring,
    /// It could not be opened at the mount.
    Unopened,
}

impl DiskState {
    /// Whether it is bypassed.
    pub fn is_down(self) -> bool {
        use DiskState::{Deleted, Failing, Hanging, NotStoring, Unopened};
        matches!(self, Failing | Deleted | Hanging | NotStoring | Unopened)
    }

    /// Whether no more is stored there, though it works.
    pub fn is_full(self) -> bool {
        matches!(self, DiskState::Full | DiskState::OverQuota | DiskState::OverFileLimit)
    }
}

impl fmt::Display for DiskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskState::Normal => "normal",
            DiskState::Unstable => "unstable: the cache disk has failed lately",
            DiskState::Full => {
                "full: others need the space of the cache disk; no more is stored there"
            }
            DiskState::OverQuota => {
                "full: your quota of the cache disk is used up; no more is stored there"
            }
            DiskState::OverFileLimit => {
                "full: a limit on the size of files (`ulimit -f`) is reached; no more is stored there"
            }
            DiskState::Failing => "down: the cache disk fails; it is bypassed",
            DiskState::Deleted => {
                "down: the store has been deleted; the next mount begins a new one"
            }
            DiskState::Hanging => "down: the cache disk hangs; it is bypassed",
            DiskState::NotStoring => "down: the cache disk hangs; nothing is stored there",
            DiskState::Unopened => {
                "down: the cache disk failed, hung or had no room at the mount; none is used"
            }
        })
    }
}

impl Serialize for DiskState {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}
