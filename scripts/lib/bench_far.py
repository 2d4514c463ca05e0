"""Sources behind long links and shared ones: how much of the link is used, and what is left to others.

Goal: tell whether belady finds by itself how much to ask a source for.
Method: slowpfs with a latency for each operation and a shared link.  A file costs three operations, one after the
other.  A job of 8 threads reads each file once in a told order, in batches of 32; nothing is fetched before its first
open, and the mount has listed the source before (scan_s).
wan: 20 KB, 100 ms an operation, 200 Mb/s.  x_link is the rate from second 5 on over that of the link.
far: 110 KB, 50 ms, 100 MB/s.  x_link is the time of the whole epoch, which includes finding the limit, over the time
that the link needs.  x_bdp is the most operations under way over rate times latency.
tail: wan with 1 % of the operations ten times as slow, and a job that takes samples at 80 % of the link's rate.
wait_share is the share of the time after second 5 that it waits for samples.
rival: 8 readers of others at the preset busy, beside the job over alone.
wan.fixed.x_link is the rate with 32 reads at once over that of the link.
stat_scan: the time from the mount to the end of the scan, of the files of wan at 50 ms an operation, if listings bring
no attributes, over that with the best fixed number of threads.  Nothing is fetched meanwhile.
"""

import os
import random
import threading
import time

from epochs import LONGEST, Job, read_file, run_epoch
from hotdata import Shape, names_of, write_files
from mounts import Belady, Slowpfs, Watchdog
from parts import Parts

