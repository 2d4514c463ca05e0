//! Connections with TLS: whose certificates are trusted, and which one belady shows.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// The files for connections with TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificates that are trusted.
    pub trusted: PathBuf,
    /// The certificate that belady shows, and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// What a client needs. A server may show a certificate of its address, or of one of the hosts.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn config(&self, hosts: &[String]) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.trusted)? {
            roots.add(certificate).map_err(|error| refuse(&self.trusted, &error))?;
        }
        let signed = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .map_err(|error| refuse(&self.trusted, &error))?;
        let name = |host: &String| ServerName::try_from(host.clone()).ok();
        let verifier = OfHosts { signed, hosts: hosts.iter().filter_map(name).collect() };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be used: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let Some((own, key)) = &self.own else { return Ok(builder.with_no_client_auth().into()) };
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| refuse(key, &error))?;
        let config = builder.with_client_auth_cert(certificates(own)?, secret);
        Ok(config.map_err(|error| refuse(own, &error))?.into())
    }
}

/// The certificates in a file, of which there is at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| refuse(path, &error))?;
    match found.is_empty() {
        true => Err(refuse(path, &"it has no certificate")),
        false => Ok(found),
    }
}

fn refuse(path: &Path, why: &dyn fmt::Display) -> String {
    format!("cannot use {} for TLS: {why}", path.display())
}

/// Accepts certificates that are signed by a trusted one, and are of the address of the server or of one of the hosts.
/// Clusters tell the addresses of their servers, which few certificates have.
#[derive(Debug)]
struct OfHosts {
    signed: Arc<WebPkiServerVerifier>,
    hosts: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for OfHosts {
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
