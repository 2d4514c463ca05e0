"""Sources other than a directory of files: databases, object stores, archives.

Goal: tell whether belady finds by itself how much to ask such a source for, and what a sample costs in an archive.
Method: a job of 8 threads reads each file once in a told order, in batches of 32; nothing is fetched before its first
open.
redis, s3, cassandra: 5,000 samples of 110 KB in redis-server, in Ceph's radosgw, and in Cassandra, behind slowlink: 5 ms
there and back, 100 MB/s.
x_best_static is the time of the epoch over that of belady itself with the ramp off and the best fixed number of reads
at once, of 4, 8 ... 256, which each have one turn before (best_inflight).  x_link is that time over the one that the
link needs.  client.x_link is that of the store's client alone, with the best fixed number likewise: it reads the samples
in that order (from Cassandra, in the order of tokens), and nothing of a filesystem is in the way.
cassandra_far: 12,000 rows of 20 KB in Cassandra behind 100 ms and 25 MB/s.  x_link is the rate from second 5 on over that
of the link; driver.x_link that of the driver alone with 256 reads at once.  round_trips is the median time of a read
over the 100 ms, while half the link is used.
cassandra_list: 200,000 rows of metadata.  x_driver is the time in which the driver alone lists them by ranges of
tokens, over that in which belady does, which makes a tree of them, in turns.  Both times include the connections.
tar: 10 tar files of 1,000 samples of 110 KB, shown as files, over slowpfs at the preset busy.  x_files is the time of
the epoch over that with the same samples as files, in turns.  reads_per_file is how many reads belady makes in that
epoch, over the samples.  scan_s is the time of the mount, with the headers of all archives.
"""

import json
import os
import random
import subprocess
import tarfile

from cassandra_nodes import OWNER, Cassandra
from driver import RunError
from epochs import Job, run_epoch
from hotdata import Shape, names_of, write_files
from mounts import Belady, Slowpfs, binary
from parts import Parts
from servers import BUCKET, Ceph, Link, Redis

