//! When a name of a view leads to the same snapshot again, and when to another.

use std::ffi::OsStr;
use std::sync::mpsc::channel;

use super::*;
use crate::rehearsal::CodeReader;
use crate::rehearsal::notes::notes;

/// Views of two buffers. Each snapshot has as many classes as snapshots were made before.
fn views() -> Arc<Views> {
    views_of(None)
}

/// The same with codes.
pub(super) fn views_of(codes: Option<Arc<CodeReader>>) -> Arc<Views> {
    let mut made = 0;
    let make = move || {
        made += 1;
        snapshot(made - 1)
    };
    let buffer = |name: &str| ServedBuffer {
        name: name.to_owned(),
        seed: 1,
        distance: 0,
        slots: 1,
        changes: Arc::default(),
        progress: 0,
        codes: codes.clone(),
    };
    shown(vec![buffer("old"), buffer("new")], make)
}

/// Views whose buffer thread only makes these snapshots.
pub(super) fn shown(
    buffers: Vec<ServedBuffer>,
    mut make: impl FnMut() -> Snapshot + Send + 'static,
) -> Arc<Views> {
    let (notes, arriving) = notes();
    std::thread::spawn(move || {
        while let Ok(note) = arriving.next(Duration::from_secs(3600)) {
            match note {
                Note::Make { made: show, .. } | Note::Show { shown: show, .. } => {
                    show(Ok(make()));
                }
                Note::Scored { done, .. } => done(None),
                Note::Appended { done, .. } => done(Ok(0)),
                Note::Sync { done, .. } => done(Ok(())),
                _ => {}
            }
        }
    });
    Views::new(buffers, notes)
}

fn snapshot(classes: usize) -> Snapshot {
    let classes = (0..classes).map(|class| (format!("c{class}"), Vec::new())).collect();
    Snapshot { classes, bindings: None }
}

fn buffer() -> u64 {
    Node::Buffer(0).number()
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
    views.snapshots.freeze(0, View::Epoch(3), snapshot(40));
    views.snapshots.freeze(0, View::Epoch(4), snapshot(41));
    let node = look(&views, "epoch-4");
    assert!(views.snapshots.is_seen(0, View::Epoch(4)));
    (5..30).for_each(|epoch| views.snapshots.freeze(0, View::Epoch(epoch), snapshot(50)));
    assert_eq!((look(&views, "epoch-4"), classes(&views, node)), (node, 41));
    let unseen = look(&views, "epoch-3");
    assert_eq!(classes(&views, unseen), 0, "nobody had looked, so it is made anew");
    // It is frozen while it is made for a reader.
    views.snapshots.freeze(0, View::Epoch(31), snapshot(60));
    assert!(!views.snapshots.is_seen(0, View::Epoch(31)));
    views.snapshots.keep(0, View::Epoch(31), snapshot(61)).unwrap();
    views.snapshots.freeze(0, View::Epoch(32), snapshot(70));
    assert_eq!(classes(&views, look(&views, "epoch-31")), 60);
}

#[test]
fn the_mixes_of_a_task_end_with_it() {
    let views = views();
    let names = ["mix", "mix-0", "mix-7", "epoch-0"];
    let before = names.map(|name| look(&views, name));
    views.snapshots.freeze(0, View::Epoch(1), snapshot(40));
    let stale = Arc::<Mutex<Vec<(u64, String)>>>::default();
    let invalidated = Arc::clone(&stale);
    views.snapshots.set_invalidate(Arc::new(move |directory, name| {
        invalidated.lock().push((directory, name.to_owned()));
    }));
    views.snapshots.invalidate_names();
    assert!(stale.lock().is_empty());
    views.snapshots.begin_task(0, true);
    views.snapshots.begin_task(0, true);
    views.snapshots.invalidate_names();
    views.snapshots.invalidate_names();
    let mut stale = std::mem::take(&mut *stale.lock());
    stale.sort();
    let expected = ["epoch-1", "mix", "mix-0", "mix-7"].map(|name| (buffer(), name.to_owned()));
    assert_eq!(stale, expected);
    let after = names.map(|name| look(&views, name));
    assert!(before.iter().zip(&after).take(3).all(|(before, after)| before != after));
    assert_eq!(before[3], after[3], "who has looked at an epoch finds it as it was");
    // Readers that have them open go on.
    assert_eq!(before.map(|node| classes(&views, node)), [0, 1, 2, 3]);
    assert_eq!(after.map(|node| classes(&views, node)), [4, 5, 6, 3]);
    assert_eq!(classes(&views, look(&views, "epoch-1")), 7);
}

/// Snapshots without a name are kept for their readers: those of the last task that was looked at.
#[test]
fn the_mixes_of_the_task_before_the_last_are_given_up() {
    let views = views();
    let pass = |epoch: &str| {
        let streams = Node::Streams(0).number();
        ["mix", "mix-3"]
            .map(|name| look(&views, name))
            .into_iter()
            .chain([look_in(&views, streams, epoch)])
    };
    let open = |nodes: &[u64]| nodes.iter().filter(|node| views.entry(**node).is_ok()).count();
    let first: Vec<u64> = pass("0").collect();
    views.snapshots.begin_task(0, true);
    assert_eq!(open(&first), 3);
    let second: Vec<u64> = pass("0").collect();
    views.snapshots.begin_task(0, true);
    // No reader looks at this task.
    views.snapshots.freeze(0, View::Epoch(1), snapshot(4));
    views.snapshots.begin_task(0, true);
    assert_eq!((open(&first), open(&second)), (0, 3));
    let found = first.iter().map(|node| views.entry(*node));
    assert!(found.into_iter().all(|found| found == Err(Errno::ESTALE)));
    // The same task again: its streams stay.
    let third: Vec<u64> = pass("1").collect();
    views.snapshots.begin_task(0, false);
    assert_eq!((open(&second), open(&third)), (0, 3));
    let again: Vec<u64> = pass("1").collect();
    assert_eq!((again[2] == third[2], again[0] == third[0]), (true, false));
    views.snapshots.begin_task(0, true);
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
