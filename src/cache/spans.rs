//! Notes what took time, while somebody traces the mount.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// Spans that are kept at most. Later ones are left out.
const SPANS_MAX: usize = 200_000;

/// A read at the source for which no reader waits.
pub const READ_AHEAD: &str = "read ahead";
/// A read of the cache disk.
pub const DISK_READ: &str = "disk read";
/// A push of a block into the page cache.
pub const PUSH: &str = "push";

/// Something that took time.
#[derive(Clone, Debug)]
pub struct Span {
    pub what: &'static str,
    /// The file that it was about, if that is known.
    pub path: Option<Arc<Path>>,
    /// The task for which it was, or 0.
    pub task: u32,
    pub bytes: u64,
    pub began: Instant,
    pub took: Duration,
}

/// The spans of a trace. If nobody traces, a note costs a look at a flag.
#[derive(Default)]
pub struct Spans {
    is_on: AtomicBool,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    spans: Vec<Span>,
    left_out: u64,
}

impl Spans {
    /// Notes spans from now on.
    pub fn begin(&self) {
        *self.noted.lock() = Noted::default();
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Notes no more. Returns the spans, and how many others there were.
    pub fn end(&self) -> (Vec<Span>, u64) {
        self.is_on.store(false, Ordering::Relaxed);
        let Noted { spans, left_out } = std::mem::take(&mut *self.noted.lock());
        (spans, left_out)
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Notes a span that ends now, if somebody traces.
    pub fn note(&self, span: impl FnOnce() -> Span) {
        if !self.is_on() {
            return;
        }
        let span = span();
        let mut noted = self.noted.lock();
        match noted.spans.len() < SPANS_MAX {
            true => noted.spans.push(span),
            false => noted.left_out += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(task: u32) -> Span {
        Span {
            what: "cold",
            path: None,
            task,
            bytes: 0,
            began: Instant::now(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn spans_are_noted_only_while_somebody_traces() {
        let spans = Spans::default();
        spans.note(|| unreachable!("nobody traces"));
        spans.begin();
        (0..=SPANS_MAX as u32).for_each(|task| spans.note(|| span(task)));
        let (noted, left_out) = spans.end();
        assert_eq!((noted.len(), left_out), (SPANS_MAX, 1));
        spans.note(|| unreachable!("nobody traces any more"));
        spans.begin();
        assert_eq!(spans.end().0.len(), 0);
    }
}
