//! The buffers of several nodes as one. Goal: views of all nodes show each sample of each buffer once, with its bytes,
//! whichever nodes are gone. Method: nodes with real buffers over one dataset, whose questions to each other are carried in
//! memory. A node can be cut off.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::super::open_buffer::BufferToOpen;
use super::super::tests::settings;
use super::super::views::{Content, KeptSample, Snapshot, View};
use super::super::{Question, Rehearsal};
use crate::cache::{Cache, Inbox};
use crate::catalog::Catalog;
use crate::config::DiskSettings;
use crate::peers::{Answering, Provider, Want, Wants};
use crate::source::{PosixSource, Source};
use crate::sync::Mutex;

/// Only a broken program takes this long.
const LIMIT: Duration = Duration::from_secs(180);

const BUFFER: &str = "old";

/// Carries questions between nodes. A node that is cut off answers nothing.
#[derive(Default)]
struct Net {
    providers: Mutex<HashMap<u64, Provider>>,
    members: Mutex<Vec<u64>>,
    cut_off: Mutex<BTreeSet<u64>>,
}

struct NodeOfNet {
    id: u64,
    net: Arc<Net>,
}

impl Wants for NodeOfNet {
    fn members(&self) -> Option<(u64, Vec<u64>)> {
        let members = self.net.members.lock().clone();
        (!members.is_empty()).then_some((self.id, members))
    }

    fn want(&self, want: Want) {
        let provider = self.net.providers.lock().get(&want.member).cloned();
        let is_cut_off = self.net.cut_off.lock().contains(&want.member);
        match provider.filter(|_| !is_cut_off) {
            Some(provider) => provider(want.question, Answering::new(want.deliver)),
            None => (want.deliver)(None),
        }
    }

    fn provide(&self, _: &'static str, provider: Provider) {
        self.net.providers.lock().insert(self.id, provider);
    }
}

struct Node {
    rehearsal: Rehearsal,
    /// The engine holds it as long as the mount runs.
    _wants: Arc<dyn Wants>,
    _cache_dir: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        assert!(self.rehearsal.stop(), "the buffer thread does not end");
    }
}

struct Nodes {
    nodes: Vec<Node>,
    net: Arc<Net>,
    source: tempfile::TempDir,
}

fn path(number: u32) -> String {
    format!("c{}/{number}.jpg", number % 3)
}

fn bytes(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(20 + number as usize % 7)
}

fn number_of(sample: &KeptSample) -> u32 {
    let name = sample.source.rsplit('/').next().unwrap();
    name.trim_end_matches(".jpg").parse().unwrap()
}

fn node(id: u64, net: &Arc<Net>, source: &Path) -> Node {
    let source: Arc<dyn Source> = Arc::new(PosixSource::open(source, 1).unwrap());
    let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, None).unwrap());
    let inbox = Arc::new(Inbox::new(4));
    let cache = Cache::new(source, catalog, inbox, None);
    let cache_dir = tempfile::tempdir().unwrap();
    let disk = DiskSettings {
        dir: cache_dir.path().to_owned(),
        bytes: 1 << 30,
        configured_bytes: 1 << 30,
        buffers_bytes: 1 << 30,
        min_free_bytes: 0,
        min_free_inodes: 0,
        in_memory: false,
        large_file_bytes: 64 << 20,
        slow_after: Duration::from_secs(1),
    };
    let directory = cache_dir.path().to_owned();
    let settings = settings(&["size=1000", "offer-rate=0", "batch=2", "replay=1", "distance=4"]);
    let buffer = BufferToOpen { settings, directory, latent: None, memory: 1 << 20 };
    let rehearsal = Rehearsal::start(vec![buffer], &cache, &disk).unwrap();
    let wants: Arc<dyn Wants> = Arc::new(NodeOfNet { id, net: Arc::clone(net) });
    rehearsal.join(&wants);
    Node { rehearsal, _wants: wants, _cache_dir: cache_dir }
}

