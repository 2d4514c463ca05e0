"""Sources other than a directory of files: databases, object stores, archives.

Goal: tell whether belady finds by itself how much to ask such a source for, and what a sample costs in an archive.
Method: a job of 8 threads reads each file once in a told order, in batches of 32; nothing is fetched before its first
open.
redis, s3: 5,000 samples of 110 KB in redis-server, and in Ceph's radosgw, behind slowlink: 5 ms there and back, 100 MB/s.
x_best_static is the time of the epoch over that of belady itself with the ramp off and the best fixed number of reads
at once, of 4, 8 ... 256, which each have one turn before (best_inflight).  x_link is that time over the one that the
link needs.
tar: 10 tar files of 1,000 samples of 110 KB, shown as files, over slowpfs at the preset busy.  x_files is the time of
the epoch over that with the same samples as files, in turns.  scan_s is the time of the mount, with the headers of all
archives.
"""

import os
import random
import tarfile

from epochs import run_epoch
from hotdata import Shape, names_of, write_files
from mounts import Belady, Slowpfs
from parts import Parts
from servers import Ceph, Link, Redis

TAR = Shape("tar", files=10_000, size=110_000, folders=10)
FAR = Shape("far", files=5_000, size=110_000, folders=50)
LINK_RATE, LINK_DELAY = 100e6, "2500us"
FIXED = (4, 8, 16, 32, 64, 128, 256)
IMMUTABLE = "source.consistency=immutable"
RAM = "2GiB"


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("redis", "s3", "tar")
    BARS = {"redis.x_best_static": 1.05, "s3.x_best_static": 1.05, "tar.x_files": 1.05}
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

    def server(self, name, kind):
        """The samples in a server behind a link."""
        top = os.path.join(self.top, "samples")
        order, names = self.shuffled(FAR, top)
        link_s = FAR.files * FAR.size / LINK_RATE
        with kind(os.path.join(self.top, name)) as server:
            server.fill(top, names)
            with Link(os.path.join(self.top, "link"), server.port, LINK_DELAY, "100MB") as link:
                def epoch(*settings):
                    options = [word for setting in settings for word in ("--set", setting)]
                    belady = self.belady(server.url(link.port), order, options, server.variables(link.port))
                    _, seconds, scan = run_epoch(belady, names)
                    return seconds, scan

                def fixed(inflight):
                    return epoch(IMMUTABLE, "prefetch.manners=off", f"prefetch.inflight={inflight}")[0]

                best = min(FIXED, key=fixed)
                ratios, times, scans = [], [], []
                for _ in range(self.pairs):
                    static = fixed(best)
                    seconds, scan = epoch(IMMUTABLE)
                    ratios.append(seconds / static)
                    times.append(seconds / link_s)
                    scans.append(scan)
        self.add(f"{name}.x_best_static", ratios)
        self.add(f"{name}.best_inflight", [best], "")
        self.add(f"{name}.x_link", times)
        self.add(f"{name}.scan_s", scans, "s")

    def redis(self):
        """Values of a database."""
        self.server("redis", Redis)

    def s3(self):
        """Objects of a bucket."""
        self.server("s3", Ceph)

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
                _, seconds, scan = run_epoch(self.belady(slow.mountpoint, order, options), names, [slow])
                return seconds, scan

        ratios, scans = [], []
        for _ in range(self.pairs):
            plain, _ = epoch(files)
            packed, scan = epoch(archives, "--as", "files")
            ratios.append(packed / plain)
            scans.append(scan)
        self.add("tar.x_files", ratios)
        self.add("tar.scan_s", scans, "s")


if __name__ == "__main__":
    Bench.main(__doc__, "fewer turns")
