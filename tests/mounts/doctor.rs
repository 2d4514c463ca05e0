//! `belady doctor`: what it says about this machine is true, and it leaves nothing behind.
//!
//! Goal: a machine on which the other tests mount is found usable, by root and by a user without rights. A
//! fault is named, with its exit code. Method: the command runs as both users, with a device that is open to
//! all or closed, in a mount namespace of the test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::fixture::{Fixture, mount_table, said};
use crate::mounted::in_namespace;

/// The JSON of a doctor, and its exit code.
#[track_caller]
fn told(output: &Output) -> (Value, i32) {
    let value = serde_json::from_slice(&output.stdout);
    (
        value.unwrap_or_else(|error| panic!("{error}: {}", said(output))),
        output.status.code().unwrap(),
    )
}

#[track_caller]
fn result<'a>(value: &'a Value, check: &str) -> &'a str {
    let rows = value["checks"].as_array().unwrap();
    let row = rows.iter().find(|row| row["check"] == check);
    row.unwrap_or_else(|| panic!("{check} in {value}"))["result"].as_str().unwrap()
}

/// Mounts that a doctor made here and left.
fn left_behind(fixture: &Fixture) -> Vec<String> {
    let table = mount_table();
    let here = fixture.path("");
    let ours =
        |line: &&str| line.contains("belady-doctor") && line.contains(here.to_str().unwrap());
    table.lines().filter(ours).map(str::to_owned).collect()
}

#[test]
fn root_is_told_what_there_is() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 100_000);
    fs::create_dir(fixture.path("tmp")).unwrap();
    let doctor = |words: &[&str]| {
        let mut command = fixture.belady();
        command.env("TMPDIR", fixture.path("tmp")).arg("doctor").args(words);
        command.output().unwrap()
    };
    let (source, cache) = (fixture.path("source"), fixture.path("cache"));
    let (source, cache) = (source.to_str().unwrap(), cache.to_str().unwrap());
    let words = ["--source", source, "--cache-dir", cache];
    let (value, code) = told(&doctor(&[&words[..], &["--json"]].concat()));
    assert_eq!((code, &value["usable"]), (0, &Value::Bool(true)), "{value}");
    let well = [
        "/dev/fuse",
        "mounting",
        "push into page cache",
        "mounts of a run",
        "commands",
        "openat2",
        "control sockets",
        "killed daemons",
    ];
    for check in well {
        assert_eq!(result(&value, check), "ok", "{value}");
    }
    assert_ne!(result(&value, "source"), "missing");
    assert_ne!(result(&value, "cache disk"), "missing");
    let output = doctor(&words);
    let text = said(&output);
    assert!(
        output.status.success() && text.contains("mounting  ") && text.contains(source),
        "{text}"
    );

    assert!(!fs::exists(cache).unwrap(), "a cache directory is a mount's to make");
    fs::create_dir(cache).unwrap();
    assert!(doctor(&words).status.success());
    for emptied in [cache, fixture.path("tmp").to_str().unwrap()] {
        assert_eq!(fs::read_dir(emptied).unwrap().count(), 0, "{emptied}");
    }
    assert_eq!(left_behind(&fixture), Vec::<String>::new());

    let gone = fixture.path("gone");
    let (value, code) = told(&doctor(&["--json", "--source", gone.to_str().unwrap()]));
    assert_eq!((code, result(&value, "source")), (4, "missing"));
    let file = fixture.source("d/0000");
    let (value, code) = told(&doctor(&["--json", "--cache-dir", file.to_str().unwrap()]));
    assert_eq!((code, result(&value, "cache directory")), (5, "missing"));
}

/// Processes that work in a directory or below it, such as the servers of shards.
pub(crate) fn working_in(directory: &Path) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let there = processes.filter(|process| {
        fs::read_link(process.path().join("cwd")).is_ok_and(|place| place.starts_with(directory))
    });
    there.filter_map(|process| process.file_name().to_str()?.parse().ok()).collect()
}

