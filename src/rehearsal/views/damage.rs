//! Reports of damaged samples.

use super::{Place, Views};
use crate::rehearsal::notes::Note;

impl Views {
    /// Tells the owner that a file's bytes are damaged.
    pub fn damaged(&self, node: u64) {
        let found = match Place::of(node) {
            Some(Place::File(slot, class, file)) => self
                .exhibit(slot, class, file)
                .ok()
                .and_then(|(buffer, _, exhibit)| Some((buffer, exhibit.sample()?.id))),
            Some(Place::Dealt(node)) => {
                self.dealt(node, |dealt| (dealt.buffer, dealt.sample.id)).ok()
            }
            _ => None,
        };
        if let Some((buffer, sample)) = found {
            self.notes.try_send(Note::Damaged { buffer, sample });
        }
    }
}
