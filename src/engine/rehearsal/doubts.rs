//! What may be wrong with the settings of a buffer, which shows only when the dataset is known.

use super::owner::{Owner, Place};
use crate::source::Kind;

impl Owner {
    /// What may be wrong with a buffer, in words.
    pub(super) fn doubts(&self, place: &Place) -> Vec<String> {
        let settings = &place.held.settings;
        let (files, _) = self.catalog().totals();
        let mut doubts = Vec::new();
        // Where something was offered there are such files.
        let is_empty = place.held.buffer().offers() == 0 && files > 0;
        if settings.rules.capacity.limit() > 0 && is_empty && !self.fits(place) {
            let root = settings.root.display();
            let classes = &settings.classes;
            doubts.push(match settings.root.as_os_str().is_empty() {
                true => format!("classes: `{classes}` fits no file of the dataset"),
                false => format!("classes: `{classes}` fits no file below root `{root}`"),
            });
        }
        doubts
    }

    /// Whether a buffer takes any file of the dataset. All are gone through once, and again when there
    /// are others.
    fn fits(&self, place: &Place) -> bool {
        let totals = self.catalog().totals();
        if let Some((of, fits)) = place.fits.get()
            && of == totals
        {
            return fits;
        }
        let settings = &place.held.settings;
        let mut fits = false;
        self.catalog().for_each_file(|path, _, stat| {
            fits = fits
                || stat.kind == Kind::File
                    && path.starts_with(&settings.root)
                    && place.held.class_of(path).is_some();
        });
        place.fits.set(Some((totals, fits)));
        fits
    }

    /// Says what may be wrong, once.
    pub(super) fn say_doubts(&self) {
        for place in &self.places {
            let name = &place.held.settings.name;
            self.doubts(place).iter().for_each(|doubt| tracing::warn!(name, "rehearsal: {doubt}"));
        }
    }
}
