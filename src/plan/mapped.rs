//! Loaders that open files long before they read them, as those do that map them.
//!
//! 1. Where an open is no request, a task is done with a file, as far as can be seen, when it is seen at
//!    another one. Who maps files looks a thousand of them up before he touches a page of the first.
//! 2. That shows in reads of files that had been there, of which each open would have been seen, and
//!    that were left before: [`Event::Touched`](super::Event::Touched). How many opens later they come
//!    is the *lag* of the loader. Files of several blocks show none: one that is kept open may be read
//!    all over.
//! 3. From then on a file counts as open, and as not read, until it is touched or so many opens have
//!    followed. What is staged for it stays as long as the window has room.
//! 4. A window that is narrower than the lag would drop what is staged before it is read. Then nothing
//!    is staged for orders.
//! 5. What a task's files have shown is forgotten when it ends, and all if no task is left: others may
//!    come.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::ids::FileId;

/// So many touches show a lag: a few pages get lost, or are read ahead by the kernel, when their reader
/// has gone on.
const TOUCHES_MIN: u32 = 16;

/// Lags are told apart by powers of two up to this one, which is the longest.
const LAGS: usize = 13;

/// By the power of two, touches that came so many opens after the file was left.
type Touches = [u32; LAGS];

/// A file that was left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) task: u32,
    /// The planner's tick then.
    pub(super) at: u64,
    /// Whether RAM had it, so that nothing was to be read of it but by touching it.
    pub(super) there: bool,
}

/// What was opened and may not have been read.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Files that were left and not opened again. Each open looks here: a tree would be slower.
    left: HashMap<FileId, Left>,
    touches: Touches,
    lag: u64,
    /// The same for each task that runs and had left the files, or touched them if that one has ended.
    shown_by: BTreeMap<u32, Touches>,
    /// Files that are held open though they were left, the first first, and at which tick.
    held: VecDeque<(FileId, u64)>,
    /// Files that are being touched.
    touching: BTreeSet<FileId>,
}

impl Mapped {
    /// How many opens later a file is read at most; 0 as long as nothing is known of that.
    pub(super) fn lag(&self) -> u64 {
        self.lag
    }

    /// Touches have come or gone.
    fn find_lag(&mut self) {
        let mut touches = 0;
        let enough = |power: &usize| {
            touches += self.touches[*power];
            touches >= TOUCHES_MIN
        };
        self.lag = (0..LAGS).rev().find(enough).map_or(0, |power| 1 << power);
    }

    pub(super) fn opened(&mut self, file: FileId) {
        self.left.remove(&file);
    }

    pub(super) fn leaves(&mut self, file: FileId, left: Left) {
        self.left.insert(file, left);
        if self.left.len() > 2 << LAGS {
            self.left.retain(|_, other| other.at + (1 << LAGS) > left.at);
        }
    }

    /// The tick at which a file was left, if it was.
    pub(super) fn left_at(&self, file: FileId) -> Option<u64> {
        self.left.get(&file).map(|left| left.at)
    }

    /// A file is touched. Says how it was left, if it was opened before.
    pub(super) fn touched(&mut self, file: FileId) -> Option<Left> {
        let known = self.lag() > 0;
        self.left.remove(&file).filter(|left| left.there || known)
    }

    /// A file that a task had opened is read so many opens after it was left.
    pub(super) fn shows(&mut self, task: u32, lag: u64) {
        if lag < 1 << LAGS {
            let power = lag.max(1).next_power_of_two().trailing_zeros() as usize;
            let power = power.min(LAGS - 1);
            self.touches[power] += 1;
            self.shown_by.entry(task).or_default()[power] += 1;
            self.find_lag();
        }
    }

    /// A file is being touched: it is open as long as its task is at it. Says whether it was held.
    pub(super) fn begin_touch(&mut self, file: FileId) -> bool {
        self.touching.insert(file);
        let held = self.held.iter().position(|(held, _)| *held == file);
        held.is_some_and(|at| self.held.remove(at).is_some())
    }

    /// A task is done with touching a file, if it did. Says whether it did.
    pub(super) fn end_touch(&mut self, file: FileId) -> bool {
        self.touching.remove(&file)
    }

    /// Holds a file open that was left at this tick.
    pub(super) fn hold(&mut self, file: FileId, at: u64) {
        self.held.push_back((file, at));
    }

    /// Lets go of the file that has been held longest, if that is too long at this tick.
    pub(super) fn let_oldest_go(&mut self, now: u64) -> Option<FileId> {
        let &(file, at) = self.held.front()?;
        if self.lag > 0 && at + self.lag >= now {
            return None;
        }
        self.held.pop_front();
        Some(file)
    }

    /// Lets go of the file that has been held longest of those that are so.
    pub(super) fn let_go(&mut self, is_so: impl Fn(FileId) -> bool) -> Option<FileId> {
        let at = self.held.iter().position(|(file, _)| is_so(*file))?;
        self.held.remove(at).map(|(file, _)| file)
    }

    /// No task is left: others may come. Gives the files that were held.
    pub(super) fn forget(&mut self) -> impl Iterator<Item = FileId> + use<> {
        std::mem::take(self).held.into_iter().map(|(file, _)| file)
    }

    pub(super) fn ended(&mut self, task: u32) {
        let shown = self.shown_by.remove(&task).unwrap_or_default();
        for (touches, shown) in self.touches.iter_mut().zip(shown) {
            *touches -= shown;
        }
        self.find_lag();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that the task with this number left is touched now.
    fn touch(mapped: &mut Mapped, file: u32, now: u64) -> bool {
        let left = mapped.touched(FileId(file));
        left.iter().for_each(|left| mapped.shows(left.task, now - left.at));
        left.is_some()
    }

    /// Two tasks left a thousand files.
    fn mapped() -> Mapped {
        let mut mapped = Mapped::default();
        for file in 0..1_000 {
            let left = Left { task: file % 2, at: u64::from(file), there: true };
            mapped.leaves(FileId(file), left);
        }
        mapped
    }

    #[test]
    fn a_lag_is_what_many_touches_show() {
        let mut mapped = mapped();
        for file in 0..15 {
            assert!(touch(&mut mapped, file, 1_000));
        }
        assert_eq!(mapped.lag(), 0);
        for file in 500..520 {
            assert!(touch(&mut mapped, file, u64::from(file) + 1));
        }
        assert_eq!(mapped.lag(), 1, "of the others there are too few");
        assert!(touch(&mut mapped, 15, 1_000));
        assert_eq!(mapped.lag(), 1 << 10);
        assert!(!touch(&mut mapped, 15, 1_001), "it was not opened again");
        mapped.opened(FileId(16));
        assert!(!touch(&mut mapped, 16, 1_001), "it was");
    }

    #[test]
    fn what_a_task_s_files_have_shown_goes_with_it() {
        let mut mapped = mapped();
        for file in 0..40 {
            touch(&mut mapped, file, 1_000);
        }
        for (task, lag) in [(2, 1 << 10), (0, 1 << 10), (0, 1 << 10), (1, 0)] {
            mapped.ended(task);
            assert_eq!(mapped.lag(), lag, "{task} has ended");
        }
    }
}