#[test]
fn two_shards_of_a_cluster_are_tried_out() {
    let fixture = Fixture::new();
    let tmp = fixture.path("tmp");
    fs::create_dir(&tmp).unwrap();
    let doctor = |path: Option<&Path>| {
        let mut command = fixture.belady();
        command.env("TMPDIR", &tmp).args(["doctor", "--cluster", "--json"]);
        if let Some(path) = path {
            command.env("PATH", path);
        }
        told(&command.output().unwrap())
    };
    let (value, code) = doctor(None);
    assert_eq!((code, result(&value, "cluster server")), (0, "ok"), "{value}");
    assert_eq!(result(&value, "cluster trial"), "ok", "{value}");
    assert_eq!(fs::read_dir(&tmp).unwrap().count(), 0);
    assert_eq!(working_in(&tmp), Vec::<i32>::new());

    let programs = fixture.path("programs");
    fs::create_dir(&programs).unwrap();
    let (value, code) = doctor(Some(&programs));
    assert_eq!((code, result(&value, "cluster server")), (6, "missing"), "{value}");
    let program = programs.join("redis-server");
    let put = |then: &str| {
        fs::write(&program, format!("#!/bin/sh\n{then}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    };
    put("echo Redis server v=6.2.7 sha=0");
    let (value, _) = doctor(Some(&programs));
    assert!(value.to_string().contains("redis-server 6.2.7 is older than 7.0.0"), "{value}");
    put("echo Redis server v=7.2.0 sha=0; case $1 in *conf) echo cannot listen; exit 1;; esac");
    let (value, code) = doctor(Some(&programs));
    assert_eq!((code, result(&value, "cluster trial")), (6, "missing"), "{value}");
    assert!(value.to_string().contains("ended: cannot listen"), "{value}");
}

/// Gives a device with this mode to users without rights.
const DEVICE: &str = r#"
mount -t tmpfs -o mode=755 none "$TEST_DIR/dev"
mknod -m "$MODE" "$TEST_DIR/dev/fuse" c 10 229
mount --bind "$TEST_DIR/dev/fuse" /dev/fuse
"#;

/// Runs the doctor as a user without rights, and without the kernel's list of connections.
const UNPRIVILEGED: &str = r#"
code=0
until ! grep -q " /sys/fs/fuse/connections " /proc/self/mountinfo; do
  umount /sys/fs/fuse/connections
done
setpriv --reuid 65534 --regid 65534 --clear-groups \
  "$TEST_DIR/belady" doctor --json --source "$TEST_DIR/source" --cache-dir "$TEST_DIR/ours" || code=$?
if grep -F "$TEST_DIR" /proc/self/mountinfo | grep -q belady-doctor; then echo "left: a mount" >&2; fi
exit "$code"
"#;

#[test]
fn a_user_without_rights_is_told_too() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 10_000);
    for name in ["dev", "ours", "theirs", "theirs/tmp"] {
        fs::create_dir(fixture.path(name)).unwrap();
    }
    fixture.copy_belady();
    for name in ["theirs", "theirs/tmp"] {
        std::os::unix::fs::chown(fixture.path(name), Some(65534), Some(65534)).unwrap();
    }
    // One file that only root may read does not make the others less readable.
    fs::set_permissions(fixture.source("d/0002"), fs::Permissions::from_mode(0o600)).unwrap();
    for (mode, device, usable) in [("666", "ok", true), ("600", "missing", false)] {
        let mut command = in_namespace(&fixture, &[DEVICE, UNPRIVILEGED].concat());
        command.env("MODE", mode);
        command.env("XDG_RUNTIME_DIR", fixture.path("theirs"));
        command.env("TMPDIR", fixture.path("theirs/tmp"));
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let (value, code) = told(&output);
        let mounting = if usable { "ok" } else { "missing" };
        assert_eq!(result(&value, "/dev/fuse"), device, "{value}");
        assert_eq!(result(&value, "mounting"), mounting, "{value}");
        if usable {
            assert_eq!(result(&value, "push into page cache"), "ok", "{value}");
            assert_eq!(result(&value, "mounts of a run"), "ok", "{value}");
            assert_eq!(result(&value, "commands"), "ok", "{value}");
            assert_eq!(result(&value, "passthrough"), "note", "only root may: {value}");
            assert_eq!(result(&value, "killed daemons"), "note", "nor end connections: {value}");
        }
        assert_ne!(result(&value, "source"), "missing", "{value}");
        assert_eq!(result(&value, "mount over the source"), "note", "{value}");
        // Root's directory is not usable by this user.
        assert_eq!((code, &value["usable"]), (if usable { 5 } else { 6 }, &Value::Bool(false)));
        assert!(!said(&output).contains("left: "), "{}", said(&output));
        assert_eq!(fs::read_dir(fixture.path("theirs/tmp")).unwrap().count(), 0);
    }
}

/// Pretends that the kernel deadlocks. If the kernel has a limit to the time of requests, the limit is set.
const BAD_KERNEL: &str = r#"
echo 6.18.2 > "$TEST_DIR/release"
mount --bind "$TEST_DIR/release" /proc/sys/kernel/osrelease
echo 30 > "$TEST_DIR/limit"
if [ -e /proc/sys/fs/fuse/max_request_timeout ]; then
  mount --bind "$TEST_DIR/limit" /proc/sys/fs/fuse/max_request_timeout
fi
"#;

#[test]
fn what_the_kernel_may_do_is_told_by_the_doctor_and_by_a_mount() {
    let fixture = Fixture::new();
    fixture.write_many("d", 3, 10_000);
    fixture.copy_belady();
    let limits = fs::exists("/proc/sys/fs/fuse/max_request_timeout").unwrap();
    let run = |script: &str| {
        let mut command = in_namespace(&fixture, &[BAD_KERNEL, script].concat());
        command.env("XDG_RUNTIME_DIR", fixture.path("run"));
        command.stdin(std::process::Stdio::null()).output().unwrap()
    };
    let (value, code) = told(&run(r#""$TEST_DIR/belady" doctor --json"#));
    assert_eq!((code, result(&value, "readahead deadlock")), (0, "note"), "{value}");
    assert_eq!(result(&value, "request timeouts"), if limits { "note" } else { "ok" }, "{value}");
    for (mode, deadlocks) in [("push", true), ("keep-cache", false)] {
        let script = format!(
            r#""$TEST_DIR/belady" mount "$TEST_DIR/source" "$TEST_DIR/mount" --set mount.mode={mode}
            "$TEST_DIR/belady" umount "$TEST_DIR/mount""#
        );
        let output = run(&script);
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        // The warning may be missing: with some of root's rights a mount avoids the deadlock.
        assert!(!text.contains("readahead deadlock") || deadlocks, "{text}");
        assert_eq!(text.contains("warning: request timeouts"), limits, "{text}");
    }
}

/// Runs the doctor as a user without rights. The program that mounts has this mode and is on a PATH of its
/// own. This line is the configuration of such programs.
const HELPED: &str = r#"
mkdir -p "$TEST_DIR/bin"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v fusermount3)" > "$TEST_DIR/bin/fusermount3"
chmod "$PROGRAM" "$TEST_DIR/bin/fusermount3"
printf '%s\n' "$LINE" > "$TEST_DIR/fuse.conf"
mount --bind "$TEST_DIR/fuse.conf" /etc/fuse.conf
exec setpriv --reuid 65534 --regid 65534 --clear-groups \
  env PATH="$WHERE" "$TEST_DIR/belady" doctor
"#;

/// The row of a check as it is printed, and its fix.
#[track_caller]
fn printed<'a>(text: &'a str, check: &str) -> (&'a str, Option<&'a str>) {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(check));
    let row = lines.next().unwrap_or_else(|| panic!("{check} in {text}"));
    (row, lines.next().and_then(|line| line.trim_start().strip_prefix("fix: ")))
}

