//! The life of a shard.
//!
//! A daemon's shard outlives it, if the daemon is killed. What the next daemon needs to administer it is in a file
//! beside its configuration ([`Ownership`]). It adopts the server if it would start the very same one. Nobody adopts
//! it for a while: then [`end_left`] ends it.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::O_NOFOLLOW;
use nix::sys::signal::Signal;
use redis::FromRedisValue;
use rustix::process::configure_io_flusher_behavior;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::connection::{Access, Connection, Login, connect_to_socket};
use super::nodes::{self, Node};
use super::{Program, fresh_password, hexadecimal};
use crate::process::{Process, is_stopped, wait_until_gone};
use crate::tls::Tls;

/// Files of a shard's directory. The server's working directory is there, so its names are short: the name of a
/// socket has at most 107 bytes.
const CONFIG: &str = "server.conf";
const SOCKET: &str = "server.socket";
const LOG: &str = "server.log";
const NODES: &str = "nodes.conf";
const OWNERSHIP: &str = "server.json";

/// The user that the members of a cluster share, and the one of the shard's owner.
pub(super) const MEMBER: &str = "belady";
const OWNER: &str = "owner";

/// Which keys a member uses, and what it may do with them.
pub(super) const KEYS: &str = "b1:";
const RIGHTS: &str = "+get +set +setex +rpush +unlink +exists +ping +hello +auth +client|setname +cluster|nodes +cluster|shards \
                      +cluster|info +cluster|myid +info";

/// After so many milliseconds a shard that does not answer is suspected to have failed. A shard takes no values for that time
/// after its start, so it begins with a short one.
const FIRST_TIMEOUT_MS: u32 = 1000;
const TIMEOUT_MS: u32 = 5000;

/// How long a server may take to answer after its start, to hear that it has to end, and to end.
const START_WAIT: Duration = Duration::from_secs(20);
const SHUTDOWN_WAIT: Duration = Duration::from_secs(2);
const END_WAIT: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How a shard is run.
#[derive(Clone, Copy)]
pub(super) struct ShardSettings<'a> {
    /// A directory for its files, which only this user can enter.
    pub directory: &'a Path,
    /// Where other nodes reach it. Its cluster bus is at the next port.
    pub address: SocketAddr,
    /// Bytes that its values and the server itself may take.
    pub memory_bytes: u64,
    /// What all members of the cluster know, and nobody else.
    pub secret: &'a str,
    /// The files with which connections to it are encrypted.
    pub tls: Option<&'a Tls>,
    /// Whether the server goes on if this process is killed.
    pub outlives: bool,
}

/// Who administers a server.
#[derive(Serialize, Deserialize)]
struct Ownership {
    /// The server's process, if it is known yet, and the process that administers it.
    server: Process,
    daemon: Process,
    password: String,
}

/// A server that runs. It ends when this is dropped.
pub(super) struct Shard {
    /// The server's process.
    process: Process,
    /// None if an earlier daemon has started it.
    child: Option<Child>,
    directory: PathBuf,
    address: SocketAddr,
    owner: Connection,
    /// The password of its owner.
    password: String,
    /// Whether it has not answered a question. It is asked no more, since the next answer would be late as well.
    is_silent: bool,
}

impl Shard {
    /// Adopts the server that an earlier daemon has left, or starts one and waits until it answers.
    ///
    /// # Errors
    /// Why it does not run.
    pub(super) fn start(program: &Program, settings: &ShardSettings<'_>) -> Result<Self, String> {
        if let Some(daemon) = other_daemon(settings.directory) {
            return Err(format!(
                "the earlier daemon {daemon} of this mount point has not ended yet"
            ));
        }
        if let Some(adopted) = Self::adopt(program, settings) {
            return Ok(adopted);
        }
        end_left(settings.directory);
        let failed = |error: std::io::Error| {
            format!("{} cannot be started in {}: {error}", program, settings.directory.display())
        };
        let password = fresh_password().map_err(failed)?;
        // What it knew of others is void: their addresses may be new.
        let _ = fs::remove_file(settings.path(NODES));
        let config = settings.config(program, &password);
        write_private(&settings.path(CONFIG), config.as_bytes()).map_err(failed)?;
        let directory = settings.directory.to_owned();
        // Before there is a server: this process may be killed at any moment.
        own(&directory, Process::default(), &password).map_err(failed)?;
        let child = settings.spawn(program).map_err(failed)?;
        // A child is there until it is waited for.
        let process = Process::of(child.id()).unwrap_or_default();
        let mut starting = Starting { child: Some(child), directory: directory.clone() };
        own(&directory, process, &password).map_err(failed)?;
        let login = Login::new(OWNER, &password);
        let owner = starting.await_answer(settings, &login)?;
        let (child, address) = (starting.child.take(), settings.address);
        Ok(Shard { process, child, directory, address, owner, password, is_silent: false })
    }

