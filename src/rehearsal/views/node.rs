//! Nodes of the tree of views. A node is computed from its number, and the number from the node, so no table
//! is needed. Reserved samples and files of codes are exceptions: their nodes are counted.

pub const ROOT: u64 = 1;

/// Bits of a node number for the file within its class, and for the class.
const FILE_BITS: u32 = 24;
const CLASS_BITS: u32 = 20;

/// How many files a class may have, so that each has a number. This is also the most that one answer holds.
pub const FILES_MAX: u64 = (1 << FILE_BITS) - 2;

/// How many classes a snapshot may have.
pub(super) const CLASSES_MAX: usize = (1 << CLASS_BITS) - 1;

/// How many IDs of snapshots there are in a mount.
pub(super) const IDS_MAX: usize = (1 << (63 - CLASS_BITS - FILE_BITS)) - 1;

/// The number of the first reserved sample.
pub(super) const FIRST_RESERVED: u64 = 1 << 63;

/// The number of the first file of codes.
pub(super) const FIRST_CODES: u64 = 3 << 62;

/// The first number is a buffer, or the ID of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Root,
    Buffer(usize),
    /// The slots of a buffer, and of one of its classes.
    Slots(usize),
    SlotClass(usize, usize),
    Scores(usize),
    Streams(usize),
    /// A buffer's codes, and the file that takes them.
    Latent(usize),
    Append(usize),
    Snapshot(usize),
    Class(usize, usize),
    File(usize, usize, usize),
    /// These two have the number of the node itself.
    Reserved(u64),
    Codes(u64),
}

impl Node {
    pub(super) fn number(self) -> u64 {
        let number = |snapshot: usize, class: usize, file: usize| {
            (snapshot as u64) << (CLASS_BITS + FILE_BITS)
                | (class as u64) << FILE_BITS
                | file as u64
        };
        match self {
            Node::Root => ROOT,
            Node::Buffer(buffer) => number(0, 0, buffer + 2),
            Node::Slots(buffer) => number(0, 1, buffer),
            Node::Scores(buffer) => number(0, 2, buffer),
            Node::Streams(buffer) => number(0, 3, buffer),
            Node::Latent(buffer) => number(0, 4, buffer),
            Node::Append(buffer) => number(0, 5, buffer),
            // There are few buffers, and there may be as many classes as samples.
            Node::SlotClass(buffer, class) => number(0, buffer + 6, class),
            Node::Snapshot(snapshot) => number(snapshot + 1, 0, 0),
            Node::Class(snapshot, class) => number(snapshot + 1, class + 1, 0),
            Node::File(snapshot, class, file) => number(snapshot + 1, class + 1, file + 1),
            Node::Reserved(number) | Node::Codes(number) => number,
        }
    }

    pub(super) fn parse(number: u64) -> Option<Node> {
        if number >= FIRST_CODES {
            return Some(Node::Codes(number));
        }
        if number >= FIRST_RESERVED {
            return Some(Node::Reserved(number));
        }
        let snapshot = (number >> (CLASS_BITS + FILE_BITS)) as usize;
        let class = (number >> FILE_BITS) as usize & ((1 << CLASS_BITS) - 1);
        let file = number as usize & ((1 << FILE_BITS) - 1);
        match (snapshot, class, file) {
            (0, 0, 0) => None,
            (0, 0, 1) => Some(Node::Root),
            (0, 0, _) => Some(Node::Buffer(file - 2)),
            (0, 1, _) => Some(Node::Slots(file)),
            (0, 2, _) => Some(Node::Scores(file)),
            (0, 3, _) => Some(Node::Streams(file)),
            (0, 4, _) => Some(Node::Latent(file)),
            (0, 5, _) => Some(Node::Append(file)),
            (0, ..) => Some(Node::SlotClass(class - 6, file)),
            (_, 0, _) => Some(Node::Snapshot(snapshot - 1)),
            (_, _, 0) => Some(Node::Class(snapshot - 1, class - 1)),
            _ => Some(Node::File(snapshot - 1, class - 1, file - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_number() {
        let nodes = [
            Node::Root,
            Node::Buffer(0),
            Node::Buffer(7),
            Node::Slots(0),
            Node::Scores(0),
            Node::Streams(0),
            Node::Latent(3),
            Node::Append(3),
            Node::SlotClass(3, 0),
            Node::SlotClass(0, 2_000_000),
            Node::Snapshot(0),
            Node::Class(5, 0),
            Node::File(0, 0, 0),
            Node::File(9, 70_000, 9_000_000),
            Node::Reserved(FIRST_RESERVED + 4),
            Node::Codes(FIRST_CODES),
        ];
        let numbers: Vec<u64> = nodes.iter().map(|node| node.number()).collect();
        for (node, number) in nodes.into_iter().zip(&numbers) {
            assert_eq!(Node::parse(*number), Some(node));
            assert_eq!(numbers.iter().filter(|other| *other == number).count(), 1);
        }
        assert_eq!(Node::parse(0), None);
    }

    #[test]
    fn nodes_at_the_limits_are_found_by_their_numbers() {
        let (snapshot, class) = (IDS_MAX - 1, CLASSES_MAX - 1);
        let file = FILES_MAX as usize - 1;
        for node in [
            Node::Snapshot(snapshot),
            Node::Class(snapshot, class),
            Node::File(snapshot, class, file),
            Node::File(0, 0, file),
            Node::SlotClass(3, file),
        ] {
            assert_eq!(Node::parse(node.number()), Some(node));
        }
    }
}
