//! A look at one file when a site is mounted: whether its server answers as the manifest says.

use object_store::Error as StoreError;

use super::Site;
use super::asked::{Asked, Listed, Wanted};
use crate::error::Error;
use crate::source::object::{Fault, etag_of};
use crate::source::remote::{PATIENCE_OF_LISTINGS, patiently};

const RELATIVE: &str = "PATH is relative to the directory of the manifest";
const OLD: &str = "the manifest is older than the file: write it again";
const NO_ETAGS: &str = "if files never change, leave ETAG out and set source.consistency=immutable";
const RANGES: &str =
    "large files are read in parts, so the server has to support range requests (RFC 9110)";

/// Why a server and a manifest do not fit.
#[derive(Debug)]
pub(super) enum Unfit {
    /// The server does not have the file.
    Missing,
    /// The file has another size.
    Size { found: u64, listed: u64 },
    /// The file has another ETag, or none.
    Etag { found: Option<String>, listed: Box<str> },
    /// The server does not give out a part of the file.
    NoRanges,
    /// The server does not answer as it should.
    Fault(Fault),
}

impl From<Fault> for Unfit {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Store(StoreError::NotSupported { .. }) => Unfit::NoRanges,
            fault if fault.is_missing() => Unfit::Missing,
            fault => Unfit::Fault(fault),
        }
    }
}

impl Unfit {
    /// The error of a mount.
    pub(super) fn refuse(&self, site: &Site, path: &str) -> Error {
        match self {
            Unfit::Missing => site
                .refuse(&format!("the manifest names {path}, and the server does not have it"))
                .hint(RELATIVE),
            Unfit::Size { found, listed } => site
                .refuse(&format!("{path} has {found} bytes, and {listed} in the manifest"))
                .hint(OLD),
            Unfit::Etag { found: Some(found), listed } => site
                .refuse(&format!("{path} has the ETag {found}, and {listed} in the manifest"))
                .hint(OLD),
            Unfit::Etag { found: None, .. } => {
                site.refuse(&format!("the server tells no ETag of {path}")).hint(NO_ETAGS)
            }
            Unfit::NoRanges => {
                site.refuse(&format!("the server does not give out parts of {path}")).hint(RANGES)
            }
            Unfit::Fault(fault) => site.refuse_fault(path, fault),
        }
    }
}

/// Looks at a file, and reads its last byte.
///
/// # Errors
/// If the server does not answer as the manifest says.
pub(super) async fn look(asked: &Asked, listed: &Listed, size: Option<u64>) -> Result<(), Unfit> {
    let found = asked.head(listed, PATIENCE_OF_LISTINGS).await?;
    if let Some(size) = size.filter(|size| *size != found.size) {
        return Err(Unfit::Size { found: found.size, listed: size });
    }
    if let Some(etag) = listed.etag.as_ref().filter(|etag| etag_of(&found) != Some(&***etag)) {
        let found = etag_of(&found).map(str::to_owned);
        return Err(Unfit::Etag { found, listed: etag.clone() });
    }
    // All of a smaller file is read at once.
    if found.size > 1 {
        let wanted = Wanted::last_byte(listed, found.size);
        patiently(PATIENCE_OF_LISTINGS, || asked.read_once(&wanted)).await?;
    }
    Ok(())
}