    /// The server that an earlier daemon has left, if it is the one that would be started now. Only its memory may
    /// differ: it can be changed while the server runs.
    fn adopt(program: &Program, settings: &ShardSettings<'_>) -> Option<Self> {
        let directory = settings.directory.to_owned();
        let Ownership { server: process, password, .. } = Ownership::read(&directory)?;
        let found = fs::read_to_string(settings.path(CONFIG)).ok()?;
        let config = settings.config(program, &password);
        let is_same = rest_of(&found).eq(rest_of(&config));
        if !is_same || process.has_ended() || is_stopped(process.pid) {
            return None;
        }
        let login = Login::new(OWNER, &password);
        let owner = connect_to_socket(&settings.path(SOCKET), &login).ok()?;
        let address = settings.address;
        // Without this, it would be ended as one that is left.
        own(&directory, process, &password).ok()?;
        let (child, is_silent) = (None, false);
        let mut adopted = Shard { process, child, directory, address, owner, password, is_silent };
        if found != config {
            let bytes = settings.memory_bytes.to_string();
            adopted.ask::<()>(&["CONFIG", "SET", "maxmemory", &bytes]).ok()?;
            write_private(&settings.path(CONFIG), config.as_bytes()).ok()?;
        }
        Some(adopted)
    }

    /// The server's process.
    pub(super) fn process(&self) -> Process {
        self.process
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What another thread of this process needs to administer it.
    pub(super) fn access(&self) -> Access {
        Access::Socket(self.directory.join(SOCKET), Login::new(OWNER, &self.password))
    }

    /// The slot of a tag.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) fn slot_of(&mut self, tag: &str) -> Result<u16, String> {
        self.ask(&["CLUSTER", "KEYSLOT", &key(tag, "")])
    }

    /// Takes the slot of a tag.
    ///
    /// # Errors
    /// If a shard that it knows has it.
    pub(super) fn take_slot(&mut self, tag: &str) -> Result<(), String> {
        let slot = self.slot_of(tag)?;
        self.ask::<()>(&["CLUSTER", "ADDSLOTS", &slot.to_string()])?;
        // If two shards take one slot, all agree that the later one has it.
        self.ask::<String>(&["CLUSTER", "BUMPEPOCH"]).map(drop)
    }

    /// Ends the state of a replica. It has no slot then, and knows no other shard.
    ///
    /// # Errors
    /// If it does not answer, or is no replica and has values.
    pub(super) fn reset(&mut self) -> Result<(), String> {
        self.ask(&["CLUSTER", "RESET", "SOFT"])
    }

    /// Tells it of another shard. They know each other a moment later.
    ///
    /// # Errors
    /// If the address is none.
    pub(super) fn meet(&mut self, other: SocketAddr) -> Result<(), String> {
        let (ip, port, bus) = (other.ip(), other.port(), bus_port(other));
        self.ask(&["CLUSTER", "MEET", &ip.to_string(), &port.to_string(), &bus.to_string()])
    }

    /// Forgets a shard for a minute, so that it does not count as one that has to answer.
    ///
    /// # Errors
    /// If it does not know that shard.
    pub(super) fn forget(&mut self, id: &str) -> Result<(), String> {
        self.ask(&["CLUSTER", "FORGET", id])
    }

    /// Sets a value in it, for a time.
    ///
    /// # Errors
    /// If it does not take values.
    pub(super) fn set(&mut self, key: &str, value: &str, seconds: u64) -> Result<(), String> {
        self.ask(&["SET", key, value, "EX", &seconds.to_string()])
    }

