//! [`Planner`] passes each event to its parts and collects their actions.

use std::sync::Arc;

use super::event::{Accounts, Action, Counters, Event, Settings};
use super::intake::Intake;
use super::layout::Layout;
use super::readers::{Context, Readers};
use super::residency::RAM;
use super::staging::Stager;
use super::stream::{Stream, StreamStatus};
use super::visibility::Visibility;
use super::warm::{Standing, Warming};
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId, StreamId};

/// The owner of all decisions about one source's blocks.
pub struct Planner {
    pub(super) stager: Stager,
    pub(super) readers: Readers,
    pub(super) visibility: Visibility,
    warming: Warming,
    intake: Intake,
    /// Whether the known part of a stream's order is about to end.
    ending: bool,
}

impl Planner {
    pub fn new(settings: Settings, layout: Arc<Layout>) -> Self {
        let mut visibility = Visibility::new(&settings);
        visibility.grow(&layout);
        Planner {
            stager: Stager::new(&settings, &layout),
            readers: Readers::default(),
            visibility,
            warming: Warming::default(),
            intake: Intake::default(),
            ending: false,
        }
    }

    /// Takes one event and appends what is to be done to `actions`.
    pub fn apply(&mut self, event: Event, actions: &mut Vec<Action>) {
        // If a file has grown, events may name its new blocks before the planner knows them, and its old
        // blocks afterwards. Both are ignored.
        if event.block().is_some_and(|block| !self.stager.ledger.layout.has(block)) {
            return;
        }
        let from = actions.len();
        self.hear(event, actions);
        self.readers.release_overdue(&mut Context {
            stager: &mut self.stager,
            visibility: &self.visibility,
            actions,
        });
        self.follow_up(actions);
        let in_time = !self.readers.lag_too_far(&self.stager.ledger);
        self.stager.stage(in_time, actions);
        self.warming.bring(&mut self.stager, actions);
        self.intake.copy(&mut self.stager, actions);
        let Stager { ledger, forecast, .. } = &mut self.stager;
        ledger.fit_parts(forecast, actions);
        self.update_tracking(from, actions);
    }

    fn hear(&mut self, event: Event, actions: &mut Vec<Action>) {
        let Planner { stager, readers, visibility, warming, intake, .. } = self;
        let Stager { ledger, forecast, .. } = &mut *stager;
        match event {
            Event::Ordered { stream, order } => {
                let follower = Stream::new(order, &ledger.layout);
                stager.follow(stream, follower, actions);
            }
            Event::Continued { stream, order } => {
                let follower = Stream::new(order, &ledger.layout);
                let follower = follower.counted_on(forecast.stream(stream), &ledger.layout);
                stager.follow(stream, follower, actions);
            }
            Event::Withdrawn { stream } => stager.withdraw(stream, actions),
            // An open of a file that is cut does not tell which slice is read.
            Event::Opened { file, .. }
            | Event::Seen { file, .. }
            | Event::Touched { file, .. }
            | Event::Closed { file }
                if ledger.layout.is_cut(file) => {}
            Event::Opened { task, file } => {
                readers.opened(task, file, &mut Context { stager, visibility, actions });
            }
            Event::Seen { task, file } => {
                readers.seen(task, file, &mut Context { stager, visibility, actions });
            }
            Event::Touched { task, file } => {
                readers.touched(task, file, &mut Context { stager, visibility, actions });
            }
            Event::Left { task } => {
                readers.left(task, &mut Context { stager, visibility, actions });
            }
            Event::Missed { block, task } => {
                readers.missed(block, task, &mut Context { stager, visibility, actions });
            }
            Event::Joined { block, task } => {
                readers.joined(block, task, &mut Context { stager, visibility, actions });
            }
            Event::Probed { block, task } => {
                readers.probed(block, task, &mut Context { stager, visibility, actions });
            }
            Event::Part { block, task, pages } => {
                let at = &mut Context { stager, visibility, actions };
                readers.part(block, task, pages, warming, at);
            }
            Event::Closed { file } => {
                readers.closed(file, &mut Context { stager, visibility, actions });
            }
            Event::Arrived { block, from, bytes } => {
                stager.arrived(block, (from, bytes), actions);
            }
            Event::Failed { block } => ledger.failed(block),
            Event::Lost { block } => ledger.lost(block, actions),
            Event::Dropped { block } => ledger.dropped(block),
            Event::Placed { block, tier, done } => {
                warming.loaded(block);
                intake.copied(block);
                ledger.placed(block, tier, done, forecast);
            }
            Event::Found { tier, blocks } => ledger.found(tier, &blocks, forecast, actions),
            Event::NotHere { block, tier } => ledger.not_here(block, tier),
            Event::PassedThrough { file } => stager.note_passthrough(file, actions),
            Event::Homed { tier, blocks } => ledger.set_home(tier, &blocks, forecast),
            Event::Given { blocks } => intake.given(&blocks, ledger),
            Event::Wanted { blocks } => warming.wanted(&blocks, ledger),
            Event::Unwanted { blocks } => warming.unwanted(&blocks, stager, actions),
            Event::Withheld { file } => {
                visibility.withhold(file, true);
                ledger.note_tracking_due(file);
            }
            Event::Released { file } => {
                visibility.withhold(file, false);
                ledger.note_tracking_due(file);
            }
            Event::Resized { tier, capacity } => stager.resized(tier, capacity, actions),
            Event::Limited(limits) => stager.limit_fetches(limits, actions),
            Event::Changed { layout, files } => self.changed(&layout, &files, actions),
        }
    }

