//! One row of the catalog, in few bytes.

use serde::{Deserialize, Serialize};

use crate::ids::FileId;
use crate::source::{Kind, Stat};

/// What many files have in common: a row has the number of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Class {
    pub(super) kind: Kind,
    pub(super) mode: u16,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) device: u64,
    pub(super) is_sized: bool,
    pub(super) version_has_size: bool,
}

impl Class {
    pub(super) fn of(stat: &Stat) -> Self {
        Class {
            kind: stat.kind,
            mode: stat.mode,
            links: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            device: stat.identity.0,
            is_sized: stat.is_sized,
            version_has_size: stat.version_has_size,
        }
    }
}

/// What has become of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RowState {
    /// The source has it.
    There,
    /// The source no longer has it.
    Gone,
    /// A further name of another row: its hard link.
    Alias,
    /// The source has the name, but could not say what it stands for. It has a place in orders, and
    /// the source is asked whenever it is looked up.
    Unsure,
}

/// The attributes of an unsure name: those of no device. If its kind is not known, it is taken for a file.
pub(super) fn unsure(kind: Kind) -> Stat {
    Stat {
        kind,
        mode: 0,
        links: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        is_sized: true,
        version_has_size: true,
        blocks: 0,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        identity: UNSURE,
    }
}

const UNSURE: (u64, u64) = (0, 0);

/// Whether these are the attributes of an unsure name.
pub(super) fn is_unsure(stat: &Stat) -> bool {
    stat.identity == UNSURE
}

/// One file, directory or other thing of the source: 56 bytes.
///
/// The time of the last access is not kept. Reading through belady changes it at the source, and
/// no version hangs on it: the time of the last modification is shown for it, as read-only
/// filesystems do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    inode: u64,
    size: u64,
    blocks: u64,
    mtime_ns: i64,
    /// The time of the last change, in nanoseconds since 1970.
    pub(super) ctime_ns: i64,
    /// Where the name is in the table of names.
    pub(super) name: u32,
    pub(super) parent: FileId,
    /// Number of its class.
    pub(super) class: u32,
    /// Counts the versions of the content.
    pub(super) version: u16,
    pub(super) state: RowState,
}

impl Row {
    pub(super) fn new(parent: FileId, name: u32, class: u32, stat: &Stat) -> Self {
        let mut row = Row {
            inode: 0,
            size: 0,
            blocks: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            name,
            parent,
            class,
            version: 0,
            state: RowState::There,
        };
        row.set(class, stat);
        row
    }

    /// Takes other attributes.
    pub(super) fn set(&mut self, class: u32, stat: &Stat) {
        (self.inode, self.size, self.blocks) = (stat.identity.1, stat.size, stat.blocks);
        (self.mtime_ns, self.ctime_ns, self.class) = (stat.mtime_ns, stat.ctime_ns, class);
        if matches!(self.state, RowState::There | RowState::Unsure) {
            self.state = if is_unsure(stat) { RowState::Unsure } else { RowState::There };
        }
    }

    /// The attributes, with what the row's class has of them.
    pub(super) fn stat(&self, class: &Class) -> Stat {
        Stat {
            kind: class.kind,
            mode: class.mode,
            links: class.links,
            uid: class.uid,
            gid: class.gid,
            rdev: class.rdev,
            size: self.size,
            is_sized: class.is_sized,
            version_has_size: class.version_has_size,
            blocks: self.blocks,
            atime_ns: self.mtime_ns,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
            identity: (class.device, self.inode),
        }
    }
}

const _: () = assert!(size_of::<Row>() == 56, "a byte more is a megabyte for a million files");
