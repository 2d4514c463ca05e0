//! Nodes of a cluster: their shards, whom they see, and what becomes of a shard whose daemon is gone.
//!
//! Goal: nodes find each other without anyone's help, a mount never waits for the cluster, and nothing of it is left.
//! Method: each node is a mount with a source and a runtime directory of its own. Their shards are real servers on ports
//! of this machine.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::doctor::working_in;
use crate::fixture::{Fixture, check_many, program, wait_until};
use crate::free_ports::free_ports;
use crate::mounted::Mounted;
use crate::programs::{Program, Watchdog, runs, signal, wait_for_end};

const FILES: u64 = 3;

/// A node that can be mounted again and again.
struct Node {
    fixture: Fixture,
    options: Vec<String>,
}

/// Nodes of one cluster.
fn nodes(count: usize) -> Vec<Node> {
    let ports = free_ports(count);
    let list: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let fixtures: Vec<Fixture> = (0..count).map(|_| Fixture::new()).collect();
    let secret = fixtures[0].path("secret").display().to_string();
    let node = |(fixture, address): (Fixture, &String)| {
        fixture.write_many("d", FILES, 5000);
        let set = |key: &str, value: &str| ["--set".to_owned(), format!("cluster.{key}={value}")];
        let mut options = vec!["--ram".to_owned(), "64MiB".to_owned()];
        options.extend(["--cluster".to_owned(), format!("hosts:{}", list.join(","))]);
        options.extend(set("secret", &secret).into_iter().chain(set("address", address)));
        Node { fixture, options }
    };
    fixtures.into_iter().zip(&list).map(node).collect()
}

impl Node {
    fn mount(&self) -> Mounted {
        self.mount_with(&["--cluster-ram", "32MiB"])
    }

    fn mount_with(&self, more: &[&str]) -> Mounted {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        Mounted::new(&self.fixture, &[&options[..], more].concat())
    }

    /// The processes of its shard.
    fn servers(&self) -> Vec<i32> {
        working_in(&self.fixture.path("run"))
    }

    /// The process of its shard, once there is exactly one.
    #[track_caller]
    fn server(&self) -> i32 {
        let mut servers = Vec::new();
        wait_until("one server", || {
            servers = self.servers();
            servers.len() == 1
        });
        servers[0]
    }
}

/// How many nodes a mount sees in a state.
fn seen(mounted: &Mounted, state: &str) -> usize {
    let status = mounted.status();
    let members = status["cluster"]["members"].as_array().unwrap();
    members.iter().filter(|member| member["state"] == state).count()
}

fn await_members(mounts: &[&Mounted], count: usize) {
    wait_until("all members are there", || {
        mounts.iter().all(|mount| seen(mount, "here") + seen(mount, "member") == count)
    });
}

fn why(mounted: &Mounted) -> String {
    mounted.status()["cluster"]["why"].as_str().unwrap_or_default().to_owned()
}

fn views(mounts: &[&Mounted]) -> Vec<Value> {
    mounts.iter().map(|mount| mount.status()["cluster"]["view"].clone()).collect()
}

#[test]
fn a_run_takes_its_shard_along() {
    let node = nodes(1).remove(0);
    let source = node.fixture.path("source");
    let script = r#"until "$1" cluster ls "$2" | grep -q "here "; do sleep 0.1; done; echo runs"#;
    let mut run = node.fixture.belady();
    run.arg("run").arg(&source).args(&node.options).args(["--cluster-ram", "32MiB", "--"]);
    run.args(["sh", "-c", script, "sh"]).arg(program("belady")).arg(&source);
    assert_eq!(Program::start(&mut run).finish(), "runs\n");
    assert_eq!(node.servers(), Vec::<i32>::new());
}

#[test]
fn the_addresses_of_a_name_are_nodes() {
    let mut node = nodes(1).remove(0);
    let place = node.options.iter().position(|option| option.starts_with("hosts:")).unwrap();
    let port = node.options[place].rsplit(':').next().unwrap().to_owned();
    node.options[place] = format!("dns:localhost:{port}");
    let mounted = node.mount();
    wait_until("it is a node", || seen(&mounted, "here") == 1);
    check_many(&mounted.path(""), "d", FILES, 5000);
    mounted.umount();
    assert_eq!(node.servers(), Vec::<i32>::new());
}

