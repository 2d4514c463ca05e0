"""Checks mounts of real servers: every byte, every name, and what readers get while a server is away.

Goal: belady works with servers that others have written, as they are used.
Method: the same samples are in a directory and in a server.  What the mount shows is compared with the directory.  A
check that fails raises, so the script ends with an error, and takes all servers and mounts down.
"""

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import cassandra_dali
from cassandra_nodes import OWNER, Cassandra, Secured, TwoNodes, TwoNodesWithRoles
from driver import RunError, end_group
from hotdata import Shape, names_of, write_files
from mounts import TARGET, Belady, MountError, Watchdog, binary, exit_on_signals, fresh_dir, kill_hard, say
from nodes import Cluster, Network, secret_in
from nodes import Servers as ExistingServers
from servers import BOTO_PYTHON, BUCKET, Azurite, Ceph, Link, Redis, Valkey

SAMPLES = Shape("samples", files=2_000, size=110_000, folders=20)
LARGE = "large/9"
RANGES = 20_000
THREADS = 16
PATIENCE = 180
AWAY_S = 15
LONG_AWAY_S = 60
LONG = 15                    # seconds of a read while another node has its row

PUT = """
import sys, boto3
boto3.client("s3").put_object(Bucket=sys.argv[1], Key=sys.argv[2], Body=sys.argv[3].encode() * int(sys.argv[4]))
"""


def check(holds, what):
    """Ends the script if something does not hold."""
    if not holds:
        raise RunError(what)


def in_threads(work):
    """Runs `work(number)` in threads, and raises what one of them has raised."""
    failed = []

    def run(number):
        try:
            work(number)
        except Exception as e:              # whatever it is, it is raised below
            failed.append(e)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def read_range(path, offset, length):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, length, offset)
    finally:
        os.close(fd)


def fails_with(number, work, *of):
    """Whether work fails with this error of the system."""
    try:
        work(*of)
    except OSError as e:
        return e.errno == number
    return False


class Meanwhile:
    """Work that begins after some time, while something else goes on. Its error is raised at the end."""

    def __init__(self, seconds, work, *of):
        self.seconds, self.work, self.began, self.failed = seconds, lambda: work(*of), None, None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        time.sleep(self.seconds)
        self.began = time.monotonic()
        try:
            self.work()
        except Exception as e:              # whatever it is, it is raised at the end
            self.failed = e

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.thread.join(30 if kind else None)
        if kind is None and self.failed:
            raise self.failed