impl Nodes {
    /// Nodes that keep these samples of one dataset.
    fn keeping(parts: &[std::ops::Range<u32>]) -> Self {
        let source = tempfile::tempdir().unwrap();
        for number in 0..200 {
            let path = source.path().join(path(number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes(number)).unwrap();
        }
        let net = Arc::<Net>::default();
        let ids = (0..parts.len() as u64).map(|id| id * 7 + 3);
        let nodes = ids.clone().map(|id| node(id, &net, source.path())).collect();
        *net.members.lock() = ids.collect();
        let nodes = Nodes { nodes, net, source };
        for (node, part) in nodes.nodes.iter().zip(parts) {
            node.offer(part.clone());
        }
        nodes
    }

    fn cut_off(&self, node: usize, is_cut_off: bool) {
        let id = self.net.members.lock()[node];
        let mut all = self.net.cut_off.lock();
        match is_cut_off {
            true => all.insert(id),
            false => all.remove(&id),
        };
    }

    /// What each node sees of a view.
    fn look(&self, view: View) -> Vec<Arc<Snapshot>> {
        self.nodes.iter().map(|node| node.look(view)).collect()
    }
}

impl Node {
    fn ask(&self, question: Question) -> serde_json::Value {
        self.rehearsal.ask(question).unwrap()
    }