#[test]
fn nodes_find_each_other_and_come_back() {
    let nodes = nodes(3);
    let mut mounts: Vec<Mounted> = nodes.iter().map(Node::mount).collect();
    let all = |mounts: &[Mounted]| await_members(&mounts.iter().collect::<Vec<_>>(), 3);
    all(&mounts);
    wait_until("all have one view", || {
        let views = views(&mounts.iter().collect::<Vec<_>>());
        views[0].is_string() && views.iter().all(|view| *view == views[0])
    });
    let point = mounts[0].point.to_str().unwrap().to_owned();
    let run = |words: &[&str]| nodes[0].fixture.run(0, words);
    wait_until("the list", || {
        let shown = run(&["cluster", "ls", &point]);
        shown.matches("member ").count() == 2 && shown.matches("here ").count() == 1
    });
    wait_until("the list for programs", || {
        let json = run(&["cluster", "ls", &point, "--json"]);
        let json: Value = serde_json::from_str(json.trim()).unwrap();
        // What 32 MiB leave for samples.
        let mut members = json["members"].as_array().unwrap().iter();
        members.all(|member| member["capacity"] == 17_112_744)
    });
    wait_until("the status", || run(&["status", &point]).contains("cluster  3 of 3 nodes"));

    // A server that is killed is started again, by its own daemon.
    let killed = nodes[1].server();
    signal(killed, Signal::SIGKILL);
    wait_until("another server", || nodes[1].servers().iter().any(|server| *server != killed));
    all(&mounts);

    // A node leaves, and comes back.
    mounts.pop().unwrap().umount();
    assert_eq!(nodes[2].servers(), Vec::<i32>::new());
    wait_until("the others see that it is gone", || {
        mounts.iter().all(|mount| seen(mount, "here") + seen(mount, "member") == 2)
    });
    check_many(&mounts[0].path(""), "d", FILES, 5000);
    mounts.push(nodes[2].mount());
    all(&mounts);
    mounts.into_iter().for_each(Mounted::umount);
    for node in &nodes {
        assert_eq!(node.servers(), Vec::<i32>::new());
        let secret = node.fixture.path("secret");
        assert!(!secret.exists() || fs::metadata(secret).unwrap().permissions().mode() & 0o77 == 0);
    }
}

#[test]
fn a_shard_outlives_its_daemon_until_the_mount_is_taken_away() {
    let nodes = nodes(1);
    let node = &nodes[0];
    let mounted = node.mount();
    await_members(&[&mounted], 1);
    let server = node.server();
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    assert!(runs(server));
    let again = node.mount();
    await_members(&[&again], 1);
    assert_eq!(node.server(), server, "it is adopted");
    signal(again.pid, Signal::SIGKILL);
    wait_for_end(again.pid);
    let smaller = node.mount_with(&["--cluster-ram", "16MiB"]);
    wait_until("its memory is another one", || {
        smaller.status()["cluster"]["members"][0]["capacity"] == 8_556_372
    });
    assert_eq!(node.server(), server, "it is adopted");
    signal(smaller.pid, Signal::SIGKILL);
    wait_for_end(smaller.pid);
    // With another secret it would be another server.
    let secret = format!("cluster.secret={}", node.fixture.path("other-secret").display());
    let other = node.mount_with(&["--set", &secret]);
    await_members(&[&other], 1);
    assert_ne!(node.server(), server);
    signal(other.pid, Signal::SIGKILL);
    wait_for_end(other.pid);
    node.fixture.run(0, &["umount", "--force", other.point.to_str().unwrap()]);
    assert_eq!(node.servers(), Vec::<i32>::new());

    // Nobody can tell this one to end, and nothing but the watcher knows it: the watcher kills it.
    let lost = node.mount();
    await_members(&[&lost], 1);
    let at = node.server();
    let directory = fs::read_link(format!("/proc/{at}/cwd")).unwrap();
    fs::remove_dir_all(directory).unwrap();
    signal(lost.pid, Signal::SIGKILL);
    wait_for_end(lost.pid);
    wait_until("the watcher kills the shard", || !runs(at));

    // Nobody takes this one away: the watcher does.
    let last = node.mount();
    await_members(&[&last], 1);
    signal(last.pid, Signal::SIGKILL);
    wait_for_end(last.pid);
    assert_eq!(node.servers().len(), 1);
    wait_until("the watcher ends the shard", || node.servers().is_empty());
    node.fixture.run(0, &["umount", "--force", last.point.to_str().unwrap()]);
}

