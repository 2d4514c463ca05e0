//! The bindings of a buffer's streams that are in use in this mount.

use std::io::Result;
use std::sync::Arc;

use crate::disk::Disk;
use crate::rehearsal::Bindings;

#[derive(Default)]
pub(super) struct Streams {
    known: Vec<Arc<Bindings>>,
    /// A warning was logged that they cannot be synced, and they still cannot.
    warned: bool,
}

impl Streams {
    /// The bindings of an epoch, if they are in use or can be [taken up](Bindings::take_up).
    pub(super) fn take_up(
        &mut self,
        disk: &dyn Disk,
        epoch: u64,
        held: impl Fn(u32) -> bool,
    ) -> Result<Option<Arc<Bindings>>> {
        if let Some(known) = self.known.iter().find(|known| known.epoch() == epoch) {
            return Ok(Some(Arc::clone(known)));
        }
        Ok(Bindings::take_up(disk, epoch, held)?.map(|bindings| self.keep(bindings)))
    }

    pub(super) fn begin(
        &mut self,
        disk: &dyn Disk,
        epoch: u64,
        set: &[u32],
    ) -> Result<Arc<Bindings>> {
        let goes_on = |epoch| self.known.iter().any(|known| known.epoch() == epoch);
        Ok(self.keep(Bindings::begin(disk, epoch, set, goes_on)?))
    }

    fn keep(&mut self, bindings: Bindings) -> Arc<Bindings> {
        let bindings = Arc::new(bindings);
        self.known.push(Arc::clone(&bindings));
        bindings
    }

    /// Forgets all epochs, and deletes their files.
    pub(super) fn end(&mut self, disk: &dyn Disk) -> Result<()> {
        self.known.clear();
        Bindings::clear(disk)
    }

    /// Syncs the bindings. Failures are tried again with the next call.
    pub(super) fn sync(&mut self, name: &str) {
        let mut failed = None;
        for bindings in &self.known {
            failed = bindings.sync().err().or(failed);
        }
        if let Some(error) = failed.as_ref().filter(|_| !self.warned) {
            tracing::warn!(name, %error, "what a stream binds may not outlive the machine");
        }
        self.warned = failed.is_some();
        // The dropped ones are synced, and no view uses them.
        self.known.retain(|bindings| Arc::strong_count(bindings) > 1 || !bindings.lasts());
    }

    pub(super) fn last(&self) -> bool {
        self.known.iter().all(|bindings| bindings.lasts())
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;
    use crate::disk::tests::model::Model;

    #[test]
    fn one_that_fails_keeps_no_other_from_lasting_and_is_tried_again() {
        let (disk, mut streams) = (Model::default(), Streams::default());
        let shown = [3, 4].map(|epoch| streams.begin(&disk, epoch, &[1, 2, 3]).unwrap());
        shown.iter().for_each(|bindings| bindings.bind(0, 2));
        assert!(!streams.last());
        disk.fail_syncs_of(Some("stream-00000001-3"));
        streams.sync("old");
        assert!(!streams.last() && streams.warned && shown[1].lasts());
        disk.fail_syncs_of(None);
        streams.sync("old");
        assert!(streams.last() && !streams.warned && streams.known.len() == 2);
        let [first, second] = shown;
        first.bind(1, 1);
        drop((first, second));
        disk.fail_syncs(Some(libc::EIO));
        streams.sync("old");
        assert_eq!(streams.known.len(), 1, "what does not last yet is kept");
        disk.fail_syncs(None);
        streams.sync("old");
        assert!(streams.known.is_empty());
        let again = streams.take_up(&disk, 3, |_| true).unwrap().unwrap();
        assert_eq!(again.pairs(), [(0, 2), (1, 1)]);
        streams.end(&disk).unwrap();
        assert!(streams.known.is_empty() && disk.names().unwrap().is_empty());
    }
}
