//! The search for one sample at the members of a cluster.
//!
//! 1. Members that are nearer than the home, or more likely to have the sample, are asked first.
//! 2. The home is asked for the sample, or else for its *lease*: the right to bring it. All who ask for the sample
//!    while somebody has its lease wait for the holder, who stores the sample there. A lease ends by itself after a
//!    while, so a holder that dies holds nobody up.
//! 3. The holder of the lease asks the other members that may have the sample, and then the source.
//! 4. If a member has the sample on its disk, its daemon is asked to bring it to its shard, and the member is asked again.
//! 5. Those of its homes that lack the sample are given it. If it is found at a member that it leaves with this read, it
//!    is given to its home, and removed there.
//!
//! A member that does not answer, or takes nothing, is passed over. Leases are those of Gray and Cheriton, SOSP 1989.

use std::time::Duration;

/// A member that may have a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub id: u64,
    pub role: Role,
}

impl Holder {
    fn is_home(self) -> bool {
        matches!(self.role, Role::Home | Role::Second)
    }
}

/// The part that a member plays for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its home. There is one.
    Home,
    /// Its second home.
    Second,
    /// It was there before, or may be there for another reader. The member is not given it.
    Before,
    /// It leaves the member with this read.
    Left,
}

/// What a member that lacks the sample answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It would take the sample. If it was asked for the lease, the lease is ours.
    Missing,
    /// Another member has the lease.
    Leased,
    /// It has the sample on its disk.
    OnDisk,
    /// It does not answer, or it takes nothing.
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    AskMember(Question),
    /// No member has it.
    AskSource,
}

/// A question to a member for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub member: u64,
    /// Whether the lease is wanted if it lacks the sample.
    pub lease: bool,
    /// Whether its daemon is asked before the pause to bring the sample from its disk.
    pub load: bool,
    /// The pause before the question.
    pub after: Duration,
}

impl Question {
    /// A question for the bytes and nothing else, at once.
    pub fn for_bytes(member: u64) -> Self {
        Question { member, lease: false, load: false, after: Duration::ZERO }
    }

    fn to(holder: Holder) -> Self {
        Question { lease: holder.role == Role::Home, ..Question::for_bytes(holder.id) }
    }
}

/// The pauses before a member is asked again whose lease another one has. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

#[derive(Debug)]
pub struct Search {
    home: Option<u64>,
    /// The members that are still to be asked, the next one last.
    left: Vec<Holder>,
    /// Who was asked last, and whether its daemon was asked to bring the sample.
    asked: Option<Holder>,
    is_loading: bool,
    pause: Duration,
    /// How long it waits for the holder of a lease, or for a daemon that brings the sample.
    patience: Duration,
    lacking: Vec<u64>,
}

impl Search {
    /// A search at these members, in this order. It waits so long for a member that brings the sample.
    pub fn new(mut holders: Vec<Holder>, patience: Duration) -> Self {
        let home = holders.iter().find(|holder| holder.role == Role::Home);
        let home = home.map(|holder| holder.id);
        holders.reverse();
        Search {
            home,
            left: holders,
            asked: None,
            is_loading: false,
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
            (Lack::Leased | Lack::OnDisk, Some(holder)) if !self.patience.is_zero() => {
                let after = self.pause.min(self.patience);
                self.patience -= after;
                // Later it is asked anew: the question may have been lost.
                let is_due = !self.is_loading || self.pause == LONGEST_PAUSE;
                let load = answer == Lack::OnDisk && is_due;
                self.is_loading |= load;
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                Step::AskMember(Question { load, after, ..Question::to(holder) })
            }
            // What it does not bring from its disk in time is given to it again.
            (Lack::Missing | Lack::OnDisk, Some(holder)) if holder.is_home() => {
                self.lacking.push(holder.id);
                self.ask_next()
            }
            _ => self.ask_next(),
        }
    }

    /// The member that was asked last has the sample. Returns the member if the sample leaves it. A sample leaves only if
    /// its home is given it, or if it has none.
    pub fn found(&mut self) -> Option<u64> {
        let Some(Holder { id, role: Role::Left }) = self.asked else { return None };
        let Some(home) = self.home else { return Some(id) };
        if self.left.iter().any(|holder| holder.id == home) {
            self.lacking.push(home);
        }
        self.lacking.contains(&home).then_some(id)
    }

    /// The members that are to be given the sample.
    pub fn lacking(&self) -> &[u64] {
        &self.lacking
    }

