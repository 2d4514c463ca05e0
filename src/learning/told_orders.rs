//! The orders that streams were told.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Streams;
use crate::ids::StreamId;
use crate::learn::{Belief, Decision, Learner, LoaderId};
use crate::order::{Order, OrderSpec, SampleTable};
use crate::plan::Published;

/// The orders that streams were told.
pub(super) struct ToldOrders {
    all: Vec<ToldStream>,
    streams: Streams,
}

/// A stream that was told its order.
struct ToldStream {
    id: StreamId,
    order: Arc<Order>,
    /// By file, whether it is in the order.
    files: Vec<bool>,
    /// Whether it is read as it was told.
    followed: bool,
}

impl ToldStream {
    fn has(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|has| *has)
    }
}

impl ToldOrders {
    pub(super) fn new(streams: Streams) -> Self {
        ToldOrders { all: Vec::new(), streams }
    }

    /// A stream is told its order, over some of this many files.
    pub(super) fn add(&mut self, stream: StreamId, order: Arc<Order>, files: usize) {
        let mut has = vec![false; files];
        for id in order.ids() {
            if let Some(has) = has.get_mut(order.samples().get(id).file.index()) {
                *has = true;
            }
        }
        self.remove(stream);
        self.all.push(ToldStream { id: stream, order, files: has, followed: true });
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        self.all.retain(|known| known.id != stream);
    }

    /// Takes note of the streams that are read as told. Says whether they are others than before.
    pub(super) fn update(&mut self, published: &Published) -> bool {
        let mut turned = false;
        for stream in &mut self.all {
            let progress = published.progress(stream.id);
            let followed = progress.is_none_or(|progress| progress.following);
            turned |= std::mem::replace(&mut stream.followed, followed) != followed;
        }
        turned
    }

    /// Whether an order that is read as told has the file.
    pub(super) fn have(&self, file: u32) -> bool {
        self.all.iter().any(|stream| stream.followed && stream.has(file))
    }

    /// Whether a loader reads files of an order that is read as told.
    pub(super) fn are_read_by(&self, loader: LoaderId, learner: Option<&Learner>) -> bool {
        let latest = learner.and_then(|learner| learner.latest(loader));
        latest.is_some_and(|file| self.have(file))
    }

    /// Tells a learner of this many files all orders, or that of one stream.
    pub(super) fn tell(
        &self,
        only: Option<StreamId>,
        files: usize,
        learner: &mut Learner,
        decisions: &mut Vec<Decision>,
    ) {
        for stream in self.all.iter().filter(|stream| only.is_none_or(|only| stream.id == only)) {
            let of_files = matches!(stream.order.samples(), SampleTable::Files);
            if of_files && stream.order.ids().all(|file| (file as usize) < files) {
                learner.tell(&stream.order, self.spec(stream.id).as_ref(), decisions);
            }
        }
    }

    /// The order of a stream as it was told.
    fn spec(&self, stream: StreamId) -> Option<OrderSpec> {
        self.streams.lock().get(stream.index())?.spec.as_ref()?.parse().ok()
    }

    /// By stream that is not read as it was told, what would be right, in words.
    pub(super) fn fixes(
        &self,
        learner: Option<&Learner>,
        beliefs: &[Belief],
    ) -> BTreeMap<StreamId, String> {
        let wrong = self.all.iter().filter(|stream| !stream.followed);
        let fix = |stream: &ToldStream| Some((stream.id, self.fix(stream, learner?, beliefs)?));
        wrong.filter_map(fix).collect()
    }

    fn fix(&self, stream: &ToldStream, learner: &Learner, beliefs: &[Belief]) -> Option<String> {
        let reads =
            |belief: &&Belief| learner.latest(belief.loader).is_some_and(|file| stream.has(file));
        let readers = || beliefs.iter().filter(reads);
        let known = readers().find_map(|belief| belief.spec.as_ref());
        let part = known.or_else(|| readers().find_map(|one| learner.within(one.loader)))?;
        let given = self.spec(stream.id);
        if known == given.as_ref() {
            return None;
        }
        let (root, before) =
            (part.filter.directory(), given.as_ref().map(|given| given.filter.directory()));
        let outside = (!root.is_empty() && before.is_some_and(|before| before != root))
            .then(|| format!("nothing outside {root}/ is read: root={root}"));
        let reads = known.map(|spec| format!("what is read is {spec}"));
        let words: Vec<String> = outside.into_iter().chain(reads).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}
