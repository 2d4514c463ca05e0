//! Answers the questions of other nodes about this node's buffers.
//!
//! A question for a view waits for further nodes, so it has threads of its own: all others are answered meanwhile.

use std::sync::Arc;

use super::maker::Maker;
use super::messages::{Question, parse, to_text};
use super::own_buffers::OwnBuffers;
use crate::peers::Answering;
use crate::rehearsal::views::View;
use crate::source::{Pool, Urgency};

const MAKERS: usize = 2;
const GIVERS: usize = 4;

pub(super) struct Provider {
    own: Arc<OwnBuffers>,
    maker: Arc<Maker>,
    makers: Pool,
    givers: Pool,
}

impl Provider {
    pub(super) fn new(own: &Arc<OwnBuffers>, maker: &Arc<Maker>) -> Self {
        let makers = Pool::new("belady-drafts", 0, MAKERS);
        let givers = Pool::new("belady-give", 0, GIVERS);
        Provider { own: Arc::clone(own), maker: Arc::clone(maker), makers, givers }
    }

    /// Has a question answered. Never blocks.
    pub(super) fn answer(&self, question: &str, answering: Answering) {
        let Some(question) = parse(question.as_bytes()) else { return };
        let (own, maker) = (Arc::clone(&self.own), Arc::clone(&self.maker));
        match question {
            Question::Holds { buffer, known } => self.givers.submit(Urgency::Demand, move || {
                let holdings = own.number(&buffer).and_then(|at| own.holdings(at, known));
                answering.answer(holdings.map(|holdings| to_text(&holdings).into_bytes()));
            }),
            Question::Bytes { buffer, hash, checksum } => {
                self.givers.submit(Urgency::Demand, move || {
                    let buffer = own.number(&buffer);
                    answering.answer(buffer.and_then(|buffer| own.read(buffer, hash, checksum)));
                });
            }
            Question::Shown { buffer, hash } => {
                own.number(&buffer).into_iter().for_each(|buffer| own.count_replay(buffer, hash));
                answering.leave();
            }
            Question::Draw { buffer, view, task } => {
                self.makers.submit(Urgency::Demand, move || {
                    let drawn = own.number(&buffer).zip(View::parse(&view));
                    let drawn = drawn.map(|(buffer, view)| maker.draw(buffer, view, task));
                    answering.answer(drawn.map(|drawn| to_text(&drawn).into_bytes()));
                });
            }
        }
    }
}