class Servers:
    """The checks of one kind of server."""

    def __init__(self, top, kind, name):
        self.top, self.name = os.path.join(top, name), name
        self.samples, self.mountpoint = os.path.join(self.top, "samples"), os.path.join(self.top, "mount")
        os.makedirs(self.top)
        write_files(self.samples, SAMPLES)
        os.makedirs(os.path.join(self.samples, os.path.dirname(LARGE)))
        with open(os.path.join(self.samples, LARGE), "wb") as f:
            f.write(os.urandom((5 << 20) + 17))
        self.names = [*names_of(SAMPLES), LARGE]
        self.server = kind(os.path.join(self.top, "server"))

    def mount(self, port, *options, immutable=True):
        settings = ["--set", "source.consistency=immutable"] if immutable else []
        words = ["--ram", "1GiB", *settings, *options]
        return Belady(self.server.url(port), self.mountpoint, words, variables=self.server.variables(port))

    def same(self, mounted, names):
        """Compares whole files. Returns the seconds of the longest read."""
        longest = [0] * THREADS

        def work(number):
            for name in names[number::THREADS]:
                began = time.monotonic()
                with open(os.path.join(self.samples, name), "rb") as a, open(os.path.join(mounted, name), "rb") as b:
                    check(a.read() == b.read(), f"{self.name}: {name} differs")
                longest[number] = max(longest[number], time.monotonic() - began)
        in_threads(work)
        return max(longest)

    def shown(self):
        """The names of all files of the mount."""
        return sorted(os.path.relpath(os.path.join(at, name), self.mountpoint)
                      for at, _, names in os.walk(self.mountpoint) for name in names)

    def shows_all(self):
        """All names and bytes, and ranges at random."""
        with self.mount(self.server.port) as belady, Watchdog(PATIENCE, [belady]) as dog:
            belady.await_scan()
            check(self.shown() == sorted(self.names), f"{self.name}: the names differ")
            self.same(self.mountpoint, self.names)
        with self.mount(self.server.port, "--set", "prefetch.enabled=false") as belady:
            def work(number):
                rng = random.Random(number)
                for _ in range(RANGES // THREADS):
                    name = rng.choice(self.names) if rng.random() < .9 else LARGE
                    size = os.path.getsize(os.path.join(self.samples, name))
                    offset = rng.randrange(size)
                    length = rng.randrange(1, 200_000)
                    pair = [read_range(os.path.join(top, name), offset, length)
                            for top in (self.samples, self.mountpoint)]
                    check(pair[0] == pair[1], f"{self.name}: {name} differs at {offset}")
            with Watchdog(PATIENCE, [belady]):
                in_threads(work)
        check(not dog.bitten, f"{self.name}: the mount hangs")

    def waits(self):
        """A link that stands still, and one that is cut, in the middle of an epoch."""
        order = os.path.join(self.top, "order.txt")
        with open(order, "w") as f:
            f.writelines(f"{name}\n" for name in self.names)
        for word in ("stall", "cut"):
            with Link(os.path.join(self.top, "link"), self.server.port, "5ms", "40MB") as link:
                with self.mount(link.port, "--order", order) as belady, Watchdog(PATIENCE, [belady]) as dog:
                    belady.await_scan()
                    with Meanwhile(1, lambda link=link, word=word: link.pause(word, AWAY_S)) as away:
                        self.same(self.mountpoint, self.names)
                        check(away.began, f"{self.name}: all was read before the link was away")
                check(not dog.bitten, f"{self.name}: readers hang after {word}")

    def is_far(self):
        """A link of 100 ms: all names and bytes, in an order that is read ahead."""
        order = os.path.join(self.top, "order.txt")
        with open(order, "w") as f:
            f.writelines(f"{name}\n" for name in self.names)
        with Link(os.path.join(self.top, "link"), self.server.port, "100ms", "40MB") as link:
            with self.mount(link.port, "--order", order) as belady, Watchdog(PATIENCE, [belady]) as dog:
                belady.await_scan()
                check(self.shown() == sorted(self.names), f"{self.name}: the names differ over a far link")
                self.same(self.mountpoint, self.names)
            check(not dog.bitten, f"{self.name}: readers hang over a far link")

    def waits_for_names(self):
        """A link that stands still for a minute, while each name is checked that is opened."""
        with Link(os.path.join(self.top, "link"), self.server.port, "5ms", "40MB") as link:
            with self.mount(link.port, "--set", "source.revalidate=1s", immutable=False) as belady:
                with Watchdog(PATIENCE, [belady]) as dog:
                    belady.await_scan()
                    with Meanwhile(1, lambda: link.pause("stall", LONG_AWAY_S)) as away:
                        self.same(self.mountpoint, self.names)
                        check(away.began, f"{self.name}: all was read before the link was away")
                check(not dog.bitten, f"{self.name}: readers hang after a minute")

    def changes(self):
        """A sample is replaced while readers read it: each gets one version or the other."""
        name = "large/changing"
        self.put(name, "a", 3 << 20)
        with self.mount(self.server.port, "--set", "source.revalidate=1s", immutable=False) as belady:
            belady.await_scan()
            path, deadline = os.path.join(self.mountpoint, name), time.monotonic() + PATIENCE
            writer = threading.Thread(target=self.put, args=(name, "b", 2 << 20))
            writer.start()
            while True:
                try:
                    with open(path, "rb") as f:
                        found = f.read()
                except OSError:
                    found = b""             # the version that was opened has gone
                check(len(set(found)) <= 1, f"{self.name}: two versions in one file")
                if found == b"b" * (2 << 20):
                    break
                check(time.monotonic() < deadline, f"{self.name}: the new version is never seen")
                time.sleep(.05)
            writer.join()

    def refuses(self, *wrong):
        """What cannot be mounted: a URL, variables that are wrong, and what the error says."""
        for url, variables, said in wrong:
            all_of_them = {**self.server.variables(self.server.port), **variables}
            given = {name: value for name, value in all_of_them.items() if value is not None}
            belady = Belady(url, self.mountpoint, [], variables=given)
            try:
                with belady:
                    raise RunError(f"{url} is mounted with {variables}")
            except MountError as e:
                check(" gave 4: " in str(e) and said in str(e), f"{url} {variables}: {e}")

    def doctor_says(self):
        """What `belady doctor` says of the server."""
        words = [binary("belady"), "doctor", "--source", self.server.url(self.server.port)]
        environment = {**os.environ, **self.server.variables(self.server.port)}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE)
        return done.stdout + done.stderr

    def without(self, *away):
        """Reads all samples. Meanwhile a server is away. Returns the seconds of the longest read."""
        with self.mount(self.server.port, "--set", "prefetch.enabled=false") as belady:
            belady.await_scan()
            with Watchdog(PATIENCE, [belady]) as dog, Meanwhile(.2, *away) as away:
                longest = self.same(self.mountpoint, self.names)
                check(away.began, f"{self.name}: all was read before the server was away")
            check(not dog.bitten, f"{self.name}: readers hang")
        return longest

    def run(self, *checks):
        with self.server:
            self.server.fill(self.samples, self.names)
            for one in (*self.ALWAYS, *checks):
                began = time.monotonic()
                one(self)
                say(f"ok  {self.name}: {one.__name__} ({time.monotonic() - began:.0f} s)")

    ALWAYS = (shows_all, is_far, waits)


