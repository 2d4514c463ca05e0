//! The planner's thread. It takes events from the inbox, tells the wings of them, applies them to the planner
//! and carries out the planner's actions.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::flow::Flow;
use crate::cache::{Arrival, Cache, Inbox, Observer};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::BlockId;
use crate::plan::{Action, Event, Planner, Published};
use crate::sync::Mutex;

/// The pause between two publications of the planner's state while it changes.
const PUBLISH_EVERY: Duration = Duration::from_millis(20);

/// How often the thread checks whether the tasks that hold files open still exist: while events come and
/// shortly afterwards, and while none come.
const CHECK_TASKS_EVERY: Duration = Duration::from_secs(1);
const IDLE_CHECK_TASKS_EVERY: Duration = Duration::from_secs(5);

/// If there are this many tasks more than at the last check, they are checked at once: threads that a loader
/// makes for each batch end soon.
const NEW_TASKS_MAX: usize = 16;

struct TaskCheck {
    last: Instant,
    /// Tasks at the last check.
    tasks: usize,
    /// Whether no event has come since then.
    is_quiet: bool,
}

impl TaskCheck {
    /// Whether a check is due before the new events are applied: a task may have ended before they happened.
    fn is_due(&self, tasks: usize, now: Instant) -> bool {
        tasks > self.tasks + NEW_TASKS_MAX || now >= self.last + CHECK_TASKS_EVERY
    }

    /// How long the thread may wait for an event.
    fn patience(&self, tasks: usize) -> Duration {
        match (tasks, self.is_quiet) {
            (0, _) => Duration::from_secs(3600),
            (_, false) => CHECK_TASKS_EVERY,
            (_, true) => IDLE_CHECK_TASKS_EVERY,
        }
    }

    /// Notes that a check is done, with the number of tasks that are left.
    fn checked(&mut self, tasks: usize, now: Instant) {
        *self = TaskCheck { last: now, tasks, is_quiet: true };
    }
}

pub(super) fn spawn(
    planner: Planner,
    inbox: &Arc<Inbox>,
    cache: &Arc<Cache>,
    (published, flow): (&Arc<Mutex<Published>>, &Arc<Mutex<Flow>>),
    observers: Vec<Box<dyn Observer>>,
) -> Result<JoinHandle<()>> {
    let (inbox, cache) = (Arc::clone(inbox), Arc::clone(cache));
    let (published, flow) = (Arc::clone(published), Arc::clone(flow));
    let publish = move |planner: &Planner| publish(planner, &published, &flow);
    let run = move || run(planner, &inbox, &cache, publish, observers);
    std::thread::Builder::new().name("belady-planner".into()).spawn(run).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
            .hint("raise the limit on processes (`ulimit -u`)")
    })
}

fn run(
    mut planner: Planner,
    inbox: &Inbox,
    cache: &Arc<Cache>,
    publish: impl Fn(&Planner),
    mut observers: Vec<Box<dyn Observer>>,
) {
    let mut messages = Vec::new();
    let mut questions = Vec::new();
    let mut observer_events = Vec::new();
    let mut actions = Vec::new();
    let (mut publish_at, mut stale) = (Instant::now(), true);
    let mut task_check = TaskCheck { last: publish_at, tasks: 0, is_quiet: true };
    loop {
        let patience = match stale {
            true => PUBLISH_EVERY,
            false => task_check.patience(planner.tasks().count()),
        };
        let open = inbox.take(&mut messages, &mut questions, patience);
        if task_check.is_due(planner.tasks().count(), Instant::now()) {
            let has_ended = |task: &u32| !Path::new("/proc").join(task.to_string()).exists();
            for task in planner.tasks().filter(has_ended).collect::<Vec<_>>() {
                planner.apply(Event::Left { task }, &mut actions);
                carry_out(&mut actions, None, inbox, cache, &mut observers);
                stale = true;
            }
            task_check.checked(planner.tasks().count(), Instant::now());
        }
        task_check.is_quiet &= messages.is_empty();
        stale |= !messages.is_empty();
        for message in messages.drain(..) {
            for observer in &mut observers {
                observer.observe(&message.event, message.arrival.as_ref(), &mut observer_events);
            }
            let arrival = match (&message.event, message.arrival) {
                (Event::Arrived { block, .. }, Some(arrival)) => Some((*block, arrival)),
                _ => None,
            };
            planner.apply(message.event, &mut actions);
            observer_events.drain(..).for_each(|event| planner.apply(event, &mut actions));
            carry_out(&mut actions, arrival.as_ref(), inbox, cache, &mut observers);
        }
        // A caller that has its answer may read the status at once. The status must not be older than the
        // answer.
        if !questions.is_empty() {
            publish(&planner);
        }
        questions.drain(..).for_each(|question| question(&planner));
        if stale && Instant::now() >= publish_at {
            publish(&planner);
            publish_at = Instant::now() + PUBLISH_EVERY;
            stale = false;
        }
        if !open {
            return publish(&planner);
        }
    }
}

