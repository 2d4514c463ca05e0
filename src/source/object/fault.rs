//! Why a request to a store failed.

use std::error::Error as StdError;
use std::path::Path;

use nix::errno::Errno;
use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::source::remote::{Passing, note_failure};

/// How a status begins in the text of an error. Only this text tells it.
const STATUS: &str = "status code: ";

/// Why a request failed.
#[derive(Debug)]
pub(in crate::source) enum Fault {
    Store(StoreError),
    /// An answer that had begun broke off.
    Broken(StoreError),
    /// The object has another version than the requested one.
    Changed,
    /// There were another number of bytes than announced.
    Length {
        got: usize,
        wanted: usize,
    },
    /// The task has ended.
    Gone,
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Fault::Store(error)
    }
}

impl Fault {
    pub(in crate::source) fn is_missing(&self) -> bool {
        matches!(self, Fault::Store(StoreError::NotFound { .. }))
    }

    /// Whether there is nothing to list. The library tells it by the status only.
    pub(super) fn is_no_bucket(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the store refuses whoever asks.
    pub(in crate::source) fn is_refusal(&self) -> bool {
        matches!(self.status(), Some(401 | 403))
    }

    /// Whether an object was listed whose key is no path.
    pub(super) fn is_invalid_key(&self) -> bool {
        matches!(self, Fault::Store(StoreError::InvalidPath { .. }))
    }

    /// Whether the bucket is in another region.
    pub(super) fn is_elsewhere(&self) -> bool {
        let message = self.message();
        ["redirect", "PermanentRedirect", "AuthorizationHeaderMalformed"]
            .iter()
            .any(|word| message.contains(word))
    }

    /// Whether there was no answer.
    pub(super) fn is_unreachable(&self) -> bool {
        self.http().is_some()
    }

    /// The fault of a request that was not answered.
    fn http(&self) -> Option<&HttpError> {
        let Fault::Store(error) = self else { return None };
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(http) = error.downcast_ref::<HttpError>() {
                return Some(http);
            }
            cause = error.source();
        }
        None
    }

    /// The HTTP status that the server answered with.
    fn status(&self) -> Option<u16> {
        let Fault::Store(error) = self else { return None };
        let text = error.to_string();
        let (_, status) = text.split_once(STATUS)?;
        status.get(..3)?.parse().ok()
    }

    /// The error for a reader. `status` and the log have the rest.
    pub(in crate::source) fn errno(&self, path: &Path) -> Errno {
        if self.is_missing() {
            return Errno::ENOENT;
        }
        self.warn(path);
        match self {
            _ if self.is_refusal() => Errno::EACCES,
            _ if self.may_pass() => Errno::ETIMEDOUT,
            _ => Errno::EIO,
        }
    }

    /// Tells `status` and the log.
    pub(in crate::source) fn warn(&self, path: &Path) {
        note_failure(&path.to_string_lossy(), self.message());
    }
}

impl Passing for Fault {
    /// If the link is down, or the store has too much to do.
    fn may_pass(&self) -> bool {
        match (self, self.http()) {
            (Fault::Length { .. } | Fault::Broken(_), _) => true,
            (_, Some(http)) => !matches!(http.kind(), HttpErrorKind::Decode),
            (_, None) => matches!(self.status(), Some(408 | 429 | 500..)),
        }
    }

    fn is_overload(&self) -> bool {
        matches!(self.status(), Some(429 | 503))
    }

    /// What the server says, else what the library says.
    fn message(&self) -> String {
        let text = match self {
            Fault::Store(error) | Fault::Broken(error) => error.to_string(),
            Fault::Changed => "it changed while it was read".into(),
            Fault::Length { got, wanted } => format!("{got} bytes came instead of {wanted}"),
            Fault::Gone => "the request ended without an answer".into(),
        };
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            Some(rest.split_once('<')?.0.trim().to_owned())
        };
        match (element("Code"), element("Message")) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(code), None) => code,
            (None, _) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }
}
