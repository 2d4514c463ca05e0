//! The simulated world: where each block is, the workers that wait for blocks, and the next events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

use super::pool::Pool;
use super::runs::Runs;
use super::{EpochReport, Reader, Report, Scenario, transfer_us};
use crate::config::Manners;
use crate::ids::{BlockId, FileId, PageRange, StreamId};
use crate::limiter::{Answer, Meter};
use crate::order::Sample;
use crate::plan::{Action, Event, Place, Planner, RAM, Settings, most_ahead};

/// What happens at a point in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    /// A worker is ready for its next sample.
    WorkerReady(usize),
    /// A worker hands this batch over.
    BatchReady(usize, u32),
    /// A worker gets another batch of this epoch.
    BatchGranted(usize, u32),
    /// A fetch from this tier (0 for the source) brings its bytes.
    Fetched(BlockId, usize),
    Dropped(BlockId),
    Placed(BlockId, usize),
}

#[derive(Clone, Debug, Default)]
struct Worker {
    reader: usize,
    /// Its number among the workers of its reader.
    number: u32,
    /// Samples taken in this epoch.
    taken: u32,
    epoch: u32,
    file: Option<FileId>,
    /// The blocks of its sample that it has not read yet.
    blocks: Range<u32>,
    /// When it began to read the sample.
    sample_start: u64,
    missed: bool,
    waited: bool,
    epoch_done: bool,
    /// Batches that it was granted and has not begun.
    granted: u32,
    waits_for_batch: bool,
    /// How long the samples that are left of its batch need a processor.
    runs: Vec<u64>,
}

