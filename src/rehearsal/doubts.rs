//! Warnings about a buffer's settings that need the dataset or the mount to be known.

use super::owner::{Owner, Place};
use crate::buffer::Capacity;
use crate::config::Bytes;
use crate::source::Kind;

impl Owner {
    pub(super) fn doubts(&self, place: &Place) -> Vec<String> {
        let settings = &place.held.settings;
        let (files, _) = self.catalog().totals();
        let mut doubts = Vec::new();
        // If something was offered, the classes fit.
        let is_empty = place.held.buffer().offers() == 0 && files > 0;
        if settings.rules.capacity.limit() > 0 && is_empty && !self.fits(place) {
            let root = settings.root.display();
            let classes = &settings.classes;
            doubts.push(match settings.root.as_os_str().is_empty() {
                true => format!("classes: `{classes}` fits no file of the dataset"),
                false => format!("classes: `{classes}` fits no file below root `{root}`"),
            });
        }
        doubts.extend(self.needs_more(place));
        doubts.extend(self.around.hidden.get().cloned());
        doubts
    }

    /// If all buffers need more than the disk has for them: how large this one may be. Sizes in bytes were
    /// compared when the settings were read. The size of a number of samples depends on the dataset.
    fn needs_more(&self, place: &Place) -> Option<String> {
        let Capacity::Samples(samples) = place.held.settings.rules.capacity else { return None };
        let (files, bytes) = self.catalog().totals();
        let each = bytes.checked_div(files)?.max(1);
        let need = |place: &Place| match place.held.settings.rules.capacity {
            Capacity::Samples(samples) => samples.min(files).saturating_mul(each),
            Capacity::Bytes(bytes) => bytes,
        };
        let all = self.places.iter().fold(0, |all: u64, of| all.saturating_add(need(of)));
        let has = self.around.buffers_bytes;
        if all <= has {
            return None;
        }
        let others = all - need(place);
        let fit = has.saturating_sub(others) / each;
        let (all, each, has) = (Bytes(all).human(), Bytes(each).human(), Bytes(has).human());
        Some(format!(
            "size: with {samples} samples of {each} on average buffers come to {all}, and cache.disk \
             has {has} for them: make it {fit} samples at most, or make room for more on the disk of \
             cache.dir and in cache.disk"
        ))
    }

    /// Whether a buffer takes any file of the dataset. Looks at all files, and again only when the dataset's
    /// totals have changed.
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

    pub(super) fn say_doubts(&self) {
        for place in &self.places {
            let name = &place.held.settings.name;
            self.doubts(place).iter().for_each(|doubt| tracing::warn!(name, "rehearsal: {doubt}"));
        }
    }
}
