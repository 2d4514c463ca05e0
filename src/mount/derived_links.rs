//! Links to the directories of derived samples, at paths that the user has named.
//!
//! 1. Before anything is mounted, [`check`] refuses paths in the source or in the mount.
//! 2. When the mount serves, a link is made at each path. If a link to the same place is there, which a killed daemon may
//!    have left, it is replaced. Anything else stays, and the mount ends with an error.
//! 3. At the end of the mount each link is removed, unless another one has taken its place.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::point::is_inside;
use crate::derive::Recipe;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{DERIVED, Location};

/// A link that was made: where it is, where it leads, and its device and inode.
struct Link {
    at: PathBuf,
    target: PathBuf,
    identity: (u64, u64),
}

/// The links of a mount.
pub(super) struct DerivedLinks(Vec<Link>);

/// Checks the paths of links. To be called before the mount covers the source.
///
/// # Errors
/// If a link would be in the source or in the mount.
pub(super) fn check(recipes: &[Recipe], source: &Location, mountpoint: &Path) -> Result<()> {
    for at in recipes.iter().filter_map(|recipe| recipe.at.as_deref()) {
        let directory = at.parent().unwrap_or(at);
        if source.path().is_some_and(|source| is_inside(directory, source)) {
            return Err(refused(at, "is in the source").hint("belady writes nothing there"));
        }
        if directory.starts_with(mountpoint) {
            return Err(refused(at, "is in the mount").hint("nothing can be written there"));
        }
    }
    Ok(())
}

impl DerivedLinks {
    /// Makes the links of these recipes for a mount.
    ///
    /// # Errors
    /// If something else is at a path, or no link can be made there. Then none is left.
    pub(super) fn make(recipes: &[Recipe], mountpoint: &Path) -> Result<Self> {
        let mut links = DerivedLinks(Vec::new());
        for recipe in recipes {
            let Some(at) = &recipe.at else { continue };
            let target = mountpoint.join(DERIVED).join(&recipe.name);
            let identity = make_link(at, &target)?;
            links.0.push(Link { at: at.clone(), target, identity });
        }
        Ok(links)
    }
}

impl Drop for DerivedLinks {
    fn drop(&mut self) {
        for Link { at, target, identity } in &self.0 {
            // Something else may have its inode by now, and another mount may have such a link.
            if leads_to(at, target) && identity_of(at).is_ok_and(|found| found == *identity) {
                // Somebody may have removed it.
                let _ = fs::remove_file(at);
            }
        }
    }
}

fn leads_to(at: &Path, target: &Path) -> bool {
    fs::read_link(at).is_ok_and(|found| found == target)
}

fn identity_of(at: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(at).map(|found| (found.dev(), found.ino()))
}

/// Makes a link, and returns its device and inode.
fn make_link(at: &Path, target: &Path) -> Result<(u64, u64)> {
    let made = match leads_to(at, target) {
        true => replace(at, target),
        false => symlink(target, at),
    };
    made.and_then(|()| identity_of(at)).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            refused(at, "exists already").hint("name a path at which nothing is")
        }
        _ => refused(at, &format!("cannot be made: {error}"))
            .hint("its directory has to exist, and you have to be allowed to write there"),
    })
}

/// Puts a new link in the place of one. Both exist for a moment, so the new one has another inode.
fn replace(at: &Path, target: &Path) -> std::io::Result<()> {
    let mut name = OsString::from(".");
    name.push(at.file_name().unwrap_or_default());
    name.push(format!(".belady-{}", std::process::id()));
    let beside = at.with_file_name(name);
    symlink(target, &beside)?;
    fs::rename(&beside, at).inspect_err(|_| _ = fs::remove_file(&beside))
}

fn refused(at: &Path, why: &str) -> Error {
    let message = format!("the path of derived samples {} {why}", at.display());
    Error::new(ErrorKind::Mount, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SourceConfig;
    use crate::derive::{Choice, Format, Steps, Work};

    fn recipe(at: &Path) -> Recipe {
        let work = Work::Image(Steps { resize: None, crop: None, format: Format::Png });
        let from = Choice::parse("").unwrap();
        Recipe { name: "small".into(), at: Some(at.to_owned()), from, work }
    }

    #[test]
    fn links_are_made_and_removed_and_nothing_else_is() {
        let top = tempfile::tempdir().unwrap();
        let (at, mount) = (top.path().join("small"), top.path().join("mount"));
        let make = |at: &Path| DerivedLinks::make(&[recipe(at)], &mount);
        let target = mount.join(".derived/small");
        drop(make(&at).unwrap());
        assert!(fs::symlink_metadata(&at).is_err(), "it is removed");
        // A killed daemon has left one.
        symlink(&target, &at).unwrap();
        let links = make(&at).unwrap();
        assert_eq!(fs::read_link(&at).unwrap(), target);
        // Another mount has replaced it.
        let later = make(&at).unwrap();
        drop(links);
        assert_eq!(fs::read_link(&at).unwrap(), target);
        fs::remove_file(&at).unwrap();
        fs::write(&at, "of the user").unwrap();
        drop(later);
        assert_eq!(fs::read(&at).unwrap(), b"of the user");
        let refused = |at: &Path| make(at).err().unwrap().to_string();
        assert!(refused(&at).contains("exists already"));
        assert!(refused(&top.path().join("none/small")).contains("cannot be made"));
    }

    #[test]
    fn no_link_is_in_the_source_or_in_the_mount() {
        let top = tempfile::tempdir().unwrap();
        let [source, mount] = ["source", "mount"].map(|name| top.path().join(name));
        fs::create_dir(&source).unwrap();
        let location = Location::parse(&source, &SourceConfig::default()).unwrap();
        let check = |at: &str| check(&[recipe(&top.path().join(at))], &location, &mount);
        assert!(check("small").is_ok());
        assert!(check("source/small").unwrap_err().to_string().contains("is in the source"));
        assert!(check("mount/x/small").unwrap_err().to_string().contains("is in the mount"));
    }
}