/// The job that takes the batches of a reader in their order.
#[derive(Clone, Debug, Default)]
struct Job {
    /// How many batches it took in this epoch, and which others are ready.
    taken: u32,
    ready: BTreeSet<u32>,
    /// When it can take the next batch.
    free_at: u64,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    planner: Planner,
    now: u64,
    /// What happens next, each with its time and its number. The number orders events of the same time.
    events: BinaryHeap<Reverse<(u64, u64, SimEvent)>>,
    event_count: u64,
    workers: Vec<Worker>,
    jobs: Vec<Job>,
    /// The current epoch of each reader.
    epochs: Vec<Arc<[u32]>>,
    /// The blocks in each tier.
    tiers: Vec<BTreeSet<BlockId>>,
    /// The blocks of which a page was left out, and the slices that are to be pushed whole.
    probes: BTreeSet<BlockId>,
    untracked: BTreeSet<BlockId>,
    /// The blocks on their way to RAM, each with the workers that wait for it.
    flights: BTreeMap<BlockId, Vec<usize>>,
    servers: Pool,
    processors: Pool,
    /// How long each reader's samples need a processor.
    runs: Vec<Runs>,
    /// When the link of the source is free, and each tier.
    link_free_at: u64,
    tiers_free_at: Vec<u64>,
    /// When each read of the source under way began.
    source_reads: BTreeMap<BlockId, (u64, u64)>,
    meter: Option<Meter>,
    report: Report,
    ram_bytes: u64,
    reads: u64,
    actions: Vec<Action>,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let mut world = World {
            planner: Planner::new(scenario.settings.clone(), scenario.layout.clone()),
            now: 0,
            events: BinaryHeap::new(),
            event_count: 0,
            workers: Vec::new(),
            jobs: vec![Job::default(); scenario.readers.len()],
            epochs: scenario.readers.iter().map(|reader| reader.order.epoch(0)).collect(),
            tiers: vec![BTreeSet::new(); scenario.settings.tiers.len()],
            probes: BTreeSet::new(),
            untracked: BTreeSet::new(),
            flights: BTreeMap::new(),
            servers: Pool::new(f64::from(scenario.source.servers)),
            processors: Pool::new(scenario.machine.processors),
            runs: (0..).zip(&scenario.readers).map(runs).collect(),
            link_free_at: 0,
            tiers_free_at: vec![0; scenario.settings.tiers.len()],
            source_reads: BTreeMap::new(),
            meter: scenario.manners.map(|kind| meter(&scenario.settings, kind)),
            report: Report {
                epochs: vec![EpochReport::default(); scenario.epochs as usize],
                digest: 0xcbf2_9ce4_8422_2325,
                ..Report::default()
            },
            ram_bytes: 0,
            reads: 0,
            actions: Vec::new(),
            scenario,
        };
        if let Some(limits) = world.meter.as_ref().map(Meter::limits) {
            world.tell_planner(Event::Limited(limits));
        }
        for (index, reader) in scenario.readers.iter().enumerate() {
            for number in 0..reader.workers.max(1) {
                let granted = reader.ahead;
                world.workers.push(Worker { reader: index, number, granted, ..Worker::default() });
            }
            if scenario.known {
                let order = reader.order.clone();
                world.tell_planner(Event::Ordered { stream: StreamId(index as u16), order });
            }
        }
        for worker in 0..world.workers.len() {
            world.schedule(0, SimEvent::WorkerReady(worker));
        }
        world
    }

    pub(super) fn run(mut self) -> Report {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            self.add_to_digest(time ^ fingerprint(event));
            match event {
                SimEvent::WorkerReady(worker) => self.take_sample(worker),
                SimEvent::BatchReady(worker, batch) => self.batch_ready(worker, batch),
                SimEvent::BatchGranted(worker, epoch) => self.grant_batch(worker, epoch),
                SimEvent::Fetched(block, tier) => self.finish_fetch(block, tier),
                SimEvent::Dropped(block) => self.tell_planner(Event::Dropped { block }),
                SimEvent::Placed(block, tier) => {
                    self.tiers[tier].insert(block);
                    self.tell_planner(Event::Placed { block, tier, done: true });
                }
            }
        }
        self.report.elapsed_us = self.now;
        self.report
    }

    fn add_to_digest(&mut self, value: u64) {
        self.report.digest = (self.report.digest ^ value).wrapping_mul(0x100_0000_01b3);
    }

    fn schedule(&mut self, time: u64, event: SimEvent) {
        self.event_count += 1;
        self.events.push(Reverse((time, self.event_count, event)));
    }

    /// Tells the planner of an event and carries out its actions.
    fn tell_planner(&mut self, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.planner.apply(event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Fetch { block, from, pages } => {
                    if !self.flights.contains_key(&block) {
                        self.fetch(block, from, pages);
                    }
                }
                Action::FetchRun { first, count } => self.fetch_run(first, count),
                // Here no page is lost, every open is seen, blocks are read whole, and nothing is warmed up.
                Action::Check { .. }
                | Action::InParts { .. }
                | Action::Began { .. }
                | Action::Load { .. }
                | Action::Take { .. } => {}
                Action::Untrack { file } => self.untracked.extend(file.as_slice()),
                Action::Track { file } => {
                    let Some(slice) = file.as_slice() else { continue };
                    self.untracked.remove(&slice);
                    if self.tiers[RAM].contains(&slice) {
                        self.probes.insert(slice);
                    }
                }
                Action::Drop { block } | Action::DropParts { block, .. } => {
                    self.probes.remove(&block);
                    if self.tiers[RAM].remove(&block) {
                        self.ram_bytes -= self.own_bytes(block);
                    }
                    self.schedule(self.now, SimEvent::Dropped(block));
                }
                Action::Place { block, tier } => {
                    let placed = self.moved_at(block, tier);
                    self.schedule(placed, SimEvent::Placed(block, tier));
                }
                Action::Displace { block, tier } => {
                    self.tiers[tier].remove(&block);
                }
            }
        }
        self.actions = actions;
    }

    /// When a block has been read or written in a tier that begins now, or after what it has begun before.
    fn moved_at(&mut self, block: BlockId, tier: usize) -> u64 {
        let Scenario { settings, layout, machine, .. } = self.scenario;
        let bytes = layout.range(block).1;
        let free_at = &mut self.tiers_free_at[tier];
        *free_at = self.now.max(*free_at) + transfer_us(bytes, machine.disk_bandwidth);
        *free_at + settings.tiers[tier].block_us
    }

    /// Bytes of pages in RAM that no other slice there has.
    fn own_bytes(&self, block: BlockId) -> u64 {
        let layout = &self.scenario.layout;
        let is_there =
            |slice: Option<BlockId>| slice.is_some_and(|it| self.tiers[RAM].contains(&it));
        let beside = layout.neighbours(block).map(is_there).into_iter();
        let shared = beside.zip(layout.shared_beside(block)).filter(|(is_there, _)| *is_there);
        layout.pages_bytes(block) - shared.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Begins a fetch of a block, or of some of its pages.
    fn fetch(&mut self, block: BlockId, from: Place, pages: Option<PageRange>) {
        self.flights.insert(block, Vec::new());
        match from {
            Place::Tier(tier) if self.tiers[tier].contains(&block) => {
                let read = self.moved_at(block, tier);
                self.schedule(read, SimEvent::Fetched(block, tier));
            }
            Place::Tier(tier) => {
                self.tell_planner(Event::NotHere { block, tier });
                self.fetch_at_source(block, pages);
            }
            Place::Source | Place::Member => self.fetch_at_source(block, pages),
        }
    }

    fn fetch_at_source(&mut self, block: BlockId, pages: Option<PageRange>) {
        let whole = self.scenario.layout.range(block).1;
        let part = |pages: PageRange| pages.bytes().min(whole - pages.offset());
        let arrival = self.ask_source(pages.map_or(whole, part), block);
        self.schedule(arrival, SimEvent::Fetched(block, RAM));
    }

    /// Asks the source for so many bytes, the first of which are those of a block. Returns when they are here.
    fn ask_source(&mut self, bytes: u64, block: BlockId) -> u64 {
        let source = self.scenario.source;
        let served = self.servers.serve(self.now, source.latency_us);
        self.link_free_at = self.link_free_at.max(served) + transfer_us(bytes, source.bandwidth);
        self.source_reads.insert(block, (self.now, bytes));
        if source.bandwidth == 0 { served } else { self.link_free_at }
    }

    /// Begins a fetch of blocks that lie side by side, with one request.
    fn fetch_run(&mut self, first: BlockId, count: u32) {
        let layout = Arc::clone(&self.scenario.layout);
        let wanted = (first.0..first.0 + count).map(BlockId);
        let run: Vec<BlockId> = wanted.filter(|block| !self.flights.contains_key(block)).collect();
        let (Some(start), Some(last)) = (run.first(), run.last()) else { return };
        let end = |block: BlockId| layout.range(block).0 + layout.range(block).1;
        let bytes = match layout.file_of(*start) == layout.file_of(*last) {
            true => end(*last) - layout.range(*start).0,
            false => run.iter().map(|block| layout.range(*block).1).sum(),
        };
        let arrival = self.ask_source(bytes, *start);
        for block in run {
            self.flights.insert(block, Vec::new());
            self.schedule(arrival, SimEvent::Fetched(block, RAM));
        }
    }

    /// A worker opens its next sample and begins to read its blocks.
    fn take_sample(&mut self, index: usize) {
        let Some(sample) = self.next_sample(index) else { return };
        let file = sample.file;
        let task = index as u32 + 1;
        self.reads += 1;
        if let Some((tier, reads)) = self.scenario.vanish
            && reads == self.reads
        {
            self.tiers[tier].clear();
        }
        self.tell_planner(Event::Opened { task, file });
        let length = sample.length.unwrap_or(u64::MAX);
        let blocks = self.scenario.layout.blocks_in(file, sample.offset, length);
        let count = blocks.len() as u32;
        let first = blocks.clone().next().map_or(0, |block| block.0);
        let worker = &mut self.workers[index];
        (worker.file, worker.sample_start) = (Some(file), self.now);
        (worker.missed, worker.waited) = (false, false);
        worker.blocks = first..first + count;
        let epoch = worker.epoch as usize;
        self.report.epochs[epoch].blocks += u64::from(count);
        self.continue_sample(index);
    }

    /// A worker continues its sample until it must wait for a block, or to the end.
    fn continue_sample(&mut self, index: usize) {
        while let Some(block) = self.workers[index].blocks.next().map(BlockId) {
            if self.tiers[RAM].contains(&block) {
                if self.probes.remove(&block) {
                    self.tell_planner(Event::Probed { block, task: index as u32 + 1 });
                }
                continue;
            }
            if !self.flights.contains_key(&block) {
                self.workers[index].missed = true;
                let tier = (RAM + 1..self.tiers.len()).find(|&t| self.tiers[t].contains(&block));
                self.fetch(block, tier.map_or(Place::Source, Place::Tier), None);
            }
            self.workers[index].waited = true;
            self.flights.entry(block).or_default().push(index);
            return self.tell_planner(Event::Missed { block, task: index as u32 + 1 });
        }
        self.finish_sample(index);
    }

    /// The sample at the worker's next place: batch `k` of an epoch belongs to worker `k mod W`. `None` if
    /// the worker waits for a batch or for the other workers to end the epoch, or if everything is read.
    fn next_sample(&mut self, index: usize) -> Option<Sample> {
        let worker = &self.workers[index];
        if worker.epoch >= self.scenario.epochs {
            return None;
        }
        let reader = &self.scenario.readers[worker.reader];
        let (workers, batch) = (reader.workers.max(1), reader.batch.max(1));
        let epoch = &self.epochs[worker.reader];
        let place = (worker.taken / batch * workers + worker.number) * batch + worker.taken % batch;
        let Some(&sample) = epoch.get(place as usize) else {
            self.end_epoch(index);
            return None;
        };
        let worker = &mut self.workers[index];
        if reader.step_us > 0 && worker.taken.is_multiple_of(batch) {
            let Some(left) = worker.granted.checked_sub(1) else {
                worker.waits_for_batch = true;
                return None;
            };
            worker.granted = left;
        }
        worker.taken += 1;
        Some(reader.order.samples().get(sample))
    }

    /// Starts the loader's next epoch if all its workers have ended this one.
    fn end_epoch(&mut self, index: usize) {
        let reader = self.workers[index].reader;
        self.workers[index].epoch_done = true;
        let peers: Vec<usize> =
            (0..self.workers.len()).filter(|&w| self.workers[w].reader == reader).collect();
        if peers.iter().all(|&w| self.workers[w].epoch_done) {
            let epoch = self.workers[index].epoch + 1;
            self.epochs[reader] = self.scenario.readers[reader].order.epoch(epoch);
            let begins = self.jobs[reader].free_at.max(self.now);
            let report = &mut self.report.epochs[(epoch - 1) as usize];
            report.trained_us = report.trained_us.max(begins);
            self.jobs[reader] = Job { free_at: begins, ..Job::default() };
            for worker in peers {
                let next = &mut self.workers[worker];
                (next.epoch_done, next.taken, next.epoch) = (false, 0, next.epoch + 1);
                next.granted = self.scenario.readers[reader].ahead;
                self.schedule(begins, SimEvent::WorkerReady(worker));
            }
        }
    }

    fn grant_batch(&mut self, index: usize, epoch: u32) {
        let worker = &mut self.workers[index];
        if worker.epoch == epoch {
            worker.granted += 1;
            if std::mem::take(&mut worker.waits_for_batch) {
                self.take_sample(index);
            }
        }
    }

    /// Notes a batch as ready. For each batch that the job then takes, the batch's worker gets another one.
    fn batch_ready(&mut self, index: usize, batch: u32) {
        let (reader, epoch) = (self.workers[index].reader, self.workers[index].epoch);
        let step_us = self.scenario.readers[reader].step_us;
        self.jobs[reader].ready.insert(batch);
        loop {
            let job = &mut self.jobs[reader];
            let taken = job.taken;
            if !job.ready.remove(&taken) {
                return;
            }
            job.taken += 1;
            let takes_at = job.free_at.max(self.now);
            job.free_at = takes_at + step_us;
            let count = self.scenario.readers[reader].workers.max(1);
            let next = |worker: &Worker| worker.reader == reader && worker.number == taken % count;
            if let Some(worker) = self.workers.iter().position(next) {
                self.schedule(takes_at, SimEvent::BatchGranted(worker, epoch));
            }
        }
    }

    fn finish_fetch(&mut self, block: BlockId, tier: usize) {
        let from = if tier == RAM { Place::Source } else { Place::Tier(tier) };
        if self.tiers[RAM].insert(block) {
            self.ram_bytes += self.own_bytes(block);
            self.report.ram_bytes_max = self.report.ram_bytes_max.max(self.ram_bytes);
        }
        let waiters = self.flights.remove(&block).unwrap_or_default();
        let has_probe = self.scenario.layout.probe_in(block).is_some();
        if has_probe && waiters.is_empty() && !self.untracked.contains(&block) {
            self.probes.insert(block);
        }
        let bytes = self.scenario.layout.range(block).1;
        let measured = if from == Place::Source { self.measure(block) } else { None };
        if let Some((took, bytes)) = measured {
            let first = waiters.first().map(|&worker| self.workers[worker].epoch);
            let epoch = first.unwrap_or_else(|| self.slowest_epoch());
            let report = &mut self.report.epochs[epoch as usize];
            report.source_reads += 1;
            report.source_bytes += bytes;
            report.source_us += took;
        }
        let bytes = measured.map_or(bytes, |(_, bytes)| bytes);
        self.tell_planner(Event::Arrived { block, from, bytes });
        for index in waiters {
            self.continue_sample(index);
        }
    }

    /// The source has answered a read. The planner hears if its limits have changed. Returns the microseconds that it
    /// took, and the bytes; `None` if it was asked for the block with another one.
    fn measure(&mut self, block: BlockId) -> Option<(u64, u64)> {
        let in_flight = self.source_reads.len() as u32;
        let (began, bytes) = self.source_reads.remove(&block)?;
        let (at_us, latency_us) = (self.now, self.now - began);
        let answer = Answer { at_us, latency_us, bytes, in_flight, requests: 1 };
        if let Some(limits) = self.meter.as_mut().and_then(|meter| meter.answered(&answer)) {
            self.tell_planner(Event::Limited(limits));
        }
        Some((latency_us, bytes))
    }

    /// The epoch of the reader that is farthest behind. Reads by prefetching are counted there.
    fn slowest_epoch(&self) -> u32 {
        let last = self.scenario.epochs.saturating_sub(1);
        self.workers.iter().map(|worker| worker.epoch).min().unwrap_or(0).min(last)
    }

    /// When a worker has had a processor for its sample.
    fn worked_at(&mut self, index: usize) -> u64 {
        let Worker { runs, reader, .. } = &mut self.workers[index];
        if runs.is_empty() {
            *runs = self.runs[*reader].batch();
        }
        runs.pop().map_or(self.now, |run| self.processors.serve(self.now, run))
    }

    fn finish_sample(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let Some(file) = worker.file.take() else { return };
        let report = &mut self.report.epochs[worker.epoch as usize];
        (report.reads, report.end_us) = (report.reads + 1, self.now);
        report.hits += u64::from(!worker.missed);
        report.waits += u64::from(worker.waited);
        report.stall_us += self.now - worker.sample_start;
        let reader = &self.scenario.readers[worker.reader];
        let (think, batch) = (reader.think_us, reader.batch.max(1));
        let (taken, number, workers) = (worker.taken, worker.number, reader.workers.max(1));
        let made = (taken - 1) / batch * workers + number;
        let is_last =
            made * batch + (taken - 1) % batch + 1 == self.epochs[worker.reader].len() as u32;
        let ready = think + self.worked_at(index);
        if reader.step_us > 0 && (taken.is_multiple_of(batch) || is_last) {
            self.schedule(ready, SimEvent::BatchReady(index, made));
        }
        self.tell_planner(Event::Closed { file });
        self.schedule(ready, SimEvent::WorkerReady(index));
    }
}

fn meter(settings: &Settings, manners: Manners) -> Meter {
    let most = most_ahead(settings.tiers[RAM].capacity);
    let room = settings.window_bytes.map_or(most, |_| u64::MAX);
    Meter::new(settings.inflight_max, manners).within(room)
}

fn runs((nth, reader): (u64, &Reader)) -> Runs {
    Runs::new(reader.run_us, reader.batch, nth)
}

fn fingerprint(event: SimEvent) -> u64 {
    let (kind, a, b) = match event {
        SimEvent::WorkerReady(worker) => (1u64, worker as u64, 0),
        SimEvent::BatchGranted(worker, epoch) => (5, worker as u64, u64::from(epoch)),
        SimEvent::BatchReady(worker, batch) => (6, worker as u64, u64::from(batch)),
        SimEvent::Fetched(block, tier) => (2, u64::from(block.0), tier as u64),
        SimEvent::Dropped(block) => (3, u64::from(block.0), 0),
        SimEvent::Placed(block, tier) => (4, u64::from(block.0), tier as u64),
    };
    kind << 56 ^ b << 48 ^ a
}