/// Carries out the planner's actions. `arrival` has the bytes of a block that has just arrived.
fn carry_out(
    actions: &mut Vec<Action>,
    arrival: Option<&(BlockId, Arrival)>,
    inbox: &Inbox,
    cache: &Arc<Cache>,
    observers: &mut [Box<dyn Observer>],
) {
    for action in actions.drain(..) {
        match action {
            Action::Fetch { block, pages, .. } => cache.prefetch(block, pages),
            Action::FetchRun { first, count } => cache.prefetch_run(first, count),
            Action::Untrack { file } => cache.page_cache().set_untracked(file, true),
            Action::Track { file } => cache.page_cache().set_untracked(file, false),
            Action::Began { .. } => {
                observers.iter_mut().for_each(|observer| observer.carry_out(&action));
            }
            Action::Check { block } => {
                cache.page_cache().check(block, Instant::now());
                cache.move_on(block);
            }
            Action::InParts { file, on } => {
                cache.page_cache().file_flags().in_parts.set(file, on);
            }
            Action::Drop { block } => cache.page_cache().drop_pages(block, None),
            Action::DropParts { block, pages } => cache.page_cache().drop_pages(block, Some(pages)),
            Action::Load { block, tier } => cache.load(block, tier),
            Action::Take { block, tier } => cache.take(block, tier),
            Action::Displace { block, .. } => cache.displace(block),
            Action::Place { block, tier } => match arrival {
                Some((arrived, arrival)) if *arrived == block => {
                    cache.place(block, tier, arrival.clone());
                }
                _ => inbox.put(Event::Placed { block, tier, done: false }, None),
            },
        }
    }
}

fn publish(planner: &Planner, published: &Mutex<Published>, flow: &Mutex<Flow>) {
    let state = Published {
        counters: planner.counters(),
        accounts: planner.accounts(),
        policy: planner.policy(),
        untracked: planner.untracked_files(),
        streams: planner.streams().collect(),
    };
    flow.lock().note(&state, Instant::now());
    *published.lock() = state;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_checked_before_new_events_and_seldom_without() {
        let start = Instant::now();
        let mut task_check = TaskCheck { last: start, tasks: 0, is_quiet: true };
        assert!(!task_check.is_due(NEW_TASKS_MAX, start), "they have just come");
        assert!(task_check.is_due(NEW_TASKS_MAX + 1, start), "many have come");
        assert!(task_check.is_due(1, start + CHECK_TASKS_EVERY), "whatever is heard next");
        task_check.is_quiet = false;
        assert_eq!(task_check.patience(1), CHECK_TASKS_EVERY);
        task_check.checked(1, start + CHECK_TASKS_EVERY);
        assert!(!task_check.is_due(1, start + CHECK_TASKS_EVERY));
        assert_eq!(task_check.patience(1), IDLE_CHECK_TASKS_EVERY);
        assert!(task_check.patience(0) > IDLE_CHECK_TASKS_EVERY, "there is nobody");
    }
}