OPERATIONS = 3               # of a file: lookup, open, read
WAN = Shape("wan", files=12_000, size=20_000, folders=50)
FAR = Shape("far", files=15_000, size=110_000, folders=50)
BUSY = Shape("busy", files=4_000, size=110_000, folders=50)
WAN_RATE, WAN_S = 25e6, .1
FAR_RATE, FAR_S = 100e6, .05
FAR_OPTIONS = ("--lookup-ms", 50, "--getattr-ms", 50, "--open-ms", 50, "--read-ms", 50, "--mbs", 100)
STAT_OPTIONS = ("--lookup-ms", 50, "--getattr-ms", 50, "--open-ms", 50, "--no-readdirplus")
STAT_THREADS = (16, 32, 64, 128)   # the last one is the most that belady has by itself
TAIL_OPTIONS = ("--tail-p", .01, "--tail-x", 10)
DEMAND = .8
SETTLED_S = 5                # when the limit is to be found


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("wan", "far", "tail", "rival", "stat_scan")
    BARS = {"wan.x_link": .9, "far.cold.x_link": 1.1, "far.peak_in_flight.x_bdp": 2.2, "tail.wait_share": .01,
            "rival.share": .8}
    AT_LEAST = ("wan.x_link", "rival.share")
    TURNS = (7, 2, 15)

    def shuffled(self, shape, epochs=1):
        """Makes the files, and an order of them. Returns the files' directory, the order file and the names."""
        top = os.path.join(self.top, shape.name)
        if not os.path.exists(top):
            write_files(top, shape)
        names, rng = [], random.Random(7)
        order = os.path.join(self.top, "order.txt")
        with open(order, "w") as f:
            for epoch in range(epochs):
                once = names_of(shape)
                rng.shuffle(once)
                f.write(f"# epoch {epoch}\n")
                f.writelines(f"{name}\n" for name in once)
                names += once
        return top, order, names

    def mounts(self, data, order, preset, options=(), ram="1GiB", settings=()):
        """A slow filesystem, and belady over it."""
        slow = Slowpfs(data, os.path.join(self.top, "source"), preset=preset, options=options)
        words = ["--ram", ram, "--order", order, "--set", "prefetch.start=first-open"]
        for setting in settings:
            words += ["--set", setting]
        return slow, Belady(slow.mountpoint, os.path.join(self.top, "mount"), words)

    def epoch(self, shape, preset, options=(), settings=(), files=None):
        """The job over a fresh mount. Returns it, its seconds, those of the mount, and the most requests at once."""
        data, order, names = self.shuffled(shape)
        slow, belady = self.mounts(data, order, preset, options, settings=settings)
        with slow:
            job, seconds, scan = run_epoch(belady, names[:files], [slow])
            return job, seconds, scan, slow.stats()["in_flight_max"]

    def wan(self):
        """20 KB behind 100 ms and 200 Mb/s."""
        rates, scans = [], []
        for _ in range(self.pairs):
            job, _, scan, _ = self.epoch(WAN, "wan")
            rates.append(job.rate_from(SETTLED_S) / WAN_RATE)
            scans.append(scan)
        self.add("wan.x_link", rates)
        self.add("wan.scan_s", scans, "s")
        few = 1_500
        _, seconds, _, _ = self.epoch(WAN, "wan", settings=("prefetch.manners=off", "prefetch.inflight=32"), files=few)
        self.add("wan.fixed.x_link", [few * WAN.size / seconds / WAN_RATE])

    def far(self):
        """110 KB behind 50 ms and 100 MB/s."""
        times, peaks, scans = [], [], []
        link_s = FAR.files * FAR.size / FAR_RATE
        product = FAR_RATE / FAR.size * OPERATIONS * FAR_S
        for _ in range(self.pairs):
            _, seconds, scan, peak = self.epoch(FAR, "wan", FAR_OPTIONS)
            times.append(seconds / link_s)
            peaks.append(peak / product)
            scans.append(scan)
        self.add("far.cold.x_link", times)
        self.add("far.peak_in_flight.x_bdp", peaks)
        self.add("far.scan_s", scans, "s")

    def tail(self):
        """A job that takes samples at 80 % of the link's rate, while one operation in a hundred is slow."""
        data, order, names = self.shuffled(WAN)
        pause, shares = WAN.size / (DEMAND * WAN_RATE), []
        for _ in range(self.pairs):
            slow, belady = self.mounts(data, order, "wan", TAIL_OPTIONS)
            with slow, belady:
                belady.await_scan()
                with Watchdog(LONGEST, [slow, belady]):
                    waits, due = [], time.perf_counter()
                    began = due
                    for name in names:
                        now = time.perf_counter()
                        if now < due:
                            time.sleep(due - now)
                        start = time.perf_counter()
                        read_file(os.path.join(belady.mountpoint, name))
                        end = time.perf_counter()
                        if start - began > SETTLED_S and end - start > .001:
                            waits.append(end - start)
                        due = max(due, end - pause) + pause
                    shares.append(sum(waits) / (end - began - SETTLED_S))
        self.add("tail.wait_share", shares)

    def rival(self):
        """Readers of others, alone and beside the job."""
        epochs = 3
        data, order, names = self.shuffled(BUSY, epochs)
        shares = []
        for _ in range(self.pairs):
            slow, belady = self.mounts(data, order, "busy", ram="64MiB", settings=("cache.policy=none",))
            with slow:
                alone = self.others(slow, threading.Event(), 3)
                with belady, Watchdog(LONGEST, [slow, belady]):
                    over = threading.Event()
                    job = Job(belady.mountpoint, names)
                    working = threading.Thread(target=lambda: (job.run(), over.set()))
                    working.start()
                    beside = self.others(slow, over, LONGEST)
                    working.join()
                shares.append(beside / alone)
        self.add("rival.share", shares)

    def stat_scan(self):
        """A scan that has to ask for each name, beside scans with a fixed number of threads."""
        def with_threads(threads):
            return self.scan_s("prefetch.manners=off", f"source.scan-threads={threads}")
        fixed = {threads: with_threads(threads) for threads in STAT_THREADS}
        best = min(fixed, key=fixed.get)
        found = [(self.scan_s(), with_threads(best)) for _ in range(self.pairs)]
        self.add("far.stat_scan.x_best_static", [seconds / static for seconds, static in found])
        self.add("far.stat_scan.s", [seconds for seconds, _ in found], "s")
        self.add("far.stat_scan.best_threads", [best], "")
        self.add("far.stat_scan.sixteen_s", [fixed[16]], "s")

    def scan_s(self, *settings):
        """Seconds from a fresh mount to the end of its scan."""
        data, _, _ = self.shuffled(WAN)
        words = ["--ram", "64MiB", "--set", "prefetch.enabled=false"]
        for setting in settings:
            words += ["--set", setting]
        with Slowpfs(data, os.path.join(self.top, "source"), preset="wan", options=STAT_OPTIONS) as slow:
            belady = Belady(slow.mountpoint, os.path.join(self.top, "mount"), words)
            began = time.perf_counter()
            with belady, Watchdog(LONGEST, [slow, belady]):
                belady.await_scan()
                return time.perf_counter() - began

    def others(self, slow, over, seconds):
        """Bytes a second of 8 readers of the source until a time or an event, without their first second."""
        names = names_of(BUSY)
        counts, began = [], time.perf_counter()

        def read_on(seed):
            rng = random.Random(seed)
            while not over.is_set() and time.perf_counter() - began < seconds:
                size = read_file(os.path.join(slow.mountpoint, rng.choice(names)))
                counts.append((time.perf_counter() - began, size))

        readers = [threading.Thread(target=read_on, args=(seed,)) for seed in range(8)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        end = max(at for at, _ in counts)
        return sum(size for at, size in counts if at > 1) / (end - 1)


if __name__ == "__main__":
    Bench.main(__doc__, "fewer turns")
