"""Sources other than a directory of files, against the same samples in one.

Goal: tell what a sample costs in an archive.
Method: a mount over slowpfs at the preset busy.  A job of 8 threads reads each file once in a told order, in batches
of 32; nothing is fetched before its first open.
tar: 10 tar files of 1,000 samples of 110 KB, shown as files.  x_files is the time of the epoch over that with the same
samples as files, in turns.  scan_s is the time of the mount, with the headers of all archives.
"""

import os
import random
import tarfile
import time

from bench_far import LONGEST, Job
from driver import RunError
from hotdata import Shape, names_of, write_files
from mounts import Belady, Slowpfs, Watchdog
from parts import Parts

TAR = Shape("tar", files=10_000, size=110_000, folders=10)
RAM = "2GiB"


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("tar",)
    BARS = {"tar.x_files": 1.05}
    TURNS = (7, 2, 15)

    def data(self):
        """Makes the samples as files and in tar files, and an order of them.

        Returns both directories, the order file and the names in that order."""
        files, archives = os.path.join(self.top, "files"), os.path.join(self.top, "archives")
        names = names_of(TAR)
        write_files(files, TAR)
        os.makedirs(archives)
        folders = sorted({os.path.dirname(name) for name in names})
        for number, folder in enumerate(folders):
            with tarfile.open(os.path.join(archives, f"{number}.tar"), "w") as archive:
                archive.add(os.path.join(files, folder), folder)
        random.Random(7).shuffle(names)
        order = os.path.join(self.top, "order.txt")
        with open(order, "w") as f:
            f.writelines(f"{name}\n" for name in names)
        return files, archives, order, names

    def epoch(self, data, order, names, options=()):
        """The seconds of the job, and those of the mount."""
        slow = Slowpfs(data, os.path.join(self.top, "source"), preset="busy")
        words = ["--ram", RAM, "--order", order, "--set", "prefetch.start=first-open", *options]
        belady = Belady(slow.mountpoint, os.path.join(self.top, "mount"), words)
        with slow:
            began = time.perf_counter()
            with belady:
                belady.await_scan()
                scan = time.perf_counter() - began
                with Watchdog(LONGEST, [slow, belady]) as dog:
                    seconds = Job(belady.mountpoint, names).run()
                if dog.bitten:
                    raise RunError("the job did not end")
        return seconds, scan

    def tar(self):
        """Archives as files, and the same files."""
        files, archives, order, names = self.data()
        ratios, scans = [], []
        for _ in range(self.pairs):
            plain, _ = self.epoch(files, order, names)
            packed, scan = self.epoch(archives, order, names, ("--as", "files"))
            ratios.append(packed / plain)
            scans.append(scan)
        self.add("tar.x_files", ratios)
        self.add("tar.scan_s", scans, "s")


if __name__ == "__main__":
    Bench.main(__doc__, "fewer turns")
