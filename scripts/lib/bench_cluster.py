"""Four nodes that share samples: what is left to the source, what failures cost, and what a sample costs.

Goal: a sample leaves the source once for all nodes, and no failure of a shard reaches a reader.
Method: 5,000 imagenet-like JPEGs of about 110 KB behind one `slowpfs --preset busy`; four mounts in four network
namespaces, each with a shard; a torch DataLoader with one worker on each, which checks each sample.  DistributedSampler
deals the samples out, and each rank's order is told.  A rank begins a batch when all ranks have ended the one before,
as if they exchanged gradients.  R is what all shards hold, in per cent of the data.  x_bytes is what slowpfs gave in an
epoch over the data; cold.x_alone is a cold epoch over that of nodes which share nothing; steady is the mean of the
epochs after the first.  Samples move to who reads them next, and local is the part of the reads of those epochs that
found their samples on the reader's own node: in its page cache or in its shard.  Rows that begin with c13 are of nodes of
which every second one has three times the memory.
disks: shards hold a quarter of the data, and cache directories as much as the data and a tenth together; from_disks counts
the questions to disks for each read of an epoch after the first.
existing: nodes have no shards, and use a cluster of three servers that are there already; local is the part of the reads
whose samples were on the reader's own node.
jobs3 are three jobs, a rank of each on each node, a third of an epoch apart, and shards that hold a fifth of the data;
hits are reads that needed no source, over a minute.
wait is a reader's longest read, less the longest request to the source of the same run; the best of three.  In kill, a
shard is killed in the middle of an epoch; in partition, a node is cut off for ten seconds.  peer.cpu_us is the CPU time
of all daemons for an epoch from shards, less that for an epoch from their cache disks with as much page cache, for each
sample that a shard gave, if samples stay at their homes; engine.cpu_us is that of the shards.  Both are read with
`hotpath`, which does nothing else.  bare.engine.cpu_us and bare.client.cpu_us are of four redis-servers and four
redis-benchmarks over the same network, which read values of the mean size of a sample, and do nothing with them.
rehearsal: the buffers of the nodes keep 10, 20, 30 and 40 samples.  max_over_min is the count of the sample that is drawn
most often over that of the one drawn least often, of 1,000,000 draws.  chi_square_p is of 100,000 first draws of epochs
from 10,000 small samples, on nodes that keep 1,000, 2,000, 3,000 and 4,000 of them: as many epochs as are drawn ahead of
each other.  own_ms and elsewhere_ms are the median times of the first read of a sample of a view, if the node keeps it
and if another one does; view_s is how long it takes until all four nodes have listed a view of these 10,000 samples.
elastic: the last of four nodes leaves after two epochs, and the job goes on with three ranks and another order; then a node
joins again.  x_bytes is of the first epoch after that, and local of the second one.
budget: `cluster.source-rate` is a tenth of the link, and four nodes, or one, fetch their parts ahead.  x_rate is what
slowpfs gives over that limit, from the tenth second on; x_most is that of the three seconds in which it gives most.
size: 64 mounts on this machine over a directory of ten files, each with a shard.  view_s is how long it takes after the last
mount until all see all 64 in one view; idle_percent is the CPU time of a daemon and its shard while nobody reads, in per
cent of a processor.
"""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import torch

from driver import FAILURES, RunError, end_group, files_of, stopwatch
from make_data import default_files, ensure
from mounts import Belady, Slowpfs, Watchdog, binary, fresh_dir, kill_hard, say
from nodes import SERVER_PORT, Cluster, Network, Node, Ranks, Servers, secret_in
from parts import Parts, arguments
from readers import write_list
from report import publish
from rig import LATE_US, MIB, Rig

NODES = 4
LINK = 200e6                 # bytes a second of the preset busy
ON_THE_WAY = 24 << 20        # of a shard's memory, and of the rest what samples take
PART = .8 * .85
TRIES = 3
CUT_S = 10
ORDER = "torch-distributed:seed={seed},world={ranks},rank={rank},index=imagefolder"
JOBS, JOB_S, JOBS_RAM = 3, 60, 8    # jobs, the seconds of an epoch, MiB of page cache for a node
BATCH = 32
SIZES = {"r102": 1.02, "r80": .8, "r25": .25}
UNEQUAL = (1, 3, 1, 3)       # shards of nodes, as parts of all
OWN_RAM = 64                 # MiB of page cache for a node by itself
KEPT = (10, 20, 30, 40)      # samples that the buffers of nodes keep
DRAWS = 1_000_000
EPOCHS_DRAWN, FIRST_DRAWS = 100, 1000
SERVERS = 3                  # existing servers
IN_FLIGHT = 8                # requests of a client that does nothing else
MANY, MANY_PORT, IDLE_S = 64, 7300, 30    # members of the part size, the first of their ports, seconds without reads
ELASTIC = 1.6                # the room of all shards in the part elastic


