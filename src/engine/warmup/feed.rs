//! The thread of a warm-up. It hands blocks to the planner and looks where they are afterwards.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{EngineHandles, Pace, Progress, Tally, Warmup};
use crate::ids::BlockId;
use crate::plan::{Event, Standing};

/// The most blocks that wait at the planner: enough that it never runs out of them between two looks.
const AHEAD: usize = 256;

/// How often the thread looks where its blocks are.
const LOCATE_BLOCKS_EVERY: Duration = Duration::from_millis(10);

/// If its command has not asked about a warm-up for this many looks, ten seconds of them, the warm-up ends:
/// the command has ended. Looks are counted and not time, since a command cannot ask while the whole machine
/// stands still.
const UNASKED_FOR: u32 = 1000;

/// For how many looks a warm-up waits for a cache disk that hangs: a minute.
const HANGS_FOR: u32 = 6000;

/// How long fetches under way may take beyond the deadline.
const GRACE: Duration = Duration::from_secs(5);

/// At the end, for how many looks the warm-up waits for blocks that came and are on their way again: five
/// seconds.
const SETTLES_FOR: u32 = 500;

/// A fetch that fails is tried again once. If a disk that hangs does not take a block, that is no try.
const TRIES: u8 = 2;

/// The most bytes that may be fetched at once, as seconds of the rate.
const BURST_S: f64 = 0.1;

/// How many bytes may be fetched at this moment, at a rate.
struct Allowance {
    rate: Option<u64>,
    left: f64,
    as_of: Instant,
}

impl Allowance {
    fn new(rate: Option<u64>) -> Self {
        Allowance { rate, left: 0.0, as_of: Instant::now() }
    }

    /// Adds the bytes of the time that has passed.
    fn earn(&mut self) {
        let now = Instant::now();
        let rate = self.rate.unwrap_or_default() as f64;
        let earned = now.duration_since(self.as_of).as_secs_f64() * rate;
        (self.left, self.as_of) = ((self.left + earned).min(rate * BURST_S), now);
    }

    /// Whether `bytes` may be fetched. If so, they are subtracted; the last block may overdraw.
    fn pay(&mut self, bytes: u64) -> bool {
        let may = self.rate.is_none() || self.left > 0.0;
        self.left -= if may { bytes as f64 } else { 0.0 };
        may
    }
}

/// A block that waits at the planner.
struct PlannedBlock {
    block: BlockId,
    tries: u8,
}

struct Feed<'w> {
    engine: &'w EngineHandles,
    blocks: &'w [BlockId],
    /// The first block that was not looked at yet.
    next: usize,
    at_planner: Vec<PlannedBlock>,
    /// Blocks that were here or have been fetched.
    arrived: Vec<BlockId>,
    /// Looks in a row that have found that the cache disk hangs.
    hanging_looks: u32,
    allowance: Allowance,
    progress: Progress,
}

/// Has the planner bring blocks here until all are counted, and publishes the progress.
pub(super) fn run(
    engine: &EngineHandles,
    warmup: &Warmup,
    blocks: &[BlockId],
    pace: Pace,
    started: Instant,
) {
    let _end = EndGuard(warmup);
    let progress = warmup.progress.lock().clone();
    let mut feed = Feed::new(engine, blocks, Allowance::new(pace.rate), progress);
    // A deadline beyond what time can express is none.
    let until = |seconds| started.checked_add(Duration::try_from_secs_f64(seconds).ok()?);
    let deadline = pace.deadline_s.and_then(until);
    let late = || deadline.and_then(|deadline| Instant::now().checked_duration_since(deadline));
    let over = |by: Duration| late().is_some_and(|late| late >= by);
    let broken = loop {
        let stopped = warmup.unasked.fetch_add(1, Ordering::Relaxed) >= UNASKED_FOR;
        if feed.look().is_none() || stopped {
            break true;
        }
        if over(Duration::ZERO) {
            if over(GRACE) || feed.at_planner.is_empty() {
                break false;
            }
        } else if feed.feed().is_none() {
            break true;
        } else if feed.is_done() {
            break false;
        }
        *warmup.progress.lock() = feed.progress.clone();
        std::thread::sleep(LOCATE_BLOCKS_EVERY);
    };
    if !broken {
        let progress = &mut feed.progress;
        (progress.late, progress.waiting) = (progress.waiting, Tally::default());
    }
    let looks = if broken { 0 } else { SETTLES_FOR };
    let counted = feed.count_end(looks, || over(GRACE)).is_some();
    feed.progress.broken = broken || !counted;
    feed.progress.done = true;
    *warmup.progress.lock() = feed.progress;
}

