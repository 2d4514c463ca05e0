//! A vector in parts, which its clones share: a clone takes little time and memory, and a change copies one part.

use std::ops::Index;
use std::sync::Arc;

/// Elements in a part.
const PART: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Parted<T> {
    /// All are full but the last one.
    parts: Vec<Arc<Vec<T>>>,
    length: usize,
}

impl<T> Default for Parted<T> {
    fn default() -> Self {
        Parted { parts: Vec::new(), length: 0 }
    }
}

impl<T> Index<usize> for Parted<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.parts[index / PART][index % PART]
    }
}

impl<T: Clone> Parted<T> {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.parts.get(index / PART)?.get(index % PART)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// An element below [`len`](Self::len), to be changed.
    pub(super) fn at_mut(&mut self, index: usize) -> &mut T {
        &mut Arc::make_mut(&mut self.parts[index / PART])[index % PART]
    }

    pub(super) fn push(&mut self, element: T) {
        if self.length.is_multiple_of(PART) {
            self.parts.push(Arc::default());
        }
        let last = self.parts.len() - 1;
        Arc::make_mut(&mut self.parts[last]).push(element);
        self.length += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_what_it_had() {
        let mut parted = Parted::default();
        (0..2 * PART + 1).for_each(|element| parted.push(element));
        let before = parted.clone();
        *parted.at_mut(PART) = 7;
        parted.push(8);
        assert_eq!((parted[PART], before[PART]), (7, PART));
        assert_eq!((parted.len(), parted.get(2 * PART + 1)), (2 * PART + 2, Some(&8)));
        assert_eq!((before.len(), before.get(2 * PART + 1)), (2 * PART + 1, None));
        assert!(before.iter().copied().eq(0..2 * PART + 1));
        assert!(Arc::ptr_eq(&parted.parts[0], &before.parts[0]), "it is shared");
    }
}