class Bucket(Servers):
    """The checks of a server of S3."""

    def put(self, name, letter, size):
        environment = {**os.environ, **self.server.variables(self.server.port)}
        subprocess.run([BOTO_PYTHON, "-c", PUT, BUCKET, name, letter, str(size)], check=True, env=environment)

    def refuses_strangers(self):
        """A wrong key, and a bucket that is not there."""
        bucket = f"s3://{BUCKET}"
        self.refuses((bucket, {"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidAccessKeyId"),
                     (bucket, {"AWS_SECRET_ACCESS_KEY": "x"}, "SignatureDoesNotMatch"),
                     ("s3://nothing", {}, "NoSuchBucket"))

    def restarts(self):
        """The server is ended in the middle of an epoch, and started again."""
        self.without(self.server.restart_gateway)


class Rows(Servers):
    """The checks of a keyspace of Cassandra."""

    def put(self, name, letter, size):
        self.server.put(name, letter.encode() * size)

    def deletes(self):
        """A row that is deleted is a file that goes."""
        name = "large/going"
        self.put(name, "a", 1000)
        with self.mount(self.server.port, "--set", "source.revalidate=1s", immutable=False) as belady:
            belady.await_scan()
            path, deadline = os.path.join(self.mountpoint, name), time.monotonic() + PATIENCE
            check(read_range(path, 0, 2000) == b"a" * 1000, f"{self.name}: {name} differs")
            self.server.delete(name)
            while os.path.exists(path):
                check(time.monotonic() < deadline, f"{self.name}: {name} never goes")
                time.sleep(.1)

    def finds_sizes(self):
        """Rows whose sizes are not listed: in an order that is read ahead, and as they are looked up."""
        order = os.path.join(self.top, "order.txt")
        with open(order, "w") as f:
            f.writelines(f"{name}\n" for name in self.names)
        for options in (("--order", order), ("--set", "prefetch.enabled=false")):
            with self.mount(self.server.port, "--set", "source.size=", *options) as belady:
                belady.await_scan()
                self.same(self.mountpoint, self.names)

    def shows_tables_of_dali(self):
        """The tables of cassandra-dali: as they are, and with the column of sizes that the docs add."""
        with self.server.session() as session:
            files = cassandra_dali.fill(session)
            self.shows_files(files, "--set", "source.size=", "--set", "source.consistency=immutable")
            cassandra_dali.add_sizes(session)
            self.shows_files(files)

    def shows_files(self, files, *options):
        """Mounts the tables of cassandra-dali with the settings of the docs, and compares names, bytes and sizes."""
        settings = os.path.join(self.top, "dali.toml")
        with open(settings, "w") as f:
            f.write(cassandra_dali.block("toml", "[source]"))
        url = self.server.url(self.server.port).replace(BUCKET, cassandra_dali.KEYSPACE)
        words = ["--ram", "1GiB", "--config", settings, *options]
        reader = self.server.user(*cassandra_dali.READER)
        paths = {name: os.path.join(self.mountpoint, name) for name in files}
        with Belady(url, self.mountpoint, words, variables=reader) as belady, Watchdog(PATIENCE, [belady]):
            belady.await_scan()
            check(self.shown() == sorted(files), f"{self.name}: the names of dali differ")
            for name, path in paths.items():
                with open(path, "rb") as f:
                    check(f.read() == files[name], f"{self.name}: {name} differs")
            for name, path in paths.items():
                check(os.path.getsize(path) == len(files[name]), f"{self.name}: the size of {name} differs")

    def refuses_others(self):
        """Wrong passwords, and tables that do not fit, with what the server says of them."""
        self.server.put_apart("large/apart", b"x")
        keyspace = self.server.url(self.server.port)
        self.refuses((keyspace, {"CASSANDRA_PASSWORD": "x"}, "are incorrect"),
                     (keyspace, {"CASSANDRA_PASSWORD": ""}, "without a password"),
                     (keyspace.replace(BUCKET, "nothing"), {}, "there is no keyspace nothing"),
                     (keyspace, {"BELADY_SOURCE_ROWS": "nothing"}, "there is no table samples.nothing"),
                     (keyspace, {"BELADY_SOURCE_PATH": "{nothing}"}, "the table metadata has no column nothing"),
                     (keyspace, {"BELADY_SOURCE_DATA": "metadata.bytes"}, "of the type int, not blob"),
                     (keyspace, {"BELADY_SOURCE_SIZE": ""}, "ALTER TABLE samples.metadata ADD bytes int"),
                     (keyspace, {"BELADY_SOURCE_PATH": "{directory}"}, "two files are"),
                     (keyspace, {"BELADY_SOURCE_PATH": "../{name}"}, "leads out of the tree"),
                     (keyspace, {"BELADY_SOURCE_ROWS": "apart"}, "a size and its data need one write time"))

    def conforms(self):
        """The tests of the library that need a server."""
        environment = {**os.environ, "BELADY_CASSANDRA": f"127.0.0.1:{self.server.port}",
                       **self.server.user(*OWNER)}
        done = subprocess.run(["cargo", "test", "--lib", "source::cql", "--", "--ignored", "--test-threads=1"],
                              check=False, env=environment, capture_output=True, text=True)
        passed = re.search(r"ok\. (\d+) passed", done.stdout)
        check(passed and int(passed[1]) > 0, f"{self.name}: {done.stdout[-2000:]} {done.stderr[-600:]}")

    def restarts(self):
        """The only node is ended in the middle of an epoch, and started again."""
        self.without(self.server.restart_node)

    def loses_a_column(self):
        """The column of the bytes goes while it is mounted: reads fail, and nothing else does. It stays away."""
        read, unread = (os.path.join(self.mountpoint, name) for name in self.names[:2])
        with self.mount(self.server.port, "--set", "prefetch.enabled=false") as belady, Watchdog(PATIENCE, [belady]):
            belady.await_scan()
            read_range(read, 0, 1)
            self.server.drop_data()
            check(fails_with(errno.EIO, read_range, unread, 0, 1), f"{self.name}: bytes that no column has")
            told = belady.status()["source_failures"]
            check("have changed since the mount" in told["reason"], f"{self.name}: status tells {told}")
            read_range(read, 0, 1)
            check(sorted(os.listdir(os.path.dirname(read))), f"{self.name}: the names are gone")


class Pair(Rows):
    """The checks of two nodes."""

    def waits_for_no_node(self):
        """One of two nodes falls silent in the middle of an epoch. Readers get their bytes from the other one."""
        try:
            longest = self.without(self.server.signal_node, 2, signal.SIGSTOP)
        finally:
            self.server.signal_node(2, signal.SIGCONT)
        check(longest < LONG, f"{self.name}: a read takes {longest:.0f} s")

    def loses_a_node(self):
        """One of two nodes is ended in the middle of an epoch. No reader gets an error, and none waits for long."""
        longest = self.without(self.server.kill_node, 2)
        check(longest < LONG, f"{self.name}: a read takes {longest:.0f} s")

    # A link would lead to one of the nodes.
    ALWAYS = (Servers.shows_all,)


class Roles(Rows):
    """The checks of two nodes of which one has the roles."""

    def waits_for_roles(self):
        """The node with the roles is ended in the middle of an epoch.  The other one has all rows and refuses everybody
        until that node is back."""
        refused = []
        said = self.doctor_says()
        check("system_auth has 1" in said, f"{self.name}: doctor says {said}")

        def lose(node):
            self.server.kill_node(node)
            time.sleep(AWAY_S)              # a node remembers for some seconds who may do what
            refused.append(not self.server.lets_in(f"127.0.0.{3 - node}"))
            self.server.start_node(node)
        for node in (2, 1):
            self.without(lose, node)
        check(any(refused), f"{self.name}: both nodes have the roles")

    ALWAYS = ()


class Strict(Rows):
    """The checks of a node that wants TLS."""

    def refuses_strangers(self):
        """Other certificates, and connections without TLS."""
        keyspace = self.server.url(self.server.port)
        nobody = {"CASSANDRA_TLS_CERT": None, "CASSANDRA_TLS_KEY": None}
        self.refuses((keyspace, {"CASSANDRA_TLS_CA": self.server.path("node.pem")}, "certificate"),
                     (keyspace.replace("localhost", "127.0.0.1"), {}, "certificate"),
                     (keyspace, nobody, "set CASSANDRA_TLS_CERT and CASSANDRA_TLS_KEY"),
                     (keyspace, {"CASSANDRA_TLS_CA": ""}, "is set, but is no path"),
                     (keyspace, {**nobody, "CASSANDRA_TLS_CA": None}, "If it wants TLS, set CASSANDRA_TLS_CA"),
                     (keyspace, {"CASSANDRA_TLS_KEY": None}, "is missing"),
                     (keyspace, {"CASSANDRA_TLS_CA": self.server.path("ca.key")}, "it has no certificate"),
                     (keyspace, {"CASSANDRA_TLS_CA": "/nothing"}, "No such file"))


class Shards:
    """The checks of nodes that share samples, each with such a server as its shard."""

    NODES = 3

    def __init__(self, top, kind, name):
        self.top, self.name, self.program = os.path.join(top, name), name, kind.PROGRAM
        self.shown = self.program
        self.samples = os.path.join(self.top, "samples")
        os.makedirs(self.top)
        write_files(self.samples, SAMPLES)
        self.names = names_of(SAMPLES)

    def run(self):
        began = time.monotonic()
        options = ["--ram", "600MiB", "--cluster-ram", "512MiB", "--set", f"cluster.server={self.program}"]
        secret = secret_in(self.top)
        with Network(self.NODES) as network:
            with Cluster(network, self.samples, self.top, [options] * self.NODES, secret) as cluster:
                with Watchdog(PATIENCE, cluster.nodes) as dog:
                    self.share(cluster)
                    self.lose(network, cluster)
                check(not dog.bitten, f"{self.name}: readers hang")
        say(f"ok  {self.name}: share, lose ({time.monotonic() - began:.0f} s)")

    def read(self, cluster):
        """Compares all samples at all nodes."""
        def work(number):
            for name in self.names[number::THREADS]:
                with open(os.path.join(self.samples, name), "rb") as f:
                    true = f.read()
                for node in cluster.nodes:
                    with open(os.path.join(node.mountpoint, name), "rb") as f:
                        check(f.read() == true, f"{self.name}: {name} differs")
        in_threads(work)

    def share(self, cluster):
        """Each sample leaves the source once.  If the machine is busy, some nodes look slow, and the source is asked, too."""
        self.read(cluster)
        asked = sum(node.status()["source_bytes"] for node in cluster.nodes)
        check(asked <= 1.5 * SAMPLES.files * SAMPLES.size, f"{self.name}: the source gave {asked} bytes")
        check(cluster.traffic()["found"] > 0, f"{self.name}: nothing is found at other nodes")
        servers = {node.status()["cluster"]["server"] for node in cluster.nodes}
        check(all(server.startswith(self.shown) for server in servers), f"{self.name}: the servers are {servers}")

    def lose(self, network, cluster):
        """A shard is killed, and a node is cut off, while samples are read."""
        for strike in (lambda: kill_hard(cluster.nodes[1].shard()), lambda: network.cut(2)):
            with Meanwhile(.2, strike) as struck:
                self.read(cluster)
                check(struck.began, f"{self.name}: all was read before the strike")
            network.heal(2)
            cluster.await_homes()
        self.read(cluster)


class Existing(Shards):
    """The checks of nodes that use a cluster of such servers, and start none."""

    def run(self):
        began, self.shown = time.monotonic(), "Valkey"
        options, secret = ["--ram", "64MiB"], secret_in(self.top)
        with Network(self.NODES) as network:
            with ExistingServers(network, self.NODES, self.top, 512 << 20, self.program) as servers:
                with Cluster(network, self.samples, self.top, [options] * self.NODES, secret, servers=servers) as cluster:
                    with Watchdog(PATIENCE, cluster.nodes) as dog:
                        self.share(cluster)
                        self.lose_server(servers, cluster)
                    check(not dog.bitten, f"{self.name}: readers hang")
        say(f"ok  {self.name}: share, lose_server ({time.monotonic() - began:.0f} s)")

    def lose_server(self, servers, cluster):
        """A server is killed while samples are read."""
        with Meanwhile(.2, lambda: end_group(servers.processes[1])) as struck:
            self.read(cluster)
            check(struck.began, f"{self.name}: all was read before the strike")
        cluster.members -= 1
        cluster.await_homes()
        self.read(cluster)


# By name: the checks, the server, and which checks are made beside those of all servers.
KINDS = {
    "redis": (Servers, Redis, ()),
    "valkey": (Servers, Valkey, ()),
    "shards": (Shards, Valkey, ()),
    "existing": (Existing, Valkey, ()),
    "azurite": (Servers, Azurite, ()),
    "radosgw": (Bucket, Ceph, (Bucket.changes, Bucket.waits_for_names, Bucket.refuses_strangers, Bucket.restarts)),
    "cassandra": (Rows, Cassandra, (Rows.finds_sizes, Rows.shows_tables_of_dali, Rows.changes, Rows.waits_for_names,
                                    Rows.deletes, Rows.refuses_others, Rows.conforms, Rows.restarts,
                                    Rows.loses_a_column)),
    "two-nodes": (Pair, TwoNodes, (Pair.waits_for_no_node, Pair.loses_a_node)),
    "roles": (Roles, TwoNodesWithRoles, (Roles.waits_for_roles,)),
    "tls": (Strict, Secured, (Strict.refuses_strangers,)),
}


def main():
    exit_on_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names = sys.argv[1:] or list(KINDS)
    for name in names:
        if name not in KINDS:
            sys.exit(f"there is no server {name}, but {', '.join(KINDS)}")
    top = fresh_dir(os.path.join(TARGET, f"test-servers-{os.getpid()}"))
    try:
        for name in names:
            kind, server, checks = KINDS[name]
            kind(top, server, name).run(*checks)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    say(f"all passed: {', '.join(names)}")
    sys.exit(0)


if __name__ == "__main__":
    main()
