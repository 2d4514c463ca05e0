//! Nodes without shards of their own, on servers that others administer.
//!
//! Goal: a sample leaves the source once, nobody who has the servers can read samples or make nodes take others, and a
//! server that is gone costs its share. Method: mounts over one slow filesystem. The servers are real ones, a cluster
//! whose slots are all taken, or a single one. Nothing is fetched ahead.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::certificates::Certificates;
use crate::fixture::{Fixture, said, wait_until};
use crate::free_ports::free_ports;
use crate::mounted::Mounted;
use crate::programs::Watchdog;
use crate::sharing::{ALL, Cluster, FILES, NEVER_CHANGES, check, write_samples};

const PASSWORD: &str = "a-password-of-servers";

/// What belady may do, as docs/cluster.md shows it.
const RIGHTS: &str = "~b1:* -@all +get +set +setex +expire +unlink +mget +sadd +srem +smembers +rpush +blpop +ping \
                      +auth +info +cluster|nodes +cluster|keyslot";
const SLOTS: usize = 16_384;

/// Servers. Those of a cluster have all slots.
pub(crate) struct Servers {
    children: Vec<(Child, Watchdog)>,
    ports: Vec<u16>,
    /// Those of the servers, if they ask for TLS.
    certificates: Option<(Certificates, Fixture)>,
    fixture: Fixture,
}

