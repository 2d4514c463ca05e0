//! The URL of a manifest, and who asks its server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use url::Url;

use crate::error::{Error, ErrorKind, Result};
use crate::source::address;
use crate::source::object::{Fault, client_options, retries};
use crate::source::remote::Passing;
use crate::source::tree::hash;

const NO_CREDENTIALS: &str = "belady sends no credentials: the server has to let everybody read";

const REACH: &str = "does the server run there, and is the address right?";

const NO_MANIFEST: &str =
    "SOURCE is the URL of a text with a line for each file, as https://HOST/DIRECTORY/files.tsv";

/// The files that a manifest on a web server names.
#[derive(Clone, Debug)]
pub struct Site {
    /// What paths are relative to.
    directory: Url,
    /// The manifest in that directory.
    manifest: Key,
    name: PathBuf,
}

impl Site {
    /// Reads the URL of a manifest.
    ///
    /// # Errors
    /// If it has credentials or parameters, or names no file.
    pub(in crate::source) fn parse(text: &str) -> Result<Self> {
        let url = address::parse(text, NO_CREDENTIALS)?;
        let no_manifest = || address::refuse("a URL without a manifest");
        let file = url.path().rsplit('/').next().filter(|file| !file.is_empty());
        let manifest = Key::from_url_path(file.ok_or_else(no_manifest)?)
            .map_err(|error| address::refuse(&format!("the URL: {error}")))?;
        let mut directory = url.clone();
        directory.path_segments_mut().map_err(|()| no_manifest())?.pop();
        Ok(Site { directory, manifest, name: url.as_str().into() })
    }

    pub(in crate::source) fn name(&self) -> &Path {
        &self.name
    }

    pub(super) fn manifest(&self) -> &Key {
        &self.manifest
    }

    /// A number that is the same for the same files.
    pub(in crate::source) fn identity(&self) -> u128 {
        let name = self.name.as_os_str().as_encoded_bytes();
        u128::from(hash(&[name, b"site"])) << 64 | u128::from(hash(&[name]))
    }

    /// The server. Nothing is asked of it yet.
    ///
    /// # Errors
    /// If there can be no client.
    pub(super) fn connect(&self) -> Result<Arc<dyn ObjectStore>> {
        let allows_http = self.directory.scheme() == "http";
        let built = HttpBuilder::new()
            .with_url(self.directory.as_str())
            .with_client_options(client_options(allows_http))
            .with_retry(retries())
            .build();
        match built {
            Ok(store) => Ok(Arc::new(store)),
            Err(error) => Err(self.refuse(&error.to_string())),
        }
    }

    /// The error of a mount.
    pub(super) fn refuse(&self, why: &str) -> Error {
        let message = format!("cannot use the source {}: {why}", self.name.display());
        Error::new(ErrorKind::Source, message)
    }

    /// The error of a mount whose server does not give out the manifest.
    pub(super) fn refuse_manifest(&self, fault: &Fault) -> Error {
        match fault {
            _ if fault.is_missing() => self.refuse("the manifest is not there").hint(NO_MANIFEST),
            _ => self.refuse_fault("the manifest", fault),
        }
    }

    /// The error of a mount whose server does not give out `what`.
    pub(super) fn refuse_fault(&self, what: &str, fault: &Fault) -> Error {
        match fault {
            _ if fault.is_refusal() => {
                self.refuse(&format!("the server does not let {what} be read")).hint(NO_CREDENTIALS)
            }
            _ => {
                let why = format!("{what} cannot be read: {}", fault.message());
                self.refuse(&why).hint(REACH)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_manifest_in_a_directory() {
        for (text, directory, manifest) in [
            ("https://host/files.tsv", "https://host/", "files.tsv"),
            ("http://host:8080/a/b/files.tsv", "http://host:8080/a/b", "files.tsv"),
            ("https://host:443/a%20b/my%20files", "https://host/a%20b", "my files"),
        ] {
            let site = Site::parse(text).unwrap();
            assert_eq!((site.directory.as_str(), site.manifest.as_ref()), (directory, manifest));
            assert_eq!(site.name(), Path::new(&text.replace(":443", "")));
        }
        let [one, same, other] = ["https://host/a", "https://host:443/a", "https://host/b"]
            .map(|text| Site::parse(text).unwrap().identity());
        assert!(one == same && one != other);
    }

    #[test]
    fn other_urls_are_refused_and_secrets_in_them_not_repeated() {
        for text in [
            "https://",
            "https://host",
            "https://host/",
            "https://host/directory/",
            "https://me:SECRET@host/files.tsv",
            "https://SECRET@host/files.tsv",
            "https://host/files.tsv?token=SECRET",
            "https://host/files.tsv#SECRET",
        ] {
            let error = Site::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Source);
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
    }
}