class Bench(Parts):
    PARTS = ("whole", "less", "unequal", "disks", "existing", "shared_read", "jobs", "kill", "partition", "solo", "cost",
             "rehearsal", "elastic", "budget", "size")
    BARS = {"cold.x_bytes": 1.01, "steady.r110.x_bytes": .005, "steady.r80.x_bytes": .205, "steady.r25.x_bytes": .755,
            "local.r25": .23, "local.r80": .77, "local.r102": .97,
            "c13.cold.x_bytes": 1.01, "c13.steady.r110.x_bytes": .005, "c13.steady.r80.x_bytes": .205,
            "c13.steady.r25.x_bytes": .755,
            "disks.cold.x_bytes": 1.01, "disks.steady.x_bytes": .005,
            "existing.cold.x_bytes": 1.01, "existing.steady.r110.x_bytes": .005, "existing.steady.r80.x_bytes": .205,
            "shared_read.x_bytes": 1.01, "jobs3.hits": .46,
            "kill.errors": 0, "kill.extra_wait_s": .5, "partition.extra_wait_s": 1.5,
            "cold.x_link": 1.05, "solo.x_without": 1.03,
            "peer.cpu_us": 40, "engine.cpu_us": 25, "peer.files_per_s": 6000,
            "rehearsal.max_over_min": 1.1, "rehearsal.chi_square_p": .001,
            "elastic.leave.x_bytes": .26, "elastic.join.x_bytes": .01,
            "elastic.leave.local": .9 * .97, "elastic.join.local": .9 * .97,
            "budget.four.x_rate": .95, "budget.one.x_rate": .95, "size.view_s": 10, "size.idle_percent": 1}
    AT_LEAST = ("peer.files_per_s", "jobs3.hits", "local.r25", "local.r80", "local.r102", "rehearsal.chi_square_p",
                "elastic.leave.local", "elastic.join.local", "budget.four.x_rate", "budget.one.x_rate")

    def __init__(self, rig, network):
        super().__init__(rig.work, False, 3)
        self.rig, self.network = rig, network
        self.names = files_of(rig.data)

    def cluster(self, slow, held, weights=(1,) * NODES, ranks=NODES, own_ram=OWN_RAM, follows=True, streams=None,
                on_disk=0, servers=None):
        """A cluster whose shards hold a share of the data, and its disks another one.  With `servers` these hold it."""
        options = []
        for nth, weight in enumerate(weights):
            ram = int(held * self.rig.bytes * weight / sum(weights) / PART + ON_THE_WAY / .8) + MIB
            order = ORDER.format(ranks=ranks, rank=nth if ranks > 1 else 0, seed=0)
            shard = ["--ram", own_ram * MIB] if servers else ["--ram", ram + own_ram * MIB, "--cluster-ram", ram]
            options.append([*shard, "--order", order,
                            "--set", "prefetch.start=first-open", "--set", f"cluster.follow={str(follows).lower()}", *(streams[nth] if streams else [])])
            if on_disk:
                store = fresh_dir(os.path.join(self.rig.work, f"store{nth}"))
                options[-1] += ["--cache-dir", store, "--disk", int(on_disk * self.rig.pages / NODES)]
        follows = follows and ranks > 1 and not streams and not on_disk and not servers
        return Cluster(self.network, slow.mountpoint, self.rig.work, options, secret_in(self.rig.work), follows, servers)

    def ranks(self, cluster, epochs, ranks=None):
        return Ranks([(node.wrapped, node.mountpoint) for node in cluster.nodes], epochs, ranks)

    def slowpfs(self):
        return Slowpfs(self.rig.data, os.path.join(self.rig.work, "source"))

    def epochs(self, held, count, weights=(1,) * NODES, ranks=NODES, during=None, on_disk=0, servers=None):
        """Epochs of a job on all nodes.  Each gives what the ranks say, the seconds and the bytes of the source.
        `during(cluster, nth)` is called while epoch `nth` runs."""
        own_ram = OWN_RAM // NODES if on_disk or servers else OWN_RAM
        with self.slowpfs() as slow, self.cluster(slow, held, weights, ranks, own_ram, on_disk=on_disk, servers=servers) as cluster:
            with self.ranks(cluster, count, ranks) as job, Watchdog(240, [job, slow, *cluster.nodes]):
                out, last, elsewhere, asked = [], slow.stats()["bytes"], 0, 0
                for nth in range(count):
                    elapsed = stopwatch()
                    job.begin()
                    if during:
                        during(cluster, nth)
                    said = job.end()
                    seconds = elapsed()
                    cluster.await_gifts()
                    now, traffic = slow.stats()["bytes"], cluster.traffic()
                    found, from_disks = traffic["found"], traffic["from_disks"]
                    x_bytes = (now - last) / self.rig.bytes
                    out.append({"local": 1 - x_bytes - (found - elsewhere) / self.rig.files,
                                "ranks": said, "seconds": max(rank["seconds"] for rank in said), "wall": seconds,
                                "x_bytes": x_bytes, "from_disks": (from_disks - asked) / self.rig.files,
                                "wrong": sum(rank["wrong"] for rank in said)})
                    last, elsewhere, asked = now, found, from_disks
                    self.check(said, ranks)
                late = slow.stats()["held_late_us_max"]
                longest = max(node.status()["source_times"]["operations"]["read"]["max_us"] for node in cluster.nodes)
                traffic = cluster.traffic()
        say("    " + " ".join(f"{epoch['seconds']:.1f}s/{epoch['x_bytes']:.3f}/{epoch['local']:.3f}" for epoch in out)
            + f" {traffic}")
        return out, late, longest

    def check(self, said, ranks):
        read = sum(rank["images"] for rank in said)
        expected = self.rig.files if ranks > 1 else self.rig.files * len(said)
        if abs(read - expected) > NODES:
            raise ValueError(f"{read:.0f} samples were read, and not {expected}")

    def steady(self, size, held, weights=(1,) * NODES, prefix=""):
        out, *_ = self.epochs(held, 4, weights)
        self.add(f"{prefix}steady.{size}.x_bytes", [epoch["x_bytes"] for epoch in out[1:]], digits=5)
        self.add(f"{prefix}local.{size}", [epoch["local"] for epoch in out[1:]])

    def whole(self):
        """All samples fit."""
        cold, bytes_cold, steady, alone = [], [], [], []
        for _ in range(self.pairs):
            out = self.in_time(lambda: self.epochs(1.1, 4)[:2])
            cold.append(out[0]["seconds"] / (self.rig.bytes / LINK))
            bytes_cold.append(out[0]["x_bytes"])
            steady += [epoch["x_bytes"] for epoch in out[1:]]
            alone.append(out[0]["seconds"] / self.in_time(self.alone))
        self.add("cold.x_bytes", bytes_cold)
        self.add("steady.r110.x_bytes", steady, digits=5)
        self.add("cold.x_link", cold)
        self.add("cold.x_alone", alone)

    @staticmethod
    def in_time(run):
        """What `run()` gives beside how late slowpfs was.  It is repeated if the model did not hold."""
        for _ in range(TRIES):
            out, late = run()
            if late <= LATE_US:
                break
        return out

    def alone(self):
        """The seconds of a cold epoch of nodes that share nothing, and how late slowpfs was."""
        options = [["--ram", OWN_RAM * MIB, "--order", ORDER.format(ranks=NODES, rank=nth, seed=0),
                    "--set", "prefetch.start=first-open"] for nth in range(NODES)]
        with self.slowpfs() as slow, Cluster(self.network, slow.mountpoint, self.rig.work, options) as nodes:
            with self.ranks(nodes, 1) as job, Watchdog(120, [job, slow, *nodes.nodes]):
                seconds = max(rank["seconds"] for rank in job.epoch())
                return seconds, slow.stats()["held_late_us_max"]

    def less(self):
        for size, held in SIZES.items():
            self.steady(size, held)

    def unequal(self):
        out, *_ = self.epochs(1.1, 4, UNEQUAL)
        self.add("c13.cold.x_bytes", [out[0]["x_bytes"]])
        self.add("c13.steady.r110.x_bytes", [epoch["x_bytes"] for epoch in out[1:]], digits=5)
        for size, held in SIZES.items():
            self.steady(size, held, UNEQUAL, "c13.")

    def disks(self):
        """Shards cannot hold all samples, and disks hold the rest."""
        out, *_ = self.epochs(.25, 4, on_disk=1.1)
        self.add("disks.cold.x_bytes", [out[0]["x_bytes"]])
        self.add("disks.steady.x_bytes", [epoch["x_bytes"] for epoch in out[1:]], digits=5)
        self.add("disks.from_disks", [epoch["from_disks"] for epoch in out[1:]])

    def existing(self):
        """Nodes without shards, on servers that are there already."""
        cold, local = [], []
        for held, row in ((1.1, "r110"), (.8, "r80")):
            memory = int(held * self.rig.bytes / SERVERS / .85) + ON_THE_WAY + MIB
            with Servers(self.network, SERVERS, self.rig.work, memory) as servers:
                out, *_ = self.epochs(held, 4, servers=servers)
            cold.append(out[0]["x_bytes"])
            local += [epoch["local"] for epoch in out[1:]] if held > 1 else []
            self.add(f"existing.steady.{row}.x_bytes", [epoch["x_bytes"] for epoch in out[1:]])
        self.add("existing.cold.x_bytes", cold)
        self.add("existing.local", local)

    def shared_read(self):
        """All ranks read everything, in one order."""
        runs = [self.epochs(1.1, 1, ranks=1)[0][0]["x_bytes"] for _ in range(self.pairs)]
        self.add("shared_read.x_bytes", runs)

    def jobs(self):
        """Three jobs read the same samples in different orders."""
        self.add("jobs3.hits", [self.hits_of_jobs()], "")

    def hits_of_jobs(self):
        streams = [[] for _ in range(NODES)]
        for seed in range(1, JOBS):
            for rank in range(NODES):
                streams[rank] += ["--stream", f"job{seed}={ORDER.format(ranks=NODES, rank=rank, seed=seed)}"]
        with ExitStack() as stack:
            slow = stack.enter_context(self.slowpfs())
            cluster = stack.enter_context(self.cluster(slow, .2, own_ram=JOBS_RAM, streams=streams))
            points = [(node.wrapped, node.mountpoint) for node in cluster.nodes]
            pace = JOB_S / (self.rig.files / NODES / BATCH)
            jobs = [stack.enter_context(Ranks(points, 4, seed=seed, pace=pace)) for seed in range(JOBS)]
            stack.enter_context(Watchdog(600, [*jobs, slow, *cluster.nodes]))
            for job in jobs:
                job.begin_all()
                time.sleep(JOB_S / JOBS)
            # All jobs are in their second epoch or later.
            time.sleep(JOB_S)
            before = self.places(cluster), slow.stats()["bytes"]
            time.sleep(JOB_S)
            after = self.places(cluster), slow.stats()["bytes"]
            say(f"    {after[0] - before[0]} reads, {(after[1] - before[1]) / 1e6:.1f} MB of the source; {cluster.traffic()}")
            for job in jobs:
                for said in job.end():
                    self.check(said, NODES)
                    if any(rank["wrong"] for rank in said):
                        raise ValueError(f"samples are wrong: {said}")
            return 1 - (after[1] - before[1]) / (self.rig.bytes / self.rig.files) / (after[0] - before[0])

    @staticmethod
    def places(cluster):
        """The number of samples that all streams have read so far."""
        streams = [stream for node in cluster.nodes for stream in node.status()["orders"]]
        return sum(stream["epoch"] * stream["length"] + stream["position"] for stream in streams)

    def kill(self):
        """A shard is killed in the second epoch."""
        def strike(cluster, nth):
            if nth == 1:
                time.sleep(.3)
                kill_hard(cluster.nodes[2].shard())
        self.fail("kill", strike, errors=True)

    def partition(self):
        """A node is cut off for a while."""
        def heal(nth):
            time.sleep(CUT_S)
            self.network.heal(nth)

        def strike(_, nth):
            if nth == 1:
                time.sleep(.3)
                self.network.cut(2)
                threading.Thread(target=heal, args=(2,)).start()
        self.fail("partition", strike, errors=False)
        time.sleep(CUT_S)

    def fail(self, name, strike, errors):
        waits, wrong, raw = [], [], []
        for _ in range(TRIES):
            out, _, longest_us = self.epochs(1.1, 3, during=strike)
            longest = max(rank["longest"] for epoch in out[1:] for rank in epoch["ranks"])
            raw.append(longest / 1000)
            waits.append(max(0, longest / 1000 - longest_us / 1e6))
            wrong.append(sum(epoch["wrong"] for epoch in out))
        if errors or max(wrong):
            self.add(f"{name}.errors", wrong, "", value=max(wrong))
        self.add(f"{name}.extra_wait_s", waits, "s", value=round(min(waits), 3))
        self.add(f"{name}.longest_read_s", raw, "s")

    def solo(self):
        """One node, with and without a cluster."""
        pairs = []
        for nth in range(self.pairs):
            seconds = {}
            for kind in ("with", "without") if nth % 2 else ("without", "with"):
                with self.slowpfs() as slow:
                    ram = int(1.1 * self.rig.pages)
                    share = int(1.1 * self.rig.bytes / PART + ON_THE_WAY / .8)
                    own = ["--order", ORDER.format(ranks=1, rank=0, seed=0), "--set", "prefetch.start=first-open"]
                    if kind == "with":
                        own += ["--ram", ram + share, "--cluster-ram", share]
                        mount = Cluster(self.network, slow.mountpoint, self.rig.work, [own],
                                        secret_in(self.rig.work), follows=True)
                    else:
                        mount = Belady(slow.mountpoint, os.path.join(self.rig.work, "alone"), ["--ram", ram, *own])
                    with mount:
                        node = mount.nodes[0] if kind == "with" else mount
                        with Ranks([(node.wrapped, node.mountpoint)], 1) as job, Watchdog(120, [job, slow, node]):
                            seconds[kind] = job.epoch()[0]["seconds"]
            pairs.append(seconds["with"] / seconds["without"])
        self.add("solo.x_without", pairs)

    def cost(self):
        """An epoch from shards, and one from cache disks."""
        peer, engine, rate = [], [], []
        for _ in range(self.pairs):
            with self.slowpfs() as slow, self.cluster(slow, 1.1, own_ram=OWN_RAM // NODES, follows=False) as cluster:
                with Watchdog(120, [slow, *cluster.nodes]):
                    for nth in range(2):
                        self.read_parts(cluster.nodes, nth)
                        cluster.await_gifts()
                    before = self.used(cluster)
                    seconds = self.read_held(slow, cluster.nodes, 2)
                    after = self.used(cluster)
            found = after["found"] - before["found"]
            rate.append(self.rig.files / seconds)
            engine.append((after["shards"] - before["shards"]) / found)
            peer.append((after["daemons"] - before["daemons"] - self.own_stores()) / found)
        self.add("peer.cpu_us", peer, "us", digits=1)
        self.add("engine.cpu_us", engine, "us", digits=1)
        self.add("peer.files_per_s", rate, "/s", digits=0)
        bare = [self.bare() for _ in range(self.pairs)]
        self.add("bare.engine.cpu_us", [engine for engine, _ in bare], "us", digits=1)
        self.add("bare.client.cpu_us", [client for _, client in bare], "us", digits=1)

    def bare(self):
        """CPU microseconds of servers, and of the clients that come with them, for a value of the mean size."""
        size, keys = self.rig.bytes // self.rig.files, self.rig.files // NODES
        with Servers(self.network, NODES, self.rig.work, 4 * keys * size, is_cluster=False) as servers:
            self.benchmark("set", 10 * keys, keys, size)        # so that a key without a value is rare
            before = sum(cpu_us(process.pid) for process in servers.processes)
            reads = 4 * keys
            clients = self.benchmark("get", reads, keys, size)
            engine = sum(cpu_us(process.pid) for process in servers.processes) - before
            return engine / reads / NODES, clients / reads / NODES

    def benchmark(self, kind, count, keys, size):
        """Each node sends requests to the next one's server.  Returns CPU microseconds of all clients."""
        def command(nth):
            words = ["redis-benchmark", "-h", self.network.address((nth + 1) % NODES), "-p", SERVER_PORT,
                     "-c", IN_FLIGHT, "-t", kind, "-n", count, "-r", keys, "-d", size, "-q"]
            return self.network.inside(nth, list(map(str, words)))
        before = os.times()
        run_together(map(command, range(NODES)))
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return used * 1e6

    def parts_of(self, epoch):
        """The names that each rank reads in an epoch, in its order."""
        generator = torch.Generator()
        generator.manual_seed(epoch)
        order = torch.randperm(self.rig.files, generator=generator).tolist()
        return [[self.names[nth] for nth in order[rank::NODES]] for rank in range(NODES)]

    def read_parts(self, nodes, epoch):
        """Has `hotpath` read an epoch on each node.  Returns the seconds."""
        commands = []
        for node, names in zip(nodes, self.parts_of(epoch)):
            paths = [os.path.join(node.mountpoint, name) for name in names]
            listed = write_list(os.path.join(self.rig.work, f"list{node.nth}"), paths)
            commands.append(node.wrapped([binary("hotpath"), "read", listed]))
        elapsed = stopwatch()
        run_together(commands)
        return elapsed()

    def read_held(self, slow, nodes, epoch):
        """The same.  Hardly anything may come from the source."""
        before = slow.stats()["bytes"]
        seconds = self.read_parts(nodes, epoch)
        if slow.stats()["bytes"] - before > .01 * self.rig.bytes:
            raise RunError("the source was read in an epoch of samples that are held")
        return seconds

    def fill(self, slow, nodes):
        """Reads the first epoch until the cache disks have all of it: they may not take all samples in time."""
        grew = True
        while grew:
            before = slow.stats()["bytes"]
            self.read_parts(nodes, 0)
            time.sleep(2)
            grew = slow.stats()["bytes"] > before

    @staticmethod
    def used(cluster):
        traffic = cluster.traffic()
        shards = sum(cpu_us(node.shard()) for node in cluster.nodes)
        return {"found": traffic["found"] + traffic["found_here"], "shards": shards,
                "daemons": sum(node.cpu_us() for node in cluster.nodes)}

    def own_stores(self):
        """CPU microseconds of all daemons for an epoch in which each reads its part from its own cache disk."""
        options = []
        for rank, names in enumerate(self.parts_of(0)):
            store = fresh_dir(os.path.join(self.rig.work, f"store{rank}"))
            order = write_list(os.path.join(self.rig.work, f"order{rank}.txt"), names)
            options.append(["--ram", OWN_RAM // NODES * MIB, "--cache-dir", store, "--disk", self.rig.pages,
                            "--order", order, "--set", "prefetch.start=first-open"])
        with self.slowpfs() as slow, Cluster(self.network, slow.mountpoint, self.rig.work, options) as cluster:
            with Watchdog(120, [slow, *cluster.nodes]):
                self.fill(slow, cluster.nodes)
                before = sum(node.cpu_us() for node in cluster.nodes)
                self.read_held(slow, cluster.nodes, 0)
                return sum(node.cpu_us() for node in cluster.nodes) - before

    def rehearsal(self):
        """Buffers of all nodes, drawn from as one."""
        names = self.names[:sum(KEPT)]
        with self.slowpfs() as slow, self.buffers(slow.mountpoint, names, KEPT) as cluster:
            drawn = draws(cluster.nodes[0], 0, DRAWS)
            if drawn[:1000] != draws(cluster.nodes[3], 0, 1000):
                raise ValueError("nodes draw different samples")
            counts = Counter(drawn)
            if len(counts) != sum(KEPT):
                raise ValueError(f"{len(counts)} samples are drawn, and not {sum(KEPT)}")
            self.add("rehearsal.max_over_min", [max(counts.values()) / min(counts.values())])
            own, elsewhere = self.reads_of_view(cluster, names)
            self.add("rehearsal.own_ms", own, "ms")
            self.add("rehearsal.elsewhere_ms", elsewhere, "ms")
        small = fresh_dir(os.path.join(self.rig.work, "small"))
        names = [f"c{nth % 10}/{nth:05}.jpg" for nth in range(100 * sum(KEPT))]
        for name in names:
            os.makedirs(os.path.dirname(os.path.join(small, name)), exist_ok=True)
            with open(os.path.join(small, name), "wb") as f:
                f.write(name.encode() * 20)
        with self.buffers(small, names, [100 * kept for kept in KEPT]) as cluster:
            elapsed = stopwatch()
            with ThreadPoolExecutor(NODES) as each:
                listed = list(each.map(lambda node: files_of(view(node)), cluster.nodes))
            self.add("rehearsal.view_s", [elapsed()], "s")
            if len(listed[0]) != len(names) or any(one != listed[0] for one in listed):
                raise ValueError("nodes see different samples")
            counts = Counter(name for epoch in range(EPOCHS_DRAWN) for name in draws(cluster.nodes[epoch % NODES], epoch, FIRST_DRAWS))
            self.add("rehearsal.chi_square_p", [chi_square_p([counts[name] for name in names])], "")

    @contextmanager
    def buffers(self, source, names, kept):
        """A cluster whose nodes keep so many of the samples, one after the other."""
        options = []
        for nth in range(NODES):
            store = fresh_dir(os.path.join(self.rig.work, f"store{nth}"))
            sets = [f"rehearsal.old.{key}" for key in ("size=100000", "offer-rate=0", "distance=0")]
            options.append(["--ram", 200 * MIB, "--cluster-ram", 64 * MIB, "--cache-dir", store,
                            *(word for one in sets for word in ("--set", one))])
        with Cluster(self.network, source, self.rig.work, options, secret_in(self.rig.work)) as cluster:
            with Watchdog(300, cluster.nodes):
                begin = 0
                for node, count in zip(cluster.nodes, kept):
                    node.belady("rehearse", "offer", node.mountpoint, "old", said="\n".join(names[begin:begin + count]))
                    begin += count
                for node, count in zip(cluster.nodes, kept):
                    self.await_samples(node, count)
                yield cluster

    @staticmethod
    def await_samples(node, count):
        deadline = time.monotonic() + 120
        while (found := json.loads(node.belady("rehearse", "stats", node.mountpoint, "--json"))[0]["samples"]) != count:
            if time.monotonic() > deadline:
                raise RunError(f"a buffer keeps {found} samples, and not {count}")
            time.sleep(.1)

    @staticmethod
    def reads_of_view(cluster, names):
        """The milliseconds of the reads of a node's own samples, and of those of others."""
        own, elsewhere, begin = [], [], 0
        for node, count in zip(cluster.nodes, KEPT):
            kept = {os.path.basename(name) for name in names[begin:begin + count]}
            begin += count
            for name in files_of(view(node)):
                elapsed = stopwatch()
                with open(os.path.join(view(node), name), "rb") as f:
                    data = f.read()
                (own if os.path.basename(name) in kept else elsewhere).append(1000 * elapsed())
                if len(data) < 1000:
                    raise ValueError(f"{name} has {len(data)} bytes")
        return own, elsewhere

    def elastic(self):
        """A node leaves, and joins again."""
        with self.slowpfs() as slow, self.cluster(slow, ELASTIC) as cluster, Watchdog(600, [slow, *cluster.nodes]):
            self.epochs_of(slow, cluster, 0)
            node = cluster.leave()
            tell(cluster, 1)
            cluster.await_homes()
            lost, back = self.epochs_of(slow, cluster, 1)
            self.add("elastic.leave.x_bytes", [lost["x_bytes"]], digits=4)
            self.add("elastic.leave.local", [back["local"]])
            node.options[node.options.index("--order") + 1] = ORDER.format(ranks=NODES, rank=NODES - 1, seed=2)
            cluster.join(node)
            tell(cluster, 2)
            cluster.await_homes()
            lost, back = self.epochs_of(slow, cluster, 2)
            self.add("elastic.join.x_bytes", [lost["x_bytes"]], digits=4)
            self.add("elastic.join.local", [back["local"]])

    def epochs_of(self, slow, cluster, seed):
        """Two epochs of a job with a rank on each node that is there."""
        out = []
        points = [(node.wrapped, node.mountpoint) for node in cluster.nodes]
        with Ranks(points, 2, seed=seed) as job:
            for _ in range(2):
                before = slow.stats()["bytes"], cluster.traffic()["found"]
                said = job.epoch()
                cluster.await_gifts()
                x_bytes = (slow.stats()["bytes"] - before[0]) / self.rig.bytes
                found = (cluster.traffic()["found"] - before[1]) / self.rig.files
                out.append({"x_bytes": x_bytes, "local": 1 - x_bytes - found})
                self.check(said, len(points))
        say("    " + " ".join(f"{epoch['x_bytes']:.4f}/{epoch['local']:.3f}" for epoch in out) + f" {cluster.traffic()}")
        return out

    def budget(self):
        """Nodes that have one limit together."""
        limit = LINK / 10
        for name, count in (("four", NODES), ("one", 1)):
            rates, most = [], []
            for _ in range(self.pairs):
                given = self.warmed(limit, count)
                rates.append(rate_of(given, 10, given[-1][0]) / limit)
                most.append(max(rate_of(given, begin, begin + 3) for begin in range(int(given[-1][0]) - 3)) / limit)
            self.add(f"budget.{name}.x_rate", rates)
            self.add(f"budget.{name}.x_most", most)

    def warmed(self, limit, count):
        """Has nodes fetch their parts ahead.  Returns the bytes that slowpfs has given, by the seconds."""
        options = [["--ram", 1000 * MIB, "--cluster-ram", 200 * MIB, "--set", f"cluster.source-rate={limit:.0f}"]
                   for _ in range(NODES)]
        with self.slowpfs() as slow, Cluster(self.network, slow.mountpoint, self.rig.work, options,
                                             secret_in(self.rig.work)) as cluster, Watchdog(120, [slow, *cluster.nodes]):
            warmups = []
            try:
                for nth, node in enumerate(cluster.nodes[:count]):
                    listed = write_list(os.path.join(self.rig.work, f"warm{nth}"), self.names[nth::count])
                    command = [binary("belady"), "warmup", node.mountpoint, "--files-from", listed]
                    warmups.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                                    start_new_session=True, env=node.environment))
                elapsed, given, begun = stopwatch(), [], slow.stats()["bytes"]
                while not given or given[-1][1] < .93 * self.rig.bytes and elapsed() < 80:
                    given.append((elapsed(), slow.stats()["bytes"] - begun))
                    time.sleep(.1)
            finally:
                for warmup in warmups:
                    end_group(warmup)
        return given


    def size(self):
        """Many members, which share nothing but their records."""
        source = fresh_dir(os.path.join(self.rig.work, "few"))
        for nth in range(10):
            with open(os.path.join(source, f"{nth}"), "wb") as f:
                f.write(bytes([nth]) * 5000)
        addresses = [f"127.0.0.1:{MANY_PORT + 2 * nth}" for nth in range(MANY)]
        secret = secret_in(self.rig.work)
        shared = ["--ram", "24MiB", "--cluster-ram", "16MiB", "--cluster", "hosts:" + ",".join(addresses),
                  "--set", f"cluster.secret={secret}"]
        with ExitStack() as stack:
            nodes = []
            for nth, address in enumerate(addresses):
                options = [*shared, "--set", f"cluster.address={address}"]
                node = Node(self.network, 0, source, os.path.join(self.rig.work, f"many{nth}"), options)
                nodes.append(stack.enter_context(node))
            elapsed = stopwatch()
            stack.enter_context(Watchdog(300, nodes))
            while len({one_view(node, MANY) for node in nodes}) > 1 or one_view(nodes[0], MANY) is None:
                time.sleep(.2)
            self.add("size.view_s", [elapsed()], "s")
            time.sleep(10)
            processes = [process for node in nodes for process in (*node.pids(), node.shard())]
            before = sum(map(cpu_us, processes))
            time.sleep(IDLE_S)
            used = sum(map(cpu_us, processes)) - before
            self.add("size.idle_percent", [used / MANY / IDLE_S / 1e4], "%")


