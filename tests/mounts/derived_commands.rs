//! Derived samples that a command makes.
//!
//! Goal: a command makes samples as the built-in steps do, can do no harm, and does not outlive its limits or its daemon.
//! Method: the command is a shell, and the originals are scripts. So each sample is one attempt to do something.

use std::fs;
use std::net::TcpListener;

use nix::libc;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::derived::forget_catalog;
use crate::fixture::{Fixture, wait_until};
use crate::mounted::{Mounted, in_namespace, where_all_may_mount};
use crate::programs::signal;

/// Runs each script with 256 MiB of memory for each process, and takes at most 1 MiB of what it writes.
const SCRIPTS: &str = r#"derived=[{name="out", from="**/*.sh", command="sh", suffix=".txt", memory-limit="256MiB", output-limit="1MiB"}]"#;

fn read(mounted: &Mounted, name: &str) -> std::io::Result<String> {
    let bytes = fs::read(mounted.path(format!(".derived/out/{name}.sh.txt")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn status(mounted: &Mounted) -> Value {
    mounted.status()["derived"][0].clone()
}

/// The processes of this machine that have a text in their command lines.
fn processes_with(text: &str) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    };
    pids.filter(has).collect()
}

#[test]
fn a_command_makes_samples_of_any_files() {
    let fixture = Fixture::new();
    (0..40).for_each(|nth| {
        fixture.write(&format!("d/{nth:02}.txt"), format!("sample {nth}\n").as_bytes());
    });
    fixture.write("d/large.txt", &b"0123456\n".repeat(1 << 18));
    fixture.write("d/else.bin", b"no text");
    let recipe =
        r#"derived=[{name="up", from="d/*.txt", command="tr a-z A-Z | cat", suffix=".up"}]"#;
    let order = "sequential:root=.derived/up";
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", order, "--set", recipe]);
    for nth in 0..40 {
        let made = fs::read_to_string(mounted.path(format!(".derived/up/d/{nth:02}.txt.up")));
        assert_eq!(made.unwrap(), format!("SAMPLE {nth}\n"));
    }
    assert_eq!(
        fs::read(mounted.path(".derived/up/d/large.txt.up")).unwrap(),
        b"0123456\n".repeat(1 << 18)
    );
    assert_eq!(fs::read_dir(mounted.path(".derived/up/d")).unwrap().count(), 41);
    let after = status(&mounted);
    assert_eq!((&after["made"], &after["failed"]), (&41.into(), &0.into()), "{after}");
    mounted.umount();
}

#[test]
fn a_command_can_do_no_harm() {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = outside.path().display();
    let network = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = network.local_addr().unwrap().port();
    fs::write(outside.path().join("file"), "unharmed").unwrap();
    let scripts = [
        ("create", format!("touch {place}/new || echo refused")),
        ("change", format!("echo harmed > {place}/file || echo refused; cat {place}/file")),
        ("mount", format!("mount -t tmpfs none {place} || echo refused")),
        ("remount", "mount -o remount,rw / || mount -o remount,rw,bind / || echo refused".into()),
        ("device", "mknod /tmp/device b 1 1 || echo refused".into()),
        (
            "connect",
            format!(
                "/usr/bin/python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))' || echo refused"
            ),
        ),
        ("processes", "ls /proc | grep -c '^[0-9]'".into()),
        ("kill", format!("kill -9 {} || echo refused", std::process::id())),
        ("sockets", "ls /run | wc -l".into()),
        ("rights", "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status".into()),
        ("environment", "env | cut -d= -f1 | sort | tr '\\n' ' '".into()),
        ("again", "ls -A /tmp; echo nothing".into()),
        ("temporary", "ls -A /tmp /dev/shm/; echo x > /tmp/left && echo wrote".into()),
        ("modes", "chmod 0 /dev/null || echo refused".into()),
        (
            "socket",
            "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX)' || echo refused"
                .into(),
        ),
        ("namespace", "unshare -U true || echo refused".into()),
        (
            "devices",
            "head -c 3 /dev/zero | tr '\\0' z; echo > /dev/null; ls /dev | tr '\\n' ' '".into(),
        ),
    ];
    for (name, script) in &scripts {
        fixture.write(&format!("{name}.sh"), format!("exec 2>/dev/null\n{script}\n").as_bytes());
    }
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--set", SCRIPTS]);
    let said = |name: &str| read(&mounted, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    for name in
        ["create", "mount", "remount", "device", "connect", "kill", "modes", "socket", "namespace"]
    {
        assert_eq!(said(name), "refused\n", "{name}");
    }
    assert_eq!(said("change"), "refused\nunharmed");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert!(said("processes").trim().parse::<u32>().unwrap() < 10);
    assert_eq!(said("sockets"), "0\n");
    assert_eq!(said("rights"), "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
    let known = ["HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PWD", "TMPDIR", "_"];
    let environment = said("environment");
    assert!(environment.split_whitespace().all(|name| known.contains(&name)), "{environment}");
    assert!(
        said("devices").starts_with("zzzfd full null random shm stderr"),
        "{}",
        said("devices")
    );
    // What one command leaves behind, another one does not find.
    assert_eq!(said("temporary"), "/dev/shm/:\n\n/tmp:\nwrote\n");
    assert_eq!(said("again"), "nothing\n");
    mounted.umount();
}

#[test]
fn a_command_that_fails_is_one_error_and_its_limits_hold() {
    let fixture = Fixture::new();
    let scripts = [
        ("endless", "yes", "wrote more than 1048576 bytes"),
        ("large", "head -c 1048577 /dev/zero", "wrote more than 1048576 bytes"),
        (
            "fails",
            "echo first >&2; echo the reason >&2; exit 3",
            "ended with the code 3: the reason",
        ),
        ("dies", "kill -9 $$", "was ended by SIGKILL"),
        ("silent", ":", "wrote nothing"),
        ("missing", "no-such-program", "no-such-program"),
        ("hungry", "/usr/bin/python3 -c 'bytearray(1 << 30)'", "MemoryError"),
        ("filling", "head -c 300000000 /dev/zero > /tmp/x && echo more", ""),
    ];
    for (name, script, _) in scripts {
        fixture.write(&format!("{name}.sh"), script.as_bytes());
    }
    fixture.write("fits.sh", b"head -c 1048576 /dev/zero");
    fixture.write("leaves.sh", b"sleep 9876543210 & echo done");
    fixture.write("forks.sh", b"for i in $(seq 100 199); do echo $i & done; wait");
    fixture.write("seeks.sh", b"exec cat /dev/stdin /proc/self/fd/0\n# read twice\n");
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--set", SCRIPTS]);
    scripts.iter().for_each(|(name, _, reason)| check_failure(&mounted, name, reason));
    assert_eq!(read(&mounted, "fits").unwrap().len(), 1 << 20);
    assert_eq!(read(&mounted, "leaves").unwrap(), "done\n");
    // They write at the same time.
    let mut lines: Vec<String> =
        read(&mounted, "forks").unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, (100..200).map(|line| line.to_string()).collect::<Vec<_>>());
    assert!(read(&mounted, "seeks").unwrap().contains("read twice"));
    assert_eq!(processes_with("9876543210"), Vec::<i32>::new());
    let said = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(said.contains("fails.sh: the command ended with the code 3: the reason"), "{said}");
    mounted.umount();
}

/// The sample is an error for this reason.
#[track_caller]
fn check_failure(mounted: &Mounted, name: &str, reason: &str) {
    let error = read(mounted, name).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}: {error}");
    let after = status(mounted);
    let failures = after["failures"].as_array().unwrap();
    let own = failures.iter().find(|failure| failure["path"] == format!("{name}.sh"));
    let why = own.unwrap_or_else(|| panic!("{name}: {after}"))["reason"].as_str().unwrap();
    assert!(why.contains(reason), "{name}: {why}");
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    let fixture = Fixture::new();
    fixture.write("hangs.sh", b"echo begun; sleep 1234567890");
    fixture.write("spins.sh", b"while :; do :; done # 1234567890");
    let recipe =
        r#"derived=[{name="out", from="**/*.sh", command="sh", suffix=".txt", time-limit="2s"}]"#;
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--set", recipe]);
    for name in ["hangs", "spins"] {
        check_failure(&mounted, name, "took longer than 2s");
    }
    assert_eq!(processes_with("1234567890"), Vec::<i32>::new());
    mounted.umount();
}

#[test]
fn a_command_does_not_keep_its_mount() {
    let fixture = Fixture::new();
    fixture.write("hangs.sh", b"sleep 55555551");
    let recipe =
        r#"derived=[{name="out", from="**/*.sh", command="sh", suffix=".txt", time-limit="1h"}]"#;
    let mounted = Mounted::new(
        &fixture,
        &["--ram", "64MiB", "--order", "sequential:root=.derived", "--set", recipe],
    );
    wait_until("the command runs", || processes_with("sleep\u{0}55555551").len() == 1);
    mounted.umount();
    wait_until("nothing is left", || processes_with("55555551").is_empty());
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}

#[test]
fn nothing_of_a_command_is_left_if_its_daemon_is_killed() {
    let fixture = Fixture::new();
    fixture.write("hangs.sh", b"sleep 8765432109");
    let recipe = r#"derived=[{name="out", from="**/*.sh", command="sh # 8765432109", suffix=".txt", time-limit="1h"}]"#;
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--set", recipe]);
    let path = mounted.path(".derived/out/hangs.sh.txt");
    let reader = std::thread::spawn(move || fs::read(path));
    // A shell, and what it runs.
    wait_until("the command runs", || processes_with("sleep\u{0}8765432109").len() == 1);
    let daemons = fixture.daemons();
    assert_eq!(daemons.len(), 1);
    signal(daemons[0], Signal::SIGKILL);
    wait_until("nothing is left", || processes_with("8765432109").is_empty());
    assert!(reader.join().unwrap().is_err());
}

#[test]
fn a_runner_that_was_killed_is_followed_by_another_one() {
    let fixture = Fixture::new();
    fixture.write("first.sh", b"echo first");
    fixture.write("second.sh", b"echo second");
    let recipe =
        r#"derived=[{name="out", from="**/*.sh", command="sh # 7654321098", suffix=".txt"}]"#;
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--set", recipe]);
    assert_eq!(read(&mounted, "first").unwrap(), "first\n");
    processes_with("run-commands\u{0}sh # 7654321098").into_iter().for_each(|runner| {
        signal(runner, Signal::SIGKILL);
    });
    assert_eq!(read(&mounted, "second").unwrap(), "second\n");
    mounted.umount();
}

#[test]
fn a_user_without_rights_has_commands() {
    const SCRIPT: &str = r#"
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
  at="$TEST_DIR/theirs/mount"
  "$TEST_DIR/belady" mount "$TEST_DIR/source" "$at" --ram 4MiB --set "$RECIPE"
  cat "$at/.derived/out/who.sh.txt"
  "$TEST_DIR/belady" umount "$at"
'
"#;
    let fixture = Fixture::new();
    fixture.write("who.sh", b"id -u");
    for name in ["theirs", "theirs/mount", "theirs/run"] {
        fs::create_dir(fixture.path(name)).unwrap();
        std::os::unix::fs::chown(fixture.path(name), Some(65534), Some(65534)).unwrap();
    }
    fixture.copy_belady();
    let mut command = where_all_may_mount(&fixture, SCRIPT);
    command.env("XDG_RUNTIME_DIR", fixture.path("theirs/run")).env("RECIPE", SCRIPTS);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("\n65534\n"), "{said}");
}

