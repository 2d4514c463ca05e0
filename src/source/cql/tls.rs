//! Connections with TLS: whose certificates are trusted, and which one belady shows.

use std::fmt;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::source::address::Options;

/// A file of the certificates that are trusted, in PEM. TLS is used if it is given.
const TRUSTED: &str = "cassandra_tls_ca";
/// A file of the certificate that belady shows, and one of its key.
const CERTIFICATE: &str = "cassandra_tls_cert";
const KEY: &str = "cassandra_tls_key";

/// The options of TLS.
pub(super) const OPTIONS: [&str; 3] = [TRUSTED, CERTIFICATE, KEY];

/// The files for connections with TLS.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    trusted: PathBuf,
    /// Certificate and key.
    own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// `None`: connections are without TLS.
    ///
    /// # Errors
    /// If an option is missing beside another one.
    pub(super) fn of(options: &Options) -> UserResult<Option<Self>> {
        // The daemon of a mount works in another directory.
        let path = |name: &str| {
            options.get(name).map(|path| absolute(path).unwrap_or_else(|_| path.into()))
        };
        match (path(TRUSTED), path(CERTIFICATE), path(KEY)) {
            (None, None, None) => Ok(None),
            (Some(trusted), None, None) => Ok(Some(Tls { trusted, own: None })),
            (Some(trusted), Some(own), Some(key)) => {
                Ok(Some(Tls { trusted, own: Some((own, key)) }))
            }
            _ => {
                let message = "an option of TLS to Cassandra is missing";
                Err(Error::new(ErrorKind::Source, message).hint(
                    "CASSANDRA_TLS_CA is needed; CASSANDRA_TLS_CERT and CASSANDRA_TLS_KEY are \
                     given both, or none of them",
                ))
            }
        }
    }

    /// What the driver needs. A node may show a certificate of its address, or of one of the hosts.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(super) fn config(&self, hosts: &[String]) -> UserResult<Arc<ClientConfig>> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.trusted)? {
            roots.add(certificate).map_err(|error| refuse(&self.trusted, &error))?;
        }
        let signed = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .map_err(|error| refuse(&self.trusted, &error))?;
        let name = |host: &String| ServerName::try_from(host.clone()).ok();
        let verifier = OfCluster { signed, hosts: hosts.iter().filter_map(name).collect() };
        let internal = |error: rustls::Error| {
            Error::new(ErrorKind::Internal, format!("TLS cannot be used: {error}"))
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(internal)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let Some((own, key)) = &self.own else { return Ok(builder.with_no_client_auth().into()) };
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| refuse(key, &error))?;
        let config = builder.with_client_auth_cert(certificates(own)?, secret);
        Ok(config.map_err(|error| refuse(own, &error))?.into())
    }
}

/// The certificates in a file, of which there is at least one.
fn certificates(path: &Path) -> UserResult<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| refuse(path, &error))?;
    match found.is_empty() {
        true => Err(refuse(path, &"it has no certificate")),
        false => Ok(found),
    }
}

fn refuse(path: &Path, why: &dyn fmt::Display) -> Error {
    let message = format!("cannot use {} for TLS: {why}", path.display());
    Error::new(ErrorKind::Source, message)
        .hint("the files of CASSANDRA_TLS_CA, CASSANDRA_TLS_CERT and CASSANDRA_TLS_KEY are in PEM")
}

/// Accepts certificates that are signed by a trusted one, and are of the address of the node or of a host in the
/// URL. The driver knows nodes by their addresses only, which few certificates have.
#[derive(Debug)]
struct OfCluster {
    signed: Arc<WebPkiServerVerifier>,
    hosts: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for OfCluster {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        address: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let check = |name: &ServerName<'_>| {
            self.signed.verify_server_cert(certificate, others, name, ocsp, now)
        };
        let of_address = check(address);
        if of_address.is_ok() {
            return of_address;
        }
        self.hosts.iter().find_map(|host| check(host).ok()).map_or(of_address, Ok)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
