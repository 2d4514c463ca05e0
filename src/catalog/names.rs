//! Names, packed.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names one after the other, each ended by a NUL: a name takes one byte beside itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Names(Arc<Vec<u8>>);

impl Names {
    /// Adds a name and says where it is; none where there is no room for it.
    pub(super) fn add(&mut self, name: &OsStr) -> Option<u32> {
        let at = u32::try_from(self.0.len()).ok()?;
        let bytes = Arc::make_mut(&mut self.0);
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        Some(at)
    }

    /// The name at a place that [`add`](Self::add) gave.
    pub(super) fn get(&self, at: u32) -> &OsStr {
        let rest = self.0.get(at as usize..).unwrap_or_default();
        let name = CStr::from_bytes_until_nul(rest).unwrap_or_default();
        OsStr::from_bytes(name.to_bytes())
    }

    /// Bytes of all names.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Gives back what was reserved for more names.
    pub(super) fn shrink(&mut self) {
        Arc::make_mut(&mut self.0).shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_no_place_is_wrong() {
        let mut names = Names::default();
        let long = "x".repeat(1000);
        let given = ["", "a", "\u{e9}t\u{e9}", &long];
        let places: Vec<u32> = given.iter().map(|n| names.add(OsStr::new(n)).unwrap()).collect();
        for (name, place) in given.iter().zip(places) {
            assert_eq!(names.get(place), OsStr::new(name));
        }
        assert_eq!(names.get(u32::MAX), OsStr::new(""));
    }
}
