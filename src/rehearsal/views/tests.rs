//! When a name of a view leads to the same display again, and when to another.

use std::ffi::OsStr;
use std::sync::mpsc::channel;

use super::*;
use crate::rehearsal::Shelf;
use crate::rehearsal::notes::notes;

/// Views of two buffers. Each display has as many classes as displays were made before.
fn views() -> Arc<Views> {
    views_of(None)
}

/// The same with codes.
pub(super) fn views_of(codes: Option<Arc<Shelf>>) -> Arc<Views> {
    let mut made = 0;
    let make = move || {
        made += 1;
        display(made - 1)
    };
    let buffer = |name: &str| BufferView {
        name: name.to_owned(),
        seed: 1,
        distance: 0,
        slots: 1,
        changes: Arc::default(),
        drawn: 0,
        latent: codes.clone(),
    };
    shown(vec![buffer("old"), buffer("new")], make)
}

/// Views whose owner only makes these displays.
pub(super) fn shown(
    buffers: Vec<BufferView>,
    mut make: impl FnMut() -> Display + Send + 'static,
) -> Arc<Views> {
    let (notes, arriving) = notes();
    std::thread::spawn(move || {
        while let Ok(note) = arriving.next(Duration::from_secs(3600)) {
            match note {
                Note::Make { made: show, .. } | Note::Show { shown: show, .. } => {
                    show(Some(make()));
                }
                Note::Scored { done, .. } => done(None),
                Note::Appended { done, .. } => done(Ok(0)),
                Note::Sync { done, .. } => done(Ok(())),
                _ => {}
            }
        }
    });
    Views::new(buffers, notes, Ahead::new())
}

fn display(classes: usize) -> Display {
    let classes = (0..classes).map(|class| (format!("c{class}"), Vec::new())).collect();
    Display { classes, bindings: None }
}

fn buffer() -> u64 {
    Place::Buffer(0).node()
}

fn look(views: &Arc<Views>, name: &str) -> u64 {
    look_in(views, buffer(), name)
}

fn look_in(views: &Arc<Views>, parent: u64, name: &str) -> u64 {
    let (send, found) = channel();
    views.lookup(parent, OsStr::new(name), 1, move |entry| send.send(entry.unwrap()).unwrap());
    let entry: Entry = found.recv().unwrap();
    assert_eq!((entry.kind, entry.lasting), (EntryKind::Directory, true));
    entry.node
}

fn classes(views: &Arc<Views>, node: u64) -> usize {
    let (send, listed) = channel();
    views.list(node, 1, move |names| send.send(names.unwrap().len()).unwrap());
    listed.recv().unwrap()
}

/// A loader may have done no more than this lookup.
#[test]
fn an_epoch_whose_name_was_looked_up_stays() {
    let views = views();
    views.freeze(0, View::Epoch(3), display(40));
    views.freeze(0, View::Epoch(4), display(41));
    let node = look(&views, "epoch-4");
    assert!(views.is_seen(0, View::Epoch(4)));
    (5..30).for_each(|epoch| views.freeze(0, View::Epoch(epoch), display(50)));
    assert_eq!((look(&views, "epoch-4"), classes(&views, node)), (node, 41));
    let unseen = look(&views, "epoch-3");
    assert_eq!(classes(&views, unseen), 0, "nobody had looked, so it is made anew");
    // It is frozen while it is made for a reader.
    views.freeze(0, View::Epoch(31), display(60));
    assert!(!views.is_seen(0, View::Epoch(31)));
    views.keep(0, View::Epoch(31), display(61));
    views.freeze(0, View::Epoch(32), display(70));
    assert_eq!(classes(&views, look(&views, "epoch-31")), 60);
}

#[test]
fn the_mixes_of_a_task_end_with_it() {
    let views = views();
    let names = ["mix", "mix-0", "mix-7", "epoch-0"];
    let before = names.map(|name| look(&views, name));
    views.freeze(0, View::Epoch(1), display(40));
    let lapsed = Arc::<Mutex<Vec<(u64, String)>>>::default();
    let told = Arc::clone(&lapsed);
    views.lapse_by(Arc::new(move |directory, name| {
        told.lock().push((directory, name.to_owned()));
    }));
    views.lapse();
    assert!(lapsed.lock().is_empty());
    views.begin_task(0, true);
    views.begin_task(0, true);
    views.lapse();
    views.lapse();
    let mut lapsed = std::mem::take(&mut *lapsed.lock());
    lapsed.sort();
    let expected = ["epoch-1", "mix", "mix-0", "mix-7"].map(|name| (buffer(), name.to_owned()));
    assert_eq!(lapsed, expected);
    let after = names.map(|name| look(&views, name));
    assert!(before.iter().zip(&after).take(3).all(|(before, after)| before != after));
    assert_eq!(before[3], after[3], "who has looked at an epoch finds it as it was");
    // Readers that have them open go on.
    assert_eq!(before.map(|node| classes(&views, node)), [0, 1, 2, 3]);
    assert_eq!(after.map(|node| classes(&views, node)), [4, 5, 6, 3]);
    assert_eq!(classes(&views, look(&views, "epoch-1")), 7);
}

/// Displays without a name are kept for their readers: those of the last task that was looked at.
#[test]
fn the_mixes_of_the_task_before_the_last_are_given_up() {
    let views = views();
    let pass = |epoch: &str| {
        let streams = Place::Streams(0).node();
        ["mix", "mix-3"]
            .map(|name| look(&views, name))
            .into_iter()
            .chain([look_in(&views, streams, epoch)])
    };
    let open = |nodes: &[u64]| nodes.iter().filter(|node| views.entry(**node).is_ok()).count();
    let first: Vec<u64> = pass("0").collect();
    views.begin_task(0, true);
    assert_eq!(open(&first), 3);
    let second: Vec<u64> = pass("0").collect();
    views.begin_task(0, true);
    // No reader looks at this task.
    views.freeze(0, View::Epoch(1), display(4));
    views.begin_task(0, true);
    assert_eq!((open(&first), open(&second)), (0, 3));
    let found = first.iter().map(|node| views.entry(*node));
    assert!(found.into_iter().all(|found| found == Err(Errno::ESTALE)));
    // The same task again: its streams stay.
    let third: Vec<u64> = pass("1").collect();
    views.begin_task(0, false);
    assert_eq!((open(&second), open(&third)), (0, 3));
    let again: Vec<u64> = pass("1").collect();
    assert_eq!((again[2] == third[2], again[0] == third[0]), (true, false));
    views.begin_task(0, true);
    assert_eq!((open(&third), open(&again)), (1, 3));
}

/// Trainers may see a view at any place, also through a link.
#[test]
fn a_path_of_a_view_may_name_its_buffer() {
    let views = views();
    for (path, buffer) in [
        ("/data/rehearsal/new/epoch-0/a/1.jpg", Some("new")),
        ("rehearsal/old/mix/a/1.jpg", Some("old")),
        ("/views/new/stream/3/000001", Some("new")),
        ("/data/rehearsal/gone/sleep-0/a/1.jpg", Some("gone")),
        ("/data/rehearsal//new/./mix-3/a/1.jpg", Some("new")),
        ("/home/me/replay/epoch-0/a/1.jpg", None),
        ("/data/new/old/train/a/1.jpg", None),
        ("./epoch-0/a/1.jpg", None),
        ("/epoch-0/a/1.jpg", None),
        ("epoch-0/a/1.jpg", None),
        ("1.jpg", None),
    ] {
        assert_eq!(views.buffer_of(path), buffer, "{path}");
    }
}
