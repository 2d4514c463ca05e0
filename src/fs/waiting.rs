//! Notes the requests that wait for the source, and ends their wait if it does not answer.
//!
//! The kernel holds a task until a request that the daemon has taken is answered, even if the task is
//! killed. So a periodic tick goes through the waiting requests:
//!
//! 1. A request whose task is being killed is answered with `EINTR`.
//! 2. A request that may only wait briefly is answered from memory when its time is over.
//! 3. A request that waits for the cache disk gets an error if the disk hangs.
//!
//! The answer that comes later is dropped.
//!
//! The answer to a request comes with the cause for which its reader has waited. The wait is noted then ([`Waits`]), unless
//! the task is being killed.
//!
//! While a name is looked up or a directory is listed, the kernel may have the directory locked. So the
//! table also says which directory a request is about.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::cache::{Cause, Waits};
use crate::catalog::NodeId;
use crate::disk::Alarm;
use crate::sync::Mutex;

pub(crate) type Reply<T = ()> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// The age at which a request's task is checked, and the time between two checks of tasks.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// How long a notification about a directory waits for a moment without requests about it.
const GAP: Duration = Duration::from_millis(20);

/// The shortest and the longest pause between two checks for that moment.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A reply that is sent once: with the answer, or by a tick.
pub(crate) struct Pending<R> {
    /// None once it was sent.
    reply: Mutex<Option<R>>,
    since: Instant,
    /// The task that asks, if it is known.
    task: Option<u32>,
    /// Where its wait is noted.
    waits: Option<Arc<Waits>>,
    interrupt: fn(R),
    timeout: Option<Timeout<R>>,
}

/// When a request has waited long enough, and how it is answered then.
struct Timeout<R> {
    is_due: Box<dyn Fn(Instant) -> bool + Send + Sync>,
    /// Why it has waited.
    cause: Cause,
    answer: Box<dyn Fn(R) + Send + Sync>,
}

impl<T> Pending<Reply<T>> {
    /// A reply that no tick finds, and whose wait is not noted.
    pub(crate) fn unlisted(reply: Reply<T>) -> Self {
        Pending::new(reply, reply_interrupted)
    }
}

impl<R> Pending<R> {
    fn new(reply: R, interrupt: fn(R)) -> Self {
        let (reply, since) = (Mutex::new(Some(reply)), Instant::now());
        Pending { reply, since, task: None, waits: None, interrupt, timeout: None }
    }

    /// Takes the reply, unless it was sent. Its reader has waited for it until now, for this cause.
    pub(crate) fn take(&self, cause: Cause) -> Option<R> {
        let reply = self.reply.lock().take()?;
        self.waits.iter().for_each(|waits| waits.note(cause, self.task, self.since));
        Some(reply)
    }

    /// The same for a request that gives something instead of asking for it: it is no wait for data.
    pub(crate) fn take_unnoted(&self) -> Option<R> {
        self.reply.lock().take()
    }

    /// Sends the answer for a request that has waited long enough.
    pub(crate) fn answer_late(&self) {
        if let Some(late) = &self.timeout {
            self.take(late.cause).into_iter().for_each(&late.answer);
        }
    }

    /// Whether the reply was not sent yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.reply.lock().is_some()
    }
}

/// What a tick needs of a request, whatever its answer is.
trait WaitingRequest: Send + Sync {
    fn is_unanswered(&self) -> bool;
    fn is_late(&self, now: Instant) -> bool;
    fn interrupt(&self);
    fn answer_late(&self);
}

impl<R: Send> WaitingRequest for Pending<R> {
    fn is_unanswered(&self) -> bool {
        self.is_unanswered()
    }

    fn is_late(&self, now: Instant) -> bool {
        self.timeout.as_ref().is_some_and(|late| (late.is_due)(now))
    }

    fn interrupt(&self) {
        self.take_unnoted().into_iter().for_each(self.interrupt);
    }

    fn answer_late(&self) {
        Pending::answer_late(self);
    }
}

struct Entry {
    since: Instant,
    /// None if the kernel does not say which task asks.
    task: Option<u32>,
    /// The directory that it lists, or that holds its name.
    directory: Option<NodeId>,
    request: Weak<dyn WaitingRequest>,
}

pub(crate) struct WaitingRequests {
    entries: Mutex<Vec<Entry>>,
    kills_checked: Mutex<Instant>,
    /// Wakes the thread that ticks.
    alarm: Arc<Alarm>,
    waits: Arc<Waits>,
}