#[test]
fn who_reads_the_errors_of_a_killed_daemon_does_not_wait_for_its_shard() {
    let nodes = nodes(1);
    let node = &nodes[0];
    let point = node.fixture.path("mount");
    let mut command = node.fixture.belady();
    command.arg("mount").args([&node.fixture.path("source"), &point]).arg("-f");
    let mut daemon = command.args(&node.options).stderr(Stdio::piped()).spawn().unwrap();
    let _watchdog = Watchdog::over(daemon.id() as i32);
    let point = point.to_str().unwrap();
    wait_until("a member", || {
        let status = node.fixture.belady().args(["status", point, "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        status["cluster"]["members"][0]["state"] == "here"
    });
    let server = node.server();
    daemon.kill().unwrap();
    let mut said = String::new();
    daemon.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    daemon.wait().unwrap();
    assert!(runs(server), "the watcher leaves it for a minute: {said}");
    node.fixture.run(0, &["umount", "--force", point]);
    assert_eq!(node.servers(), Vec::<i32>::new());
}

#[test]
fn a_shard_that_is_stopped_ends_with_its_mount() {
    let nodes = nodes(1);
    let mounted = nodes[0].mount();
    await_members(&[&mounted], 1);
    signal(nodes[0].server(), Signal::SIGSTOP);
    mounted.umount();
    assert_eq!(nodes[0].servers(), Vec::<i32>::new());
}

#[test]
fn a_mount_serves_without_its_cluster_and_says_why() {
    let nodes = nodes(1);
    let node = &nodes[0];
    let program = node.fixture.path("redis-server");
    let server = format!("cluster.server={}", program.display());
    let mounted = node.mount_with(&["--set", &server]);
    check_many(&mounted.path(""), "d", FILES, 5000);
    wait_until("the reason", || why(&mounted).contains("is no program"));
    let text = node.fixture.path("text");
    fs::write(&text, "#!/bin/sh\necho Redis server v=6.2.7\n").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    // As [`Fixture::copy_belady`] does.
    assert!(Command::new("cp").arg(&text).arg(&program).status().unwrap().success());
    wait_until("the reason", || why(&mounted).contains("6.2.7 is older than 7.0.0"));
    let point = mounted.point.to_str().unwrap();
    wait_until("the status", || {
        let shown = node.fixture.run(0, &["status", point]);
        shown.contains("cluster  off: ") && shown.contains("it is tried again")
    });
    wait_until("the list", || {
        node.fixture.run(0, &["cluster", "ls", point]).starts_with("no cluster: ")
    });
    fs::remove_file(&program).unwrap();
    symlink(on_path("redis-server"), &program).unwrap();
    await_members(&[&mounted], 1);
    mounted.umount();

    // Another program has the port.
    let address = node.options.last().unwrap().split('=').next_back().unwrap();
    let taken = TcpListener::bind(address).unwrap();
    let mounted = node.mount();
    wait_until("the reason", || why(&mounted).contains(address));
    check_many(&mounted.path(""), "d", FILES, 5000);
    drop(taken);
    await_members(&[&mounted], 1);
    mounted.umount();
    let refused =
        node.fixture.run(6, &["cluster", "ls", node.fixture.path("mount").to_str().unwrap()]);
    assert!(refused.contains("nothing of belady mounted"), "{refused}");
}

/// A program of the tests' packages.
fn on_path(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found.find(|path| path.is_file()).expect("redis-server is missing: scripts/test installs it")
}

#[test]
fn a_node_with_another_secret_is_no_member() {
    let nodes = nodes(2);
    let one = nodes[0].mount();
    await_members(&[&one], 1);
    let own = nodes[1].fixture.path("own-secret");
    let own_secret = format!("cluster.secret={}", own.display());
    let stranger = nodes[1].mount_with(&["--set", &own_secret]);
    for mounted in [&one, &stranger] {
        wait_until("it is refused", || {
            let status = mounted.status();
            let members = status["cluster"]["members"].as_array().cloned().unwrap_or_default();
            let is = |state: &str| members.iter().filter(|member| member["state"] == state).count();
            let mut reasons = members.iter().map(|member| &member["why"]);
            reasons.any(|why| why == "it has another secret")
                && (is("here"), is("member")) == (1, 0)
        });
    }
    stranger.umount();

    // Others may read this one.
    fs::set_permissions(&own, fs::Permissions::from_mode(0o644)).unwrap();
    let open = nodes[1].mount_with(&["--set", &own_secret]);
    wait_until("the reason", || why(&open).contains("chmod 600"));
    open.umount();
    one.umount();
}

#[test]
fn settings_that_make_no_cluster_are_refused() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 100);
    let (source, point) = (fixture.path("source"), fixture.path("mount"));
    let refused = |code: i32, options: &[&str]| {
        let words = ["mount", source.to_str().unwrap(), point.to_str().unwrap()];
        fixture.run(code, &[&words, options].concat())
    };
    assert!(refused(3, &["--cluster", "hosts:a"]).contains("cluster.secret is empty"));
    assert!(refused(3, &["--cluster", "a,b"]).contains("names no nodes"));
    let exists = refused(3, &["--cluster", "redis://me:SECRET@host:6379"]);
    assert!(exists.contains("cluster.login") && !exists.contains("SECRET"), "{exists}");
    let other = refused(3, &["--cluster", "other://me:SECRET@host:6379"]);
    assert!(other.contains("names no nodes") && !other.contains("SECRET"), "{other}");
    let secret = ["--cluster", "hosts:a", "--set", "cluster.secret=/run/secret"];
    let much = [&secret[..], &["--ram", "64MiB", "--cluster-ram", "1GiB"]].concat();
    assert!(refused(3, &much).contains("cluster.ram 1 GiB is not between"));
    let far = [&secret[..], &["--ram", "64MiB", "--set", "cluster.address=here"]].concat();
    assert!(refused(3, &far).contains("IP:PORT"));
    for option in ["address=0.0.0.0", "address=10.0.0.7:65535", "join=hosts:0.0.0.0"] {
        let option = format!("cluster.{option}");
        let said = refused(3, &[&secret[..], &["--set", &option]].concat());
        assert!(said.contains("is no address") || said.contains("is no host"), "{said}");
    }
    assert!(!Path::new("/run/secret").exists());
}

