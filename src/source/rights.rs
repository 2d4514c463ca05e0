//! Who may read a file, by its mode. Lists of rights (ACLs) are not looked at: with one, the mode shows the rights of the
//! group at most.

use nix::unistd::{getegid, geteuid, getgroups};

use super::Stat;

/// The rights of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Permission bits.
    mode: u16,
    uid: u32,
    gid: u32,
}

/// A user, and the groups that it is in.
#[derive(Clone, Debug)]
pub struct User {
    uid: u32,
    gids: Vec<u32>,
}

impl Rights {
    pub fn of(stat: &Stat) -> Self {
        Rights { mode: stat.mode, uid: stat.uid, gid: stat.gid }
    }
}

impl User {
    /// The user of this process.
    pub fn own() -> Self {
        let groups = getgroups().unwrap_or_default();
        let gids = groups.into_iter().chain([getegid()]).map(|group| group.as_raw());
        User { uid: geteuid().as_raw(), gids: gids.collect() }
    }

    /// Whether the user may read a file with these rights. Root may read all.
    pub fn may_read(&self, rights: Rights) -> bool {
        let Rights { mode, uid, gid } = rights;
        let bit = match () {
            () if self.uid == 0 => return true,
            () if self.uid == uid => 0o400,
            () if self.gids.contains(&gid) => 0o040,
            () => 0o004,
        };
        mode & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_read_by_the_first_class_that_it_is_in() {
        let user = User { uid: 7, gids: vec![70, 71] };
        let may = |mode, uid, gid| user.may_read(Rights { mode, uid, gid });
        assert!(may(0o400, 7, 0) && !may(0o044, 7, 70), "the owner");
        assert!(may(0o040, 8, 71) && !may(0o404, 8, 71), "a group");
        assert!(may(0o004, 8, 9) && !may(0o440, 8, 9), "others");
        assert!(User { uid: 0, gids: vec![] }.may_read(Rights { mode: 0, uid: 7, gid: 7 }));
    }
}
