//! Why a request failed, and whether it is made again.
//!
//! 1. A node that is away, overloaded or starting is asked again. So is one that has no connections.
//! 2. A request that the server refuses is not made again: the schema has changed, or a right is missing.
//! 3. `Unauthorized` is both. The roles are rows, too, often on a single node. If that node is away, the others refuse
//!    every request. So a server that refuses after a mount that worked is asked again.

use nix::errno::Errno;
use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError, ExecutionError,
    MetadataError, NewSessionError, PrepareError, RequestAttemptError,
};

use crate::source::remote::{Passing, note_failure};

const CHANGED: &str = "the tables have changed since the mount";

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server may answer later. If it does not, this is the error for a reader.
    Away { why: String, errno: Errno, is_overload: bool },
    /// The server does not answer this request.
    Refused(String),
    /// The row has another version than the listed one.
    Changed,
    /// A row is not what it should be.
    Wrong(String),
    /// The data of a row is not that of its size.
    Apart(String),
    /// The task has ended.
    Gone,
}

impl Passing for Fault {
    fn may_pass(&self) -> bool {
        matches!(self, Fault::Away { .. })
    }

    fn is_overload(&self) -> bool {
        matches!(self, Fault::Away { is_overload: true, .. })
    }

    fn message(&self) -> String {
        match self {
            Fault::Away { why, .. }
            | Fault::Refused(why)
            | Fault::Wrong(why)
            | Fault::Apart(why) => why.clone(),
            Fault::Changed => "it changed while it was read".to_owned(),
            Fault::Gone => "the request ended without an answer".to_owned(),
        }
    }
}

impl Fault {
    /// Why a statement was not executed. `has_worked`: the user had the rights before.
    pub(super) fn of(error: &ExecutionError, has_worked: bool) -> Self {
        let errno = match error {
            ExecutionError::EmptyPlan
            | ExecutionError::ConnectionPoolError(_)
            | ExecutionError::RequestTimeout(_) => Some(Errno::ETIMEDOUT),
            ExecutionError::LastAttemptError(attempt) => passing(attempt, has_worked),
            _ => None,
        };
        let why = match error {
            ExecutionError::LastAttemptError(attempt) => say(attempt),
            error => error.to_string(),
        };
        let why = if has_worked && is_unknown(error) { format!("{why}: {CHANGED}") } else { why };
        let is_overload = matches!(
            error,
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(
                DbError::Overloaded | DbError::RateLimitReached { .. },
                _
            ))
        );
        match errno {
            Some(errno) => Fault::Away { why, errno, is_overload },
            None => Fault::Refused(why),
        }
    }

    /// Why a statement was not prepared.
    pub(super) fn of_preparing(error: &PrepareError) -> Self {
        Fault::Refused(match error {
            PrepareError::AllAttemptsFailed { first_attempt } => say(first_attempt),
            error => error.to_string(),
        })
    }

    /// The error for a reader. `status` and the log have the rest.
    pub(super) fn errno(&self, key: &str) -> Errno {
        note_failure(key, self.message());
        match self {
            Fault::Away { errno, .. } => *errno,
            _ => Errno::EIO,
        }
    }
}

/// Why there is no connection. The driver names each of its parts through which the error went.
pub(super) fn say_unconnected(error: &NewSessionError) -> String {
    let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
        ConnectionPoolError::Broken { last_connection_error: last },
    )) = error
    else {
        return error.to_string();
    };
    let closed = || "the server closes the connection".to_owned();
    let request = match last {
        ConnectionError::ConnectionSetupRequestError(request) => request,
        ConnectionError::BrokenConnection(_) => return closed(),
        last => return last.to_string(),
    };
    match request.get_error() {
        ConnectionSetupRequestErrorKind::BrokenConnection(_) => closed(),
        ConnectionSetupRequestErrorKind::DbError(_, message) if !message.is_empty() => {
            message.clone()
        }
        ConnectionSetupRequestErrorKind::MissingAuthentication => {
            "authentication is required".to_owned()
        }
        other => other.to_string(),
    }
}

/// Whether the server does not know a table or a column.
fn is_unknown(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(
            DbError::Invalid | DbError::SyntaxError,
            _
        ))
    )
}

/// What the server itself says.
fn say(attempt: &RequestAttemptError) -> String {
    match attempt {
        RequestAttemptError::DbError(_, message) if !message.is_empty() => message.clone(),
        attempt => attempt.to_string(),
    }
}

/// The error for a reader if the server does not get better; `None` if it will not.
fn passing(attempt: &RequestAttemptError, has_worked: bool) -> Option<Errno> {
    match attempt {
        RequestAttemptError::BrokenConnectionError(_)
        | RequestAttemptError::UnableToAllocStreamId => Some(Errno::ETIMEDOUT),
        RequestAttemptError::DbError(error, _) => match error {
            DbError::Unavailable { .. }
            | DbError::ReadTimeout { .. }
            | DbError::IsBootstrapping => Some(Errno::ETIMEDOUT),
            DbError::Overloaded
            | DbError::ReadFailure { .. }
            | DbError::ServerError
            | DbError::TruncateError
            | DbError::Unprepared { .. }
            | DbError::RateLimitReached { .. } => Some(Errno::EIO),
            DbError::Unauthorized if has_worked => Some(Errno::EIO),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn fault(error: DbError, has_worked: bool) -> Fault {
        let attempt = RequestAttemptError::DbError(error, "what the server says".to_owned());
        Fault::of(&ExecutionError::LastAttemptError(attempt), has_worked)
    }

    #[test]
    fn what_may_pass_is_asked_for_again() {
        for (error, errno) in [
            (DbError::Overloaded, Errno::EIO),
            (DbError::ServerError, Errno::EIO),
            (DbError::IsBootstrapping, Errno::ETIMEDOUT),
        ] {
            let is_overload = matches!(error, DbError::Overloaded);
            let fault = fault(error, false);
            assert!(fault.may_pass() && fault.is_overload() == is_overload, "{fault:?}");
            assert_eq!((fault.errno("7"), &*fault.message()), (errno, "what the server says"));
        }
        let slow = Fault::of(&ExecutionError::RequestTimeout(Duration::from_secs(30)), true);
        assert!(slow.may_pass() && slow.errno("7") == Errno::ETIMEDOUT);
        for error in [DbError::Invalid, DbError::SyntaxError, DbError::AuthenticationError] {
            let fault = fault(error, true);
            assert!(!fault.may_pass() && fault.errno("7") == Errno::EIO, "{fault:?}");
        }
    }

    #[test]
    fn a_server_that_refuses_all_of_a_sudden_is_asked_again() {
        let [before, after] = [false, true].map(|worked| fault(DbError::Unauthorized, worked));
        assert!(!before.may_pass() && after.may_pass());
        assert_eq!(after.errno("7"), Errno::EIO);
    }
}
