//! The kinds of trouble, and which errors and waits each explains.

use nix::libc;

use crate::excuse::AWAY;
use crate::target::Subject;

/// A fault that is made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
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
    /// The daemon may open only few files, during the whole episode.
    FewDescriptors,
    /// Passed-through files are read from a cache disk that fails.
    PassedThrough,
    /// A read that hangs has locked pages in the source's own client. If the file has changed, requests for
    /// its name and listings of its directory wait there for these pages.
    SourceHoldsPages,
}

const NOTHING: &[i32] = &[];

impl Trouble {
    #[cfg(test)]
    pub(crate) const ALL: [Trouble; 20] = [
        Trouble::SourceEio,
        Trouble::SourceEstale,
        Trouble::SourceNamesEio,
        Trouble::SourceHangData,
        Trouble::SourceHangNames,
        Trouble::SourceHangLists,
        Trouble::SourceShort,
        Trouble::SourceSlow,
        Trouble::SourceGone,
        Trouble::DiskFull,
        Trouble::DiskReadOnly,
        Trouble::DiskSlow,
        Trouble::DiskHangs,
        Trouble::DiskGone,
        Trouble::LessMemory,
        Trouble::Kill,
        Trouble::Cycle,
        Trouble::FewDescriptors,
        Trouble::PassedThrough,
        Trouble::SourceHoldsPages,
    ];

    /// Its name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Trouble::SourceEio => "source: EIO of data",
            Trouble::SourceEstale => "source: ESTALE of data",
            Trouble::SourceNamesEio => "source: EIO of names",
            Trouble::SourceHangData => "source: data hang",
            Trouble::SourceHangNames => "source: names hang",
            Trouble::SourceHangLists => "source: listings hang",
            Trouble::SourceShort => "source: short reads",
            Trouble::SourceSlow => "source: slow",
            Trouble::SourceGone => "source: unmounted",
            Trouble::DiskFull => "cache disk: full",
            Trouble::DiskReadOnly => "cache disk: read-only",
            Trouble::DiskSlow => "cache disk: slow",
            Trouble::DiskHangs => "cache disk: hangs",
            Trouble::DiskGone => "cache disk: gone",
            Trouble::LessMemory => "memory: less",
            Trouble::Kill => "daemon: killed",
            Trouble::Cycle => "mount: taken away",
            Trouble::FewDescriptors => "daemon: few descriptors",
            Trouble::PassedThrough => "cache disk: fails under passed-through files",
            Trouble::SourceHoldsPages => "source: pages locked by a data hang",
        }
    }

    /// The errors that an operation on the subject may see.
    pub(crate) fn errors(self, subject: &Subject) -> &'static [i32] {
        match self {
            // A map shows any error as EFAULT.
            Trouble::SourceEio | Trouble::SourceNamesEio => &[libc::EIO, libc::EFAULT],
            Trouble::SourceEstale => &[libc::ESTALE, libc::EFAULT],
            Trouble::SourceShort => &[libc::EIO, libc::ESTALE, libc::EFAULT],
            // The answer to an earlier request may come from a source that has ended meanwhile.
            Trouble::SourceGone => {
                &[libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::ESTALE, libc::EFAULT]
            }
            Trouble::Kill | Trouble::Cycle => AWAY,
            Trouble::FewDescriptors => &[libc::EMFILE, libc::ENFILE],
            Trouble::PassedThrough if matches!(subject, Subject::File(_)) => {
                &[libc::EIO, libc::EFAULT]
            }
            _ => NOTHING,
        }
    }

    /// Whether operations on the subject may wait while the trouble lasts.
    pub(crate) fn holds(self, subject: &Subject) -> bool {
        match self {
            Trouble::SourceHangData => matches!(subject, Subject::File(_) | Subject::Remount),
            // A name that is not known yet is searched by a listing.
            Trouble::SourceHangNames | Trouble::SourceHangLists | Trouble::SourceHoldsPages => {
                !matches!(subject, Subject::End(_))
            }
            // A mount waits for the disk as long as belady does, then goes on without it or ends.
            Trouble::DiskHangs => {
                matches!(subject, Subject::Mount | Subject::Remount | Subject::End(_))
            }
            _ => false,
        }
    }

    /// How many names of a directory must meet the trouble until all others there may wait, too. Names hang
    /// one by one until eight hang side by side. A listing of the directory may be one of the eight.
    pub(crate) fn spreads_from(self) -> Option<usize> {
        (self == Trouble::SourceHangNames).then_some(7)
    }

    /// Whether some requests are not answered until it ends.
    pub(crate) fn hangs(self) -> bool {
        matches!(
            self,
            Trouble::SourceHangData
                | Trouble::SourceHangNames
                | Trouble::SourceHangLists
                | Trouble::DiskHangs
        )
    }

    /// Whether there is no mount while it lasts.
    pub(crate) fn takes_the_mount_away(self) -> bool {
        matches!(self, Trouble::Kill | Trouble::Cycle)
    }

    pub(crate) fn is_of_the_source(self) -> bool {
        self.name().starts_with("source")
    }

    pub(crate) fn is_of_the_disk(self) -> bool {
        self.name().starts_with("cache disk")
    }
}
