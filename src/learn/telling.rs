//! What is said of a loader: its order for the planner, and what is believed in words.

use std::sync::Arc;

use super::event::{Belief, Known, Rung};
use super::follow::Follow;
use super::ladder::{Purpose, Stage};
use super::loader::Loader;
use super::share::Share;
use super::shared::Shared;
use crate::order::{Order, OrderSpec};

impl Loader {
    /// The order as it is told, from where the reader is now; none while it is not followed.
    pub(super) fn known(&self, shared: &Shared) -> Option<Known> {
        let follow = self.follow.as_ref()?;
        let mut epochs = vec![follow.rest()];
        let next = next_epoch(follow, shared);
        let foreseen = u32::from(next.is_some());
        epochs.extend(next.map(|samples| follow.share().of_epoch(&samples)));
        let order = Order::listed(&self.title(follow, shared), epochs, shared.samples.clone())
            .ok()?
            .ending();
        Some(Known { loader: self.id, group: self.group, epoch: self.epoch(), order, foreseen })
    }

    fn title(&self, follow: &Follow, shared: &Shared) -> String {
        let share = match follow.share() {
            Share { stride: 1, .. } => String::new(),
            Share { block: 1, stride, first } => format!(", rank {first} of {stride}"),
            Share { block, stride, first } => {
                format!(", rank {first} of {stride} in batches of {block}")
            }
        };
        let index = follow.index.map_or_else(String::new, |index| {
            let index = &shared.indexes[index];
            format!(" over {} samples in {} order", index.sequence.len(), index.name)
        });
        format!("learnt: {}{index}{share}; {}", follow.origin, follow.law)
    }

    /// What is searched for the order of the epoch, or was, in words.
    fn seeks(&self, shared: &Shared) -> &'static str {
        let running = self.seeking.running.and_then(|id| shared.searches.get(&id));
        match running.map(|running| &running.purpose) {
            Some(Purpose::Epoch { stage: Stage::All, .. }) => "; all seeds are being searched",
            Some(Purpose::Epoch { stage: Stage::Told, .. }) => {
                "; what has the seed of the order that was told is being searched"
            }
            Some(_) => "; popular seeds are being searched",
            None if shared.spent.contains(&self.group) => {
                "; nothing more is searched, order.learn-time is used up"
            }
            None if self.seeking.stage == Stage::Done && self.seeking.sought => {
                "; its sampler has no known order: no seed was found that gives it"
            }
            None if self.seeking.stage == Stage::Done => {
                "; it reads no dataset that a seed could be of"
            }
            None => "",
        }
    }

    /// What is believed, in words.
    pub(super) fn belief(&self, shared: &Shared) -> Belief {
        let (rung, bits, needed, text) = match &self.follow {
            Some(follow) => {
                let (rung, bits, needed) = self.grounds;
                let title = self.title(follow, shared);
                let text = format!(
                    "{title} ({rung}; {bits:.0} bits of evidence where {needed:.0} are asked for; \
                     {} samples read as foreseen)",
                    follow.matched()
                );
                (rung, bits, needed, text)
            }
            None => {
                let rung = if self.attempt.repeats { Rung::Unknown } else { Rung::Unread };
                let seeks = self.seeks(shared);
                let text = format!("{rung}{seeks} ({} opens unexplained)", self.attempt.opens());
                (rung, 0.0, 0.0, text)
            }
        };
        let (loader, group, epoch) = (self.id, self.group, self.epoch());
        let (last_ms, known_after, foreseen) = (self.last_ms, self.known_after, self.foreseen);
        let spec = self.spec(shared);
        Belief {
            loader,
            group,
            epoch,
            last_ms,
            rung,
            bits,
            needed,
            known_after,
            foreseen,
            spec,
            text,
        }
    }

    /// The order as somebody would tell it, if it can be told.
    fn spec(&self, shared: &Shared) -> Option<OrderSpec> {
        let follow = self.follow.as_ref()?;
        let index = &shared.indexes[follow.index?];
        let (share, n) = (follow.share(), index.sequence.len());
        let epochs = self.epoch() - self.past.as_ref()?.first.0;
        let sampler = follow.origin.sampler(&follow.law, share, n, epochs)?;
        Some(index.spec.as_ref()?.with_sampler(sampler))
    }
}

/// The samples of the next epoch, all ranks', if its order follows from this one.
fn next_epoch(follow: &Follow, shared: &Shared) -> Option<Arc<[u32]>> {
    let index = follow.index.map(|index| &shared.indexes[index]);
    let n = index.map_or(0, |index| index.sequence.len());
    let (origin, _) = follow.origin.after(&follow.law, n)?;
    if origin == follow.origin {
        return Some(Arc::clone(follow.sequence.samples()));
    }
    origin.listed().cloned().or_else(|| index?.epoch(&origin, &shared.generators))
}