    fn ask_next(&mut self) -> Step {
        (self.asked, self.is_loading) = (self.left.pop(), false);
        self.asked.map_or(Step::AskSource, |holder| Step::AskMember(Question::to(holder)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Holder = Holder { id: 1, role: Role::Home };

    fn holder(id: u64, role: Role) -> Holder {
        Holder { id, role }
    }

    fn ask(member: u64) -> Step {
        let (load, after) = (false, Duration::ZERO);
        Step::AskMember(Question { member, lease: member == 1, load, after })
    }

    #[test]
    fn all_are_asked_and_homes_that_lack_it_are_given_it() {
        let all = vec![holder(2, Role::Second), HOME, holder(3, Role::Before)];
        let mut search = Search::new(all, Duration::ZERO);
        assert_eq!(search.begin(), ask(2));
        assert_eq!(search.lacks(Lack::Missing), ask(1));
        assert_eq!(search.lacks(Lack::Missing), ask(3));
        assert_eq!(search.lacks(Lack::Missing), Step::AskSource);
        assert_eq!(search.lacking(), [2, 1]);
        let far = vec![HOME, holder(2, Role::Second)];
        let mut search = Search::new(far, Duration::ZERO);
        assert_eq!(search.begin(), ask(1));
        assert_eq!(search.lacks(Lack::Silent), ask(2));
        assert_eq!(search.lacks(Lack::Silent), Step::AskSource);
        assert_eq!(search.lacking(), [0_u64; 0]);
    }

    #[test]
    fn a_sample_leaves_the_member_where_it_waited_for_this_read() {
        let all = vec![holder(2, Role::Left), HOME, holder(3, Role::Left)];
        let mut search = Search::new(all.clone(), Duration::ZERO);
        search.begin();
        assert_eq!((search.found(), search.lacking()), (Some(2), &[1][..]));
        // It has gone to its home already.
        let mut search = Search::new(all.clone(), Duration::ZERO);
        search.begin();
        search.lacks(Lack::Missing);
        assert_eq!((search.found(), search.lacking()), (None, &[][..]));
        let mut search = Search::new(all, Duration::ZERO);
        search.begin();
        search.lacks(Lack::Missing);
        search.lacks(Lack::Missing);
        assert_eq!((search.found(), search.lacking()), (Some(3), &[1][..]));
        // Its home does not answer: it stays where it is.
        let all = vec![HOME, holder(3, Role::Left)];
        let mut search = Search::new(all, Duration::ZERO);
        search.begin();
        search.lacks(Lack::Silent);
        assert_eq!((search.found(), search.lacking()), (None, &[][..]));
    }

    #[test]
    fn a_lease_is_waited_for_and_not_for_ever() {
        let mut search = Search::new(vec![HOME], Duration::from_millis(100));
        let (mut waited, mut pauses) = (Duration::ZERO, Vec::new());
        let mut step = search.begin();
        loop {
            match step {
                Step::AskMember(Question { member: 1, lease: true, load: false, after }) => {
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
        let mut search = Search::new(vec![HOME], Duration::from_secs(1));
        search.begin();
        search.lacks(Lack::Leased);
        assert_eq!(search.lacks(Lack::Missing), Step::AskSource);
        assert_eq!(search.lacking(), [1]);
    }

    #[test]
    fn a_daemon_is_asked_for_what_its_disk_has_and_not_at_each_turn() {
        let mut search =
            Search::new(vec![HOME, holder(2, Role::Second)], Duration::from_millis(70));
        search.begin();
        search.lacks(Lack::Leased);
        let mut loads = Vec::new();
        while let Step::AskMember(Question { member: 1, load, after, .. }) =
            search.lacks(Lack::OnDisk)
        {
            loads.push((load, after.as_millis()));
        }
        let (no, yes) = (|ms| (false, ms), |ms| (true, ms));
        assert_eq!(loads, [yes(2), no(4), no(8), yes(16), yes(16), yes(16), yes(7)]);
        assert_eq!(search.lacking(), [1], "it is given the sample, which ends the mark");
        // Its disk has lost it.
        let mut search = Search::new(vec![HOME], Duration::from_secs(1));
        search.begin();
        search.lacks(Lack::OnDisk);
        assert_eq!(search.lacks(Lack::Missing), Step::AskSource);
        assert_eq!(search.lacking(), [1]);
    }
}