def run_together(commands):
    """Runs programs side by side until all have ended."""
    programs = []
    try:
        for command in commands:
            programs.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True))
        ended = [program.wait(120) for program in programs]
    finally:
        for program in programs:
            end_group(program)
    if any(ended):
        raise RunError(f"{programs[0].args}: the programs ended with {ended}")


def one_view(node, count):
    """The view of a node that sees so many members."""
    cluster = node.status()["cluster"]
    there = [member for member in cluster["members"] if member["state"] in ("here", "member")]
    return cluster["view"] if len(there) == count else None


def rate_of(given, begin, end):
    """Bytes a second between two times."""
    inside = [one for one in given if begin <= one[0] <= end]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def tell(cluster, seed):
    """Tells all nodes the orders of a job with a rank on each."""
    for rank, node in enumerate(cluster.nodes):
        node.belady("order", "set", node.mountpoint, ORDER.format(ranks=len(cluster.nodes), rank=rank, seed=seed))


def view(node):
    return os.path.join(node.mountpoint, "rehearsal", "old", "epoch-1")


def draws(node, epoch, count):
    return json.loads(node.belady("rehearse", "draw", node.mountpoint, "old", "--epoch", epoch, "--count", count, "--json"))


def chi_square_p(counts):
    """The probability of counts at least as uneven, if all are as likely (Wilson and Hilferty's approximation)."""
    mean, free = sum(counts) / len(counts), len(counts) - 1
    chi = sum((count - mean) ** 2 for count in counts) / mean
    z = ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    return .5 * math.erfc(z / math.sqrt(2))


def cpu_us(pid):
    """CPU time of a process so far, in microseconds."""
    with open(f"/proc/{pid}/stat") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) * 1_000_000 // os.sysconf("SC_CLK_TCK")


def main():
    args = arguments(__doc__, "the same", parts=Bench.PARTS)
    rig = Rig(ensure("imagenet-like", default_files("imagenet-like")))
    try:
        rig.warm()
        with Network(NODES) as network:
            bench = Bench(rig, network)
            ran = bench.run(args.part)
    except FAILURES as e:
        sys.exit(f"cluster: {e}")
    finally:
        rig.clean()
    publish(args.name, bench.rows, bench.notes, args.json, Bench.COLUMNS, keep=not args.part)
    sys.exit(0 if ran else 1)


if __name__ == "__main__":
    main()