    fn offer(&self, numbers: std::ops::Range<u32>) {
        let paths: Vec<String> = numbers.clone().map(path).collect();
        self.ask(Question::Offer { buffer: BUFFER.to_owned(), paths: paths.join("\n") });
        let begun = Instant::now();
        while self.stats()["samples"] != numbers.len() as u64 {
            assert!(begun.elapsed() < LIMIT, "{}", self.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stats(&self) -> serde_json::Value {
        self.ask(Question::Stats)[0].take()
    }

    fn begin_task(&self, task: u32, files: &[&str]) {
        let files = files.join("\n");
        self.ask(Question::Task { buffer: BUFFER.to_owned(), task, files });
    }

    fn begin_make(&self, view: View) -> std::sync::mpsc::Receiver<Result<Snapshot, Errno>> {
        let (send, made) = channel();
        self.rehearsal.views().make(
            0,
            view,
            Box::new(move |snapshot| send.send(snapshot).unwrap()),
        );
        made
    }

    /// What the view shows. It is kept under its name.
    fn look(&self, view: View) -> Arc<Snapshot> {
        let snapshot = self.begin_make(view).recv_timeout(LIMIT).unwrap().unwrap();
        self.rehearsal.views().snapshots.keep(0, view, snapshot).unwrap();
        self.rehearsal.views().snapshots.of_view(0, view).unwrap()
    }
}

/// The names of a view's files, with the numbers of its samples.
fn shown(snapshot: &Snapshot) -> BTreeMap<String, Option<u32>> {
    let files = snapshot.classes.iter().flat_map(|(class, files)| {
        files.iter().map(move |file| (format!("{class}/{}", file.name), file))
    });
    files.map(|(name, file)| (name, file.sample().map(|sample| number_of(sample)))).collect()
}

/// Reads all samples of a view. Returns how many are at other nodes.
fn read_all(snapshot: &Snapshot) -> usize {
    let mut remote = 0;
    for file in snapshot.classes.iter().flat_map(|(_, files)| files) {
        let Some(sample) = file.sample() else { continue };
        assert_eq!(sample.bytes.read().unwrap(), bytes(number_of(sample)), "{}", file.name);
        remote += usize::from(sample.bytes.are_remote());
    }
    remote
}

#[test]
fn all_nodes_see_the_samples_of_all_buffers() {
    // Two nodes keep some of the samples, and one node keeps none.
    let nodes = Nodes::keeping(&[0..10, 5..40, 0..0]);
    let seen = nodes.look(View::Epoch(3));
    let expected: BTreeSet<u32> = (0..40).collect();
    for (snapshot, own) in seen.iter().zip([10, 35, 0]) {
        let numbers: Vec<u32> = shown(snapshot).into_values().flatten().collect();
        assert_eq!(numbers.len(), 40, "each is there once");
        assert_eq!(numbers.into_iter().collect::<BTreeSet<_>>(), expected);
        assert_eq!(shown(snapshot), shown(&seen[0]), "all see the same");
        assert_eq!(read_all(snapshot), 40 - own, "own samples are read from the own disk");
    }
    let joint = nodes.nodes[2].stats()["joint"].take();
    // A node that answers late is passed over.
    let counts = ["read", "read_from_source"].map(|name| joint[name].as_u64().unwrap());
    assert!(counts[0] > 0 && counts[0] + counts[1] == 40, "{joint}");
    // What is kept later is in later views.
    nodes.nodes[2].offer(100..110);
    assert!(nodes.look(View::Epoch(3)).iter().all(|snapshot| shown(snapshot).len() == 40));
    assert!(nodes.look(View::Epoch(4)).iter().all(|snapshot| shown(snapshot).len() == 50));
}

#[test]
fn draws_are_the_same_on_all_nodes_and_even() {
    let nodes = Nodes::keeping(&[0..10, 10..30, 30..60, 60..100]);
    let drawn = |node: &Node| {
        let (buffer, epoch, count) = (BUFFER.to_owned(), 1, 5000);
        let drawn = node.ask(Question::Draw { buffer, epoch, count });
        serde_json::from_value::<Vec<String>>(drawn).unwrap()
    };
    let draws: Vec<Vec<String>> = nodes.nodes.iter().map(drawn).collect();
    assert!(draws.iter().all(|of| *of == draws[0]));
    let mut counts = HashMap::<&str, u32>::new();
    draws[0].iter().for_each(|path| *counts.entry(path).or_default() += 1);
    assert!(counts.len() == 100 && counts.values().all(|count| *count == 50), "{counts:?}");
}

#[test]
fn a_mix_is_the_same_on_all_nodes() {
    let nodes = Nodes::keeping(&[0..6, 6..30, 30..60]);
    nodes.nodes.iter().for_each(|node| node.begin_task(1, &["c0"]));
    let seen = nodes.look(View::Mix(5));
    let links = |snapshot: &Snapshot| {
        let files = snapshot.classes.iter().flat_map(|(_, files)| files);
        files.filter(|file| matches!(file.content, Content::Link(_))).count()
    };
    for snapshot in &seen {
        assert_eq!(shown(snapshot), shown(&seen[0]));
        let replays: Vec<u32> = shown(snapshot).into_values().flatten().collect();
        // 67 files are of the task, so there are 33 draws of the 40 old samples of other classes.
        assert_eq!((links(snapshot), replays.len()), (67, 33));
        assert!(replays.iter().all(|number| number % 3 != 0 && *number < 60));
        assert_eq!(replays.iter().collect::<BTreeSet<_>>().len(), 33, "none repeats so soon");
        read_all(snapshot);
    }
    let other = nodes.look(View::Mix(6));
    assert_ne!(shown(&other[0]), shown(&seen[0]), "another epoch has other draws");
}

/// A node looks at a mix before the node that makes it has begun the task.
#[test]
fn a_mix_waits_for_the_task_of_its_maker() {
    let nodes = Nodes::keeping(&[0..30, 30..60]);
    let maker = (0..2).find(|node| {
        let joint = nodes.nodes[*node].rehearsal.views().joint(0).unwrap();
        joint.maker_of(0, View::TaskMix) == joint.own_number()
    });
    let (maker, other) = (maker.unwrap(), 1 - maker.unwrap());
    nodes.nodes[other].begin_task(1, &["c0"]);
    let made = nodes.nodes[other].begin_make(View::TaskMix);
    let early = made.recv_timeout(Duration::from_millis(500));
    assert!(early.is_err(), "it is made before the task has begun at the maker");
    nodes.nodes[maker].begin_task(1, &["c0"]);
    let made = made.recv_timeout(LIMIT).unwrap().unwrap();
    assert_eq!(shown(&made), shown(&nodes.nodes[maker].look(View::TaskMix)));
}

/// Each view is made, whichever node is gone, and each sample is read.
#[test]
fn a_node_that_is_gone_takes_no_view_along() {
    let nodes = Nodes::keeping(&[0..10, 10..30, 30..60]);
    let before = nodes.look(View::Epoch(0));
    for gone in 0..3 {
        nodes.cut_off(gone, true);
        // The bytes of its samples come from the source.
        assert!(read_all(&before[(gone + 1) % 3]) > 0);
        let own = [10, 20, 30][gone];
        for epoch in 1..5 {
            let view = View::Epoch(10 * gone as u64 + epoch);
            for node in nodes.nodes.iter().enumerate().filter(|(at, _)| *at != gone) {
                assert_eq!(shown(&node.1.look(view)).len(), 60 - own, "its share is gone");
            }
        }
        nodes.cut_off(gone, false);
    }
    let joint = nodes.nodes[0].stats()["joint"].take();
    assert!(joint["read_from_source"].as_u64().unwrap() > 0, "{joint}");
    // The source has another version: there is no wrong byte.
    nodes.cut_off(1, true);
    for number in 10..30 {
        fs::write(nodes.source.path().join(path(number)), b"another version").unwrap();
    }
    let files = before[0].classes.iter().flat_map(|(_, files)| files);
    let gone =
        files.filter_map(|file| file.sample()).filter(|it| (10..30).contains(&number_of(it)));
    assert!(gone.clone().count() == 20 && gone.clone().all(|sample| sample.bytes.read().is_err()));
}

/// A node that leaves the cluster shows its own samples, and again those of all when it is back.
#[test]
fn a_node_without_a_cluster_shows_its_own_samples() {
    let nodes = Nodes::keeping(&[0..10, 10..30]);
    let members = std::mem::take(&mut *nodes.net.members.lock());
    assert_eq!(shown(&nodes.nodes[0].look(View::Epoch(0))).len(), 10);
    assert!(nodes.nodes[0].stats()["joint"].is_null());
    *nodes.net.members.lock() = members;
    assert_eq!(shown(&nodes.nodes[0].look(View::Epoch(1))).len(), 30);
}

#[test]
fn a_sample_that_was_shown_counts_where_it_is_kept() {
    let nodes = Nodes::keeping(&[0..1, 1..20]);
    let snapshot = nodes.nodes[0].look(View::Epoch(0));
    let files = snapshot.classes.iter().flat_map(|(_, files)| files);
    for sample in files.filter_map(|file| file.sample()) {
        if let super::super::views::SampleBytes::Remote(remote) = &sample.bytes {
            remote.note_shown();
        }
    }
    let begun = Instant::now();
    while nodes.nodes[1].stats()["replays"] != 19 {
        assert!(begun.elapsed() < LIMIT, "{}", nodes.nodes[1].stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Slots show the samples of all nodes, and each node has another order.
#[test]
fn slots_show_the_samples_of_all_nodes() {
    let nodes = Nodes::keeping(&[0..8, 8..20]);
    let opened = |node: &Node| {
        let views = node.rehearsal.views();
        let look_up = |parent: u64, name: &str| {
            let (send, found) = channel();
            views.lookup(parent, name.as_ref(), 1, move |entry| send.send(entry).unwrap());
            found.recv_timeout(LIMIT).unwrap().unwrap().node
        };
        let buffer = look_up(super::super::views::ROOT, BUFFER);
        let slots = look_up(buffer, "slots");
        let open = |nth: u32| {
            let slot = look_up(slots, &format!("{:04}.jpg", nth % 4));
            let (_, source) = views.label(slot).unwrap();
            views.open(slot).unwrap();
            source
        };
        (0..20).map(open).collect::<Vec<String>>()
    };
    let seen: Vec<Vec<String>> = nodes.nodes.iter().map(opened).collect();
    for of in &seen {
        assert_eq!(of.iter().collect::<BTreeSet<_>>().len(), 20, "each once a round");
    }
    assert_ne!(seen[0], seen[1], "nodes show different samples at a time");
}

#[test]
fn what_is_not_understood_has_no_answer() {
    let nodes = Nodes::keeping(&[0..2, 2..4]);
    let provider = nodes.net.providers.lock()[&3].clone();
    for question in ["", "{}", r#"{"holds":{"buffer":"none","known":null}}"#, "[1]"] {
        let (send, answered) = channel();
        let deliver = Box::new(move |answer: Option<Vec<u8>>| send.send(answer).unwrap());
        provider(question.to_owned(), Answering::new(deliver));
        assert_eq!(answered.recv_timeout(LIMIT).unwrap(), None, "{question}");
    }
}
