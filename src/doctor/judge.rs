//! Judges findings: a row for each thing that matters.

use serde::Serialize;

use super::{
    ClusterFindings, DirectoryFindings, Findings, Kernel, SourceFindings, StoreFindings, system,
};
use crate::config::Bytes;
use crate::error::ErrorKind;

/// With fewer open files a busy mount may run out of them.
const OPEN_FILES: u64 = 1024;

/// How many threads a mount with default settings may have.
const THREADS: u64 = 256;

/// A smaller RAM budget has hardly any room for samples.
const BUDGET: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// It works, but could be better or should be known.
    Note,
    /// belady cannot run like this.
    Missing,
}

/// A finding, judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub check: &'static str,
    pub result: Verdict,
    /// What was found, and what it means.
    pub found: String,
    /// What to do about it.
    pub fix: Option<String>,
    /// What belady would end with if this is missing.
    #[serde(skip)]
    kind: ErrorKind,
}

impl Row {
    pub(super) fn new(check: &'static str, result: Verdict, found: impl Into<String>) -> Self {
        Row { check, result, found: found.into(), fix: None, kind: ErrorKind::Mount }
    }

    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, found)
    }

    pub(super) fn note(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Note, found)
    }

    fn missing(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Missing, found)
    }

    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// The kind of error that belady would end with. None if it can run.
pub fn missing(rows: &[Row]) -> Option<ErrorKind> {
    rows.iter().find(|row| row.result == Verdict::Missing).map(|row| row.kind)
}

/// Judges the findings, the most basic first.
pub fn judge(findings: &Findings) -> Vec<Row> {
    let mut rows = vec![device(findings), fusermount(findings), mount(findings)];
    if let Ok(kernel) = &findings.mount {
        rows.extend([protocol(kernel), push(kernel), expire(kernel), passthrough(kernel)]);
    }
    rows.extend([namespace(findings), commands(findings), allow_other(findings)]);
    rows.extend([openat2(findings), cachestat(findings)]);
    rows.push(killed_daemons(findings));
    rows.extend([runtime(findings), open_files(findings), processes(findings), memory(findings)]);
    rows.extend(idle(findings));
    rows.extend(reclaim(findings));
    rows.extend(system::rows(&findings.system));
    match &findings.source {
        Some(Ok(SourceFindings::Directory(source))) => {
            rows.extend([self::source(source), over_mount(source, findings.root)]);
        }
        Some(Ok(SourceFindings::Store(source))) => rows.push(store(source)),
        Some(Err(why)) => {
            let fix = why.advice().unwrap_or("is it there, and does it answer?");
            let row = Row::missing("source", why.message()).fix(fix);
            rows.push(Row { kind: ErrorKind::Source, ..row });
        }
        None => {}
    }
    match &findings.cache {
        Some(Ok(cache)) => {
            let source = findings.source.as_ref().and_then(|source| source.as_ref().ok());
            let read = source.and_then(SourceFindings::read);
            rows.extend([self::cache(cache), disk_speed(cache, read)]);
        }
        Some(Err(why)) => rows.push(Row {
            kind: ErrorKind::Cache,
            ..Row::missing("cache directory", why).fix("name a writable directory on a local disk")
        }),
        None => {}
    }
    rows.extend(findings.cluster.iter().flat_map(cluster));
    rows
}

/// Whether this machine can be a node of a cluster.
fn cluster(findings: &ClusterFindings) -> Vec<Row> {
    let mut rows = vec![match &findings.program {
        Ok(program) => Row::ok("cluster server", program),
        Err(why) => Row::missing("cluster server", why)
            .fix("install valkey-server, or redis-server from 7.0 on; it has to be on the PATH"),
    }];
    rows.extend(findings.trial.iter().map(|trial| match trial {
        Ok(trial) => Row::ok(
            "cluster trial",
            format!(
                "two shards on this machine found each other in {:.1} s; 110 kB come from the other one in {:.0} us",
                trial.met_ms / 1000.0,
                trial.read_us
            ),
        ),
        Err(why) => Row::missing("cluster trial", why)
            .fix("does a firewall or a sandbox keep this user from listening at 127.0.0.1?"),
    }));
    rows.push(match findings.addresses.is_empty() {
        false => Row::ok("cluster addresses", findings.addresses.join(", ")),
        true => Row::note("cluster addresses", "other nodes cannot reach this machine")
            .fix("give it an address in the network of the other nodes"),
    });
    rows
}

