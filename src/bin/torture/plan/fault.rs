//! The kinds of faults, and which errors and waits each explains.

use nix::libc;

use crate::fault_log::UNMOUNTED;
use crate::target::Subject;

/// A fault that is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The source answers opens and reads with EIO.
    SourceEio,
    /// The source answers opens and reads with ESTALE.
    SourceEstale,
    /// The source answers requests for names and attributes with EIO.
    SourceNamesEio,
    /// The source does not answer opens and reads.
    SourceHangData,
    /// The source does not answer requests for names and attributes.
    SourceHangNames,
    /// The source does not list directories.
    SourceHangLists,
    /// Reads at the source return half of the bytes.
    SourceShort,
    /// All answers of the source take much longer.
    SourceSlow,
    /// The source is unmounted, and comes back.
    SourceGone,
    /// Other processes take all the room of the cache disk.
    DiskFull,
    /// The cache disk becomes read-only.
    DiskReadOnly,
    /// Writes to the cache disk are held again and again.
    DiskSlow,
    /// Writes to the cache disk hang.
    DiskHangs,
    /// Every operation on the cache disk fails.
    DiskGone,
    /// The daemon has even less memory for a while.
    LessMemory,
    /// The daemon is killed and mounted again.
    Kill,
    /// The mount is removed and made again.
    Cycle,
    /// The daemon may open only few files, during the whole scenario.
    FewDescriptors,
    /// Passed-through files are read from a cache disk that fails.
    PassedThrough,
    /// A read that hangs has locked pages in the source's own client. If the file has changed, requests for
    /// its name and listings of its directory wait there for these pages.
    SourceHoldsPages,
}

/// A component into which faults are injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    Source,
    CacheDisk,
    Daemon,
}

const NOTHING: &[i32] = &[];

impl Fault {
    #[cfg(test)]
    pub(crate) const ALL: [Fault; 20] = [
        Fault::SourceEio,
        Fault::SourceEstale,
        Fault::SourceNamesEio,
        Fault::SourceHangData,
        Fault::SourceHangNames,
        Fault::SourceHangLists,
        Fault::SourceShort,
        Fault::SourceSlow,
        Fault::SourceGone,
        Fault::DiskFull,
        Fault::DiskReadOnly,
        Fault::DiskSlow,
        Fault::DiskHangs,
        Fault::DiskGone,
        Fault::LessMemory,
        Fault::Kill,
        Fault::Cycle,
        Fault::FewDescriptors,
        Fault::PassedThrough,
        Fault::SourceHoldsPages,
    ];

    /// Its name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::SourceEio => "source: EIO of data",
            Fault::SourceEstale => "source: ESTALE of data",
            Fault::SourceNamesEio => "source: EIO of names",
            Fault::SourceHangData => "source: data hang",
            Fault::SourceHangNames => "source: names hang",
            Fault::SourceHangLists => "source: listings hang",
            Fault::SourceShort => "source: short reads",
            Fault::SourceSlow => "source: slow",
            Fault::SourceGone => "source: unmounted",
            Fault::DiskFull => "cache disk: full",
            Fault::DiskReadOnly => "cache disk: read-only",
            Fault::DiskSlow => "cache disk: slow",
            Fault::DiskHangs => "cache disk: hangs",
            Fault::DiskGone => "cache disk: gone",
            Fault::LessMemory => "memory: less",
            Fault::Kill => "daemon: killed",
            Fault::Cycle => "mount: taken away",
            Fault::FewDescriptors => "daemon: few descriptors",
            Fault::PassedThrough => "cache disk: fails under passed-through files",
            Fault::SourceHoldsPages => "source: pages locked by a data hang",
        }
    }

    /// The errors that an operation on the subject may see.
    pub(crate) fn errors(self, subject: &Subject) -> &'static [i32] {
        match self {
            // A map shows any error as EFAULT.
            Fault::SourceEio | Fault::SourceNamesEio => &[libc::EIO, libc::EFAULT],
            Fault::SourceEstale => &[libc::ESTALE, libc::EFAULT],
            Fault::SourceShort => &[libc::EIO, libc::ESTALE, libc::EFAULT],
            // The answer to an earlier request may come from a source that has ended meanwhile.
            Fault::SourceGone => {
                &[libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::ESTALE, libc::EFAULT]
            }
            Fault::Kill | Fault::Cycle => UNMOUNTED,
            Fault::FewDescriptors => &[libc::EMFILE, libc::ENFILE],
            Fault::PassedThrough if matches!(subject, Subject::File(_)) => {
                &[libc::EIO, libc::EFAULT]
            }
            _ => NOTHING,
        }
    }

    /// Whether operations on the subject may wait while the fault lasts.
    pub(crate) fn holds(self, subject: &Subject) -> bool {
        match self {
            Fault::SourceHangData => matches!(subject, Subject::File(_) | Subject::Remount),
            // A name that is not known yet is searched by a listing.
            Fault::SourceHangNames | Fault::SourceHangLists | Fault::SourceHoldsPages => {
                !matches!(subject, Subject::End(_))
            }
            // A mount waits for the disk as long as belady does, then goes on without it or ends.
            Fault::DiskHangs => {
                matches!(subject, Subject::Mount | Subject::Remount | Subject::End(_))
            }
            _ => false,
        }
    }

    /// How many names of a directory must meet the fault until all others there may wait, too. Names hang
    /// one by one until eight hang side by side. A listing of the directory may be one of the eight.
    pub(crate) fn spreads_from(self) -> Option<usize> {
        (self == Fault::SourceHangNames).then_some(7)
    }

    /// Whether some requests are not answered until it ends.
    pub(crate) fn hangs(self) -> bool {
        matches!(
            self,
            Fault::SourceHangData
                | Fault::SourceHangNames
                | Fault::SourceHangLists
                | Fault::DiskHangs
        )
    }

    /// Whether nothing is mounted while it lasts.
    pub(crate) fn removes_the_mount(self) -> bool {
        matches!(self, Fault::Kill | Fault::Cycle)
    }

    /// The component that it hits. Its name begins with that.
    pub(crate) fn component(self) -> Component {
        match self.name() {
            name if name.starts_with("source") => Component::Source,
            name if name.starts_with("cache disk") => Component::CacheDisk,
            _ => Component::Daemon,
        }
    }
}
