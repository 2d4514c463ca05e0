//! The options of TLS in the environment, or in a file.

use std::path::absolute;

use crate::error::{Error, ErrorKind, Result};
use crate::source::address::Options;
use crate::tls::Tls;

/// A file of the certificates that are trusted, in PEM. TLS is used if it is given.
const TRUSTED: &str = "cassandra_tls_ca";
/// A file of the certificate that belady shows, and one of its key.
const CERTIFICATE: &str = "cassandra_tls_cert";
const KEY: &str = "cassandra_tls_key";

/// The options of TLS.
pub(super) const OPTIONS: [&str; 3] = [TRUSTED, CERTIFICATE, KEY];

/// `None`: connections are without TLS.
///
/// # Errors
/// If an option is missing beside another one.
pub(super) fn of(options: &Options) -> Result<Option<Tls>> {
    // The daemon of a mount works in another directory.
    let path =
        |name: &str| options.get(name).map(|path| absolute(path).unwrap_or_else(|_| path.into()));
    match (path(TRUSTED), path(CERTIFICATE), path(KEY)) {
        (None, None, None) => Ok(None),
        (Some(trusted), None, None) => Ok(Some(Tls { trusted, own: None })),
        (Some(trusted), Some(own), Some(key)) => Ok(Some(Tls { trusted, own: Some((own, key)) })),
        _ => {
            let message = "an option of TLS to Cassandra is missing";
            Err(Error::new(ErrorKind::Source, message).hint(
                "CASSANDRA_TLS_CA is needed; CASSANDRA_TLS_CERT and CASSANDRA_TLS_KEY are \
                 given both, or none of them",
            ))
        }
    }
}

/// The error of a mount for which TLS cannot be used.
pub(super) fn refuse(why: String) -> Error {
    Error::new(ErrorKind::Source, why)
        .hint("the files of CASSANDRA_TLS_CA, CASSANDRA_TLS_CERT and CASSANDRA_TLS_KEY are in PEM")
}