impl WaitingRequests {
    /// A table whose entries the thread behind the alarm [checks](Self::tick). `waits` hears how long each waited.
    pub(crate) fn new(alarm: Arc<Alarm>, waits: Arc<Waits>) -> Self {
        WaitingRequests {
            entries: Mutex::default(),
            kills_checked: Mutex::new(Instant::now()),
            alarm,
            waits,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// How many requests wait, and how long the first of them has waited.
    pub(crate) fn under_way(&self) -> (usize, Duration) {
        let entries = self.entries.lock();
        // Dropping the last reference to a reply sends it, so it is dropped after the lock.
        let found: Vec<(Instant, Arc<dyn WaitingRequest>)> = entries
            .iter()
            .filter_map(|entry| Some((entry.since, entry.request.upgrade()?)))
            .collect();
        drop(entries);
        let waiting = found.iter().filter(|(_, request)| request.is_unanswered());
        let (mut count, mut longest) = (0, Duration::ZERO);
        for (since, _) in waiting {
            count += 1;
            longest = longest.max(since.elapsed());
        }
        (count, longest)
    }

    /// Waits until the requests about a directory that wait for the source now are answered. Call it before
    /// the kernel is notified about a name there.
    ///
    /// A reader may have the directory locked until its request is answered. The notification waits for the
    /// lock, and meanwhile the kernel lets no other reader into the directory.
    pub(crate) fn wait_for_requests(&self, directory: NodeId) {
        let began = Instant::now();
        let mut pause = PAUSE_MIN;
        while self.has_request(directory, began)
            || began.elapsed() < GAP && self.has_request(directory, Instant::now())
        {
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Whether a request about a directory waits since before a moment.
    fn has_request(&self, directory: NodeId, before: Instant) -> bool {
        let is_meant = |entry: &&Entry| entry.directory == Some(directory) && entry.since <= before;
        let entries = self.entries.lock();
        let meant = entries.iter().filter(is_meant);
        // Dropping the last reference to a reply sends it, so it is dropped after the lock.
        let found: Vec<Arc<dyn WaitingRequest>> =
            meant.filter_map(|entry| entry.request.upgrade()).collect();
        drop(entries);
        found.iter().any(|request| request.is_unanswered())
    }

    /// Notes a request of a task, which may be about a directory. `interrupt` sends its reply with `EINTR`.
    pub(crate) fn enter<R: Send + 'static>(
        &self,
        task: Option<u32>,
        directory: Option<NodeId>,
        reply: R,
        interrupt: fn(R),
    ) -> Arc<Pending<R>> {
        self.note(task, directory, Pending::new(reply, interrupt))
    }

    /// As [`enter`](Self::enter), for a request that may wait for `patience`. Then `from_memory` answers
    /// it.
    pub(crate) fn enter_briefly<T: 'static>(
        &self,
        task: Option<u32>,
        reply: Reply<T>,
        patience: Duration,
        from_memory: impl Fn() -> Result<T, Errno> + Send + Sync + 'static,
    ) -> Arc<Pending<Reply<T>>> {
        let end = Instant::now() + patience;
        self.enter_until(task, reply, Cause::Name, move |now| now >= end, from_memory)
    }

    /// As [`enter`](Self::enter), for a request that waits until a tick finds that `is_due`. Then `late`
    /// answers it: it has waited for this cause.
    pub(crate) fn enter_until<T: 'static>(
        &self,
        task: Option<u32>,
        reply: Reply<T>,
        cause: Cause,
        is_due: impl Fn(Instant) -> bool + Send + Sync + 'static,
        late: impl Fn() -> Result<T, Errno> + Send + Sync + 'static,
    ) -> Arc<Pending<Reply<T>>> {
        let answer = Box::new(move |reply: Reply<T>| reply(late()));
        let late = Some(Timeout { is_due: Box::new(is_due), cause, answer });
        self.note(task, None, Pending { timeout: late, ..Pending::unlisted(reply) })
    }

    fn note<R: Send + 'static>(
        &self,
        task: Option<u32>,
        directory: Option<NodeId>,
        pending: Pending<R>,
    ) -> Arc<Pending<R>> {
        let waits = Some(Arc::clone(&self.waits));
        // The kernel has no task 0. The number stands for a task in another container.
        let task = task.filter(|task| *task != 0);
        let pending = Arc::new(Pending { waits, task, ..pending });
        let request: Weak<Pending<R>> = Arc::downgrade(&pending);
        let entry = Entry { since: pending.since, task, directory, request };
        self.entries.lock().push(entry);
        self.alarm.ring();
        pending
    }

    /// Answers requests that are late, and, once a second, requests whose task is being killed.
    pub(crate) fn tick(&self, now: Instant, is_killed: impl Fn(u32) -> bool) {
        let kills = {
            let mut looked = self.kills_checked.lock();
            let is_due = now.saturating_duration_since(*looked) >= KILL_PATIENCE;
            *looked = if is_due { now } else { *looked };
            is_due
        };
        // Dropping the last reference to a reply sends it, so it is dropped after the lock.
        let mut found: Vec<(Option<u32>, Arc<dyn WaitingRequest>)> = Vec::new();
        self.entries.lock().retain(|entry| {
            let Some(request) = entry.request.upgrade() else { return false };
            let is_old = now.saturating_duration_since(entry.since) >= KILL_PATIENCE;
            let waits = request.is_unanswered();
            found.push((entry.task.filter(|_| kills && is_old), request));
            waits
        });
        let mut killed: HashMap<u32, bool> = HashMap::new();
        for (task, request) in found {
            if request.is_late(now) {
                request.answer_late();
            } else if let Some(task) = task
                && *killed.entry(task).or_insert_with(|| is_killed(task))
            {
                request.interrupt();
            }
        }
    }
}

