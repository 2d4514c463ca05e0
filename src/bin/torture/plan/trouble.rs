//! The kinds of trouble, and what each of them excuses.

use nix::libc;

use crate::excuse::AWAY;
use crate::target::Subject;

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The source answers opens and reads with EIO.
    SourceEio,
    /// The same with ESTALE.
    SourceEstale,
    /// Names and attributes are answered with EIO.
    SourceNamesEio,
    /// Opens and reads are not answered.
    SourceHangData,
    /// Names and attributes are not answered.
    SourceHangNames,
    /// Directories are not listed.
    SourceHangLists,
    /// Reads give half of what there is.
    SourceShort,
    /// Everything takes much longer.
    SourceSlow,
    /// The source is unmounted, and comes back.
    SourceGone,
    /// Other processes take all the room of the cache disk.
    DiskFull,
    /// The cache disk becomes read-only.
    DiskReadOnly,
    /// Writes to the cache disk wait again and again.
    DiskSlow,
    /// Writes to the cache disk wait.
    DiskHangs,
    /// Everything on the cache disk fails.
    DiskGone,
    /// The daemon's memory is limited for a while even more.
    LessMemory,
    /// The daemon is killed and mounted again.
    Kill,
    /// The mount is taken away and comes back.
    Cycle,
    /// The daemon may open few files. All the time.
    FewDescriptors,
    /// Passed-through files are read from the cache disk, which fails.
    PassedThrough,
}

const NOTHING: &[i32] = &[];

impl Trouble {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Trouble; 19] = [
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
        }
    }

    /// The errors that readers may see of it.
    pub(crate) fn errors(self, subject: &Subject) -> &'static [i32] {
        match self {
            // EFAULT is how a map shows any error.
            Trouble::SourceEio | Trouble::SourceNamesEio => &[libc::EIO, libc::EFAULT],
            Trouble::SourceEstale => &[libc::ESTALE, libc::EFAULT],
            Trouble::SourceShort => &[libc::EIO, libc::ESTALE, libc::EFAULT],
            // What was asked before may be told afterwards, by a source that ended meanwhile.
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

    /// Whether operations on the subject may wait as long as it lasts.
    pub(crate) fn holds(self, subject: &Subject) -> bool {
        match self {
            Trouble::SourceHangData => matches!(subject, Subject::File(_) | Subject::Remount),
            // A name that is not known yet is looked for by a listing.
            Trouble::SourceHangNames | Trouble::SourceHangLists => {
                !matches!(subject, Subject::End(_))
            }
            // A mount asks the disk for as long as belady waits for one, and goes on or ends without it.
            Trouble::DiskHangs => {
                matches!(subject, Subject::Mount | Subject::Remount | Subject::End(_))
            }
            _ => false,
        }
    }

    /// How many names of a directory have to meet it so that all others there may wait, too. Names wait by
    /// name until eight hang beside each other; a listing of the directory may be one of these.
    pub(crate) fn spreads_from(self) -> Option<usize> {
        (self == Trouble::SourceHangNames).then_some(7)
    }

    /// Whether something is not answered until it ends.
    pub(crate) fn hangs(self) -> bool {
        matches!(
            self,
            Trouble::SourceHangData
                | Trouble::SourceHangNames
                | Trouble::SourceHangLists
                | Trouble::DiskHangs
        )
    }

    /// Whether there is no mount to be asked.
    pub(crate) fn takes_the_mount_away(self) -> bool {
        matches!(self, Trouble::Kill | Trouble::Cycle)
    }

    /// Whether it concerns the source.
    pub(crate) fn is_of_the_source(self) -> bool {
        self.name().starts_with("source")
    }

    /// Whether it concerns the cache disk.
    pub(crate) fn is_of_the_disk(self) -> bool {
        self.name().starts_with("cache disk")
    }
}
