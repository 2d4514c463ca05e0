//! The planner's thread.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::lock;
use crate::cache::{Cache, Inbox};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::StreamId;
use crate::plan::{Accounts, Action, Counters, Event, Planner, PolicyKind, StreamStatus};

/// How often what the planner knows is published while there is something to do.
const PUBLISH_EVERY: Duration = Duration::from_millis(20);

/// What the planner's thread last said of itself.
#[derive(Clone, Default)]
pub(super) struct Published {
    pub(super) counters: Counters,
    pub(super) accounts: Accounts,
    pub(super) policy: PolicyKind,
    pub(super) streams: Vec<(StreamId, StreamStatus)>,
}

/// Starts the thread that owns the planner. It ends when the inbox is closed.
pub(super) fn spawn(
    planner: Planner,
    inbox: &Arc<Inbox>,
    cache: &Arc<Cache>,
    published: &Arc<Mutex<Published>>,
) -> Result<JoinHandle<()>> {
    let (inbox, cache, published) = (Arc::clone(inbox), Arc::clone(cache), Arc::clone(published));
    let run = move || run(planner, &inbox, &cache, &published);
    std::thread::Builder::new().name("belady-planner".into()).spawn(run).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
            .hint("raise the limit on processes (`ulimit -u`)")
    })
}

fn run(mut planner: Planner, inbox: &Inbox, cache: &Arc<Cache>, published: &Mutex<Published>) {
    let mut messages = Vec::new();
    let mut actions = Vec::new();
    let mut due = Instant::now();
    let mut stale = true;
    loop {
        let patience = if stale { PUBLISH_EVERY } else { Duration::from_secs(3600) };
        let open = inbox.take(&mut messages, patience);
        stale |= !messages.is_empty();
        for message in messages.drain(..) {
            let arrived = match &message.event {
                Event::Arrived { block, .. } => Some(*block),
                _ => None,
            };
            planner.apply(message.event, &mut actions);
            for action in actions.drain(..) {
                match action {
                    Action::Fetch { block, .. } => cache.prefetch(block),
                    Action::Check { block } => cache.check(block),
                    Action::Drop { block } => cache.drop_pages(block),
                    Action::Displace { block, .. } => cache.displace(block),
                    Action::Place { block, tier } => match &message.arrival {
                        Some(arrival) if arrived == Some(block) => {
                            cache.place(block, tier, arrival.clone());
                        }
                        _ => inbox.put(Event::Placed { block, tier, done: false }, None),
                    },
                }
            }
        }
        if stale && Instant::now() >= due {
            publish(&planner, published);
            due = Instant::now() + PUBLISH_EVERY;
            stale = false;
        }
        if !open {
            return publish(&planner, published);
        }
    }
}

fn publish(planner: &Planner, published: &Mutex<Published>) {
    let state = Published {
        counters: planner.counters(),
        accounts: planner.accounts(),
        policy: planner.policy(),
        streams: planner.streams().collect(),
    };
    *lock(published) = state;
}
