//! `belady run`: a command with datasets mounted for it alone.
//!
//! Goal: the command reads the dataset at its own path through belady, nobody else sees the mount, its exit code and its
//! signals pass, and nothing is left whatever is killed. Method: commands that look around, as root and as a user
//! without rights in a mount namespace where the device is open to everybody.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, content, said};
use crate::mounted::{in_namespace, mounts_at};
use crate::programs::{Program, signal, wait_for_end};

/// Not the number of nobody, which other users look like in a namespace.
const USER: u32 = 1234;

/// A user with a name, which fusermount3 asks for.
const NOBODY: u32 = 65534;

/// The device is open to everybody.
const DEVICE: &str = r#"
mount -t tmpfs -o mode=755 none "$TEST_DIR/dev"
mknod -m 666 "$TEST_DIR/dev/fuse" c 10 229
mount --bind "$TEST_DIR/dev/fuse" /dev/fuse
"#;

/// Says whether a path is a mount of belady, and how many mounts there are inside.
const LOOK: &str =
    r#"awk -v at="$1" '$5 == at && / - fuse/ { n++ } END { print n + 0 }' /proc/self/mountinfo"#;

/// The numbers of the daemons that `belady status` knows.
fn daemons(fixture: &Fixture) -> Vec<i32> {
    let mut status = fixture.belady();
    let output = status.args(["status", "--json"]).output().unwrap();
    let mounts: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    mounts.iter().map(|mount| mount["pid"].as_i64().unwrap() as i32).collect()
}

/// Nothing of a run is left.
#[track_caller]
fn check_nothing_left(fixture: &Fixture) {
    assert_eq!(mounts_at(&fixture.path("source")), 0);
    let of_test = |pid: &str| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(fixture.path("").to_str().unwrap())
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let names = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let numbers = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    assert_eq!(numbers.filter(|pid| of_test(pid)).collect::<Vec<_>>(), Vec::<String>::new());
    let left: Vec<_> = fs::read_dir(fixture.path("run/belady")).into_iter().flatten().collect();
    let is_run = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("run-");
    let runs = left.iter().flatten().filter(|entry| is_run(&entry.file_name())).count();
    assert_eq!(runs, 0);
}

/// The end of a program, with its exit code.
fn code_of(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), said(&output))
}

#[test]
fn a_command_reads_the_dataset_at_its_own_path_and_its_exit_code_passes() {
    let fixture = Fixture::new();
    fixture.write_many("d", 3, 9000);
    let source = fixture.path("source");
    let script =
        format!("cmp d/0001 ../copy && cat .belady/status.json > ../status\n{LOOK}; exit 7");
    fs::write(fixture.path("copy"), content(1, 9000)).unwrap();
    let mut run = fixture.belady();
    // Its directory is covered by the mount.
    run.current_dir(&source).args(["run", ".", "--ram", "64MiB", "--", "sh", "-c"]);
    let (code, said) = code_of(run.args([&script, "sh"]).arg(&source));
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("\n1\n") || said.starts_with("1\n"), "not mounted: {said}");
    assert!(said.contains("is mounted at") && said.contains("waits    cold: 1, "), "{said}");
    let status: Value = serde_json::from_slice(&fs::read(fixture.path("status")).unwrap()).unwrap();
    assert_eq!(status["files"], 3);
    check_nothing_left(&fixture);
}

#[test]
fn several_sources_are_at_other_places_and_are_staged_first() {
    let fixture = Fixture::new();
    fixture.write_many("d", 3, 9000);
    fs::create_dir(fixture.path("other")).unwrap();
    fs::write(fixture.path("other/file"), "other").unwrap();
    let [source, mount, other] = ["source", "mount", "other"].map(|name| fixture.path(name));
    let script = "cmp \"$1/d/0001\" \"$2/d/0001\" && cat \"$3/file\"";
    let at = format!("{}={}", source.display(), mount.display());
    let mut run = fixture.belady();
    run.args(["run", "--stage", "10m", &at]).arg(&other).args(["--", "sh", "-c", script, "sh"]);
    let (code, said) = code_of(run.args([&source, &mount, &other]));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("other"), "{said}");
    assert!(said.contains("of 3 samples") && !said.contains("waits    cold"), "{said}");
    check_nothing_left(&fixture);
}

