//! Certificates for tests: an authority, and a certificate of 127.0.0.1 that it has signed.

use std::path::PathBuf;
use std::process::Command;

use crate::fixture::{Fixture, said};

/// The fields are files in PEM.
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) own: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    pub(crate) fn make(fixture: &Fixture) -> Self {
        let file = |name: &str| fixture.path(name);
        let [authority, authority_key] = ["ca.pem", "ca.key"].map(file);
        let [own, key] = ["node.pem", "node.key"].map(file);
        let new_key = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
        let request = [&new_key[..], &["-nodes", "-days", "2"]].concat();
        let openssl = |words: &[&str], key: &PathBuf, own: &PathBuf| {
            let mut command = Command::new("openssl");
            command.args(&request).args(words).arg("-keyout").arg(key).arg("-out").arg(own);
            let output = command.output().expect("openssl is missing: scripts/test installs it");
            assert!(output.status.success(), "{}", said(&output));
        };
        openssl(&["-subj", "/CN=authority"], &authority_key, &authority);
        let name = ["-addext", "subjectAltName=IP:127.0.0.1"];
        let signed = ["-subj", "/CN=node", "-addext", "basicConstraints=critical,CA:FALSE"];
        let by = ["-CA", authority.to_str().unwrap(), "-CAkey"];
        let signed = [&signed[..], &name, &by].concat();
        openssl(&[&signed[..], &[authority_key.to_str().unwrap()]].concat(), &key, &own);
        Certificates { authority, own, key }
    }

    /// The options of a node that uses these.
    pub(crate) fn options(&self) -> Vec<String> {
        let files = [("ca", &self.authority), ("cert", &self.own), ("key", &self.key)];
        let set = |(name, file): (&str, &PathBuf)| {
            ["--set".to_owned(), format!("cluster.tls-{name}={}", file.display())]
        };
        files.into_iter().flat_map(set).collect()
    }
}