    /// Bytes that its values and the server itself take.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) fn used_bytes(&mut self) -> Result<u64, String> {
        let answer: String = self.ask(&["INFO", "memory"])?;
        let used = answer.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(used.and_then(|used| used.trim_end().parse().ok()).unwrap_or_default())
    }

    /// All shards that it knows.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) fn nodes(&mut self) -> Result<Vec<Node>, String> {
        self.ask(&["CLUSTER", "NODES"]).map(|answer: String| nodes::parse(&answer))
    }

    /// Whether it takes values. It refuses them for two seconds after its start, and while most of the shards that it
    /// knows do not answer.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) fn takes_values(&mut self) -> Result<bool, String> {
        let answer: String = self.ask(&["CLUSTER", "INFO"])?;
        Ok(answer.lines().any(|line| line.trim_end() == "cluster_state:ok"))
    }

    /// From now on a shard that does not answer for a short time is not suspected.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) fn be_patient(&mut self) -> Result<(), String> {
        self.ask(&["CONFIG", "SET", "cluster-node-timeout", &TIMEOUT_MS.to_string()])
    }

    fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, String> {
        if self.is_silent {
            return Err(format!("the shard at {} does not answer", self.address));
        }
        let mut command = redis::Cmd::new();
        command.arg(words);
        let answer = command.query(&mut self.owner);
        answer.map_err(|error| {
            self.is_silent = error.is_io_error();
            format!("the shard at {}: {error}", self.address)
        })
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        if !self.is_silent {
            shut_down(self.process, &mut self.owner);
        }
        await_end(self.process, &self.directory);
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}

impl Ownership {
    fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(directory.join(OWNERSHIP)).ok()?).ok()
    }
}

/// Notes that this process administers a server.
fn own(directory: &Path, server: Process, password: &str) -> std::io::Result<()> {
    let daemon = Process::of(std::process::id()).unwrap_or_default();
    let ownership = Ownership { server, daemon, password: password.to_owned() };
    write_private(&directory.join(OWNERSHIP), &serde_json::to_vec(&ownership)?)
}

/// Another daemon that runs and whose server is in this directory.
fn other_daemon(directory: &Path) -> Option<u32> {
    let Ownership { daemon, .. } = Ownership::read(directory)?;
    (daemon.pid != std::process::id() && !daemon.has_ended()).then_some(daemon.pid)
}

/// The process of the server in this directory, if its daemon has ended.
pub fn left_server(directory: &Path) -> Option<Process> {
    let ownership = Ownership::read(directory)?;
    ownership.daemon.has_ended().then_some(ownership.server)
}

/// Ends the server of a daemon that has ended, if there is one in this directory.
pub fn end_left(directory: &Path) {
    let Some(Ownership { server, daemon, password }) = Ownership::read(directory) else { return };
    if !daemon.has_ended() && daemon.pid != std::process::id() {
        return;
    }
    let login = Login::new(OWNER, &password);
    if !is_stopped(server.pid)
        && let Ok(mut owner) = connect_to_socket(&directory.join(SOCKET), &login)
    {
        shut_down(server, &mut owner);
    }
    await_end(server, directory);
}

/// Tells a server to end, unless it is stopped and hears nothing.
fn shut_down(server: Process, owner: &mut Connection) {
    if !is_stopped(server.pid) {
        let _ = owner.set_wait(SHUTDOWN_WAIT);
        // It closes the connection instead of an answer.
        let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").query::<()>(owner);
    }
}

/// Kills a server whose directory is gone, so that nobody can tell it to end.
pub fn kill_server(server: Process, directory: &Path) {
    if works_in(server.pid, directory) {
        server.kill();
    }
}

/// Waits until a server that was told to end has ended. If it does not, or is stopped, it is killed. Removes its files.
fn await_end(server: Process, directory: &Path) {
    let patience = if is_stopped(server.pid) { Duration::ZERO } else { END_WAIT };
    if !server.has_ended() && !wait_until_gone(server.pid, patience) {
        kill_server(server, directory);
        wait_until_gone(server.pid, END_WAIT);
    }
    // A later daemon may have its own server here.
    if Ownership::read(directory).is_none_or(|ownership| ownership.server == server) {
        for file in [OWNERSHIP, CONFIG, NODES, SOCKET] {
            let _ = fs::remove_file(directory.join(file));
        }
    }
}