#[test]
fn a_mount_refuses_a_command_that_it_cannot_confine() {
    const SCRIPT: &str = r#"
unshare -Urm --keep-caps sh -c '
  echo 0 > /proc/sys/user/max_user_namespaces
  exec "$TEST_DIR/belady" mount "$TEST_DIR/source" "$TEST_DIR/mount" --set "$RECIPE"'
"#;
    let fixture = Fixture::new();
    fixture.copy_belady();
    fixture.write("a.sh", b"echo a");
    let output = in_namespace(&fixture, SCRIPT).env("RECIPE", SCRIPTS).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    for words in ["`out`", "this machine allows no user namespaces", "max_user_namespaces"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}

/// The guess of a size is that of the original, and the sample is much smaller.
#[test]
fn a_stored_sample_is_found_that_is_smaller_than_was_guessed() {
    let fixture = Fixture::new();
    let script = [&b"echo small\nexit\n"[..], &vec![b'#'; 3 << 20]].concat();
    (0..5).for_each(|nth| fixture.write(&format!("{nth}.sh"), &script));
    let cache = fixture.path("cache");
    let mount = || {
        let cache = ["--disk", "64MiB", "--cache-dir", cache.to_str().unwrap()];
        let options = ["--ram", "64MiB", "--order", "sequential:root=.derived/out"];
        let sets = ["--set", "cache.min-free=0%", "--set", SCRIPTS];
        Mounted::new(&fixture, &[&options[..], &cache, &sets].concat())
    };
    let check = |mounted: &Mounted| {
        (0..5).for_each(|nth| assert_eq!(read(mounted, &nth.to_string()).unwrap(), "small\n"));
    };
    let first = mount();
    check(&first);
    wait_until("all are stored", || first.status()["disk"]["stored"].as_u64().unwrap() >= 5 * 4096);
    first.umount();
    forget_catalog(&cache);
    let second = mount();
    check(&second);
    assert_eq!(status(&second)["made"], 0, "{}", second.status());
    second.umount();
}