pub(crate) fn reply_interrupted<T>(reply: Reply<T>) {
    reply(Err(Errno::EINTR));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn reply() -> (Reply<u32>, Receiver<Result<u32, Errno>>) {
        let (sender, receiver) = channel();
        (Box::new(move |answer| sender.send(answer).unwrap()), receiver)
    }

    #[test]
    fn a_killed_task_is_answered_once_and_the_others_wait() {
        let waiting = WaitingRequests::new(Arc::default(), Arc::default());
        let [(one, first), (two, second), (three, third)] = [reply(), reply(), reply()];
        let killed = waiting.enter(Some(7), None, one, reply_interrupted);
        let alive = waiting.enter(Some(8), None, two, reply_interrupted);
        let unknown = waiting.enter(Some(0), None, three, reply_interrupted);
        waiting.tick(Instant::now(), |_| true);
        assert!(killed.is_unanswered(), "no task is checked so soon");
        waiting.tick(Instant::now() + KILL_PATIENCE, |task| task != 8);
        assert_eq!(first.try_recv(), Ok(Err(Errno::EINTR)));
        assert!(killed.take(Cause::Name).is_none() && second.try_recv().is_err());
        assert!(unknown.is_unanswered() && third.try_recv().is_err());
        assert!(alive.take(Cause::Name).map(|reply| reply(Ok(5))).is_some());
        assert_eq!(second.try_recv(), Ok(Ok(5)));
    }

    #[test]
    fn tasks_are_checked_once_a_second_at_most() {
        let waiting = WaitingRequests::new(Arc::default(), Arc::default());
        let _request = waiting.enter(Some(7), None, reply().0, reply_interrupted);
        let (start, checks) = (Instant::now() + KILL_PATIENCE, Mutex::new(0));
        for tick in 0..10 {
            let alive = |_| {
                *checks.lock() += 1;
                false
            };
            waiting.tick(start + tick * Duration::from_millis(200), alive);
        }
        assert_eq!(*checks.lock(), 2);
    }

    #[test]
    fn what_may_wait_briefly_is_answered_from_memory() {
        let waiting = WaitingRequests::new(Arc::default(), Arc::default());
        let ((late, from_memory), (prompt, from_source)) = (reply(), reply());
        let patience = Duration::from_secs(60);
        let _request = waiting.enter_briefly(None, late, patience, || Ok(1));
        let other = waiting.enter_briefly(None, prompt, patience, || Ok(1));
        waiting.tick(Instant::now(), |_| false);
        assert!(from_memory.try_recv().is_err());
        assert!(other.take(Cause::Name).map(|reply| reply(Ok(2))).is_some());
        waiting.tick(Instant::now() + patience, |_| false);
        assert_eq!([from_memory, from_source].map(|got| got.try_recv()), [Ok(Ok(1)), Ok(Ok(2))]);
    }

    #[test]
    fn what_was_answered_is_not_kept() {
        let waiting = WaitingRequests::new(Arc::default(), Arc::default());
        let request = waiting.enter(Some(7), None, reply().0, reply_interrupted);
        drop(request.take(Cause::Name));
        drop(waiting.enter(Some(7), None, reply().0, reply_interrupted));
        waiting.tick(Instant::now(), |_| false);
        assert!(waiting.entries.lock().is_empty());
    }

    #[test]
    fn a_wait_is_noted_with_its_cause_when_it_ends() {
        let waits = Arc::<Waits>::default();
        let waiting = WaitingRequests::new(Arc::default(), Arc::clone(&waits));
        let [(one, _one), (two, _two), (three, _three), (four, _four)] = [(); 4].map(|()| reply());
        let answered = waiting.enter(Some(7), None, one, reply_interrupted);
        let late = waiting.enter_until(Some(8), two, Cause::Disk, |_| true, || Ok(1));
        let killed = waiting.enter(Some(9), None, three, reply_interrupted);
        let waits_on = waiting.enter(Some(7), None, four, reply_interrupted);
        assert_eq!(waiting.under_way().0, 4);
        answered.take(Cause::Late).into_iter().for_each(|reply| reply(Ok(0)));
        waiting.tick(Instant::now() + KILL_PATIENCE, |task| task == 9);
        assert!(late.take(Cause::Cold).is_none() && killed.take(Cause::Cold).is_none());
        let noted = Cause::ALL.into_iter().filter(|cause| waits.latencies(*cause).count > 0);
        assert_eq!(noted.collect::<Vec<_>>(), [Cause::Late, Cause::Disk]);
        assert_eq!(waiting.under_way().0, 1);
        assert!(waits_on.is_unanswered());
    }
}