/// Whether a process works in this directory, or did until it was removed.
fn works_in(process: u32, directory: &Path) -> bool {
    let Ok(there) = fs::read_link(format!("/proc/{process}/cwd")) else { return false };
    match fs::canonicalize(directory) {
        Ok(directory) => there == directory,
        // The kernel says so of a directory that is gone.
        Err(_) => there.as_os_str().as_encoded_bytes().ends_with(b" (deleted)"),
    }
}

/// Makes the directory of a shard if it is missing.
///
/// # Errors
/// If others can look into it, or it belongs to another user.
pub(super) fn make_directory(directory: &Path) -> Result<(), String> {
    let refuse = |why: &dyn std::fmt::Display| format!("{}: {why}", directory.display());
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| refuse(&error))?;
    let found = fs::symlink_metadata(directory).map_err(|error| refuse(&error))?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(refuse(&"it is no directory of yours"));
    }
    match found.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(refuse(&"others can look into it")),
    }
}

/// Writes a file that only this user can read, all of it or nothing.
fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    file?.write_all(content)?;
    fs::rename(&new, path)
}

impl ShardSettings<'_> {
    fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    fn spawn(&self, program: &Program) -> std::io::Result<Child> {
        let mut log = OpenOptions::new();
        log.write(true).create(true).truncate(true).mode(0o600).custom_flags(O_NOFOLLOW);
        let log = log.open(self.path(LOG))?;
        let mut command = Command::new(&program.path);
        command.arg(CONFIG).current_dir(self.directory).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        let outlives = self.outlives;
        let apart = move || {
            // Memory of the daemon never waits for filesystems (`mount/kernel`). That of a server may.
            let _ = configure_io_flusher_behavior(false);
            match outlives {
                // A signal to the daemon's process group or session must not end it.
                true => nix::unistd::setsid().map(drop).map_err(std::io::Error::from),
                false => {
                    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)
                }
            }
        };
        // SAFETY: all of these are single system calls, which are safe between fork and exec.
        unsafe { command.pre_exec(apart) };
        command.spawn()
    }

    /// The server's configuration. Passwords are in it as hashes.
    fn config(&self, program: &Program, owner_password: &str) -> String {
        let ShardSettings { address, memory_bytes, secret, .. } = self;
        let (ip, port, bus) = (address.ip(), address.port(), bus_port(*address));
        let member_password = member_password(secret, *address);
        let [member_hash, owner_hash] = [&*member_password, owner_password]
            .map(|password| hexadecimal(&Sha256::digest(password.as_bytes())));
        let timeout_ms = FIRST_TIMEOUT_MS;
        let ports = match self.tls {
            None => format!("port {port}\n"),
            Some(tls) => of_tls(port, tls),
        };
        let mut text = format!(
            "# {program}\n{ports}bind {ip}\nunixsocket {SOCKET}\nunixsocketperm 600\ndaemonize no\n\
             save \"\"\nappendonly no\nmaxmemory {memory_bytes}\nmaxmemory-policy noeviction\n\
             lazyfree-lazy-user-del yes\ndisable-thp yes\ntcp-keepalive 10\n\
             client-output-buffer-limit normal 256mb 64mb 10\n"
        );
        // A slot that nobody has, and a shard that is gone, are misses. Without its own address a node with several
        // ones would be known by another one.
        let _ = write!(
            text,
            "cluster-enabled yes\ncluster-config-file {NODES}\ncluster-node-timeout {timeout_ms}\n\
             cluster-port {bus}\ncluster-announce-ip {ip}\ncluster-require-full-coverage no\n\
             cluster-allow-reads-when-down yes\n"
        );
        let _ = write!(
            text,
            "user default off\n\
             user {MEMBER} on #{member_hash} ~{KEYS}* resetchannels -@all {RIGHTS}\n\
             user {OWNER} on #{owner_hash} ~* +@all\n"
        );
        text
    }
}

