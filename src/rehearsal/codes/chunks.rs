//! A list that is copied in no time: copies share unchanged chunks.

use std::sync::Arc;

/// How many entries are copied when one of them changes.
const CHUNK: usize = 4096;

#[derive(Clone)]
pub(super) struct Chunks<T>(Vec<Arc<Vec<T>>>);

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks(Vec::new())
    }
}

impl<T: Clone> Chunks<T> {
    pub(super) fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * CHUNK + last.len())
    }

    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at / CHUNK)?.get(at % CHUNK)
    }

    /// The entries from index `at` on.
    pub(super) fn from(&self, at: usize) -> impl Iterator<Item = &T> {
        let first = self.0.get(at / CHUNK).and_then(|chunk| chunk.get(at % CHUNK..));
        let rest = self.0.iter().skip(at / CHUNK + 1).flat_map(|chunk| chunk.iter());
        first.unwrap_or_default().iter().chain(rest)
    }

    /// Sets an entry, or adds the next one.
    pub(super) fn set(&mut self, at: usize, entry: T) {
        if at == self.0.len() * CHUNK {
            self.0.push(Arc::default());
        }
        let Some(chunk) = self.0.get_mut(at / CHUNK).map(Arc::make_mut) else { return };
        match chunk.get_mut(at % CHUNK) {
            Some(there) => *there = entry,
            None => chunk.push(entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut list = Chunks::default();
        let count = 2 * CHUNK + 5;
        (0..count).for_each(|at| list.set(at, at));
        let copy = list.clone();
        list.set(CHUNK + 1, 7);
        list.set(count, 8);
        assert_eq!((copy.len(), list.len()), (count, count + 1));
        assert_eq!((copy.get(CHUNK + 1), list.get(CHUNK + 1)), (Some(&(CHUNK + 1)), Some(&7)));
        assert_eq!((copy.get(count), list.get(count)), (None, Some(&8)));
        for from in [0, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, count - 1, count, count + 9] {
            assert!(copy.from(from).copied().eq(from..count), "{from}");
        }
        assert_eq!(Chunks::<u8>::default().from(0).count(), 0);
    }
}
