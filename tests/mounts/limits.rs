//! A `ulimit` costs only the cache: neither the daemon nor a reader fails.
//!
//! Goal: a limit on the size of files ends nothing; the cache disk counts as full. Method: mounts and
//! commands under a limit that the store soon reaches, with small samples and large sparse files.

use std::process::Command;

use crate::fixture::{Fixture, check_many, said, wait_until};
use crate::mounted::Mounted;

const FILES: u64 = 100;
const SIZE: usize = 30_000;
const SHARDS: u64 = 2;
const SHARD: usize = 5 << 20;

/// The command under a limit of `bytes` on the size of files.
fn limited(bytes: u64, command: &Command) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--fsize={bytes}")).arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

#[test]
fn a_limit_on_the_size_of_files_is_a_full_cache_disk() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, SIZE);
    fixture.write_many("s", SHARDS, SHARD);
    let cache = fixture.path("cache");
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]);
    command.args(["--ram", "1MiB", "--disk", "64MiB", "--set", "cache.large-file=4MiB"]);
    command.args(["--set", "order.learn=off", "--cache-dir"]).arg(&cache);
    let mounted = Mounted::by(&fixture, &mut limited(1 << 20, &command), &fixture.path("mount"));
    let check = || {
        check_many(&mounted.path(""), "d", FILES, SIZE);
        check_many(&mounted.path(""), "s", SHARDS, SHARD);
    };
    wait_until("the limit is reached", || {
        check();
        let status = mounted.status();
        status["disk_state"].as_str().unwrap().starts_with("full: a limit on the size of files")
    });
    check();
    assert_eq!(mounted.count("/read_errors"), 0);
    mounted.umount();
    let mut verify = fixture.belady();
    verify.args(["cache", "verify"]).arg(&cache);
    let output = limited(1 << 20, &verify).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_limit_that_lets_nothing_be_written_is_an_error_of_the_command() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 100);
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]);
    let output = limited(0, &command).output().unwrap();
    assert!(
        output.status.code().is_some_and(|code| code > 0),
        "{}: {}",
        output.status,
        said(&output)
    );
    assert!(said(&output).contains("File too large"), "{}", said(&output));
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}