/// The lines of a configuration for a server whose connections are all encrypted.
fn of_tls(port: u16, tls: &Tls) -> String {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let own = tls.own.as_ref().map_or_else(String::new, |(own, key)| {
        format!("tls-cert-file {}\ntls-key-file {}\n", quoted(own), quoted(key))
    });
    let trusted = quoted(&tls.trusted);
    format!(
        "port 0\ntls-port {port}\ntls-cluster yes\ntls-auth-clients yes\ntls-ca-cert-file {trusted}\n{own}"
    )
}

/// The lines of a configuration without those that can be changed while the server runs.
fn rest_of(config: &str) -> impl Iterator<Item = &str> {
    config.lines().filter(|line| !line.starts_with("maxmemory "))
}

/// A server that does not answer yet. It is killed if it never does.
struct Starting {
    child: Option<Child>,
    directory: PathBuf,
}

impl Starting {
    fn await_answer(
        &mut self,
        settings: &ShardSettings<'_>,
        login: &Login,
    ) -> Result<Connection, String> {
        let begun = Instant::now();
        loop {
            // Before the connection: a server that has ended may have answered.
            let ended =
                self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            match connect_to_socket(&settings.path(SOCKET), login) {
                Ok(connection) => return Ok(connection),
                Err(_) if ended => {
                    let why = last_line(&settings.path(LOG));
                    return Err(format!("the server at {} ended: {why}", settings.address));
                }
                Err(error) if begun.elapsed() > START_WAIT => {
                    let at = settings.address;
                    return Err(format!("the server at {at} does not answer: {error}"));
                }
                Err(_) => thread::sleep(LOOK_EVERY),
            }
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            let _ = fs::remove_file(self.directory.join(OWNERSHIP));
        }
    }
}

/// The password of members at the shard with this address. A server that is not of the cluster learns only the one of its
/// own address, since servers of Redis are known to each other without a password.
fn member_password(secret: &str, address: SocketAddr) -> String {
    hexadecimal(&Sha256::digest(format!("{address} {secret}").as_bytes()))
}

/// How a member logs in at the shard with this address.
pub(super) fn member_login(secret: &str, address: SocketAddr) -> Login {
    Login::new(MEMBER, &member_password(secret, address))
}

/// A key that the shard with this tag has.
pub(super) fn key(tag: &str, rest: &str) -> String {
    format!("{KEYS}{{{tag}}}:{rest}")
}

/// The port of a shard's cluster bus. By default it would be 10,000 higher, where programs get ports by chance.
pub(super) fn bus_port(address: SocketAddr) -> u16 {
    address.port().wrapping_add(1)
}

