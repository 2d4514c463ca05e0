//! The streams of an engine: those that are told their orders, and those whose orders are learnt.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::StreamId;
use crate::sync::Mutex;

/// Streams that one engine may have.
const STREAMS_MAX: usize = 1024;

/// The beginning of the names of streams whose orders are learnt. No configured name has a colon.
pub(crate) const LEARNT: &str = "learnt:";

/// The streams of an engine, by number.
pub(crate) type Streams = Arc<Mutex<Vec<StreamInfo>>>;

/// What is known of a stream beside what the planner does with it.
#[derive(Clone, Debug)]
pub(crate) struct StreamInfo {
    pub(crate) name: String,
    /// The order as it was given, if there is one.
    pub(crate) spec: Option<String>,
    /// Why the last order given was refused.
    pub(crate) refused: Option<String>,
}

impl StreamInfo {
    /// Whether its orders are learnt, not given.
    pub(crate) fn is_learnt(&self) -> bool {
        self.name.starts_with(LEARNT)
    }
}

/// The stream of a name, which is new if the name is.
pub(crate) fn stream(streams: &Streams, name: &str) -> Result<StreamId> {
    let mut streams = streams.lock();
    if let Some(index) = streams.iter().position(|stream| stream.name == name) {
        return Ok(StreamId(index as u16));
    }
    if streams.len() >= STREAMS_MAX {
        let message = format!("there are {STREAMS_MAX} streams already");
        return Err(Error::new(ErrorKind::Order, message));
    }
    streams.push(StreamInfo { name: name.to_string(), spec: None, refused: None });
    Ok(StreamId(streams.len() as u16 - 1))
}

/// A stream for a learnt order that is not `taken`. None if there are too many streams.
pub(crate) fn learnt_stream(streams: &Streams, taken: &[StreamId]) -> Option<StreamId> {
    let names = (0..=taken.len()).map(|number| format!("{LEARNT}{number}"));
    names.filter_map(|name| stream(streams, &name).ok()).find(|stream| !taken.contains(stream))
}
