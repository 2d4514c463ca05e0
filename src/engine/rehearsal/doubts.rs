//! What may be wrong with the settings of a buffer, which shows only when the dataset is known.

use super::owner::{Owner, Place};
use crate::config::Bytes;
use crate::rehearsal::Capacity;
use crate::source::Kind;

impl Owner {
    /// What may be wrong with a buffer, in words.
    pub(super) fn doubts(&self, place: &Place) -> Vec<String> {
        let settings = &place.held.settings;
        let (files, bytes) = self.catalog().totals();
        let mut doubts = Vec::new();
        if let Capacity::Samples(samples) = settings.rules.capacity
            && files > 0
        {
            let tier = self.around.tier;
            // More than there are is not held.
            let mean = bytes / files;
            let needed = samples.min(files).saturating_mul(mean);
            if needed > tier {
                let [needed, mean, tier] = [needed, mean, tier].map(|bytes| Bytes(bytes).human());
                doubts.push(format!(
                    "size: {samples} samples of {mean}, as the dataset's are on average, take \
                     {needed}, which does not fit cache.disk {tier}"
                ));
            }
        }
        // Where something was offered there are such files.
        if settings.rules.capacity.limit() > 0 && place.held.buffer().offers() == 0 && files > 0 {
            let mut fits = false;
            self.catalog().for_each_file(|path, _, stat| {
                fits |= stat.kind == Kind::File
                    && path.starts_with(&settings.root)
                    && place.held.class_of(path).is_some();
            });
            if !fits {
                let root = settings.root.display();
                let classes = &settings.classes;
                doubts.push(match settings.root.as_os_str().is_empty() {
                    true => format!("classes: `{classes}` fits no file of the dataset"),
                    false => format!("classes: `{classes}` fits no file below root `{root}`"),
                });
            }
        }
        doubts
    }

    /// Says what may be wrong, once.
    pub(super) fn say_doubts(&self) {
        for place in &self.places {
            let name = &place.held.settings.name;
            self.doubts(place).iter().for_each(|doubt| tracing::warn!(name, "rehearsal: {doubt}"));
        }
    }
}