#[test]
fn what_cannot_begin_has_the_exit_code_of_a_mount_or_of_a_shell() {
    let fixture = Fixture::new();
    fixture.write("file", b"bytes");
    let source = fixture.path("source");
    let run = |from: &Path, words: &[&str]| {
        let mut command = fixture.belady();
        code_of(command.arg("run").arg(from).arg("--").args(words))
    };
    let (code, said) = run(&fixture.path("nowhere"), &["true"]);
    assert_eq!(code, Some(4), "{said}");
    let (code, said) = run(&source, &["no-such-program"]);
    assert!(code == Some(127) && said.contains("no-such-program"), "{code:?} {said}");
    let (code, said) = run(&source, &[source.join("file").to_str().unwrap()]);
    assert!(code == Some(126), "{code:?} {said}");
    let (code, said) = run(Path::new("s3://bucket/x"), &["true"]);
    assert!(code == Some(2) && said.contains("SOURCE=AT"), "{code:?} {said}");
    check_nothing_left(&fixture);
}

/// A command that says when it runs, and which signals it gets.
const TRAPS: &str = "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo runs; \
    while :; do sleep 0.05; done";

fn start_run(fixture: &Fixture, script: &str) -> Program {
    let mut run = fixture.belady();
    run.arg("run").arg(fixture.path("source")).args(["--", "sh", "-c", script]);
    let mut program = Program::start(&mut run);
    assert_eq!(program.line(), "runs");
    program
}

#[test]
fn signals_pass_to_the_command_and_the_signal_that_ends_it_is_its_code() {
    let fixture = Fixture::new();
    fixture.write("file", b"bytes");
    let mut run = start_run(&fixture, TRAPS);
    assert_eq!(mounts_at(&fixture.path("source")), 0, "others see the mount");
    assert_eq!(daemons(&fixture).len(), 1, "its status is told outside");
    signal(run.pid(), Signal::SIGUSR1);
    assert_eq!(run.line(), "usr1");
    signal(run.pid(), Signal::SIGTERM);
    assert_eq!(run.line(), "term");
    assert_eq!(run.code(), Some(9));
    check_nothing_left(&fixture);
    let run = start_run(&fixture, "echo runs; exec sleep 600");
    signal(run.pid(), Signal::SIGTERM);
    assert_eq!(run.code(), Some(128 + 15));
    // A signal that the library of the test has no name for.
    let run = start_run(&fixture, "echo runs; kill -34 $$");
    assert_eq!(run.code(), Some(128 + 34));
    check_nothing_left(&fixture);
}

#[test]
fn nothing_is_left_whatever_is_killed() {
    let fixture = Fixture::new();
    fixture.write("file", b"bytes");
    let mut run = start_run(&fixture, "echo runs; echo $$; exec sleep 600");
    let command = run.line().parse().unwrap();
    let daemon = daemons(&fixture);
    assert_eq!(daemon.len(), 1);
    signal(run.pid(), Signal::SIGKILL);
    assert_eq!(run.code(), None);
    wait_for_end(daemon[0]);
    wait_for_end(command);
    check_mounts_gone(&fixture);

    // A daemon that dies leaves its command the source.
    let script = "echo runs; read line; until cat \"$0/file\"; do sleep 0.05; done; echo; \\
        grep -c \" $0 \" /proc/self/mountinfo; exit 3";
    let mut run = fixture.belady();
    let source = fixture.path("source");
    run.arg("run").arg(&source).args(["--", "sh", "-c", script]).arg(&source);
    let mut run = Program::start(&mut run);
    assert_eq!(run.line(), "runs");
    let daemon = daemons(&fixture);
    signal(daemon[0], Signal::SIGKILL);
    wait_for_end(daemon[0]);
    run.tell("");
    assert_eq!((run.line().as_str(), run.line().as_str()), ("bytes", "0"));
    assert_eq!(run.code(), Some(3));
    check_mounts_gone(&fixture);
}

#[track_caller]
fn check_mounts_gone(fixture: &Fixture) {
    let left = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!left().contains(&format!("{}/source ", fixture.path("").display())));
}

