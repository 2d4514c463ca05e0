//! What a server sends in place of an answer.

use super::frames::Body;

pub(super) const LOCAL_ONE: u16 = 10;

pub(super) const PROTOCOL_ERROR: i32 = 0x000a;
pub(super) const BAD_CREDENTIALS: i32 = 0x0100;
pub(super) const SYNTAX_ERROR: i32 = 0x2000;
pub(super) const INVALID: i32 = 0x2200;
pub(super) const UNPREPARED: i32 = 0x2500;

pub(super) const NOT_PREPARED: &str = "Prepared query not found (either the query was not prepared \
                                       on this host or it has been evicted)";

/// An error of the protocol.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: i32,
    pub message: String,
    /// What errors of this code have beside the message.
    pub extra: Vec<u8>,
}

impl Refusal {
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        Refusal { code, message: message.into(), extra: Vec::new() }
    }

    pub(super) fn invalid(message: String) -> Self {
        Refusal::new(INVALID, message)
    }

    pub(super) fn malformed() -> Self {
        Refusal::new(PROTOCOL_ERROR, "the frame does not have what it should have")
    }

    pub(super) fn body(&self) -> Body {
        let mut body = Body::default();
        body.int(self.code).string(&self.message).0.extend(&self.extra);
        body
    }
}

/// A statement is answered with this, and not with its rows.
#[derive(Clone, Debug)]
pub enum Fault {
    Error(Refusal),
    /// One half of the answer. Then the connection is closed.
    Cut,
    /// Nothing, until `CqlServer::release`.
    Silence,
    /// A row whose first cell is longer than the frame.
    WrongLength,
    /// The answer to a statement that gives no rows.
    NoRows,
    /// Bytes of another protocol.
    NoFrame,
    /// The right rows, with these bytes in the first column.
    Other(Vec<u8>),
}

impl Fault {
    /// The error with a code of the protocol, as Cassandra sends it.
    pub fn error(code: i32) -> Self {
        let mut extra = Body::default();
        let message = match code {
            0x0000 => "java.lang.NullPointerException",
            0x1000 => {
                extra.short(LOCAL_ONE).int(1).int(0);
                "Cannot achieve consistency level LOCAL_ONE"
            }
            0x1001 => "Server is in overloaded state. Cannot accept more requests at this point",
            0x1002 => "Cannot read from a bootstrapping node",
            0x1003 => "Error during truncate: the table is truncated",
            0x1200 => {
                extra.short(LOCAL_ONE).int(0).int(1).0.push(0);
                "Operation timed out - received only 0 responses."
            }
            0x1300 => {
                extra.short(LOCAL_ONE).int(0).int(1).int(1).0.push(0);
                "Operation failed - received 0 responses and 1 failures"
            }
            SYNTAX_ERROR => "line 1:7 no viable alternative at input 'FROM'",
            0x2100 => {
                "User belady has no SELECT permission on <table k.data> or any of its parents"
            }
            INVALID => "Invalid amount of bind variables",
            // The id is added when the statement is known.
            UNPREPARED => NOT_PREPARED,
            _ => "an error of a kind that nobody expects",
        };
        Fault::Error(Refusal { extra: extra.0, ..Refusal::new(code, message) })
    }
}
