//! The numbers by which the kernel knows files.

use crate::ids::FileId;
use crate::source::JobKey;

/// The kernel's number of one version of a file: the row in the low 40 bits, counted from 1 so
/// that the root is FUSE's own root number, and the version above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl JobKey for NodeId {}

const ROW_BITS: u32 = 40;

impl NodeId {
    /// The root of the dataset.
    pub const ROOT: NodeId = NodeId(1);

    /// The number of a version of a row.
    pub fn new(file: FileId, version: u16) -> Self {
        NodeId(u64::from(version) << ROW_BITS | (u64::from(file.0) + 1))
    }

    /// The row, if this can be one.
    pub fn file(self) -> Option<FileId> {
        let row = self.0 & ((1 << ROW_BITS) - 1);
        u32::try_from(row.checked_sub(1)?).ok().map(FileId)
    }

    pub fn version(self) -> u16 {
        (self.0 >> ROW_BITS) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_carries_row_and_version() {
        assert_eq!(NodeId::new(FileId(0), 0), NodeId::ROOT);
        let node = NodeId::new(FileId(u32::MAX), 7);
        assert_eq!((node.file(), node.version()), (Some(FileId(u32::MAX)), 7));
        assert_eq!(NodeId(0).file(), None);
    }
}