fn device(findings: &Findings) -> Row {
    match &findings.device {
        Ok(()) => Row::ok("/dev/fuse", "can be opened"),
        Err(why) => Row::missing("/dev/fuse", why).fix(
            "`modprobe fuse`; for users other than root `chmod 666 /dev/fuse`; in a container \
             --device /dev/fuse --cap-add SYS_ADMIN",
        ),
    }
}

fn fusermount(findings: &Findings) -> Row {
    const CHECK: &str = "fusermount3";
    let mounts = findings.root || findings.mount.is_ok();
    let verdict = if mounts { Verdict::Note } else { Verdict::Missing };
    match &findings.fusermount {
        Some(found) if found.setuid => Row::ok(CHECK, format!("{} {}", found.path, found.version)),
        Some(found) => {
            let path = &found.path;
            let text = format!("{path} is not setuid root: users other than root cannot mount");
            Row::new(CHECK, verdict, text).fix(format!("chown root {path} && chmod u+s {path}"))
        }
        None => Row::new(CHECK, verdict, "is not on the PATH: users other than root cannot mount")
            .fix("install fuse3"),
    }
}

fn mount(findings: &Findings) -> Row {
    match &findings.mount {
        Ok(_) if findings.root => Row::ok("mounting", "works, directly"),
        Ok(_) => Row::ok("mounting", "works, for this user"),
        Err(why) => Row::missing("mounting", why)
            .fix("see the rows above; a container also needs CAP_SYS_ADMIN"),
    }
}

fn protocol(kernel: &Kernel) -> Row {
    let features = [
        (kernel.readdirplus, "listings with attributes"),
        (kernel.parallel_dirops, "parallel lookups"),
        (kernel.max_pages, "requests of 1 MiB"),
        (kernel.no_open, "opens without a request"),
    ];
    let names = |wanted: bool| -> Vec<&str> {
        features.iter().filter(|(has, _)| *has == wanted).map(|(_, name)| *name).collect()
    };
    let (major, minor) = kernel.abi;
    let (has, lacks) = (names(true).join(", "), names(false).join(", "));
    if lacks.is_empty() {
        return Row::ok("FUSE protocol", format!("{major}.{minor}: {has}"));
    }
    Row::note("FUSE protocol", format!("{major}.{minor}, without {lacks}: slower"))
        .fix("a newer kernel; everything works without")
}

fn push(kernel: &Kernel) -> Row {
    match &kernel.store {
        Ok(()) => Row::ok("push into page cache", "what is pushed is read without a request"),
        Err(why) => Row::missing("push into page cache", format!("nothing can be staged: {why}"))
            .fix("a kernel whose FUSE takes FUSE_NOTIFY_STORE"),
    }
}

fn expire(kernel: &Kernel) -> Row {
    match &kernel.expire {
        Ok(()) => Row::ok("expiry of names", "names are checked again without being dropped"),
        Err(why) => {
            Row::note("expiry of names", format!("{why}: a name is believed for 5 s at most"))
                .fix("Linux 6.2 or newer")
        }
    }
}

fn passthrough(kernel: &Kernel) -> Row {
    match &kernel.passthrough {
        Ok(()) => Row::ok("passthrough", "files of a local disk can be read past the daemon"),
        Err(why) => Row::note("passthrough", format!("{why}: all misses go through the daemon"))
            .fix("Linux 6.9 or newer, and CAP_SYS_ADMIN"),
    }
}