/// Says that a warm-up is over and broke off, if its thread panics before it has said how it ended.
struct EndGuard<'w>(&'w Warmup);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.broken |= !progress.done;
        progress.done = true;
    }
}

impl<'w> Feed<'w> {
    fn new(
        engine: &'w EngineHandles,
        blocks: &'w [BlockId],
        allowance: Allowance,
        progress: Progress,
    ) -> Self {
        let (at_planner, arrived) = (Vec::new(), Vec::new());
        Feed { engine, blocks, next: 0, at_planner, arrived, hanging_looks: 0, allowance, progress }
    }

    fn is_done(&self) -> bool {
        self.next == self.blocks.len() && self.at_planner.is_empty()
    }

    fn count(&mut self, block: BlockId, of: fn(&mut Progress) -> &mut Tally) {
        // This is the size that it was chosen with, unless its file has changed.
        let bytes = self.engine.catalog.layout().range(block).1;
        of(&mut self.progress).add(bytes);
        self.progress.waiting.blocks = self.progress.waiting.blocks.saturating_sub(1);
        self.progress.waiting.bytes = self.progress.waiting.bytes.saturating_sub(bytes);
    }

    fn count_arrived(&mut self, block: BlockId, of: fn(&mut Progress) -> &mut Tally) {
        self.count(block, of);
        self.arrived.push(block);
    }

    /// Counts the blocks that are here in the end, and those that came and are gone. Blocks that are on their
    /// way, for example from RAM to the disk, are looked at again, at most `looks` times.
    fn count_end(&mut self, mut looks: u32, is_over: impl Fn() -> bool) -> Option<()> {
        let mut left = std::mem::take(&mut self.arrived);
        loop {
            let standings = self.engine.standings(&left)?;
            let layout = self.engine.catalog.layout();
            looks = if is_over() { 0 } else { looks };
            let mut coming = Vec::new();
            for (block, standing) in left.into_iter().zip(standings) {
                match standing {
                    Standing::Ram | Standing::Tier(_) => {}
                    Standing::Coming if looks > 0 => coming.push(block),
                    _ => self.progress.gone.add(layout.range(block).1),
                }
            }
            if coming.is_empty() {
                return self.engine.count_here(self.blocks, &mut self.progress);
            }
            (left, looks) = (coming, looks - 1);
            std::thread::sleep(LOCATE_BLOCKS_EVERY);
        }
    }

    /// Looks where the blocks are that wait at the planner; `None` if the planner has ended.
    fn look(&mut self) -> Option<()> {
        let blocks: Vec<BlockId> = self.at_planner.iter().map(|planned| planned.block).collect();
        let standings = self.engine.standings(&blocks)?;
        // The standings are asked for first. A block that is away because the disk hangs is then not counted
        // as failed.
        self.hanging_looks =
            if (self.engine.hangs)() { self.hanging_looks.saturating_add(1) } else { 0 };
        let disk_hangs = (1..=HANGS_FOR).contains(&self.hanging_looks);
        let mut again = Vec::new();
        for (PlannedBlock { block, tries }, standing) in
            std::mem::take(&mut self.at_planner).into_iter().zip(standings)
        {
            match standing {
                Standing::Coming => self.at_planner.push(PlannedBlock { block, tries }),
                Standing::Ram | Standing::Tier(_) => self.count_arrived(block, |p| &mut p.fetched),
                Standing::Refused => self.count(block, |p| &mut p.unfit),
                Standing::Away if disk_hangs => {
                    self.at_planner.push(PlannedBlock { block, tries: 0 })
                }
                Standing::Away if tries < TRIES => {
                    again.push(block);
                    self.at_planner.push(PlannedBlock { block, tries: tries + 1 });
                }
                Standing::Away => self.count(block, |p| &mut p.failed),
            }
        }
        self.want(again);
        Some(())
    }

    fn want(&self, blocks: Vec<BlockId>) {
        if !blocks.is_empty() {
            self.engine.inbox.put(Event::Wanted { blocks }, None);
        }
    }