TAR = Shape("tar", files=10_000, size=110_000, folders=10)
FAR = Shape("far", files=5_000, size=110_000, folders=50)
LINK_RATE, LINK_DELAY = 100e6, "2500us"
OCEAN = Shape("ocean", files=12_000, size=20_000, folders=50)
OCEAN_RATE, OCEAN_S = 25e6, .1
SETTLED_S = 5                # when the limit is to be found
LISTED = 200_000             # rows
LONGEST = 600                # seconds until a tool counts as hung
FIXED = (4, 8, 16, 32, 64, 128, 256)
IMMUTABLE = "source.consistency=immutable"
RAM = "2GiB"


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("redis", "s3", "cassandra", "cassandra_far", "cassandra_list", "tar")
    BARS = {"redis.x_best_static": 1.05, "s3.x_best_static": 1.05, "cassandra.x_best_static": 1.05,
            "cassandra.far.x_link": .93, "cassandra.far.round_trips": 1.2, "cassandra.list.x_driver": .9,
            "tar.x_files": 1.05}
    AT_LEAST = ("cassandra.far.x_link", "cassandra.list.x_driver")
    TURNS = (7, 2, 15)

    def shuffled(self, shape, top):
        """Makes the samples, and an order of them. Returns the order file and the names in that order."""
        write_files(top, shape)
        names = names_of(shape)
        random.Random(7).shuffle(names)
        order = os.path.join(self.top, "order.txt")
        with open(order, "w") as f:
            f.writelines(f"{name}\n" for name in names)
        return order, names

    def belady(self, source, order, options=(), variables=None):
        """A mount that follows the order from the first open on."""
        words = ["--ram", RAM, "--order", order, "--set", "prefetch.start=first-open", *options]
        return Belady(source, os.path.join(self.top, "mount"), words, variables=variables)

    def over(self, server, link, order, *settings):
        """A mount of a server through a link."""
        options = [word for setting in settings for word in ("--set", setting)]
        return self.belady(server.url(link.port), order, options, server.variables(link.port))

    def server(self, name, kind):
        """The samples in a server behind a link."""
        top = os.path.join(self.top, "samples")
        order, names = self.shuffled(FAR, top)
        link_s = FAR.files * FAR.size / LINK_RATE
        with kind(os.path.join(self.top, name)) as server:
            server.fill(top, names)
            with Link(os.path.join(self.top, "link"), server.port, LINK_DELAY, "100MB") as link:
                def epoch(*settings):
                    _, seconds, scan = run_epoch(self.over(server, link, order, *settings), names)
                    return seconds, scan

                def fixed(inflight):
                    return epoch(IMMUTABLE, "prefetch.manners=off", f"prefetch.inflight={inflight}")[0]

                def client(inflight):
                    words = *server.reading(link.port, order), "--inflight", inflight
                    return self.tool(server.variables(link.port), *words)["seconds"]

                best, best_of_client = min(FIXED, key=fixed), min(FIXED, key=client)
                ratios, times, clients, scans = [], [], [], []
                for _ in range(self.pairs):
                    static = fixed(best)
                    clients.append(client(best_of_client) / link_s)
                    seconds, scan = epoch(IMMUTABLE)
                    ratios.append(seconds / static)
                    times.append(seconds / link_s)
                    scans.append(scan)
        self.add(f"{name}.x_best_static", ratios)
        self.add(f"{name}.best_inflight", [best], "")
        self.add(f"{name}.x_link", times)
        self.add(f"{name}.client.best_inflight", [best_of_client], "")
        self.add(f"{name}.client.x_link", clients)
        self.add(f"{name}.scan_s", scans, "s")

    def redis(self):
        """Values of a database."""
        self.server("redis", Redis)

    def s3(self):
        """Objects of a bucket."""
        self.server("s3", Ceph)

    def cassandra(self):
        """Rows of a database."""
        self.server("cassandra", Cassandra)

    def tool(self, variables, *words):
        """What clientbench measures. The variables say who asks."""
        done = subprocess.run([binary("clientbench"), *map(str, words)], capture_output=True, text=True, timeout=LONGEST,
                              check=False, env={**os.environ, **variables})
        if done.returncode != 0:
            raise RunError(f"clientbench {words[0]}: {done.stderr[-600:]}")
        return json.loads(done.stdout)

    def cassandra_far(self):
        """Rows over a link of 100 ms."""
        top = os.path.join(self.top, "samples")
        order, names = self.shuffled(OCEAN, top)
        rates, alone, round_trips, scans = [], [], [], []
        with Cassandra(os.path.join(self.top, "server")) as server:
            server.fill(top, names)
            for _ in range(self.pairs):
                with Link(os.path.join(self.top, "link"), server.port, "50ms", "25MB") as link:
                    job, _, scan = run_epoch(self.over(server, link, order, IMMUTABLE), names)
                    rates.append(job.rate_from(SETTLED_S) / OCEAN_RATE)
                    scans.append(scan)
                    found = self.tool(server.variables(0), *server.reading(link.port, order), "--inflight", 256)
                    alone.append(found["bytes"] / found["seconds"] / OCEAN_RATE)
                    half = self.over(server, link, order, IMMUTABLE, f"prefetch.rate={OCEAN_RATE / 2:.0f}")
                    round_trips.append(self.median_read(half, names[:OCEAN.files // 4]) / OCEAN_S)
        self.add("cassandra.far.x_link", rates)
        self.add("cassandra.far.driver.x_link", alone)
        self.add("cassandra.far.round_trips", round_trips, "")
        self.add("cassandra.far.scan_s", scans, "s")

    def median_read(self, belady, names):
        """The median time of a read of the source in an epoch, in seconds."""
        with belady:
            belady.await_scan()
            Job(belady.mountpoint, names).run()
            return belady.status()["source_times"]["operations"]["read"]["p50_us"] / 1e6

    def cassandra_list(self):
        """A table of many rows."""
        with Cassandra(os.path.join(self.top, "server")) as server:
            server.make_tables()
            self.tool(server.user(*OWNER), "cassandra-fill", *server.tables(server.port), "--rows", LISTED)

            def seconds(what):
                found = self.tool(server.variables(0), what, *server.tables(server.port))
                if found["rows"] != LISTED:
                    raise RunError(f"{what} found {found['rows']} rows")
                return found["seconds"]
            ratios, times = [], []
            for _ in range(self.pairs):
                driver = seconds("cassandra-list")
                times.append(seconds("cassandra-list-by-belady"))
                ratios.append(driver / times[-1])
        self.add("cassandra.list.x_driver", ratios)
        self.add("cassandra.list.s", times, "s")

    def tar(self):
        """Archives as files, and the same files."""
        files, archives = os.path.join(self.top, "files"), os.path.join(self.top, "archives")
        order, names = self.shuffled(TAR, files)
        os.makedirs(archives)
        for number, folder in enumerate(sorted({os.path.dirname(name) for name in names})):
            with tarfile.open(os.path.join(archives, f"{number}.tar"), "w") as archive:
                archive.add(os.path.join(files, folder), folder)

        def epoch(data, *options):
            slow = Slowpfs(data, os.path.join(self.top, "source"), preset="busy")
            with slow:
                belady, reads = self.belady(slow.mountpoint, order, options), []

                def note():
                    reads.append(belady.status()["source_times"]["operations"]["read"]["count"])
                _, seconds, scan = run_epoch(belady, names, [slow], note)
                return seconds, scan, reads[-1] / len(names)

        ratios, shares, scans = [], [], []
        for _ in range(self.pairs):
            plain, _, _ = epoch(files)
            packed, scan, share = epoch(archives, "--as", "files")
            ratios.append(packed / plain)
            shares.append(share)
            scans.append(scan)
        self.add("tar.x_files", ratios)
        self.add("tar.reads_per_file", shares, "")
        self.add("tar.scan_s", scans, "s")


if __name__ == "__main__":
    Bench.main(__doc__, "fewer turns")
