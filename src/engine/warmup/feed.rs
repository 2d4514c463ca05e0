//! The thread of a warm-up.

use std::time::{Duration, Instant};

use super::{Around, Pace, Progress, Tally, UNASKED_FOR, Warmup, lock};
use crate::ids::BlockId;
use crate::plan::{Event, Standing};

/// Blocks that wait at the planner: enough that it never runs out of them between two looks.
const AHEAD: usize = 256;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long what is on its way may take beyond the deadline.
const GRACE: Duration = Duration::from_secs(5);

/// A fetch that fails is tried again once.
const TRIES: u8 = 2;

/// Seconds' worth of the rate that may be fetched at once.
const BURST_S: f64 = 0.1;

/// What may be fetched now, at a rate.
struct Allowance {
    rate: Option<u64>,
    left: f64,
    as_of: Instant,
}

impl Allowance {
    fn new(rate: Option<u64>) -> Self {
        Allowance { rate, left: 0.0, as_of: Instant::now() }
    }

    /// Earns what time has brought.
    fn earn(&mut self) {
        let now = Instant::now();
        let rate = self.rate.unwrap_or_default() as f64;
        let earned = now.duration_since(self.as_of).as_secs_f64() * rate;
        (self.left, self.as_of) = ((self.left + earned).min(rate * BURST_S), now);
    }

    /// Whether so many bytes may be fetched; they are paid for, on credit for the last of them.
    fn pay(&mut self, bytes: u64) -> bool {
        let may = self.rate.is_none() || self.left > 0.0;
        self.left -= if may { bytes as f64 } else { 0.0 };
        may
    }
}

/// A block at the planner.
struct Waiting {
    block: BlockId,
    tries: u8,
}

/// A warm-up under way.
struct Feed<'w> {
    around: &'w Around,
    blocks: &'w [BlockId],
    /// The first one that was not looked at yet.
    next: usize,
    waiting: Vec<Waiting>,
    allowance: Allowance,
    progress: Progress,
}

/// Has the planner bring blocks here until all have been seen to, and publishes how far it is.
pub(super) fn run(
    around: &Around,
    warmup: &Warmup,
    blocks: &[BlockId],
    pace: Pace,
    begun: Instant,
) {
    let _end = End(warmup);
    let progress = lock(&warmup.progress).clone();
    let (waiting, allowance) = (Vec::new(), Allowance::new(pace.rate));
    let mut feed = Feed { around, blocks, next: 0, waiting, allowance, progress };
    // One that is beyond all time is none.
    let until = |seconds| begun.checked_add(Duration::try_from_secs_f64(seconds).ok()?);
    let deadline = pace.deadline_s.and_then(until);
    loop {
        let stopped = lock(&warmup.asked).elapsed() >= UNASKED_FOR;
        let late = deadline.and_then(|deadline| Instant::now().checked_duration_since(deadline));
        let over = |by: Duration| late.is_some_and(|late| late >= by);
        let looked = feed.look();
        if looked.is_some() && !stopped && !over(Duration::ZERO) && feed.feed().is_some() {
            if feed.is_done() {
                break;
            }
        } else if looked.is_none() || stopped || over(GRACE) || feed.waiting.is_empty() {
            break;
        }
        *lock(&warmup.progress) = feed.progress.clone();
        std::thread::sleep(LOOK_EVERY);
    }
    let Feed { mut progress, .. } = feed;
    (progress.late, progress.waiting) = (progress.waiting, Tally::default());
    let _ = around.count_here(blocks, &mut progress);
    *lock(&warmup.progress) = progress;
}

/// Says that a warm-up is over, also where its thread panics.
struct End<'w>(&'w Warmup);

impl Drop for End<'_> {
    fn drop(&mut self) {
        lock(&self.0.progress).done = true;
    }
}

impl Feed<'_> {
    fn is_done(&self) -> bool {
        self.next == self.blocks.len() && self.waiting.is_empty()
    }

    /// Counts a block that has been seen to.
    fn count(&mut self, block: BlockId, of: fn(&mut Progress) -> &mut Tally) {
        // It is counted with the size that it was chosen with, unless its file has changed.
        let bytes = self.around.catalog.layout().range(block).1;
        of(&mut self.progress).add(bytes);
        self.progress.waiting.blocks = self.progress.waiting.blocks.saturating_sub(1);
        self.progress.waiting.bytes = self.progress.waiting.bytes.saturating_sub(bytes);
    }

    /// Looks what has become of what waits at the planner; none where that has ended.
    fn look(&mut self) -> Option<()> {
        let blocks: Vec<BlockId> = self.waiting.iter().map(|waiting| waiting.block).collect();
        let standings = self.around.standings(&blocks)?;
        let mut again = Vec::new();
        for (Waiting { block, tries }, standing) in
            std::mem::take(&mut self.waiting).into_iter().zip(standings)
        {
            match standing {
                Standing::Coming => self.waiting.push(Waiting { block, tries }),
                Standing::Ram | Standing::Tier(_) => self.count(block, |p| &mut p.fetched),
                Standing::Refused => self.count(block, |p| &mut p.unfit),
                Standing::Away if tries < TRIES => {
                    again.push(block);
                    self.waiting.push(Waiting { block, tries: tries + 1 });
                }
                Standing::Away => self.count(block, |p| &mut p.failed),
            }
        }
        self.want(again);
        Some(())
    }

    fn want(&self, blocks: Vec<BlockId>) {
        if !blocks.is_empty() {
            self.around.inbox.put(Event::Wanted { blocks }, None);
        }
    }

    /// Hands further blocks to the planner, as many as it can take and the rate allows.
    fn feed(&mut self) -> Option<()> {
        self.allowance.earn();
        let layout = self.around.catalog.layout();
        let mut wanted = Vec::new();
        'blocks: while self.next < self.blocks.len() && self.waiting.len() < AHEAD {
            let end = self.blocks.len().min(self.next + 4 * AHEAD);
            let some = &self.blocks[self.next..end];
            for (block, standing) in some.iter().zip(self.around.standings(some)?) {
                match standing {
                    Standing::Ram | Standing::Tier(_) => self.count(*block, |p| &mut p.already),
                    _ if self.waiting.len() >= AHEAD => break 'blocks,
                    _ if !self.allowance.pay(layout.range(*block).1) => break 'blocks,
                    _ => {
                        self.waiting.push(Waiting { block: *block, tries: 1 });
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
