//! The secret that all members of a cluster know, and the login of existing servers.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::{ELOOP, O_NOFOLLOW, O_NONBLOCK};

use super::connection::Login;
use super::fresh_password;

/// The shortest secret that is taken, in bytes: nobody guesses 16 letters by chance.
const LEAST: usize = 16;
const MOST: u64 = 4096;

/// Reads the secret from a file. If there is no file, it is made, with a new secret: the first node does so.
///
/// # Errors
/// If the file cannot be used, or others may read it.
pub(super) fn read_or_make(path: &Path) -> Result<String, String> {
    let found = match read(path)? {
        Some(found) => found,
        None => {
            make(path)?;
            // Another node may have been faster.
            read(path)?.ok_or_else(|| refuse(path, "is gone again"))?
        }
    };
    match found.len() < LEAST {
        true => Err(refuse(path, format!("is shorter than {LEAST} letters"))),
        false => Ok(found),
    }
}

/// Reads the login of servers that others administer: a line `USER:PASSWORD` or `:PASSWORD`.
///
/// # Errors
/// If there is no such file, or it cannot be used, or others may read it.
pub(super) fn read_login(path: &Path) -> Result<Login, String> {
    let text = read(path)?.ok_or_else(|| refuse(path, "is missing"))?;
    let (user, password) =
        text.split_once(':').ok_or_else(|| refuse(path, "is not USER:PASSWORD"))?;
    let user = Some(user.to_owned()).filter(|user| !user.is_empty());
    Ok(Login { user, password: Some(password.to_owned()) })
}

fn refuse(path: &Path, why: impl std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

/// The text of a file that only this user can read; `None` if there is no file.
fn read(path: &Path) -> Result<Option<String>, String> {
    let mut options = OpenOptions::new();
    // A pipe would wait for who writes into it.
    let opened = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(ELOOP) => {
            return Err(refuse(path, "is a symbolic link"));
        }
        opened => opened.map_err(|error| refuse(path, error))?,
    };
    let found = file.metadata().map_err(|error| refuse(path, error))?;
    if !found.is_file() || found.len() > MOST {
        return Err(refuse(path, "is no file of a secret"));
    }
    if found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(refuse(path, "belongs to another user"));
    }
    if found.mode() & 0o077 != 0 {
        return Err(refuse(path, format!("others may read it: `chmod 600 {}`", path.display())));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| refuse(path, error))?;
    Ok(Some(text.trim().to_owned()))
}

/// Makes the file at once with its content, so that no node reads a part of it.
fn make(path: &Path) -> Result<(), String> {
    let made = || -> std::io::Result<()> {
        let new = path.with_extension(format!("new-{}", &fresh_password()?[..16]));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = writeln!(file, "{}", fresh_password()?).and_then(|()| file.sync_all());
        // Unlike a renaming, this replaces no secret that another node has made.
        let linked = written.and_then(|()| fs::hard_link(&new, path));
        fs::remove_file(&new)?;
        match linked {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    };
    made().map_err(|error| refuse(path, format!("cannot be made: {error}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_node_makes_the_secret_and_all_read_it() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("secret");
        let nodes: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || read_or_make(&path).unwrap())
            })
            .collect();
        let secrets: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
        assert!(secrets.iter().all(|secret| *secret == secrets[0] && secret.len() == 64));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_secret_that_others_know_is_none() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("secret");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read_or_make(&path).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_or_make(&path).unwrap(), "0123456789abcdef");
        fs::write(&path, "short").unwrap();
        assert!(read_or_make(&path).unwrap_err().contains("shorter"));
        fs::write(&path, ":pass:word\n").unwrap();
        let Ok(Login { user, password }) = read_login(&path) else { panic!("it is a login") };
        assert_eq!((user, password.as_deref()), (None, Some("pass:word")));
        fs::write(&path, "me:").unwrap();
        assert!(read_login(&path).is_ok_and(|login| login.user.as_deref() == Some("me")));
        fs::write(&path, "me").unwrap();
        assert!(read_login(&path).is_err_and(|why| why.contains("is not USER:PASSWORD")));
        assert!(read_login(&top.path().join("x")).is_err_and(|why| why.contains("is missing")));
        let none = top.path().join("none/secret");
        assert!(read_or_make(&none).unwrap_err().contains("cannot be made"));
        assert!(read_or_make(top.path()).unwrap_err().contains("is no file"));
        let link = top.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read_or_make(&link).unwrap_err().contains("is a symbolic link"));
        let pipe = top.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read_or_make(&pipe).unwrap_err().contains("is no file"));
    }
}
