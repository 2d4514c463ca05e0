//! The search for one sample at the members of a cluster.
//!
//! 1. A second home that is nearer than the home is asked first.
//! 2. The home is asked for the sample, or else for its *lease*: the right to bring it. All who ask for the sample
//!    while somebody has its lease wait for the holder, who stores the sample there. A lease ends by itself after a
//!    while, so a holder that dies holds nobody up.
//! 3. The holder of the lease asks the other members that may have the sample, and then the source.
//! 4. Those of its homes that lack the sample are given it.
//!
//! A member that does not answer, or takes nothing, is passed over. Leases are those of Gray and Cheriton, SOSP 1989.

use std::time::Duration;

/// The members that may have a sample, by their ids. All are different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holders {
    pub home: u64,
    /// Its second home, if that is nearer than its home.
    pub first: Option<u64>,
    /// Its second home, if it is not.
    pub second: Option<u64>,
    /// Its home in an earlier view. It is not given the sample.
    pub before: Option<u64>,
}

/// What a member that lacks the sample answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It would take the sample. If it was asked for the lease, the lease is ours.
    Missing,
    /// Another member has the lease.
    Leased,
    /// It does not answer, or it takes nothing.
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask a member.
    Ask {
        member: u64,
        /// Whether the lease is wanted if it lacks the sample.
        lease: bool,
        /// The pause before that.
        after: Duration,
    },
    /// No member has it.
    AskSource,
}

/// The pauses before a member is asked again whose lease another one has. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

#[derive(Debug)]
pub struct Search {
    home: u64,
    /// The members that are still to be asked, the next one last. Each with whether it takes the sample if it lacks it.
    left: Vec<(u64, bool)>,
    /// Who was asked last.
    asked: Option<(u64, bool)>,
    pause: Duration,
    /// How long it waits for the holder of a lease.
    patience: Duration,
    lacking: Vec<u64>,
}

impl Search {
    /// A search that waits so long for a member that has the lease.
    pub fn new(holders: Holders, patience: Duration) -> Self {
        let Holders { home, first, second, before } = holders;
        let taking = |member: u64| (member, true);
        let left = before.map(|member| (member, false)).into_iter();
        let left = left.chain(second.map(taking)).chain([taking(home)]).chain(first.map(taking));
        Search {
            home,
            left: left.collect(),
            asked: None,
            pause: FIRST_PAUSE,
            patience,
            lacking: Vec::new(),
        }
    }

    /// The first step.
    pub fn begin(&mut self) -> Step {
        self.ask_next()
    }

    /// The next step, if the member that was asked last lacks the sample.
    pub fn lacks(&mut self, answer: Lack) -> Step {
        match (answer, self.asked) {
            (Lack::Leased, Some((member, _))) if !self.patience.is_zero() => {
                let after = self.pause.min(self.patience);
                self.patience -= after;
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                Step::Ask { member, lease: member == self.home, after }
            }
            (Lack::Missing, Some((member, true))) => {
                self.lacking.push(member);
                self.ask_next()
            }
            _ => self.ask_next(),
        }
    }

    /// The members that are to be given the sample.
    pub fn lacking(&self) -> &[u64] {
        &self.lacking
    }

    fn ask_next(&mut self) -> Step {
        self.asked = self.left.pop();
        let ask =
            |(member, _)| Step::Ask { member, lease: member == self.home, after: Duration::ZERO };
        self.asked.map_or(Step::AskSource, ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Holders = Holders { home: 1, first: Some(2), second: None, before: Some(3) };

    fn ask(member: u64) -> Step {
        Step::Ask { member, lease: member == 1, after: Duration::ZERO }
    }

    #[test]
    fn all_are_asked_and_homes_that_lack_it_are_given_it() {
        let mut search = Search::new(ALL, Duration::ZERO);
        assert_eq!(search.begin(), ask(2));
        assert_eq!(search.lacks(Lack::Missing), ask(1));
        assert_eq!(search.lacks(Lack::Missing), ask(3));
        assert_eq!(search.lacks(Lack::Missing), Step::AskSource);
        assert_eq!(search.lacking(), [2, 1]);
        let far = Holders { home: 1, first: None, second: Some(2), before: None };
        let mut search = Search::new(far, Duration::ZERO);
        assert_eq!(search.begin(), ask(1));
        assert_eq!(search.lacks(Lack::Silent), ask(2));
        assert_eq!(search.lacks(Lack::Silent), Step::AskSource);
        assert_eq!(search.lacking(), [0_u64; 0]);
    }

    #[test]
    fn a_lease_is_waited_for_and_not_for_ever() {
        let home = Holders { home: 1, first: None, second: None, before: None };
        let mut search = Search::new(home, Duration::from_millis(100));
        let (mut waited, mut pauses) = (Duration::ZERO, Vec::new());
        let mut step = search.begin();
        loop {
            match step {
                Step::Ask { member: 1, lease: true, after } => {
                    waited += after;
                    pauses.push(after.as_millis());
                    step = search.lacks(Lack::Leased);
                }
                other => {
                    assert_eq!(other, Step::AskSource);
                    break;
                }
            }
        }
        assert_eq!(waited, Duration::from_millis(100));
        assert_eq!(pauses[..7], [0, 1, 2, 4, 8, 16, 16]);
        assert_eq!(search.lacking(), [0_u64; 0], "the holder stores it");
        // The lease ends, and is ours.
        let mut search = Search::new(home, Duration::from_secs(1));
        search.begin();
        search.lacks(Lack::Leased);
        assert_eq!(search.lacks(Lack::Missing), Step::AskSource);
        assert_eq!(search.lacking(), [1]);
    }
}
