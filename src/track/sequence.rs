//! Items in the order of their reads, and the places of each.

use std::sync::Arc;

const NONE: u32 = u32::MAX;

/// Items in an order, and the way back: 8 bytes an item, 12 if an item repeats.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    items: Arc<[u32]>,
    /// By item: its first place.
    first: Vec<u32>,
    /// By place: the next place of the same item. Empty if no item repeats.
    again: Vec<u32>,
}

impl Sequence {
    pub(crate) fn new(items: impl Into<Arc<[u32]>>) -> Self {
        let items = items.into();
        let count = items.iter().max().map_or(0, |&most| most as usize + 1);
        let (mut first, mut again) = (vec![NONE; count], Vec::new());
        for (place, &item) in items.iter().enumerate().rev() {
            let slot = &mut first[item as usize];
            if *slot != NONE {
                if again.is_empty() {
                    again = vec![NONE; items.len()];
                }
                again[place] = *slot;
            }
            *slot = place as u32;
        }
        Sequence { items, first, again }
    }

    /// Number of places.
    pub(crate) fn len(&self) -> u32 {
        self.items.len() as u32
    }

    pub(crate) fn items(&self) -> &Arc<[u32]> {
        &self.items
    }

    /// The item at a place.
    pub(crate) fn at(&self, place: u32) -> Option<u32> {
        self.items.get(place as usize).copied()
    }

    /// Whether an item is read several times.
    pub(crate) fn repeats(&self) -> bool {
        !self.again.is_empty()
    }

    /// The first place of an item.
    pub(crate) fn place(&self, item: u32) -> Option<u32> {
        self.first.get(item as usize).copied().filter(|&place| place != NONE)
    }

    /// The places of an item, the first one first.
    pub(crate) fn places(&self, item: u32) -> impl Iterator<Item = u32> {
        let next = |place: &u32| self.again.get(*place as usize).copied();
        std::iter::successors(self.place(item), move |place| {
            next(place).filter(|next| *next != NONE)
        })
    }

    /// Leaves a place out of the places of its item, if it is the first and not the only one. Walks over the
    /// item's places then begin after it.
    pub(crate) fn leave_out(&mut self, place: u32) {
        let Some(&next) = self.again.get(place as usize).filter(|next| **next != NONE) else {
            return;
        };
        let first = &mut self.first[self.items[place as usize] as usize];
        if *first == place {
            *first = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_way_back() {
        let mut sequence = Sequence::new([7, 2, 9, 2]);
        assert_eq!(sequence.len(), 4);
        assert_eq!([7, 2, 9].map(|item| sequence.place(item)), [Some(0), Some(1), Some(2)]);
        assert_eq!((sequence.place(0), sequence.place(u32::MAX)), (None, None));
        assert!(sequence.places(2).eq([1, 3]) && sequence.places(7).eq([0]));
        (0..4).for_each(|place| sequence.leave_out(place));
        assert!(sequence.places(2).eq([3]) && sequence.places(9).eq([2]));
        assert_eq!(Sequence::new([]).place(0), None);
    }
}