/// A source of a user without rights: a file that only its group may read, and one that nobody but root may.
fn source_of(user: u32, fixture: &Fixture) {
    fixture.write_many("d", 3, 9000);
    for (name, mode, group) in [("grouped", 0o040, 4321), ("closed", 0o040, 4322)] {
        fixture.write(name, name.as_bytes());
        chown(fixture.source(name), Some(0), Some(group)).unwrap();
        fs::set_permissions(fixture.source(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for name in ["run", "dev", "mount", "second"] {
        let _ = fs::create_dir(fixture.path(name));
        chown(fixture.path(name), Some(user), Some(user)).unwrap();
    }
    fixture.copy_belady();
}

/// A command line of a user who is in the group of one file.
fn as_user(user: u32, words: &str) -> String {
    let rights = format!("setpriv --reuid {user} --regid {user} --groups 4321");
    format!("export XDG_RUNTIME_DIR=\"$TEST_DIR/run\"\n{rights} {words}")
}

#[test]
fn a_user_without_rights_runs_a_command_over_the_dataset_itself() {
    let fixture = Fixture::new();
    source_of(USER, &fixture);
    let script = r#"
id -u
cat "$1"/grouped; echo
if cat "$1"/closed; then exit 1; fi
cmp "$1"/d/0001 "$2"
grep CapEff /proc/self/status
test -e "$1"/.belady/status.json
awk -v at="$(realpath "$1")" '$5 == at && / - fuse/ { print "mounted" }' /proc/self/mountinfo
exit 7"#;
    fs::write(fixture.path("script"), script).unwrap();
    fs::write(fixture.path("copy"), content(1, 9000)).unwrap();
    let run = r#""$TEST_DIR/belady" run "$TEST_DIR/source" -- sh -e "$TEST_DIR/script" "$TEST_DIR/source" "$TEST_DIR/copy""#;
    let script = format!("{DEVICE}{}", as_user(USER, run));
    let (code, said) = code_of(&mut in_namespace(&fixture, &script));
    assert_eq!(code, Some(7), "{said}");
    assert!(said.starts_with("1234\ngrouped\n"), "{said}");
    assert!(said.contains("CapEff:\t0000000000000000\nmounted\n"), "{said}");
    assert!(!said.contains("other processes of yours see the mounts"), "{said}");
    check_nothing_left(&fixture);
}

/// Runs `inside` in a user namespace with all users, in which nobody may make another one.
const CLOSED: &str = r#"
mkfifo "$TEST_DIR/go"
unshare -Um --keep-caps sh -e "$TEST_DIR/inside" & child=$!
until [ "$(readlink /proc/$child/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do sleep 0.01; done
echo 0 0 65536 > /proc/$child/uid_map
echo 0 0 65536 > /proc/$child/gid_map
echo > "$TEST_DIR/go"
wait $child
"#;

#[test]
fn without_a_namespace_the_mount_is_one_that_others_see() {
    let fixture = Fixture::new();
    source_of(NOBODY, &fixture);
    // Another command does not share a daemon that ends with the run.
    let script = r#"
cat "$1"/grouped
mount=$("$TEST_DIR/belady" mount "$TEST_DIR/source" "$TEST_DIR/second")
case "$mount" in *"shares the daemon"*) exit 1 ;; esac
"$TEST_DIR/belady" umount "$TEST_DIR/second"
exit 7"#;
    fs::write(fixture.path("script"), script).unwrap();
    let run = r#""$TEST_DIR/belady" run "$TEST_DIR/source=$TEST_DIR/mount" -- sh "$TEST_DIR/script" "$TEST_DIR/mount""#;
    let inside = format!(
        r#"read line < "$TEST_DIR/go"
        echo 0 > /proc/sys/user/max_user_namespaces
        {}"#,
        as_user(NOBODY, run)
    );
    fs::write(fixture.path("inside"), inside).unwrap();
    let script = format!("{DEVICE}{CLOSED}");
    let (code, said) = code_of(&mut in_namespace(&fixture, &script));
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("allows no user namespaces"), "{said}");
    assert!(said.starts_with("grouped"), "{said}");
    assert!(said.contains("other processes of yours see the mounts"), "{said}");
    check_nothing_left(&fixture);
}