/// The number of a Slurm job whose ports are free.
fn slurm_job() -> String {
    let job =
        |port: u16| port.checked_sub(20_000).filter(|above| above / 2 < 5000 && above % 2 == 0);
    let found = std::iter::repeat_with(|| free_ports(1)[0]).take(20_000).find_map(job);
    (found.unwrap() / 2).to_string()
}

/// The program of Slurm itself tells who the nodes of a job are.
#[test]
fn the_nodes_of_a_slurm_job_find_each_other() {
    let (job, fixtures) = (slurm_job(), [Fixture::new(), Fixture::new()]);
    let secret = format!("cluster.secret={}", fixtures[0].path("secret").display());
    // Slurm's program does nothing without a configuration.
    let conf = fixtures[0].path("slurm.conf");
    fs::write(&conf, "ClusterName=test\nSlurmctldHost=localhost\n").unwrap();
    let mount = |fixture: &Fixture, job: Option<&str>, address: &str| {
        let [source, point] = ["source", "mount"].map(|name| fixture.path(name));
        let mut command = fixture.belady();
        command.env_remove("SLURM_JOB_ID").env("SLURM_JOB_NODELIST", "127.0.0.[1-2]");
        command.env("SLURM_CONF", &conf).envs(job.map(|job| ("SLURM_JOB_ID", job)));
        command.arg("mount").args([&source, &point]).args(["--ram", "64MiB", "--cluster-ram"]);
        command.args(["32MiB", "--cluster", "slurm", "--set", &secret, "--set", address]);
        Mounted::by(fixture, &mut command, &point)
    };
    let outside = mount(&fixtures[0], None, "cluster.address=127.0.0.1");
    wait_until("the mount says what is missing", || {
        why(&outside).contains("SLURM_JOB_ID is not set")
    });
    outside.umount();
    let one = mount(&fixtures[0], Some(&job), "cluster.address=127.0.0.1");
    let other = mount(&fixtures[1], Some(&job), "cluster.address=127.0.0.2");
    await_members(&[&one, &other], 2);
    one.umount();
    other.umount();
}
