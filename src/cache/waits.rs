//! How long readers have waited for answers, by cause.
//!
//! 1. A request that is not answered at once is in the table of waiting requests (`fs/waiting`), with the time at
//!    which it came. If the kernel finds the bytes in its page cache, there is no request, and nothing is counted.
//! 2. A flight knows why its readers wait: the block was not read ahead, or it was on its way already, or the kernel had
//!    taken its pages back. If the cache disk is too slow, the cause becomes the disk.
//! 3. The answer comes with the cause, and the wait is noted.

use std::time::Instant;

use nix::errno::Errno::{self, EINVAL, ENAMETOOLONG, ENODATA, EOPNOTSUPP, ERANGE, ESTALE};

use super::{Latencies, Span, Spans, Timings};
use crate::source::is_certain;

/// Why a reader waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Its bytes were in RAM. The request came from a further mount point, or asked for nothing.
    Ready,
    /// The block was not read ahead: a reader had to ask for it.
    #[default]
    Cold,
    /// The block was on its way already.
    Late,
    /// The block was in RAM until the kernel took its pages back.
    Lost,
    /// A name, attributes or a listing were asked for at the source.
    Name,
    /// A sample of a rehearsal buffer, or a name in a view of one, was read from the disk or from another node.
    Rehearsal,
    /// The cache disk did not answer in time.
    Disk,
    /// The answer was an error.
    Error,
}

impl Cause {
    pub const ALL: [Cause; 8] = [
        Cause::Ready,
        Cause::Cold,
        Cause::Late,
        Cause::Lost,
        Cause::Name,
        Cause::Rehearsal,
        Cause::Disk,
        Cause::Error,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Cause::Ready => "ready",
            Cause::Cold => "cold",
            Cause::Late => "late",
            Cause::Lost => "lost",
            Cause::Name => "name",
            Cause::Rehearsal => "rehearsal",
            Cause::Disk => "disk",
            Cause::Error => "error",
        }
    }

    /// The cause of a wait that ended with this answer. It is no error that a name stands for nothing, or that a file has no
    /// such attribute.
    pub fn unless_failed<T>(self, answer: &Result<T, Errno>) -> Self {
        let tells = |errno| {
            is_certain(errno)
                || matches!(errno, EINVAL | ENAMETOOLONG | ENODATA | EOPNOTSUPP | ERANGE | ESTALE)
        };
        match answer {
            Err(errno) if !tells(*errno) => Cause::Error,
            _ => self,
        }
    }
}

/// The waits of all readers.
#[derive(Default)]
pub struct Waits {
    by_cause: [Timings; Cause::ALL.len()],
    /// Each wait, while somebody traces.
    pub spans: Spans,
}

impl Waits {
    /// A task has waited until now, if it is known which one.
    pub fn note(&self, cause: Cause, task: Option<u32>, since: Instant) {
        let waited = since.elapsed();
        self.by_cause[cause as usize].note(waited);
        self.spans.note(|| Span {
            what: cause.name(),
            path: None,
            task: task.unwrap_or_default(),
            bytes: 0,
            began: since,
            took: waited,
        });
    }

    pub fn latencies(&self, cause: Cause) -> Latencies {
        self.by_cause[cause as usize].latencies()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_their_cause() {
        let waits = Waits::default();
        waits.note(Cause::Late, Some(7), Instant::now());
        let counts = Cause::ALL.map(|cause| waits.latencies(cause).count);
        assert_eq!(counts, [0, 0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn an_error_is_the_cause_unless_it_tells_that_there_is_nothing() {
        let cause = |answer| Cause::Name.unless_failed::<()>(&answer);
        assert_eq!([cause(Ok(())), cause(Err(Errno::ENOENT))], [Cause::Name; 2]);
        assert_eq!(cause(Err(Errno::EIO)), Cause::Error);
    }
}
