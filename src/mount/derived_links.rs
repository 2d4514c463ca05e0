//! Links to the directories of derived samples, at paths that the user has named.
//!
//! A link is made when the mount serves, and removed when it has ended. One that a killed daemon has left leads to the same
//! place, so the next mount takes it over. Nothing else at such a path is touched.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::point::is_inside;
use crate::derive::Recipe;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{DERIVED, Location};

/// Links that are there, and where they lead.
pub(super) struct DerivedLinks(Vec<(PathBuf, PathBuf)>);

impl DerivedLinks {
    /// Makes the links of these recipes for a mount.
    ///
    /// # Errors
    /// If something else is at a path, or it is in the source, or no link can be made there. Then none is left.
    pub(super) fn make(recipes: &[Recipe], source: &Location, mountpoint: &Path) -> Result<Self> {
        let mut links = DerivedLinks(Vec::new());
        for recipe in recipes {
            let Some(at) = &recipe.at else { continue };
            let target = mountpoint.join(DERIVED).join(&recipe.name);
            check_outside(at, source)?;
            make_link(at, &target)?;
            links.0.push((at.clone(), target));
        }
        Ok(links)
    }
}

impl Drop for DerivedLinks {
    fn drop(&mut self) {
        for (at, target) in &self.0 {
            if leads_to(at, target) {
                // Somebody may have removed it.
                let _ = fs::remove_file(at);
            }
        }
    }
}

fn leads_to(at: &Path, target: &Path) -> bool {
    fs::read_link(at).is_ok_and(|found| found == target)
}

fn check_outside(at: &Path, source: &Location) -> Result<()> {
    let directory = at.parent().unwrap_or(at);
    match source.path().is_some_and(|source| is_inside(directory, source)) {
        false => Ok(()),
        true => Err(refused(at, "is in the source").hint("belady writes nothing there")),
    }
}

fn make_link(at: &Path, target: &Path) -> Result<()> {
    match symlink(target, at) {
        Ok(()) => Ok(()),
        Err(_) if leads_to(at, target) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(refused(at, "exists already").hint("name a path at which nothing is"))
        }
        Err(error) => Err(refused(at, &format!("cannot be made: {error}"))
            .hint("its directory has to exist, and you have to be allowed to write there")),
    }
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
        let source = top.path().join("source");
        fs::create_dir(&source).unwrap();
        let location = Location::parse(&source, &SourceConfig::default()).unwrap();
        let make = |at: &Path| DerivedLinks::make(&[recipe(at)], &location, &mount);
        let target = mount.join(".derived/small");
        drop(make(&at).unwrap());
        assert!(fs::symlink_metadata(&at).is_err(), "it is removed");
        // A killed daemon has left one.
        symlink(&target, &at).unwrap();
        let links = make(&at).unwrap();
        assert_eq!(fs::read_link(&at).unwrap(), target);
        fs::remove_file(&at).unwrap();
        fs::write(&at, "of the user").unwrap();
        drop(links);
        assert_eq!(fs::read(&at).unwrap(), b"of the user");
        let refused = |at: &Path| make(at).err().unwrap().to_string();
        assert!(refused(&at).contains("exists already"));
        assert!(refused(&source.join("small")).contains("is in the source"));
        assert!(refused(&top.path().join("none/small")).contains("cannot be made"));
    }
}
