//! The URL of a store, and the options with which it is asked.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::path::Path as Key;
use object_store::{ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig};
use url::Url;

use super::fault::Fault;
use crate::error::{Error, ErrorKind, Result};
use crate::source::address::{self, KnownOptions, Options};
use crate::source::remote::Passing;
use crate::source::tree::hash;

/// How long a connection may take, a pause within an answer, and a whole answer.
const CONNECT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(60);

/// How often the library makes a request again before belady decides, and for how long.
const RETRIES: usize = 2;
const RETRIES_FOR: Duration = Duration::from_secs(10);

/// Connections that are kept when nothing is asked. There is one for each request under way.
const CONNECTIONS: usize = 1024;

/// Options that are the address of a store.
const ADDRESSES: [&str; 4] =
    ["aws_endpoint", "aws_endpoint_url_s3", "azure_storage_endpoint", "google_base_url"];

/// The option that says whose containers are meant.
const ACCOUNT: &str = "azure_storage_account_name";

/// Options that say who asks. They come from one place.
const KEY: [&str; 15] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "azure_credential_type",
    "azure_federated_token_file",
    "azure_storage_account_key",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_sas_key",
    "azure_storage_tenant_id",
    "azure_storage_token",
    "google_application_credentials",
    "google_bearer_token",
    "google_service_account",
    "google_service_account_key",
];

/// How long a client waits, and whether it may ask without TLS.
pub(in crate::source) fn client_options(allows_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_connect_timeout(CONNECT)
        .with_read_timeout(SILENCE)
        .with_timeout(ANSWER)
        .with_pool_max_idle_per_host(CONNECTIONS)
        .with_allow_http(allows_http)
}

/// How often the library makes a request again.
pub(in crate::source) fn retries() -> RetryConfig {
    RetryConfig { max_retries: RETRIES, retry_timeout: RETRIES_FOR, ..RetryConfig::default() }
}

/// A store: its objects, and its listings page by page.
pub(super) struct Store {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) pages: Arc<dyn PaginatedListStore>,
}

impl Store {
    pub(super) fn of(store: Arc<impl ObjectStore + PaginatedListStore>) -> Self {
        Store { objects: Arc::clone(&store) as _, pages: store }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Azure,
    Gcs,
}

impl Kind {
    fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" | "s3a" => Some(Kind::S3),
            "az" => Some(Kind::Azure),
            "gs" => Some(Kind::Gcs),
            _ => None,
        }
    }

    fn scheme(self) -> &'static str {
        match self {
            Kind::S3 => "s3",
            Kind::Azure => "az",
            Kind::Gcs => "gs",
        }
    }

    /// How the variables of the environment begin that are options.
    fn prefix(self) -> &'static str {
        match self {
            Kind::S3 => "aws_",
            Kind::Azure => "azure_",
            Kind::Gcs => "google_",
        }
    }

    /// The name of an option, which may have several.
    fn option(self, name: &str) -> Option<String> {
        match self {
            Kind::S3 => Some(AmazonS3ConfigKey::from_str(name).ok()?.as_ref().to_owned()),
            Kind::Azure => Some(AzureConfigKey::from_str(name).ok()?.as_ref().to_owned()),
            Kind::Gcs => Some(GoogleConfigKey::from_str(name).ok()?.as_ref().to_owned()),
        }
    }

    /// What may help if the store does not answer.
    fn reach(self) -> &'static str {
        match self {
            Kind::S3 => {
                "does the store run, and is AWS_ENDPOINT_URL or AWS_REGION right? Without a key, \
                 this machine's cloud is asked for one"
            }
            Kind::Azure => {
                "is AZURE_STORAGE_ACCOUNT_NAME right? Without a key, this machine's cloud is asked for \
                 one"
            }
            Kind::Gcs => "does the store run? Without a key, this machine's cloud is asked for one",
        }
    }

    /// What may help if the store refuses.
    fn rights(self) -> &'static str {
        match self {
            Kind::S3 => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with them in \
                 source.credentials; they need s3:ListBucket and s3:GetObject. A public bucket \
                 needs AWS_SKIP_SIGNATURE=true instead"
            }
            Kind::Azure => {
                "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or \
                 AZURE_STORAGE_SAS_KEY; they need the rights to list and to read"
            }
            Kind::Gcs => {
                "set GOOGLE_SERVICE_ACCOUNT to the key file of an account that has \
                 storage.objects.list and storage.objects.get"
            }
        }
    }
}

/// A bucket of an object store, or what is below a prefix in one.
#[derive(Clone)]
pub struct Bucket {
    kind: Kind,
    url: Url,
    prefix: Key,
    name: PathBuf,
    options: Options,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({})", self.name.display())
    }
}

