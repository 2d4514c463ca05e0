//! Questions to other nodes.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use super::TOPIC;
use super::messages::{Question, to_text};
use crate::peers::{Deliver, Want, Wants};

/// How much longer than the answer may take its delivery is waited for.
const SLACK: Duration = Duration::from_secs(1);

/// Asks a node. `deliver` takes the answer, and must not block.
pub(super) fn ask(
    wants: &Weak<dyn Wants>,
    member: u64,
    question: &Question,
    patience: Duration,
    deliver: Deliver,
) {
    let Some(wants) = wants.upgrade() else { return deliver(None) };
    let question = to_text(question);
    wants.want(Want { member, topic: TOPIC, question, patience, deliver });
}

/// Asks a node, and gives the receiver of the answer.
pub(super) fn begin(
    wants: &Weak<dyn Wants>,
    member: u64,
    question: &Question,
    patience: Duration,
) -> Receiver<Option<Vec<u8>>> {
    let (send, answered) = sync_channel(1);
    // The asker may have given up.
    let deliver = Box::new(move |answer| drop(send.try_send(answer)));
    ask(wants, member, question, patience, deliver);
    answered
}

/// Waits for an answer that was begun, no longer than `patience` and a little.
pub(super) fn wait(answer: &Receiver<Option<Vec<u8>>>, patience: Duration) -> Option<Vec<u8>> {
    answer.recv_timeout(patience + SLACK).ok().flatten()
}
