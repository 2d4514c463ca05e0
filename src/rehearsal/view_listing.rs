//! The files of a view as a loader numbers them, so that an order can be over a mix. Its new samples are read
//! from the source, so they are prefetched in that order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use nix::errno::Errno;

use crate::ids::FileId;
use crate::order::{Entry, Listing};
use crate::rehearsal::views::{Content, KeptSample, Snapshot, View, Views};

/// The files of a view: their paths below the mount point, and what they are.
pub(crate) struct ViewListing {
    files: Vec<(String, Content)>,
}

/// The number of the first file that is no link into the dataset. Those after it have smaller numbers, which no file of
/// the dataset has, even if it grows.
const FIRST: u32 = (1 << 31) - 1;

impl ViewListing {
    /// The files of the view at `root`, a path below the mount point.
    pub(super) fn new(root: &str, snapshot: &Snapshot) -> Self {
        let files = snapshot.classes.iter().flat_map(|(class, files)| {
            let path = move |name: &str| format!("{root}/{class}/{name}");
            files.iter().map(move |file| (path(&file.name), file.content.clone()))
        });
        ViewListing { files: files.collect() }
    }

    /// The listing of the dataset, with the view's files added. Those that are no links into the dataset get
    /// the numbers from [`FIRST`] downwards.
    pub(crate) fn added_to<'a>(&'a self, dataset: &Listing<'a>) -> Listing<'a> {
        let known: HashMap<&[u8], &Entry<'_>> =
            dataset.entries().iter().map(|entry| (entry.path, entry)).collect();
        let entry = |((path, content), free): (&'a (String, Content), u32)| {
            let target = match content {
                Content::Link(link) => known.get(link.as_bytes()),
                Content::Sample(_) => None,
            };
            let (file, size) = target.map_or((FileId(free), 0), |entry| (entry.file, entry.size));
            Entry { path: path.as_bytes(), file, size }
        };
        dataset.clone().with_entries(self.files.iter().zip((0..=FIRST).rev()).map(entry))
    }

    /// The old sample that has this number in the listing.
    pub(crate) fn old_sample(&self, file: FileId) -> Option<&Arc<KeptSample>> {
        match self.files.get(FIRST.checked_sub(file.0)? as usize)? {
            (_, Content::Sample(sample)) => Some(sample),
            (_, Content::Link(_)) => None,
        }
    }
}

/// Has the buffer thread keep a new view before it does anything else: the next task may begin before
/// the asking thread goes on.
pub(super) fn make_view(
    views: &Arc<Views>,
    buffer: usize,
    view: View,
) -> Option<Receiver<Arc<Snapshot>>> {
    // A stream's ordinals are not known ahead, and only a command makes a sleep set.
    if matches!(view, View::Stream(_) | View::Sleep(_)) {
        return None;
    }
    let (send, made) = sync_channel(1);
    let making = Arc::clone(views);
    let views = Arc::clone(views);
    let keep = move |snapshot: Result<Snapshot, Errno>| {
        // Another thread may have made it first. If it cannot be made or kept, the log says why.
        let _ = snapshot.and_then(|snapshot| views.snapshots.keep(buffer, view, snapshot));
        // The asking thread may have given up.
        views.snapshots.of_view(buffer, view).into_iter().for_each(|kept| drop(send.send(kept)));
    };
    making.make(buffer, view, Box::new(keep));
    Some(made)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::notes::{Note, notes};
    use super::super::tests::views;
    use super::*;
    use crate::buffer::SampleId;
    use crate::disk::journal::Journal;
    use crate::disk::tests::model::Model;
    use crate::fs::Access;
    use crate::rehearsal::views::SampleBytes;

    #[test]
    fn new_samples_of_a_mix_are_files_of_the_dataset() {
        let file = |name: &str, content| (name.to_owned(), content);
        let link = |path: &str| Content::Link(path.to_owned());
        let old = old_sample();
        let mix = ViewListing {
            files: vec![
                file("rehearsal/old/mix/a/1.jpg", link("train/a/1.jpg")),
                file("rehearsal/old/mix/a/replay-1.jpg", Content::Sample(Arc::clone(&old))),
                file("rehearsal/old/mix/b/gone.jpg", link("train/b/gone.jpg")),
            ],
        };
        let entry = |path: &'static str, file| Entry { path: path.as_bytes(), file, size: 7 };
        let dataset = [entry("train/a/0.jpg", FileId(4)), entry("train/a/1.jpg", FileId(5))];
        let listing = Listing::new(dataset.to_vec());
        let listing = mix.added_to(&listing);
        let found: Vec<(u32, u64)> =
            listing.entries().iter().map(|entry| (entry.file.0, entry.size)).collect();
        assert_eq!(found, [(4, 7), (5, 7), (5, 7), (FIRST - 1, 0), (FIRST - 2, 0)]);
        let found = |file: u32| mix.old_sample(FileId(file));
        assert!(found(FIRST - 1).is_some_and(|found| Arc::ptr_eq(found, &old)));
        assert!([4, 5, FIRST + 1, FIRST, FIRST - 2].iter().all(|it| found(*it).is_none()));
    }

    fn old_sample() -> Arc<KeptSample> {
        let mut journal = Journal::open(Arc::new(Model::default()), |_, _| ()).unwrap();
        let bytes = SampleBytes::Pinned(journal.append(b"x", &[1]).unwrap());
        let (id, access, source) = (SampleId(0), Access::default(), "train/a/7.jpg".to_owned());
        Arc::new(KeptSample { id, hash: 0, source, access, bytes })
    }

    /// The buffer thread makes a mix, and begins the next task before the asking thread goes on.
    #[test]
    fn a_mix_that_was_asked_for_ends_with_its_task() {
        let (notes, receiver) = notes();
        let views = views(&notes);
        let made = make_view(&views, 0, View::TaskMix).unwrap();
        let note = receiver.next(Duration::ZERO).unwrap();
        let Note::Make { buffer: 0, view: View::TaskMix, made: make } = note else {
            panic!("nobody asks for a mix");
        };
        let classes = vec![("c".to_owned(), Vec::new())];
        make(Ok(Snapshot { classes, bindings: None }));
        views.snapshots.begin_task(0, true);
        assert_eq!(made.recv().unwrap().classes[0].0, "c");
        assert!(
            views.snapshots.of_view(0, View::TaskMix).is_none(),
            "the next task has another mix"
        );
    }
}