impl Servers {
    /// Starts one server for each list of options, at these ports.
    fn start(ports: Vec<u16>, options: &[Vec<String>]) -> Self {
        let fixture = Fixture::new();
        let child = |(port, options): (&u16, &Vec<String>)| {
            let directory = fixture.path(&format!("server{port}"));
            fs::create_dir(&directory).unwrap();
            let child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
                .args(["--requirepass", PASSWORD, "--user"])
                .args(format!("belady on >{PASSWORD} {RIGHTS}").split_whitespace())
                .args(options)
                .current_dir(directory)
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is missing: scripts/test installs it");
            let watchdog = Watchdog::over(child.id() as i32);
            (child, watchdog)
        };
        let children = ports.iter().zip(options).map(child).collect();
        wait_until("the servers", || {
            ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok())
        });
        let login = fixture.path("login");
        fs::write(&login, format!("belady:{PASSWORD}\n")).unwrap();
        fs::set_permissions(&login, fs::Permissions::from_mode(0o600)).unwrap();
        Servers { children, ports, certificates: None, fixture }
    }

    /// A server without a cluster.
    pub(crate) fn single(options: &[&str]) -> Self {
        let options = options.iter().map(ToString::to_string).collect();
        Servers::start(free_ports(1), &[options])
    }

    /// The same, over TLS.
    fn encrypted() -> Self {
        let (fixture, ports) = (Fixture::new(), free_ports(1));
        let files = Certificates::make(&fixture);
        let port = ports[0].to_string();
        let names = [("cert", &files.own), ("key", &files.key), ("ca-cert", &files.authority)];
        let file = |(name, file): (&str, &PathBuf)| {
            [format!("--tls-{name}-file"), file.display().to_string()]
        };
        let plain = ["--maxmemory", "64mb", "--port", "0", "--tls-port", &port];
        let plain = [&plain[..], &["--tls-auth-clients", "no"]].concat();
        let options = plain.into_iter().map(str::to_owned).chain(names.into_iter().flat_map(file));
        let mut servers = Servers::start(ports, &[options.collect()]);
        servers.certificates = Some((files, fixture));
        servers
    }

    /// A cluster whose servers have all slots.
    fn cluster(count: usize) -> Self {
        let ports = free_ports(count);
        let options: Vec<Vec<String>> = ports
            .iter()
            .map(|port| {
                let bus = (port + 1).to_string();
                let words = format!(
                    "--maxmemory 64mb --cluster-enabled yes --cluster-port {bus} --cluster-node-timeout 2000 \
                     --cluster-require-full-coverage no"
                );
                words.split_whitespace().map(str::to_owned).collect()
            })
            .collect();
        let servers = Servers::start(ports, &options);
        let share = SLOTS.div_ceil(count);
        for (nth, port) in servers.ports.iter().enumerate() {
            let (first, last) = (nth * share, ((nth + 1) * share).min(SLOTS) - 1);
            let (first, last) = (first.to_string(), last.to_string());
            servers.ask(nth, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            let (port, bus) = (port.to_string(), (port + 1).to_string());
            servers.ask(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        wait_until("the servers know each other", || {
            (0..count).all(|server| {
                let info = servers.ask(server, &["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            })
        });
        servers
    }

    /// What a server answers.
    fn ask(&self, server: usize, words: &[&str]) -> String {
        let port = self.ports[server].to_string();
        let mut cli = Command::new("redis-cli");
        if let Some((files, _)) = &self.certificates {
            cli.arg("--tls").arg("--cacert").arg(&files.authority);
        }
        let output = cli.args(["-p", &port, "-a", PASSWORD, "--no-auth-warning"]).args(words);
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The keys of samples at a server.
    fn samples(&self, server: usize) -> Vec<String> {
        self.ask(server, &["--scan", "--pattern", "b1:*:s:*"]).lines().map(str::to_owned).collect()
    }

    /// The value of `cluster.join`. One of the servers is named.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.ports[0])
    }

    /// The options of a node that logs in.
    pub(crate) fn options(&self) -> Vec<String> {
        let login = format!("cluster.login={}", self.fixture.path("login").display());
        ["--set", &login].iter().chain(&NEVER_CHANGES).map(ToString::to_string).collect()
    }

    fn kill(&mut self, server: usize) {
        self.children[server].0.kill().unwrap();
        self.children[server].0.wait().unwrap();
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn servers_of_others_hold_samples_for_all_nodes() {
    let mut servers = Servers::cluster(3);
    let cluster = Cluster::joining(&servers.url(), write_samples, 2, |_| servers.options());
    cluster.read(0);
    cluster.assert_source_gave(ALL);
    wait_until("all samples are given", || cluster.traffic("given") >= FILES);
    cluster.await_epoch_without_source();
    assert_eq!(cluster.traffic("found_here"), 0, "nothing is at a node");
    let samples: Vec<usize> = (0..3).map(|server| servers.samples(server).len()).collect();
    // There is room for second homes.
    assert_eq!(samples.iter().sum::<usize>(), 2 * FILES as usize);
    assert!(samples.iter().all(|count| *count > 5), "{samples:?}");
    let node = &cluster.nodes[0];
    let shown = node.fixture.run(0, &["cluster", "ls", node.mounted.point.to_str().unwrap()]);
    assert_eq!(shown.matches("member ").count(), 3, "{shown}");
    assert!(shown.contains("2 nodes use them"), "{shown}");

    // They stay for a day after their last read. Nobody reads those at their second homes.
    let all = servers.samples(0);
    let left = |sample: &String| servers.ask(0, &["TTL", sample]).parse::<u64>().unwrap();
    all.iter().for_each(|sample| _ = servers.ask(0, &["EXPIRE", sample, "1000"]));
    wait_until("a read", || {
        cluster.evict();
        cluster.read(0);
        all.iter().any(|sample| left(sample) > 86_000)
    });
    assert!(all.iter().all(|sample| left(sample) <= 86_400));

    // Others cannot make nodes take their values, nor those of other samples.
    let value = servers.ask(0, &["GET", &all[0]]);
    assert!(!value.contains("sample"), "it is encrypted");
    for sample in servers.samples(0) {
        servers.ask(0, &["SET", &sample, "x"]);
    }
    cluster.evict();
    (0..2).for_each(|turn| cluster.read(turn));
    assert!(cluster.traffic("damaged") > 0);
    cluster.await_epoch_without_source();

    // Its samples are read from the source. Then they have their homes at other servers.
    servers.kill(1);
    for turn in 0..3 {
        cluster.evict();
        cluster.read(turn);
    }
    cluster.await_epoch_without_source();
    cluster.umount();
    // Nothing but samples is left, and lists that end by themselves.
    let rest = servers.ask(0, &["--scan", "--pattern", "b1:*"]);
    for key in rest.lines().filter(|key| !key.contains(":s:")) {
        assert_ne!(servers.ask(0, &["TTL", key]), "-1", "{key}");
    }
}

#[test]
fn a_cluster_may_have_one_server() {
    let servers = Servers::cluster(1);
    let cluster = Cluster::joining(&servers.url(), write_samples, 1, |_| servers.options());
    cluster.read(0);
    cluster.await_epoch_without_source();
    let node = &cluster.nodes[0];
    let shown = node.fixture.run(0, &["status", node.mounted.point.to_str().unwrap()]);
    assert!(shown.contains("servers that answer: 1 of 1, Redis 7"), "{shown}");
    assert!(shown.contains("this node alone uses them"), "{shown}");
    cluster.umount();
}

#[test]
fn nodes_come_to_servers_with_what_they_hold() {
    let servers = Servers::single(&["--maxmemory", "64mb"]);
    let mut cluster = Cluster::joining(&servers.url(), write_samples, 2, |_| servers.options());
    cluster.read(0);
    wait_until("all samples are given", || cluster.traffic("given") >= FILES);
    // A daemon that is gone takes nothing along.
    let last = cluster.leave();
    cluster.come_back(last);
    let before = cluster.source_bytes();
    (0..FILES).for_each(|number| check(&cluster.nodes[1].mounted, number, number));
    cluster.assert_source_gave(before);
    cluster.umount();
}

#[test]
fn connections_to_servers_may_be_encrypted() {
    let servers = Servers::encrypted();
    let (files, _) = servers.certificates.as_ref().unwrap();
    let url = servers.url().replace("redis://", "rediss://");
    let trusted = format!("cluster.tls-ca={}", files.authority.display());
    let options = |_| {
        let tls = ["--set".to_owned(), trusted.clone()];
        servers.options().into_iter().chain(tls).collect()
    };
    let cluster = Cluster::joining(&url, write_samples, 2, options);
    cluster.read(0);
    cluster.assert_source_gave(ALL);
    cluster.await_epoch_without_source();
    assert_eq!(cluster.traffic("damaged"), 0);
    cluster.umount();

    // Another authority has not signed the certificate of this server.
    let others = Fixture::new();
    let other = Certificates::make(&others);
    let trusted = format!("cluster.tls-ca={}", other.authority.display());
    let (secret, own) = (format!("cluster.secret={}", others.path("secret").display()), &others);
    own.write_many("d", 1, 5000);
    let all = ["--ram", "64MiB", "--cluster", &url, "--set", &secret, "--set", &trusted];
    let stranger = Mounted::new(own, &all);
    wait_until("it is refused", || {
        let why = stranger.status()["cluster"]["why"].as_str().unwrap_or_default().to_owned();
        why.contains("certificate")
    });
    stranger.umount();
}

#[test]
fn the_rights_of_these_tests_are_those_of_the_page() {
    let page = include_str!("../../docs/cluster.md");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(page).contains(&words(RIGHTS)), "{RIGHTS}");
}

#[test]
fn a_mount_says_why_it_cannot_use_servers() {
    let servers = Servers::single(&[]);
    let other = Servers::single(&["--maxmemory", "64mb"]);
    let fixture = Fixture::new();
    fixture.write_many("d", 3, 5000);
    let secret = format!("cluster.secret={}", fixture.path("secret").display());
    let url = servers.url();
    let node = |options: &[String]| {
        let all = ["--ram", "64MiB", "--cluster", &url, "--set", &secret];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Mounted::new(&fixture, &[&all[..], &options].concat())
    };
    let why = |mounted: &Mounted, words: &str| {
        let mut said = String::new();
        wait_until(words, || {
            said = mounted.status()["cluster"]["why"].as_str().unwrap_or_default().to_owned();
            said.contains(words)
        });
    };
    let stranger = node(&[]);
    why(&stranger, "NOAUTH");
    stranger.umount();
    let both = format!("cluster.join={},127.0.0.1:{}", servers.url(), other.ports[0]);
    let with = |option: &str| [&servers.options()[..], &["--set".into(), option.into()]].concat();
    let two = node(&with(&both));
    why(&two, "has no cluster: name one server");
    two.umount();
    other.ask(0, &["CONFIG", "SET", "masterauth", PASSWORD]);
    other.ask(0, &["REPLICAOF", "127.0.0.1", &servers.ports[0].to_string()]);
    let replica = node(&with(&format!("cluster.join={}", other.url())));
    why(&replica, "is no primary but slave");
    replica.umount();
    let unlimited = node(&servers.options());
    why(&unlimited, "has no limit for its memory: set cluster.ram");
    // It is tried again.
    servers.ask(0, &["CONFIG", "SET", "maxmemory", "64mb"]);
    wait_until("it takes part", || unlimited.status()["cluster"]["why"].is_null());
    drop(servers);
    why(&unlimited, "no server answers");
    fs::read(unlimited.path("d/0000")).unwrap();
    unlimited.umount();
    for (option, words) in [
        ("cluster.server=/bin/true", "this node has no shard of its own"),
        ("cluster.ram=25%", "is no amount"),
        ("cluster.expires=5s", "is not between 1m and 366d"),
        ("cluster.join=redis://me:SECRET@host", "cluster.login"),
        ("cluster.join=rediss://host", "cluster.tls-ca is empty"),
        ("cluster.tls-ca=/x", "does not ask for TLS"),
    ] {
        let point = fixture.path("mount");
        let (source, point) = (fixture.path("source"), point.to_str().unwrap().to_owned());
        let words_of = ["mount", source.to_str().unwrap(), &point, "--cluster", &url, "--set"];
        let said = fixture.run(3, &[&words_of[..], &[&secret, "--set", option]].concat());
        assert!(said.contains(words) && !said.contains("SECRET"), "{said}");
    }
}
