"""Nodes of a cluster on one machine: network namespaces on a bridge, a belady mount in each, ranks of a job in each.

Goal: a node can be cut off or lose its shard as on a real network, and nothing that was made here is left behind.
Method: a pair of veth devices for each node, with an address of the range for benchmarks (RFC 2544).  A bridge in a
namespace of its own joins them, so that no firewall of this machine sees their packets.  All nodes see one mount
namespace, and so one slow source.  Whatever is made has this process's number in its name.
"""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from driver import PYTHON, RunError, end_group, fields
from mounts import TOP, Belady, binary, fresh_dir, kill_hard

NET = "198.18.77"
PORT = 7100
SERVER_PORT, SLOTS = 7200, 16384

# Where bridges pass packets to firewalls at all.
NO_FIREWALL = "for f in /proc/sys/net/bridge/bridge-nf-call-*; do test ! -e $f || echo 0 > $f; done"


def run(*words, check=True):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    if check and done.returncode != 0:
        raise RunError(f"{' '.join(map(str, words))}: {done.stderr.strip()[-400:]}")
    return done


class Network:
    """So many namespaces, which reach each other."""

    def __init__(self, count):
        self.count, self.bridge = count, f"belady-{os.getpid()}-bridge"
        self.names = [f"belady-{os.getpid()}-{nth}" for nth in range(count)]

    def address(self, nth):
        return f"{NET}.{nth + 1}"

    @staticmethod
    def link(nth):
        """The end of a node's veth pair that is at the bridge."""
        return f"node{nth}"

    def outside(self, *words):
        """Runs `ip` in the namespace of the bridge."""
        run("ip", "-n", self.bridge, *words)

    def __enter__(self):
        try:
            run("ip", "netns", "add", self.bridge)
            self.outside("link", "add", "bridge", "type", "bridge")
            self.outside("link", "set", "bridge", "up")
            run("nsenter", f"--net=/run/netns/{self.bridge}", "sh", "-c", NO_FIREWALL)
            for nth, name in enumerate(self.names):
                run("ip", "netns", "add", name)
                self.outside("link", "add", self.link(nth), "type", "veth", "peer", "name", "eth0", "netns", name)
                self.outside("link", "set", self.link(nth), "master", "bridge", "up")
                run("ip", "-n", name, "addr", "add", f"{self.address(nth)}/24", "dev", "eth0")
                run("ip", "-n", name, "link", "set", "eth0", "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def cut(self, nth):
        self.outside("link", "set", self.link(nth), "down")

    def heal(self, nth):
        self.outside("link", "set", self.link(nth), "up")

    def inside(self, nth, command):
        """The command, in a node's network and in this mount namespace."""
        return ["nsenter", f"--net=/run/netns/{self.names[nth]}", *command]

    def __exit__(self, *_):
        for name in (*self.names, self.bridge):
            run("ip", "netns", "del", name, check=False)


class Node(Belady):
    """A mount in a namespace."""

    def __init__(self, network, nth, source, mountpoint, options):
        # Mounts of one machine would share a daemon.
        run_dir = fresh_dir(mountpoint + ".run")
        os.chmod(run_dir, 0o700)
        variables = {"XDG_RUNTIME_DIR": run_dir, "XDG_STATE_HOME": run_dir}
        super().__init__(source, mountpoint, options, variables=variables)
        self.network, self.nth = network, nth

    def wrapped(self, command):
        return self.network.inside(self.nth, command)

    def belady(self, *words, said=""):
        """Runs a command of belady with `said` on its standard input, and returns its output."""
        done = subprocess.run([binary("belady"), *map(str, words)], input=said, capture_output=True, text=True,
                              timeout=120, check=False, env=self.environment)
        if done.returncode != 0:
            raise RunError(f"belady {' '.join(map(str, words))[:200]}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def traffic(self):
        return self.status()["cluster"]["traffic"]

    def shard(self):
        """The process of its shard."""
        found = shards(self.mountpoint)
        if not found:
            raise RunError(f"{self.mountpoint} has no shard")
        return found[0]

    def __exit__(self, *_):
        left = shards(self.mountpoint)
        super().__exit__()
        deadline = time.monotonic() + 5
        while any(os.path.exists(f"/proc/{pid}") for pid in left) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            kill_hard(pid)


def shards(mountpoint):
    """The processes of a mount's shard: they work in a directory beside the note of the mount."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            cwd = os.readlink(f"/proc/{pid}/cwd")
            with open(os.path.join(os.path.dirname(cwd), "mount.json")) as f:
                noted = json.load(f)["mountpoint"]
        except (OSError, ValueError, KeyError):
            continue
        if noted == mountpoint and os.path.exists(os.path.join(cwd, "server.json")):
            found.append(int(pid))
    return found


class Servers:
    """A cluster of servers that no node administers, each in the namespace of a node, or servers without a cluster."""

    def __init__(self, network, count, work, memory, program="redis-server", is_cluster=True):
        """`memory`: bytes of each server."""
        self.network, self.count, self.memory, self.program = network, count, memory, program
        self.is_cluster = is_cluster
        self.directory, self.processes = fresh_dir(os.path.join(work, "servers")), []

    def ask(self, nth, *words):
        return run(*self.network.inside(nth, ["redis-cli", "-h", self.network.address(nth), "-p", SERVER_PORT, *words])).stdout

    def __enter__(self):
        try:
            for nth in range(self.count):
                self.processes.append(self.start(nth))
            deadline = time.monotonic() + 30
            while not all(self.answers(nth) for nth in range(self.count)):
                if time.monotonic() > deadline:
                    raise RunError("the servers do not answer")
                time.sleep(.1)
            if self.is_cluster:
                self.deal_slots(deadline)
        except BaseException:
            self.__exit__()
            raise
        return self

    def deal_slots(self, deadline):
        share = -(-SLOTS // self.count)
        for nth in range(self.count):
            self.ask(nth, "CLUSTER", "ADDSLOTSRANGE", nth * share, min((nth + 1) * share, SLOTS) - 1)
            self.ask(0, "CLUSTER", "MEET", self.network.address(nth), SERVER_PORT)
        while not all("cluster_slots_ok:16384" in self.ask(nth, "CLUSTER", "INFO") for nth in range(self.count)):
            if time.monotonic() > deadline:
                raise RunError("the servers do not find each other")
            time.sleep(.1)

    def start(self, nth):
        directory = fresh_dir(os.path.join(self.directory, str(nth)))
        words = [self.program, "--bind", self.network.address(nth), "--port", SERVER_PORT, "--save", "", "--maxmemory",
                 self.memory, "--protected-mode", "no"]
        if self.is_cluster:
            words += ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]
        with open(os.path.join(directory, "log"), "w") as log:
            return subprocess.Popen(self.network.inside(nth, [*map(str, words)]), cwd=directory, stdout=log,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def answers(self, nth):
        words = ["redis-cli", "-h", self.network.address(nth), "-p", str(SERVER_PORT), "PING"]
        return run(*self.network.inside(nth, words), check=False).stdout.strip() == "PONG"

    @property
    def url(self):
        return f"redis://{self.network.address(0)}:{SERVER_PORT}"

    def __exit__(self, *_):
        for process in self.processes:
            end_group(process)
        self.processes = []


class Cluster:
    """Mounts on all nodes of a network over one source, and ranks that read through them."""

    def __init__(self, network, source, work, options, secret=None, follows=False, servers=None):
        """`options` are those of each node.  Without a secret the nodes share nothing.  `follows`: samples move to who
        reads them next.  With `servers` nodes use those, and have no shards."""
        self.network, self.nodes, self.follows = network, [], follows
        self.members = servers.count if servers else len(options)
        join = "hosts:" + ",".join(f"{network.address(nth)}:{PORT}" for nth in range(len(options)))
        join = servers.url if servers else join
        for nth, own in enumerate(options):
            point = os.path.join(work, f"node{nth}")
            more = ["--cluster", join, "--set", f"cluster.secret={secret}"] if secret else []
            self.nodes.append(Node(network, nth, source, point, [*more, *own]))
        self.served, self.shares = ExitStack(), secret is not None

    def __enter__(self):
        try:
            for node in self.nodes:
                self.served.enter_context(node)
            if self.shares:
                self.await_homes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.served.close()
        self.nodes = []

    def leave(self):
        """Unmounts the last node, and returns it."""
        node = self.nodes.pop()
        self.members -= 1
        node.__exit__()
        return node

    def join(self, node):
        """Mounts a node."""
        self.served.enter_context(node)
        self.nodes.append(node)
        self.members += 1

    def await_homes(self, seconds=60):
        """Waits until all nodes have one view of all nodes, and know where samples are by it."""
        deadline = time.monotonic() + seconds
        while True:
            views = []
            for node in self.nodes:
                cluster = node.status()["cluster"]
                there = [member for member in cluster["members"] if member["state"] in ("here", "member")]
                placed = len(there) == self.members and cluster["placed"] == cluster["view"]
                placed = placed and (cluster["moves_in"] is not None) == self.follows
                views.append(cluster["view"] if placed else None)
            if None not in views and len(set(views)) == 1:
                return
            if time.monotonic() > deadline:
                raise RunError(f"the nodes do not find each other: {views}")
            time.sleep(0.2)

    def traffic(self):
        """The traffic of all nodes together."""
        all_of_them = [node.traffic() for node in self.nodes]
        return {name: sum(traffic[name] for traffic in all_of_them) for name in all_of_them[0]}

    def await_gifts(self, seconds=30):
        """Waits until nodes give nothing any more."""
        before, deadline = None, time.monotonic() + seconds
        while before != (now := self.traffic()["given"]) and time.monotonic() < deadline:
            before = now
            time.sleep(0.5)


class Ranks:
    """A job with a rank on each of some mounts.  A rank begins a batch when all have ended the one before.  With a pace,
    ranks wait for nobody, and a batch takes so many seconds."""

    def __init__(self, points, epochs, ranks=None, seed=0, pace=0):
        """Without `ranks` each reader has its part of one job.  `ranks` 1 has each read everything."""
        self.epochs, self.processes, self.said = epochs, [], None
        self.steps = ThreadPoolExecutor(1)
        for nth, (wrap, point) in enumerate(points):
            world = ranks or len(points)
            words = [PYTHON, os.path.join(TOP, "scripts", "lib", "rank.py"), point, "--sync", "--epochs", epochs,
                     "--rank", nth if world > 1 else 0, "--ranks", world, "--seed", seed,
                     *(["--pace", pace] if pace else ["--in-step"])]
            self.processes.append(subprocess.Popen(
                wrap([*map(str, words)]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                start_new_session=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}))

    def __enter__(self):
        try:
            for process in self.processes:
                self.expect(process, "ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    @staticmethod
    def expect(process, word):
        line = process.stdout.readline()
        if not line.startswith(word):
            raise RunError(f"a rank ended: {line!r}")
        return line

    def go_on(self):
        for process in self.processes:
            process.stdin.write("\n")
            process.stdin.flush()

    def begin(self):
        """Has all ranks begin an epoch."""
        self.said = self.steps.submit(self.keep_step)

    def begin_all(self):
        """Has all ranks read all epochs.  A rank begins an epoch when all have ended the one before."""
        self.said = self.steps.submit(lambda: [self.keep_step() for _ in range(self.epochs)])

    def keep_step(self):
        """Goes through an epoch.  Returns what the ranks say at its end."""
        while True:
            self.go_on()
            said = [self.expect(process, ("step", "epoch")) for process in self.processes]
            if said[0].startswith("epoch"):
                return [fields(line) for line in said]

    def end(self):
        """Waits for the end of what was begun.  Returns what the ranks say."""
        return self.said.result()

    def epoch(self):
        self.begin()
        return self.end()

    def kill(self):
        for process in self.processes:
            end_group(process)

    def __exit__(self, *_):
        for process in self.processes:
            try:
                process.stdin.close()
                process.wait(20)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass
            end_group(process)
            process.stdout.close()
        self.steps.shutdown()


def secret_in(work):
    """A place for the secret of a cluster."""
    return os.path.join(fresh_dir(os.path.join(work, "secret")), "secret")