fn namespace(findings: &Findings) -> Row {
    match &findings.namespace {
        Ok(()) => Row::ok("mounts of a run", "`belady run` mounts for its command alone"),
        Err(why) => {
            let text = format!("{why}: `belady run` mounts for all of your processes");
            Row::note("mounts of a run", text)
                .fix("let users make user namespaces: sysctl user.max_user_namespaces, AppArmor")
        }
    }
}

fn commands(findings: &Findings) -> Row {
    match &findings.commands {
        Ok(()) => Row::ok("commands", "derived samples can be made by commands"),
        Err(why) => Row::note("commands", format!("{why}: no derived sample is made by a command"))
            .fix("user namespaces (sysctl user.max_user_namespaces, AppArmor), and Linux 5.12"),
    }
}

fn allow_other(findings: &Findings) -> Row {
    if findings.root || findings.user_allow_other {
        return Row::ok("mounts for other users", "permitted");
    }
    Row::note("mounts for other users", "not permitted: only you can enter your mounts")
        .fix("put `user_allow_other` into /etc/fuse.conf, if others are to")
}

fn openat2(findings: &Findings) -> Row {
    match &findings.openat2 {
        Ok(()) => Row::ok("openat2", "works"),
        Err(why) => Row::missing("openat2", format!("the source cannot be reached safely: {why}"))
            .fix("Linux 5.6 or newer, and a seccomp profile that allows openat2"),
    }
}

fn cachestat(findings: &Findings) -> Row {
    match &findings.cachestat {
        Ok(()) => Row::ok("cachestat", "pages that the kernel took back can be seen"),
        Err(why) => {
            let text = format!("{why}: pages that the kernel took back are seen by their reads");
            Row::note("cachestat", text).fix("Linux 6.5 or newer")
        }
    }
}

fn killed_daemons(findings: &Findings) -> Row {
    const CHECK: &str = "killed daemons";
    if findings.can_abort {
        return Row::ok(CHECK, "their connections can be ended, so that readers do not hang");
    }
    let text = "the kernel's list of FUSE connections is not mounted: \
                after kill -9 of a daemon its readers may hang";
    Row::note(CHECK, text).fix("as root: mount -t fusectl none /sys/fs/fuse/connections")
}

fn runtime(findings: &Findings) -> Row {
    match &findings.runtime {
        Ok(path) => Row::ok("control sockets", path),
        Err(why) => Row::missing("control sockets", why)
            .fix("set XDG_RUNTIME_DIR to a directory of your own"),
    }
}

fn open_files(findings: &Findings) -> Row {
    let limit = findings.open_files;
    if limit >= OPEN_FILES {
        return Row::ok("open files", format!("up to {limit}"));
    }
    Row::note("open files", format!("only {limit}: fetches may fail when many are under way"))
        .fix(format!("ulimit -n {OPEN_FILES}"))
}

fn processes(findings: &Findings) -> Row {
    let limit = findings.processes;
    if limit >= THREADS {
        let many = limit > 1 << 32;
        return Row::ok(
            "threads",
            if many { "not limited".into() } else { format!("up to {limit}") },
        );
    }
    Row::note("threads", format!("only {limit} processes and threads of yours: fetches may wait"))
        .fix(format!("ulimit -u {}", 16 * THREADS))
}

fn memory(findings: &Findings) -> Row {
    let memory = &findings.memory;
    let human = |bytes| Bytes(bytes).human();
    let found = format!(
        "{} limit, {} available; RAM budget {} ({})",
        human(memory.limit),
        human(memory.available),
        human(memory.budget),
        memory.because
    );
    if memory.budget >= BUDGET {
        return Row::ok("memory", found);
    }
    Row::note("memory", found).fix("raise the cgroup's limit, or free memory: little can be staged")
}

