//! Fault injection: which operations on which paths go wrong, and how.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fuser::Errno;

use crate::stats::Op;
use crate::{read_locked, write_locked};

/// How an operation goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails with EIO.
    Eio,
    /// It fails with ESTALE.
    Estale,
    /// It is not answered until the faults are cleared.
    Hang,
    /// A read returns half of what there is.
    Short,
    /// Attributes report half of the size.
    Shrunk,
}

impl Fault {
    /// The fault called `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "eio" => Some(Self::Eio),
            "estale" => Some(Self::Estale),
            "hang" => Some(Self::Hang),
            "short" => Some(Self::Short),
            "shrunk" => Some(Self::Shrunk),
            _ => None,
        }
    }

    /// The error that an operation is answered with, if any.
    pub(crate) fn errno(self) -> Option<Errno> {
        match self {
            Self::Eio => Some(Errno::EIO),
            Self::Estale => Some(Errno::ESTALE),
            Self::Hang | Self::Short | Self::Shrunk => None,
        }
    }

    /// The operations that it hits unless the command names others: those that touch data, or report sizes.
    pub(crate) fn default_ops(self) -> &'static [Op] {
        match self {
            Self::Short => &[Op::Read],
            Self::Shrunk => &[Op::Lookup, Op::Getattr],
            Self::Eio | Self::Estale | Self::Hang => &[Op::Open, Op::Read],
        }
    }
}

/// A fault and where it applies.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) fault: Fault,
    /// A glob over the path relative to the source.
    pub(crate) pattern: Vec<u8>,
    /// The operations that it hits.
    pub(crate) ops: Vec<Op>,
}

/// The active faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Whether there are any faults. If not, operations skip the lock.
    any: AtomicBool,
    rules: RwLock<Rules>,
}

#[derive(Debug, Default)]
struct Rules {
    rules: Vec<Rule>,
    /// How often faults were cleared. An operation may meet a hang, and begin to wait only after the hang was
    /// cleared. This number tells it not to wait.
    clears: u64,
}

impl Faults {
    /// Adds a fault. If several faults apply, the newest wins.
    pub(crate) fn add(&self, rule: Rule) {
        write_locked(&self.rules).rules.push(rule);
        self.any.store(true, Relaxed);
    }

    /// Removes all faults. Returns how often that was done.
    pub(crate) fn clear(&self) -> u64 {
        let mut rules = write_locked(&self.rules);
        rules.rules.clear();
        rules.clears += 1;
        self.any.store(false, Relaxed);
        rules.clears
    }

    /// The fault that `op` on `path` meets, and how often faults had been cleared before.
    pub(crate) fn find(&self, op: Op, path: &Path) -> Option<(Fault, u64)> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let name = path.as_os_str().as_bytes();
        let rules = read_locked(&self.rules);
        let applies = |rule: &&Rule| rule.ops.contains(&op) && glob(&rule.pattern, name);
        rules.rules.iter().rev().find(applies).map(|rule| (rule.fault, rules.clears))
    }
}

/// Whether `pattern` matches all of `name`: `*` is any bytes, slashes included, `?` is one byte.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The last star, and where the part of the name that it matches ends.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                // Let the star match one byte more, and try the rest again.
                Some((at, swallowed)) => {
                    star = Some((at, swallowed + 1));
                    p = at + 1;
                    n = swallowed + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_paths() {
        let matches = |p: &str, n: &str| glob(p.as_bytes(), n.as_bytes());
        assert!(matches("*", "") && matches("*", "a/b/c.jpg"));
        assert!(matches("a/*.jpg", "a/b/c.jpg") && matches("*c.jp?", "a/b/c.jpg"));
        assert!(matches("a*b*c", "aXbYbZc") && matches("a**", "a"));
        assert!(!matches("a*b*c", "aXbYbZ") && !matches("?", "") && !matches("a", "ab"));
        assert!(!matches("", "a") && matches("", ""));
    }

    #[test]
    fn newest_rule_for_the_operation_wins() {
        let faults = Faults::default();
        let rule = |fault: Fault, pattern: &str| Rule {
            fault,
            pattern: pattern.into(),
            ops: fault.default_ops().to_vec(),
        };
        let path = Path::new("x/y");
        assert_eq!(faults.find(Op::Read, path), None);
        faults.add(rule(Fault::Eio, "x/*"));
        faults.add(rule(Fault::Short, "*"));
        assert_eq!(faults.find(Op::Read, path), Some((Fault::Short, 0)));
        assert_eq!(faults.find(Op::Open, path), Some((Fault::Eio, 0)));
        assert_eq!(faults.find(Op::Lookup, path), None);
        assert_eq!(faults.clear(), 1);
        assert_eq!(faults.find(Op::Open, path), None);
    }
}