/// The last line that is not empty.
fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.unwrap_or("it says nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::peers::tests::free_addresses;

    #[test]
    fn a_configuration_has_no_password() {
        let settings = ShardSettings {
            directory: Path::new("/run/x"),
            address: "10.0.0.1:7100".parse().unwrap(),
            memory_bytes: 1 << 30,
            secret: "SECRET",
            tls: None,
            outlives: true,
        };
        let program = Program::find(&std::env::var_os("PATH").unwrap()).unwrap();
        let config = settings.config(&program, "PASSWORD");
        assert!(config.starts_with(&format!("# {program}\n")), "another version is another server");
        assert!(!config.contains("SECRET") && !config.contains("PASSWORD"), "{config}");
        let lines: Vec<_> = config.lines().collect();
        for line in ["port 7100", "cluster-port 7101", "bind 10.0.0.1", "maxmemory 1073741824"] {
            assert!(lines.contains(&line), "{config}");
        }
        // SHA-256 of the digits of that of "10.0.0.1:7100 SECRET".
        let hash = "838e3a65f735177b8007474d2b58ac4f45973e5430036492c9caa2c6203bf4e8";
        let member = format!("user belady on #{hash} ~b1:* resetchannels -@all +get +set ");
        assert!(lines.iter().any(|line| line.starts_with(&member)), "{config}");
    }

    #[test]
    fn the_last_words_of_a_server_are_told() {
        let log = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(last_line(log.path()), "it says nothing");
        fs::write(log.path(), "# first\n# Failed listening on port 7100, aborting.\n\n").unwrap();
        assert_eq!(last_line(log.path()), "# Failed listening on port 7100, aborting.");
    }

    fn start(directory: &Path, address: SocketAddr, memory_bytes: u64, secret: &str) -> Shard {
        let program = Program::find(&std::env::var_os("PATH").unwrap()).unwrap();
        make_directory(directory).unwrap();
        let settings =
            ShardSettings { directory, address, memory_bytes, secret, tls: None, outlives: false };
        Shard::start(&program, &settings).unwrap()
    }

    #[test]
    fn the_path_of_a_shard_may_be_long() {
        let top = tempfile::tempdir().unwrap();
        let directory = top.path().join("x".repeat(150)).join("shard");
        let mut shard = start(&directory, free_addresses(1)[0], 16 << 20, "secret");
        assert_eq!(shard.nodes().unwrap().len(), 1);
        let process = shard.process();
        drop(shard);
        assert!(process.has_ended());
    }

    #[test]
    fn a_shard_with_more_memory_is_the_same_one() {
        let top = tempfile::tempdir().unwrap();
        let address = free_addresses(1)[0];
        let first = start(&top.path().join("shard"), address, 16 << 20, "secret");
        let mut more = start(&top.path().join("shard"), address, 32 << 20, "secret");
        assert_eq!(more.process(), first.process());
        let memory: Vec<String> = more.ask(&["CONFIG", "GET", "maxmemory"]).unwrap();
        assert_eq!(memory[1], (32 << 20).to_string());
        let again = start(&top.path().join("shard"), address, 32 << 20, "secret");
        assert_eq!(again.process(), first.process());
        let other = start(&top.path().join("shard"), address, 32 << 20, "another secret");
        assert!(other.process() != first.process() && first.process().has_ended());
    }

    #[test]
    fn a_server_that_is_stopped_is_killed() {
        let top = tempfile::tempdir().unwrap();
        let shard = start(&top.path().join("shard"), free_addresses(1)[0], 16 << 20, "secret");
        let process = shard.process();
        let pid = nix::unistd::Pid::from_raw(process.pid as i32);
        nix::sys::signal::kill(pid, Signal::SIGSTOP).unwrap();
        while !is_stopped(process.pid) {
            thread::yield_now();
        }
        drop(shard);
        assert!(process.has_ended());
    }

    /// The kernel's flags of a task that makes way for filesystems.
    fn flusher_flags(task: &str) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{task}/stat")).unwrap();
        let flags: u64 =
            stat.rsplit(')').next().unwrap().split(' ').nth(7).unwrap().parse().unwrap();
        flags & 0x0018_0000
    }

    #[test]
    fn a_server_uses_memory_like_other_programs() {
        // Root may do this.
        if configure_io_flusher_behavior(true).is_err() {
            return;
        }
        assert_ne!(flusher_flags("thread-self"), 0);
        let top = tempfile::tempdir().unwrap();
        let shard = start(&top.path().join("shard"), free_addresses(1)[0], 16 << 20, "secret");
        assert_eq!(flusher_flags(&shard.process().pid.to_string()), 0);
    }

    #[test]
    fn what_others_can_use_is_not_used() {
        let top = tempfile::tempdir().unwrap();
        let (open, link) = (top.path().join("open"), top.path().join("link"));
        make_directory(&open).unwrap();
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert!(make_directory(&link).unwrap_err().contains("no directory of yours"));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(make_directory(&open).unwrap_err().contains("others can look"));
        // A log that leads elsewhere.
        let directory = top.path().join("shard");
        make_directory(&directory).unwrap();
        std::os::unix::fs::symlink(top.path().join("elsewhere"), directory.join(LOG)).unwrap();
        let program = Program::find(&std::env::var_os("PATH").unwrap()).unwrap();
        let settings = ShardSettings {
            directory: &directory,
            address: free_addresses(1)[0],
            memory_bytes: 16 << 20,
            secret: "secret",
            tls: None,
            outlives: false,
        };
        assert!(
            Shard::start(&program, &settings).is_err_and(|why| why.contains("cannot be started"))
        );
        assert!(!top.path().join("elsewhere").exists());
    }
}