    /// Hands as many further blocks to the planner as it can take and the rate allows.
    fn feed(&mut self) -> Option<()> {
        self.allowance.earn();
        let layout = self.engine.catalog.layout();
        let mut wanted = Vec::new();
        'blocks: while self.next < self.blocks.len() && self.at_planner.len() < AHEAD {
            let end = self.blocks.len().min(self.next + 4 * AHEAD);
            let some = &self.blocks[self.next..end];
            for (block, standing) in some.iter().zip(self.engine.standings(some)?) {
                match standing {
                    Standing::Ram | Standing::Tier(_) => {
                        self.count_arrived(*block, |p| &mut p.already);
                    }
                    _ if self.at_planner.len() >= AHEAD => break 'blocks,
                    _ if !self.allowance.pay(layout.range(*block).1) => break 'blocks,
                    _ => {
                        self.at_planner.push(PlannedBlock { block: *block, tries: 1 });
                        wanted.push(*block);
                    }
                }
                self.next += 1;
            }
        }
        self.want(wanted);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;
    use crate::cache::Inbox;
    use crate::catalog::Catalog;
    use crate::plan::{Action, Planner, PolicyKind, Settings, Tier};
    use crate::source::PosixSource;
    use crate::sync::Mutex;

    const FILES: u32 = 20;

    /// A planner, and a disk that takes nothing while it hangs and answers late while it is slow.
    struct World {
        engine: EngineHandles,
        hangs: Arc<AtomicBool>,
        slow: Arc<AtomicBool>,
        blocks: Vec<BlockId>,
        _directory: tempfile::TempDir,
    }

    impl Drop for World {
        fn drop(&mut self) {
            self.engine.inbox.close();
        }
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            for file in 0..FILES {
                std::fs::write(directory.path().join(file.to_string()), b"bytes").unwrap();
            }
            let source = Arc::new(PosixSource::open(directory.path(), 1).unwrap());
            let catalog = Arc::new(Catalog::scan(source, 1, None).unwrap());
            let inbox = Arc::new(Inbox::new(4));
            let hangs = Arc::new(AtomicBool::new(true));
            let slow = Arc::new(AtomicBool::new(false));
            let tiers = [0, 1 << 20].map(|capacity| Tier { capacity, block_us: 0 }).into();
            let settings = Settings {
                tiers,
                source_us: None,
                policy: PolicyKind::Auto,
                prefetch: true,
                inflight_max: 4,
                window_bytes: None,
                request_bytes: 8 << 20,
                start_at_open: false,
                may_untrack: false,
                withheld: false,
            };
            let planner = Planner::new(settings, catalog.layout());
            let (heard, disk, later) = (Arc::clone(&inbox), Arc::clone(&hangs), Arc::clone(&slow));
            std::thread::spawn(move || plan(planner, &heard, &disk, &later));
            let disk = Arc::clone(&hangs);
            let engine = EngineHandles {
                inbox,
                catalog,
                hangs: Arc::new(move || disk.load(Ordering::SeqCst)),
            };
            let blocks = (0..FILES).map(BlockId).collect();
            World { engine, hangs, slow, blocks, _directory: directory }
        }