#[test]
fn what_mounts_for_users_is_found_or_what_to_do_is_printed() {
    let fixture = Fixture::new();
    for name in ["dev", "theirs", "theirs/tmp", "none"] {
        fs::create_dir(fixture.path(name)).unwrap();
    }
    fixture.copy_belady();
    for name in ["theirs", "theirs/tmp"] {
        std::os::unix::fs::chown(fixture.path(name), Some(65534), Some(65534)).unwrap();
    }
    let doctor = |place: &str, program: &str, line: &str| {
        let mut command = in_namespace(&fixture, &[DEVICE, HELPED].concat());
        command.env("MODE", "666").env("PROGRAM", program).env("LINE", line);
        command.env("WHERE", fixture.path(place));
        command.env("XDG_RUNTIME_DIR", fixture.path("theirs"));
        command.env("TMPDIR", fixture.path("theirs/tmp"));
        said(&command.stdin(std::process::Stdio::null()).output().unwrap())
    };
    let (program, others) = ("fusermount3 ", "mounts for other users ");
    let path = fixture.path("bin/fusermount3");
    let path = path.to_str().unwrap();
    let permit = "put `user_allow_other` into /etc/fuse.conf, if others are to";

    let text = doctor("bin", "4755", "user_allow_other");
    let (row, fix) = printed(&text, program);
    assert!(row.contains(" ok ") && row.contains(path) && fix.is_none(), "{text}");
    let (row, fix) = printed(&text, others);
    assert!(row.contains(" ok ") && fix.is_none(), "{text}");

    let text = doctor("bin", "755", "#user_allow_other");
    let (row, fix) = printed(&text, program);
    assert!(row.contains(" note ") && row.contains("is not setuid root"), "{text}");
    assert_eq!(fix, Some(format!("chown root {path} && chmod u+s {path}").as_str()), "{text}");
    let (row, fix) = printed(&text, others);
    assert!(row.contains(" note ") && fix == Some(permit), "{text}");

    let text = doctor("none", "4755", "user_allow_other");
    let (row, fix) = printed(&text, program);
    assert!(!row.contains(" ok ") && row.contains("is not on the PATH"), "{text}");
    assert_eq!(fix, Some("install fuse3"), "{text}");
}