impl Bucket {
    /// Reads a URL with this scheme. Options come from the environment, and from a file if one is given.
    ///
    /// # Errors
    /// If the URL is none of a store, or has credentials, or if the file cannot be used.
    pub(in crate::source) fn parse(scheme: &str, text: &str, credentials: &Path) -> Result<Self> {
        let kind = Kind::of(scheme);
        let kind = kind.ok_or_else(|| address::refuse(&format!("a source {scheme}://")))?;
        let url = address::parse(text, kind.rights())?;
        let bucket = url.host_str().unwrap_or_default().to_owned();
        let prefix = Key::from_url_path(url.path())
            .map_err(|error| address::refuse(&format!("the URL: {error}")))?;
        if url.port().is_some() {
            return Err(address::refuse(&format!("a {}:// URL with a port", kind.scheme()))
                .hint("the address of a server that is not Amazon's is AWS_ENDPOINT_URL"));
        }
        let option = |name: &str| kind.option(name);
        let known = KnownOptions { prefix: kind.prefix(), name_of: &option, key: &KEY };
        let options = known.read(credentials)?;
        let name = name_of(kind, &bucket, &prefix);
        let bucket = Bucket { kind, url, prefix, name, options };
        for address in bucket.addresses() {
            if !Url::parse(address).is_ok_and(|url| ["http", "https"].contains(&url.scheme())) {
                let message = format!("the address {address:?} of the store is none");
                return Err(
                    Error::new(ErrorKind::Source, message).hint("write it as https://HOST:PORT")
                );
            }
        }
        Ok(bucket)
    }

    pub(in crate::source) fn name(&self) -> &Path {
        &self.name
    }

    pub(super) fn prefix(&self) -> &Key {
        &self.prefix
    }

    /// The directory that its prefix is in, and the last name of its prefix; `None` if it has none, or if the URL says
    /// by a slash that the prefix is a directory.
    pub(in crate::source) fn split(&self) -> Option<(Self, String)> {
        if self.url.path().ends_with('/') {
            return None;
        }
        let mut names: Vec<_> = self.prefix.parts().collect();
        let last = names.pop()?;
        let prefix = Key::from_iter(names);
        let name = name_of(self.kind, self.url.host_str().unwrap_or_default(), &prefix);
        Some((Bucket { prefix, name, ..self.clone() }, last.as_ref().to_owned()))
    }

    /// A number that is the same for the same objects, whoever asks for them.
    pub(in crate::source) fn identity(&self) -> u128 {
        let mut parts = vec![self.name.as_os_str().as_encoded_bytes()];
        parts.extend(self.addresses().map(|address| address.trim_end_matches('/').as_bytes()));
        parts.extend(self.options.get(ACCOUNT).map(|account| account.as_bytes()));
        let low = hash(&parts);
        parts.push(b"bucket");
        u128::from(hash(&parts)) << 64 | u128::from(low)
    }

    /// The addresses that the options name.
    fn addresses(&self) -> impl Iterator<Item = &str> {
        ADDRESSES.iter().filter_map(|address| Some(self.options.get(*address)?.as_str()))
    }

    /// The store. Nothing is asked of it yet.
    ///
    /// # Errors
    /// If the options do not fit together.
    pub(super) fn connect(&self) -> Result<Store> {
        // Who writes such an address wants it. An address of Google's may be in the key file.
        let is_plain = |address: &str| address.starts_with("http://");
        let allows_http = self.kind == Kind::Gcs || self.addresses().any(is_plain);
        // Else Google unpacks objects that are stored packed, and their sizes are not the listed ones.
        let mut packed = HeaderMap::new();
        packed.insert("accept-encoding", HeaderValue::from_static("gzip"));
        let client = client_options(allows_http);
        let client = match self.kind {
            Kind::S3 | Kind::Azure => client,
            Kind::Gcs => client.with_default_headers(packed),
        };
        /// The builders have the same functions, but no trait.
        macro_rules! build {
            ($builder:ty) => {{
                let builder = <$builder>::new()
                    .with_url(self.url.as_str())
                    .with_client_options(client)
                    .with_retry(retries());
                let built = self.options.iter().fold(builder, |builder, (name, value)| {
                    // Names were looked at when they were read.
                    match name.parse() {
                        Ok(name) => builder.with_config(name, value),
                        Err(_) => builder,
                    }
                });
                built.build().map(|store| Store::of(Arc::new(store)))
            }};
        }
        let built = match self.kind {
            Kind::S3 => build!(AmazonS3Builder),
            Kind::Azure => build!(MicrosoftAzureBuilder),
            Kind::Gcs => build!(GoogleCloudStorageBuilder),
        };
        built.map_err(|error| self.refuse(&error.into()))
    }