    /// Acts on the news that the streams' progress has left.
    fn follow_up(&mut self, actions: &mut Vec<Action>) {
        let Stager { ledger, forecast, .. } = &mut self.stager;
        let (mut passed, mut near) = (Vec::new(), Vec::new());
        for stream in forecast.streams_mut() {
            passed.extend(stream.take_passed());
            let in_ram = |block: &BlockId| ledger.residency.is_in(*block, RAM);
            let due = stream.news.due.drain(..).filter(in_ram);
            actions.extend(due.map(|block| Action::Check { block }));
            near.append(&mut stream.news.near);
        }
        near.into_iter().for_each(|block| ledger.note_tracking_due(ledger.layout.unit_of(block)));
        passed.into_iter().for_each(|block| self.stager.passed(block, actions));
        let forecast = &mut self.stager.forecast;
        let told_streams = forecast.streams().filter(|stream| stream.is_told());
        let longest = told_streams.map(Stream::len).max();
        for stream in forecast.streams_mut() {
            let main = stream.is_told() && Some(stream.len()) == longest;
            let began = stream.news.began.take().filter(|_| main);
            actions.extend(began.map(|epoch| Action::Began { epoch }));
        }
        let ending = forecast.streams().any(Stream::is_ending);
        self.stager.all_tracking_due |= ending && !self.ending;
        self.ending = ending;
    }

    /// Decides again whether files whose blocks have changed are tracked. These actions go before the others:
    /// before a file's pages are dropped, and before a fetch makes the kernel look its name up.
    fn update_tracking(&mut self, from: usize, actions: &mut Vec<Action>) {
        let Stager { ledger, forecast, all_tracking_due, .. } = &mut self.stager;
        let mut files = ledger.take_tracking_due();
        if std::mem::take(all_tracking_due) {
            // Those that are due may be slices that their file has left behind.
            files.extend(ledger.layout.units());
        }
        let decide = |file| self.visibility.decide_again(file, ledger, forecast);
        let decided: Vec<Action> = files.into_iter().filter_map(decide).collect();
        actions.splice(from..from, decided);
        // A reader that has gone on has filled the page that was left out.
        let left = ledger.take_left().into_iter();
        let tracked = left.filter(|slice| !self.visibility.is_untracked(*slice));
        actions.extend(tracked.map(|file| Action::Track { file }));
    }

    fn changed(&mut self, layout: &Arc<Layout>, files: &[FileId], actions: &mut Vec<Action>) {
        let known = Arc::clone(&self.stager.ledger.layout);
        let later = layout.is_later(&known);
        // This layout may contain another change whose event is still on its way.
        let moved = if later { known.moved(layout) } else { Vec::new() };
        for &file in files.iter().chain(&moved) {
            self.visibility.renew(file);
            self.readers.divided.join(file, actions);
            for block in known.blocks_of(file) {
                self.warming.loaded(block);
                self.intake.copied(block);
                self.stager.ledger.void(block, actions);
            }
        }
        if later {
            self.stager.lay_out(layout);
            self.visibility.grow(layout);
            self.cut(&known, layout, &moved, actions);
        }
    }

    /// Files have been cut, or are no longer. The orders that read them go on with their slices.
    fn cut(
        &mut self,
        before: &Layout,
        layout: &Layout,
        moved: &[FileId],
        actions: &mut Vec<Action>,
    ) {
        let is_cut = |file: &&FileId| before.is_cut(**file) || layout.is_cut(**file);
        let cut: Vec<FileId> = moved.iter().filter(is_cut).copied().collect();
        if cut.is_empty() {
            return;
        }
        cut.iter().for_each(|file| self.stager.ledger.forget_open(*file));
        self.stager.forecast.outside.clear();
        let blocks = || cut.iter().flat_map(|file| before.blocks_of(*file));
        for stream in self.stager.forecast.streams_mut() {
            if blocks().any(|block| stream.contains(block)) {
                stream.lay_out(before, layout);
            }
        }
        self.stager.look_anew(actions);
    }

    pub fn standing(&self, block: BlockId) -> Standing {
        self.warming.standing(block, &self.stager.ledger)
    }

    pub fn counters(&self) -> Counters {
        self.stager.ledger.counters
    }

    pub fn accounts(&self) -> Accounts {
        self.stager.ledger.accounts()
    }

    /// The policy in force.
    pub fn policy(&self) -> PolicyKind {
        self.stager.forecast.policy()
    }

    /// The tasks that hold a file open, as far as the planner can see.
    pub fn tasks(&self) -> impl Iterator<Item = u32> + '_ {
        self.readers.tasks.at_files()
    }

    pub fn untracked_files(&self) -> u64 {
        self.visibility.untracked()
    }

    pub fn streams(&self) -> impl Iterator<Item = (StreamId, StreamStatus)> + '_ {
        self.stager.forecast.numbered().map(|(id, stream)| (id, stream.status()))
    }
}
