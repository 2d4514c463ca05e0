//! Where each reader of an order stands.

/// A reader, with what its owner notes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<T> {
    pub(crate) number: u32,
    /// The place where it was seen last.
    pub(crate) last: u32,
    pub(crate) note: T,
}

/// The readers of one epoch. They are few: a loader's workers.
#[derive(Clone, Debug)]
pub(crate) struct Readers<T> {
    all: Vec<Reader<T>>,
}

impl<T> Default for Readers<T> {
    fn default() -> Self {
        Readers { all: Vec::new() }
    }
}

impl<T> Readers<T> {
    pub(crate) fn all(&self) -> &[Reader<T>] {
        &self.all
    }

    pub(crate) fn all_mut(&mut self) -> &mut [Reader<T>] {
        &mut self.all
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Reader<T>> {
        self.all.iter().find(|reader| reader.number == number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Reader<T>> {
        self.all.iter_mut().find(|reader| reader.number == number)
    }

    /// Adds a reader that is not there yet.
    pub(crate) fn add(&mut self, reader: Reader<T>) {
        self.all.push(reader);
    }

    /// Removes the hindmost reader.
    pub(crate) fn remove_hindmost(&mut self) {
        let hindmost = self.all.iter().enumerate().min_by_key(|(_, reader)| reader.last);
        if let Some((index, _)) = hindmost {
            self.all.swap_remove(index);
        }
    }

    /// Removes a reader, which has ended.
    pub(crate) fn remove(&mut self, number: u32) {
        self.all.retain(|reader| reader.number != number);
    }

    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }

    /// Where the hindmost stands, of the readers that a note speaks for.
    pub(crate) fn hindmost(&self, counts: impl Fn(&T) -> bool) -> Option<u32> {
        let counted = self.all.iter().filter(|reader| counts(&reader.note));
        counted.map(|reader| reader.last).min()
    }
}
