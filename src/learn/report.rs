//! What is said of a loader: its order for the planner, and what is believed in words.

use std::sync::Arc;

use super::event::{Basis, Belief, Known};
use super::evidence::Evidence;
use super::follow::FollowedOrder;
use super::loader::Loader;
use super::past::Understood;
use super::reading::Reading;
use super::sampler::sampler_of;
use super::share::Share;
use super::shared::Shared;
use crate::order::{Order, OrderSpec};

/// The order of a loader, from the place of its reader on; `None` while it is not followed.
pub(super) fn known(loader: &Loader, shared: &Shared) -> Option<Known> {
    let follow = loader.follow.as_ref()?;
    let mut epochs = vec![follow.rest()];
    let next = next_epoch(follow, shared);
    let foreseen = u32::from(next.is_some());
    epochs.extend(next.map(|samples| follow.share().of_epoch(&samples)));
    let order = Order::listed(&title(follow, shared), epochs, shared.samples.clone());
    let Reading { loader, group, epoch, .. } = loader.reading;
    Some(Known { loader, group, epoch, order: order.ok()?.ending(), foreseen })
}

/// What is believed of a loader.
pub(super) fn belief(loader: &Loader, shared: &Shared) -> Belief {
    let Reading { loader: id, group, epoch, attempt, latest, .. } = &loader.reading;
    let (evidence, text) = match &loader.follow {
        Some(follow) => {
            let Evidence { basis, bits, needed } = loader.evidence;
            let text = format!(
                "{} ({basis}; {bits:.0} bits of evidence where {needed:.0} are asked for; \
                 {} samples read as foreseen)",
                title(follow, shared),
                follow.matched()
            );
            (loader.evidence, text)
        }
        None => {
            let basis = if attempt.repeats { Basis::Unknown } else { Basis::Unread };
            let seeks = loader.stages.describe(*group, &shared.searches);
            let text = format!("{basis}{seeks} ({} opens unexplained)", attempt.opens());
            (Evidence { basis, bits: 0.0, needed: 0.0 }, text)
        }
    };
    let (follow, past) = (loader.follow.as_ref(), loader.past.understood.as_ref());
    Belief {
        loader: *id,
        group: *group,
        epoch: *epoch,
        last_ms: latest.map_or(0, |open| open.at_ms),
        basis: evidence.basis,
        bits: evidence.bits,
        needed: evidence.needed,
        known_after: loader.known_after,
        foreseen: loader.foreseen,
        spec: follow.zip(past).and_then(|(follow, past)| spec(follow, past, *epoch, shared)),
        spec_epoch: past.map_or(0, |past| epoch - past.first.0),
        length: follow.map_or(0, |follow| follow.sequence.len() / follow.share().stride),
        text,
    }
}

fn title(follow: &FollowedOrder, shared: &Shared) -> String {
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

/// The order of a loader in epoch `epoch` as an order spec, if it can be told.
fn spec(
    follow: &FollowedOrder,
    past: &Understood,
    epoch: u32,
    shared: &Shared,
) -> Option<OrderSpec> {
    let index = &shared.indexes[follow.index?];
    let (share, n) = (follow.share(), index.sequence.len());
    let sampler = sampler_of(&follow.origin, &follow.law, share, n, epoch - past.first.0)?;
    Some(index.spec.as_ref()?.with_sampler(sampler))
}

/// The samples of the next epoch, all ranks', if its order follows from this one.
fn next_epoch(follow: &FollowedOrder, shared: &Shared) -> Option<Arc<[u32]>> {
    let (origin, _) = follow.origin.after(&follow.law, shared.indexes.len_of(follow.index))?;
    if origin == follow.origin {
        return Some(Arc::clone(follow.sequence.items()));
    }
    let index = follow.index.map(|index| &shared.indexes[index]);
    origin.listed().cloned().or_else(|| index?.epoch(&origin, &shared.generators))
}
