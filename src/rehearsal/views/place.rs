//! Node numbers. A place in the tree is computed from its number and the number from its place, so no table
//! is needed. Dealt samples and files of codes are exceptions: their nodes are counted.

pub const ROOT: u64 = 1;

/// Bits of a node number for the file within its class, and for the class.
const FILE_BITS: u32 = 24;
const CLASS_BITS: u32 = 20;

/// The first node of dealt samples.
pub(super) const DEALT: u64 = 1 << 63;

/// The first node of files of codes.
pub(super) const LATENT: u64 = 3 << 62;

/// What a node stands for. The first number is a buffer, or the slot of a display (`kept`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
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
    Display(usize),
    Class(usize, usize),
    File(usize, usize, usize),
    /// These two have the node number itself.
    Dealt(u64),
    Codes(u64),
}

impl Place {
    pub(super) fn node(self) -> u64 {
        let of = |slot: usize, class: usize, file: usize| {
            (slot as u64) << (CLASS_BITS + FILE_BITS) | (class as u64) << FILE_BITS | file as u64
        };
        match self {
            Place::Root => ROOT,
            Place::Buffer(buffer) => of(0, 0, buffer + 2),
            Place::Slots(buffer) => of(0, 1, buffer),
            Place::Scores(buffer) => of(0, 2, buffer),
            Place::Streams(buffer) => of(0, 3, buffer),
            Place::Latent(buffer) => of(0, 4, buffer),
            Place::Append(buffer) => of(0, 5, buffer),
            Place::SlotClass(buffer, class) => of(0, class + 6, buffer),
            Place::Display(slot) => of(slot + 1, 0, 0),
            Place::Class(slot, class) => of(slot + 1, class + 1, 0),
            Place::File(slot, class, file) => of(slot + 1, class + 1, file + 1),
            Place::Dealt(node) | Place::Codes(node) => node,
        }
    }

    pub(super) fn of(node: u64) -> Option<Place> {
        if node >= LATENT {
            return Some(Place::Codes(node));
        }
        if node >= DEALT {
            return Some(Place::Dealt(node));
        }
        let slot = (node >> (CLASS_BITS + FILE_BITS)) as usize;
        let class = (node >> FILE_BITS) as usize & ((1 << CLASS_BITS) - 1);
        let file = node as usize & ((1 << FILE_BITS) - 1);
        match (slot, class, file) {
            (0, 0, 0) => None,
            (0, 0, 1) => Some(Place::Root),
            (0, 0, _) => Some(Place::Buffer(file - 2)),
            (0, 1, _) => Some(Place::Slots(file)),
            (0, 2, _) => Some(Place::Scores(file)),
            (0, 3, _) => Some(Place::Streams(file)),
            (0, 4, _) => Some(Place::Latent(file)),
            (0, 5, _) => Some(Place::Append(file)),
            (0, ..) => Some(Place::SlotClass(file, class - 6)),
            (_, 0, _) => Some(Place::Display(slot - 1)),
            (_, _, 0) => Some(Place::Class(slot - 1, class - 1)),
            _ => Some(Place::File(slot - 1, class - 1, file - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_by_its_node() {
        let places = [
            Place::Root,
            Place::Buffer(0),
            Place::Buffer(7),
            Place::Slots(0),
            Place::Scores(0),
            Place::Streams(0),
            Place::Latent(3),
            Place::Append(3),
            Place::SlotClass(3, 0),
            Place::SlotClass(0, 70_000),
            Place::Display(0),
            Place::Class(5, 0),
            Place::File(0, 0, 0),
            Place::File(9, 70_000, 9_000_000),
            Place::Dealt(DEALT + 4),
            Place::Codes(LATENT),
        ];
        let nodes: Vec<u64> = places.iter().map(|place| place.node()).collect();
        for (place, node) in places.into_iter().zip(&nodes) {
            assert_eq!(Place::of(*node), Some(place));
            assert_eq!(nodes.iter().filter(|other| *other == node).count(), 1);
        }
        assert_eq!(Place::of(0), None);
    }
}
