//! Which members are asked: one that did not answer is left alone for a while.

use std::time::{Duration, Instant};

/// How long a member is left alone that did not answer. Each time that it does not answer after that, it is twice as
/// long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// A circuit breaker (Nygard, "Release It!").
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Until when the member is left alone, and for how long that is; `None` if it answers.
    left_alone: Option<(Instant, Duration)>,
    /// Since when one question finds out whether it answers again.
    tried: Option<Instant>,
    /// When it answered last.
    answered: Option<Instant>,
}

impl Breaker {
    /// Whether the member is to be asked. After a pause one question is, and all others only if that one is answered.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        let Some((until, pause)) = self.left_alone else { return true };
        // A question that was given up finds nothing out.
        let is_tried = self.tried.is_some_and(|tried| now < tried + pause);
        if now < until || is_tried {
            return false;
        }
        self.tried = Some(now);
        true
    }

    /// It has answered.
    pub(super) fn answered(&mut self, now: Instant) {
        *self = Breaker { answered: Some(now), ..Breaker::default() };
    }

    /// It has not answered a question that was asked at this time. Returns whether it is left alone: not if it has
    /// answered since, and is only slow.
    pub(super) fn failed(&mut self, asked: Instant, now: Instant) -> bool {
        if self.answered.is_some_and(|answered| answered > asked) {
            return false;
        }
        match self.left_alone {
            // The questions that were under way fail together.
            Some((until, pause)) if asked + pause < until => {}
            Some((_, pause)) => {
                let pause = (2 * pause).min(PAUSE_MAX);
                (self.left_alone, self.tried) = (Some((now + pause, pause)), None);
            }
            None => self.left_alone = Some((now + PAUSE_MIN, PAUSE_MIN)),
        }
        true
    }

    pub(super) fn is_open(&self) -> bool {
        self.left_alone.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_does_not_answer_is_tried_again_ever_less_often() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut breaker = Breaker::default();
        assert!(breaker.may_ask(at(0)) && breaker.may_ask(at(1)) && !breaker.is_open());
        breaker.failed(at(0), at(10));
        breaker.failed(at(1), at(20));
        assert!(breaker.is_open() && !breaker.may_ask(at(1000)));
        assert!(breaker.may_ask(at(1010)));
        assert!(!breaker.may_ask(at(1020)), "one question is enough");
        breaker.failed(at(1010), at(1030));
        assert!(!breaker.may_ask(at(3029)) && breaker.may_ask(at(3030)));
        for _ in 0..9 {
            let until = breaker.left_alone.unwrap().0;
            breaker.failed(until, until);
        }
        assert_eq!(breaker.left_alone.unwrap().1, PAUSE_MAX);
        breaker.answered(at(3040));
        assert!(breaker.may_ask(at(3041)) && breaker.may_ask(at(3042)));
        assert!(!breaker.failed(at(3039), at(3050)), "it has answered since");
        assert!(!breaker.is_open() && breaker.failed(at(3041), at(4041)) && breaker.is_open());
    }

    #[test]
    fn a_trial_that_is_given_up_is_made_again() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        breaker.failed(start, start);
        assert!(breaker.may_ask(start + PAUSE_MIN));
        assert!(
            !breaker.may_ask(start + PAUSE_MIN * 3 / 2) && breaker.may_ask(start + 2 * PAUSE_MIN)
        );
    }
}