        fn feed(&self) -> Feed<'_> {
            let (allowance, progress) = (Allowance::new(None), Progress::default());
            let mut feed = Feed::new(&self.engine, &self.blocks, allowance, progress);
            assert_eq!(feed.feed(), Some(()));
            feed
        }
    }

    /// Does the work of the planner's thread, until the inbox is closed.
    fn plan(mut planner: Planner, inbox: &Inbox, hangs: &AtomicBool, slow: &AtomicBool) {
        let (mut messages, mut questions) = (Vec::new(), Vec::new());
        let (mut actions, mut late) = (Vec::new(), Vec::new());
        while inbox.take(&mut messages, &mut questions, Duration::from_secs(3600)) {
            let mut events: Vec<Event> = messages.drain(..).map(|message| message.event).collect();
            if !slow.load(Ordering::SeqCst) {
                events.append(&mut late);
            }
            while let Some(event) = events.pop() {
                planner.apply(event, &mut actions);
                events.extend(actions.drain(..).filter_map(|action| match action {
                    Action::Load { block, tier } => {
                        let done = !hangs.load(Ordering::SeqCst);
                        let placed = Event::Placed { block, tier, done };
                        if slow.load(Ordering::SeqCst) {
                            late.push(placed);
                            return None;
                        }
                        Some(placed)
                    }
                    _ => None,
                }));
            }
            questions.drain(..).for_each(|question| question(&planner));
        }
    }

    fn look(feed: &mut Feed<'_>, times: u32) {
        (0..times).for_each(|_| assert_eq!(feed.look(), Some(())));
    }

    #[test]
    fn what_a_disk_that_hangs_does_not_take_is_brought_again_when_it_does() {
        let world = World::new();
        let mut feed = world.feed();
        look(&mut feed, 3 * u32::from(TRIES));
        assert_eq!((feed.at_planner.len(), feed.progress.failed.blocks), (FILES as usize, 0));
        world.hangs.store(false, Ordering::SeqCst);
        look(&mut feed, 2);
        assert!(feed.is_done());
        assert_eq!(feed.progress.fetched.blocks, u64::from(FILES));
    }

    #[test]
    fn a_disk_that_hangs_on_is_not_waited_for() {
        let world = World::new();
        let mut feed = world.feed();
        feed.hanging_looks = HANGS_FOR - 1;
        look(&mut feed, 1);
        assert_eq!(feed.at_planner.len(), FILES as usize);
        look(&mut feed, 1 + u32::from(TRIES));
        assert_eq!(feed.progress.failed.blocks, u64::from(FILES));
    }

    #[test]
    fn what_is_on_its_way_again_in_the_end_is_waited_for_and_what_is_gone_is_counted() {
        let world = World::new();
        world.hangs.store(false, Ordering::SeqCst);
        let mut feed = world.feed();
        look(&mut feed, 1);
        assert_eq!(feed.progress.fetched.blocks, u64::from(FILES));
        world.slow.store(true, Ordering::SeqCst);
        let put = |event| world.engine.inbox.put(event, None);
        put(Event::Unwanted { blocks: vec![BlockId(3), BlockId(7)] });
        assert_eq!(world.engine.standings(&[BlockId(3)]), Some(vec![Standing::Away]));
        put(Event::Wanted { blocks: vec![BlockId(3)] });
        // The warm-up waits for it neither beyond the deadline nor for ever.
        for (looks, over) in [(10, true), (2, false)] {
            let mut other =
                Feed::new(feed.engine, feed.blocks, Allowance::new(None), Progress::default());
            other.arrived.clone_from(&feed.arrived);
            assert_eq!(other.count_end(looks, || over), Some(()));
            assert_eq!((other.progress.gone.blocks, other.progress.disk.blocks), (2, 18));
        }
        let calls = AtomicU32::new(0);
        let comes = || {
            world.slow.store(calls.fetch_add(1, Ordering::SeqCst) < 3, Ordering::SeqCst);
            false
        };
        assert_eq!(feed.count_end(10, comes), Some(()));
        let Progress { gone, disk, .. } = feed.progress;
        assert_eq!((gone, disk.blocks), (Tally { blocks: 1, bytes: 5 }, 19));
    }

    #[test]
    fn a_warmup_whose_thread_panics_is_no_success() {
        let mut world = World::new();
        let asked = AtomicU32::new(0);
        // The panic comes after something has been published.
        world.engine.hangs = Arc::new(move || {
            assert!(asked.fetch_add(1, Ordering::SeqCst) < 3, "injected");
            true
        });
        let warmup = Warmup { progress: Mutex::default(), unasked: AtomicU32::new(0) };
        let (engine, pace) = (&world.engine, Pace::default());
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(engine, &warmup, &world.blocks, pace, Instant::now());
        }));
        let progress = warmup.progress.lock().clone();
        assert!(ended.is_err() && progress.done && progress.broken);
    }

    /// If there is no deadline, a block that waits is not late.
    #[test]
    fn a_warmup_breaks_off_where_the_mount_ends() {
        let world = World::new();
        let chosen = Tally { blocks: u64::from(FILES), bytes: u64::from(FILES) * 5 };
        let progress = Mutex::new(Progress { chosen, waiting: chosen, ..Progress::default() });
        let warmup = Warmup { progress, unasked: AtomicU32::new(0) };
        world.engine.inbox.close();
        run(&world.engine, &warmup, &world.blocks, Pace::default(), Instant::now());
        let progress = warmup.progress.lock().clone();
        assert!(progress.done && progress.broken);
        assert_eq!((progress.waiting, progress.late), (chosen, Tally::default()));
    }

    #[test]
    fn a_warmup_ends_when_it_has_looked_many_times_and_nobody_has_asked() {
        let world = World::new();
        let progress = Mutex::default();
        let warmup = Warmup { progress, unasked: AtomicU32::new(UNASKED_FOR - 3) };
        // Without this end it would wait for the disk.
        run(&world.engine, &warmup, &world.blocks, Pace::default(), Instant::now());
        let progress = warmup.progress.lock().clone();
        assert!(progress.done && progress.broken && progress.failed.blocks == 0);
        assert_eq!(warmup.unasked.into_inner(), UNASKED_FOR + 1, "each look counts once");
    }
}
