//! The part of the source that a fault concerns.
//!
//! The files of a source are `dD/NNNN.bin`, where D is one digit. Their numbers end equally often with each
//! digit.

/// A part of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Everything.
    All,
    /// One directory and all that is in it.
    Directory(u8),
    /// All files whose number ends with this digit.
    Ending(u8),
}

/// What an operation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A file, by its path in the source.
    File(String),
    /// A directory, by its path. Empty: the top.
    Directory(String),
    /// The mount as a whole, which needs the whole source.
    Mount,
    /// A mount after a killed daemon of which something is left. The store is free only when the source has
    /// answered the requests of that daemon.
    Remount,
    /// The end of a mount. It needs no answer of the source, but writes to the cache disk.
    End(&'static str),
    /// An operation that needs no answer of the source, so no fault there explains its errors.
    Local(&'static str),
}

impl Target {
    /// As a pattern of slowpfs.
    pub(crate) fn pattern(self) -> String {
        match self {
            Target::All => "*".to_owned(),
            Target::Directory(digit) => format!("d{digit}*"),
            Target::Ending(digit) => format!("*{digit}.bin"),
        }
    }

    /// Whether an operation on the subject may meet the fault.
    pub(crate) fn covers(self, subject: &Subject) -> bool {
        match (self, subject) {
            (_, Subject::Local(_)) => false,
            (_, Subject::End(_)) => self == Target::All,
            (Target::All, _) | (_, Subject::Mount | Subject::Remount) => true,
            (Target::Directory(digit), Subject::File(path) | Subject::Directory(path)) => {
                path.is_empty() || path.starts_with(&format!("d{digit}"))
            }
            (Target::Ending(digit), Subject::File(path)) => path.ends_with(&format!("{digit}.bin")),
            // Each directory has files that end with the digit.
            (Target::Ending(_), Subject::Directory(_)) => true,
        }
    }

    /// How many of these files are in the directory of the subject and may meet the fault.
    pub(crate) fn siblings(self, subject: &Subject, files: impl Iterator<Item = String>) -> usize {
        let directory = |path: &str| path.split_once('/').map(|(top, _)| top.to_owned());
        let Subject::File(path) = subject else { return 0 };
        let parent = directory(path);
        let siblings = files.filter(|file| directory(file) == parent);
        siblings.filter(|file| self.covers(&Subject::File(file.clone()))).count()
    }
}

impl Subject {
    /// Its name in a message.
    pub(crate) fn name(&self) -> String {
        match self {
            Subject::File(path) | Subject::Directory(path) if !path.is_empty() => path.clone(),
            Subject::File(_) | Subject::Directory(_) => "the top".to_owned(),
            Subject::Mount | Subject::Remount => "the mount".to_owned(),
            Subject::End(what) | Subject::Local(what) => (*what).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_cover_what_their_patterns_match() {
        let file = |path: &str| Subject::File(path.to_owned());
        assert!(Target::Directory(3).covers(&file("d3/0001.bin")));
        assert!(!Target::Directory(3).covers(&file("d4/0003.bin")));
        assert!(Target::Ending(3).covers(&file("d4/0013.bin")));
        assert!(!Target::Ending(3).covers(&file("d3/0014.bin")));
        assert!(Target::Ending(3).covers(&Subject::Mount));
        assert!(!Target::All.covers(&Subject::Local("x")));
    }

    #[test]
    fn siblings_are_in_the_same_directory() {
        let siblings = |target: Target, subject: &Subject| {
            let files = ["d4/0003.bin", "d4/0013.bin", "d4/0014.bin", "d5/0003.bin"];
            target.siblings(subject, files.map(str::to_owned).into_iter())
        };
        let file = Subject::File("d4/0014.bin".to_owned());
        assert_eq!(siblings(Target::Ending(3), &file), 2);
        assert_eq!(siblings(Target::Directory(5), &file), 0);
        assert_eq!(siblings(Target::Ending(3), &Subject::Local("x")), 0);
    }
}