    /// The error of a mount whose store does not let the bucket be listed.
    pub(super) fn refuse(&self, fault: &Fault) -> Error {
        let message =
            format!("cannot list the source {}: {}", self.name.display(), fault.message());
        let hint = match fault {
            _ if fault.is_no_bucket() => "is the name of the bucket right?",
            _ if fault.is_invalid_key() => {
                "such an object cannot be shown as a file: give it another key, or mount a prefix \
                 without it"
            }
            _ if fault.is_unreachable() || fault.is_elsewhere() => self.kind.reach(),
            _ => self.kind.rights(),
        };
        Error::new(ErrorKind::Source, message).hint(hint)
    }
}

/// What people call it.
fn name_of(kind: Kind, bucket: &str, prefix: &Key) -> PathBuf {
    let slash = if prefix.as_ref().is_empty() { "" } else { "/" };
    format!("{}://{bucket}{slash}{prefix}", kind.scheme()).into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parse(text: &str) -> Result<Bucket> {
        let (scheme, _) = text.split_once("://").unwrap();
        Bucket::parse(scheme, text, Path::new(""))
    }

    #[test]
    fn urls_name_a_bucket_and_a_directory_in_it() {
        for (text, name, prefix) in [
            ("s3://bucket", "s3://bucket", ""),
            ("s3a://bucket/", "s3://bucket", ""),
            ("s3://bucket/a/b%20c/", "s3://bucket/a/b c", "a/b c"),
            ("gs://bucket/a", "gs://bucket/a", "a"),
            ("az://container/a/", "az://container/a", "a"),
        ] {
            let bucket = parse(text).unwrap();
            assert_eq!((bucket.name(), bucket.prefix().as_ref()), (Path::new(name), prefix));
        }
    }

    #[test]
    fn a_key_is_split_into_its_directory_and_its_name() {
        for (text, split) in [
            ("s3://bucket/a/b%20c/1.tar", Some(("s3://bucket/a/b c", "1.tar"))),
            ("gs://bucket/1.tar", Some(("gs://bucket", "1.tar"))),
            ("az://container/1.zip", Some(("az://container", "1.zip"))),
            ("s3://bucket/shards.tar/", None),
            ("s3://bucket", None),
        ] {
            let found = parse(text).unwrap().split();
            let found =
                found.as_ref().map(|(above, name)| (above.name().to_str().unwrap(), &**name));
            assert_eq!(found, split);
        }
        let (above, _) = parse("s3://bucket/a/1.tar").unwrap().split().unwrap();
        assert_eq!(above.identity(), parse("s3://bucket/a").unwrap().identity());
    }

    #[test]
    fn other_urls_are_refused_and_secrets_in_them_not_repeated() {
        for text in [
            "http://host/x",
            "s3://",
            "s3://bucket/a//b",
            "s3://me:SECRET@bucket/x",
            "s3://bucket/x?token=SECRET",
            "az://SECRET@account.blob.core.windows.net",
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Source);
            let said = error.to_string().replace("AWS_SECRET_ACCESS_KEY", "");
            assert!(!said.contains("SECRET"), "{said}");
        }
    }

    #[test]
    fn a_file_of_credentials_is_ones_own_and_has_known_names() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str, mode: u32| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            Bucket::parse("s3", "s3://bucket", file.path())
        };
        let text = "# me\n[default]\naws_access_key_id = KEY\nAWS_SECRET_ACCESS_KEY=\"SECRET\"\n";
        let bucket = read(text, 0o600).unwrap();
        assert_eq!(bucket.options["aws_secret_access_key"], "SECRET");
        assert!(!format!("{bucket:?}").contains("SECRET"));
        let refused = |text: &str, mode| read(text, mode).unwrap_err().to_string();
        assert!(refused(text, 0o640).contains("chmod 600"));
        assert!(
            refused("aws_acess_key = SECRET", 0o600).contains("line 1: this source has no option")
        );
        assert!(!refused("aws_access_key_id SECRET", 0o600).contains("SECRET"));
        assert!(refused("region = a\nregion = b", 0o600).contains("twice"));
    }

    #[test]
    fn the_same_name_at_another_address_is_another_source() {
        let with = |endpoint: &str| {
            let mut bucket = parse("s3://bucket/x").unwrap();
            bucket.options = [("aws_endpoint".into(), endpoint.into())].into();
            bucket.identity()
        };
        assert_eq!(with("http://a"), with("http://a/"));
        assert!(with("http://a") != with("http://b"));
    }
}
