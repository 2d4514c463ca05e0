//! URLs of stores, and the options with which they are asked.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;
use url::Url;

use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};

/// What URLs can be mounted.
const USAGE: &str = "SOURCE is a directory, s3://BUCKET/DIRECTORY, gs://BUCKET/DIRECTORY, \
                     az://CONTAINER/DIRECTORY, redis://HOST:PORT/DATABASE/PREFIX, \
                     cassandra://HOST,HOST:PORT/KEYSPACE, or https://HOST/DIRECTORY/MANIFEST";

/// Names of options in lower case, and values, some of which are secret.
pub(super) type Options = BTreeMap<String, String>;

/// The error for a URL that cannot be mounted.
pub(super) fn refuse(what: &str) -> Error {
    Error::new(ErrorKind::Source, format!("cannot use {what}")).hint(USAGE)
}

/// Reads a URL. It is not repeated in errors, since a secret may stand in it.
///
/// # Errors
/// If it is none, or has credentials, for which `rights` says where they belong, or parameters.
pub(super) fn parse(text: &str, rights: &str) -> Result<Url> {
    let url = Url::parse(text).map_err(|error| refuse(&format!("the URL: {error}")))?;
    let has_secret = !url.username().is_empty() || url.password().is_some();
    if has_secret {
        let what = "cannot use a URL with credentials";
        return Err(Error::new(ErrorKind::Source, what).hint(rights));
    }
    if url.query().is_some() || url.fragment().is_some() {
        let what = "cannot use a URL with parameters";
        return Err(
            Error::new(ErrorKind::Source, what).hint("if ? or # stand in a key, write %3F or %23")
        );
    }
    match url.host_str() {
        Some(host) if !host.is_empty() => Ok(url),
        _ => Err(refuse("a URL without a host or a bucket")),
    }
}

/// The options of a kind of store.
pub(super) struct KnownOptions<'a> {
    /// How their names begin in the environment, in lower case.
    pub(super) prefix: &'a str,
    /// The one name of an option that may have several; `None` if there is no such option.
    pub(super) name_of: &'a dyn Fn(&str) -> Option<String>,
    /// The options that say who asks. If one is in the file, none is taken from the environment.
    pub(super) key: &'a [&'a str],
}

impl KnownOptions<'_> {
    /// The options in the environment, replaced by those of a file, if one is given.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub(super) fn read(&self, credentials: &Path) -> Result<Options> {
        let of_environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.to_str()?.to_ascii_lowercase();
            let name = (self.name_of)(&name).filter(|_| name.starts_with(self.prefix))?;
            Some((name, value.into_string().ok().filter(|value| !value.is_empty())?))
        });
        let mut options: Options = of_environment.collect();
        if !credentials.as_os_str().is_empty() {
            let of_file = self.read_file(credentials)?;
            let is_key = |name: &String| self.key.contains(&name.as_str());
            if of_file.keys().any(is_key) {
                options.retain(|name, _| !is_key(name));
            }
            options.extend(of_file);
        }
        Ok(options)
    }

    /// The options in a file of lines `NAME = VALUE`. Lines of a `[profile]`, comments and empty lines say nothing.
    fn read_file(&self, path: &Path) -> Result<Options> {
        let refuse = |what: &str| {
            let message = format!("source.credentials: {} {what}", path.display());
            Error::new(ErrorKind::Config, message)
        };
        let found =
            std::fs::metadata(path).map_err(|error| refuse(&format!("cannot be read: {error}")))?;
        if found.mode() & 0o077 != 0 {
            let fix = format!("chmod 600 {}", path.display());
            return Err(refuse("may be read by others").hint(fix));
        }
        if ![0, geteuid().as_raw()].contains(&found.uid()) {
            return Err(refuse("is another user's").hint("use a file of your own"));
        }
        let text = input::read_text(path, &Limits::CONFIG)?;
        let mut options = Options::new();
        for (number, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with(['#', ';', '[']) {
                continue;
            }
            let at = format!("line {}", number + 1);
            let (name, value) = line.split_once('=').ok_or_else(|| {
                refuse(&format!("{at} is not NAME = VALUE"))
                    .hint("write it as AWS_ACCESS_KEY_ID = ..., one a line")
            })?;
            let written = name.trim().to_ascii_lowercase();
            let name = (self.name_of)(&written)
                .ok_or_else(|| refuse(&format!("{at}: this source has no option {written}")))?;
            let value = value.trim().trim_matches('"').to_owned();
            if options.insert(name.clone(), value).is_some() {
                return Err(refuse(&format!("{at}: {name} is there twice"))
                    .hint("use a file with one profile"));
            }
        }
        Ok(options)
    }
}