/// A request wakes the daemon, and its reply the reader. If processors of a virtual machine sleep, each
/// waking costs many times what the request does.
fn idle(findings: &Findings) -> Option<Row> {
    const CHECK: &str = "idle processors";
    Some(match findings.halt_poll_ns? {
        0 => {
            Row::note(CHECK, "halt at once in this virtual machine: requests wait for them to wake")
                .fix("echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns")
        }
        ns => Row::ok(CHECK, format!("wait for {} us before they halt", ns / 1000)),
    })
}

/// Staged pages may go before they are read, and are fetched again then.
fn reclaim(findings: &Findings) -> Option<Row> {
    let fix = findings.reclaim.as_ref()?;
    let found =
        "the kernel takes back pages that are not touched for a while, though memory is free";
    Some(Row::note("proactive reclaim", found).fix(fix))
}

fn rate(bytes: Option<u64>) -> String {
    bytes.map_or("at an unknown rate".into(), |bytes| format!("at {}/s", Bytes(bytes).human()))
}

fn source(source: &DirectoryFindings) -> Row {
    let direct = match source.direct {
        Some(true) => "past the page cache",
        Some(false) => "through the page cache, which is emptied behind the reads",
        None => "no file found",
    };
    let (path, name) = (&source.path, source.filesystem.name);
    let found = format!("{path} on {name}, read {} by one reader ({direct})", rate(source.read));
    if source.filesystem.network == Some(false) {
        return Row::note("source", format!("{found}; a local disk gains little"));
    }
    Row::ok("source", found)
}

fn store(source: &StoreFindings) -> Row {
    let name = &source.name;
    let Some(answer_ms) = source.answer_ms else {
        return Row::ok("source", format!("{name}: no file found"));
    };
    let read = rate(source.read);
    let found = format!("{name}, read {read} by one reader, {answer_ms:.1} ms a request");
    match &source.advice {
        Some(advice) => Row::note("source", found).fix(advice.clone()),
        None => Row::ok("source", found),
    }
}

/// Filesystems that are not on the list of those over which fusermount3 mounts for ordinary users.
const UNLISTED: [&str; 3] = ["beegfs", "orangefs", "panfs"];

fn over_mount(source: &DirectoryFindings, root: bool) -> Row {
    const CHECK: &str = "mount over the source";
    let name = source.filesystem.name;
    if !root && source.writable && UNLISTED.contains(&name) {
        return Row::note(CHECK, format!("fusermount3 may not mount over {name}"))
            .fix("mount at a directory on another filesystem, or as root");
    }
    if root || source.writable {
        return Row::ok(CHECK, "possible: paths of the job can stay as they are");
    }
    Row::note(CHECK, "not permitted: fusermount3 mounts only where you may write")
        .fix("mount at a directory of your own, or as root")
}

fn cache(cache: &DirectoryFindings) -> Row {
    let (path, name) = (&cache.path, cache.filesystem.name);
    match (cache.filesystem.network, cache.direct) {
        (Some(true), _) => Row::note("cache directory", format!("{path} is on {name}: not local"))
            .fix("name a directory on a local disk"),
        (_, Some(false)) => Row::note(
            "cache directory",
            format!("{path} on {name} cannot be read past the page cache: uses memory twice"),
        )
        .fix("name a directory on ext4 or xfs"),
        _ => Row::ok("cache directory", format!("{path} on {name}, past the page cache")),
    }
}

/// A disk that is slower than the source costs more than it saves.
fn disk_speed(cache: &DirectoryFindings, source: Option<u64>) -> Row {
    let found = format!("read {}, written {}", rate(cache.read), rate(cache.write));
    match (cache.read, source) {
        (Some(disk), Some(source)) if disk < source => Row::note(
            "cache disk",
            format!("{found}: slower than the source, {}", rate(Some(source))),
        )
        .fix("leave the cache directory out, unless the source is slower when it is busy"),
        _ => Row::ok("cache disk", found),
    }
}
