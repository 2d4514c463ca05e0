"""What a cached sample costs through the mount, against a local file.

Goal: tell how near a hit through belady comes to a hit in the page cache of the local filesystem.
Method: a mount over a local directory, with the order told and memory for everything, which is staged before anything
is timed.  Then the same files are read there and locally in turns, in the order that belady expects, by a small
compiled program that times each sample.  A figure is the median over the turns of the ratio of the medians (p50),
with one reader, unless it says otherwise. x_ext4 is over the faster of two local fills: files just written, and files
evicted and read again.  The machine's filesystem type is in the result: "ext4" is whatever holds the build directory.
Beside a figure (as root) stands how contiguous the pages of each side are: the share of pages whose file's next page
is right behind them in memory.  Scattered pages are copied several times more slowly, on any filesystem, and how
scattered pages are depends on how long the host has been up.
The kernel's own part of a figure, which no userspace filesystem can avoid, is measured beside it: `open` (with fstat
and close) and `pages` (only read) of files whose pages are there, and which cause no requests; tmpfs, whose files are
in single pages too; `isatty`, the question that Python's open() asks of each file and that the kernel hands on.  In a
virtual machine whose idle processors halt at once, a request costs two wake-ups by the hypervisor; `polling` are the
same figures if idle processors first wait for work.
"""

import os
import random
import statistics
import subprocess
import time

from driver import RunError, stopwatch, wrong_bytes_in
from hotdata import MIB, Shape, names_of
from mounts import Watchdog, binary, fresh_dir
from parts import Parts
from readers import time_python, time_reads
from turns import ORDER, Site, Turns, polling_idle, requests, wait_until_staged

LONGEST = 240                # seconds until a mount counts as hung


def p50(found):
    return found["p50_ns"]


def rate(found):
    return found["bytes"] / found["seconds"]


def sides(found):
    """The medians of both sides, in nanoseconds or bytes a second."""
    return " ".join(f"{way} {figure:,}" for way, figure in found.get("medians", {}).items())


def contiguity(found):
    """The shares of pages that lie right before their next page, of both sides."""
    return " ".join(f"{way} {share:.2f}" for way, share in found.get("neighbours", {}).items())


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("middle", "small", "large", "shard", "shard_passed")
    BARS = {"110k.x_ext4": 1.2, "110k.watch.x_ext4": 2, "4k.x_ext4": 1.3, "1m.x_ext4": 1.1, "walk.x_ext4": 1.1,
            "python.x_ext4": 1.2, "requests_per_sample": .1, "shard.push.x_ext4": .33,
            "shard.passthrough.x_ext4": .95, "push.x_pread": .3}
    AT_LEAST = ("shard.push.x_ext4", "shard.passthrough.x_ext4", "push.x_pread")
    COLUMNS = (*Parts.COLUMNS, ("medians", 66, sides), ("neighbours", 50, contiguity))

    def __init__(self, *args):
        super().__init__(*args)
        self.neighbours = {}         # of the pages that are being read, by way
        self.tmpfs = f"/dev/shm/belady-bench-{os.getpid()}" if os.path.isdir("/dev/shm") else None

    def shape(self, name, files, size, folders):
        return Shape(name, files // 10 if self.quick else files, size, folders)

    def ratio(self, name, found, figure=p50, quicker=min, **more):
        """Adds a row: belady over the better local fill, turn by turn, with tmpfs beside it."""
        middles = {way: statistics.median(map(figure, found[way])) for way in ("reread", "written")}
        best = quicker(middles, key=middles.get)
        pairs = zip(map(figure, found["belady"]), map(figure, found[best]))
        if self.neighbours:
            more["neighbours"] = {way: share for way, share in self.neighbours.items() if way in found}
        self.add(name, [a / b for a, b in pairs], baseline=best, **more,
                 medians={way: round(statistics.median(map(figure, runs))) for way, runs in found.items()})

    def guarded(self, what, *mounts):
        """Runs `what` under a watchdog."""
        with Watchdog(LONGEST, mounts) as dog:
            try:
                return what()
            finally:
                if dog.bitten:
                    raise RunError("a mount hung")

    def simple(self, name, shape, parts):
        """Whole files of another size."""
        site = Site(os.path.join(self.top, name), shape, self.tmpfs)
        try:
            with site.mount("--order", ORDER) as mount:
                wait_until_staged(mount)
                turns = Turns(site, mount)
                found = self.guarded(lambda: self.read(turns), mount)
                self.ratio(f"{name}.x_ext4", found, files=site.shape.files)
                self.guarded(lambda: self.parts_of(name, turns, parts), mount)
        finally:
            site.clean()

    def read(self, turns):
        """Reads in turns, and notes how the pages of each side lie."""
        found = turns.reads(self.pairs)
        self.neighbours = turns.neighbours()
        return found

    def parts_of(self, name, turns, parts):
        """What parts of a sample's reading cost by themselves, in the order that belady expects."""
        for part in parts:
            self.ratio(f"{name}.{part}.x_ext4", turns.reads(self.pairs, part))

    def small(self):
        self.simple("4k", self.shape("4k", 18_000, 4_096, 90), ["open"])

    def large(self):
        self.simple("1m", self.shape("1m", 1_000, MIB, 10), ["pages"])

    def middle(self):
        """110 KB: the size of file that belady is made for."""
        site = Site(os.path.join(self.top, "110k"), self.shape("110k", 18_000, 112_283, 90), self.tmpfs)
        try:
            with site.mount("--order", ORDER) as mount:
                wait_until_staged(mount)
                self.guarded(lambda: self.staged(site, mount), mount)
            with site.mount("--set", "order.learn=off") as mount:
                self.guarded(lambda: self.watched(site, mount), mount)
            self.pushed(site)
        finally:
            site.clean()

    def staged(self, site, mount):
        """With the order told."""
        turns = Turns(site, mount)
        counts = []

        def counted(top, names):
            before = requests(mount.status()) if top == mount.mountpoint else (0, 0)
            found = time_reads("read", site.list(top, names))
            if top == mount.mountpoint:
                after = requests(mount.status())
                counts.append([(now - then) / len(names) for now, then in zip(after, before)])
            return found
        found = turns.in_order(self.pairs, counted)
        mode = mount.status()["mode"]
        self.neighbours = turns.neighbours()
        self.ratio("110k.x_ext4", found, files=site.shape.files, mode=mode)
        self.parts_of("110k", turns, ["open", "pages"])
        self.add("requests_per_sample", [readers for readers, _ in counts], "")
        self.add("own_requests_per_sample", [own for _, own in counts], "")
        turns.ways.pop("tmpfs", None)
        self.walk(turns, mount)
        self.ratio("python.x_ext4", turns.in_order(self.pairs, lambda top, names: time_python("open", top, names)))
        self.parts_of("python", turns, ["isatty"])
        self.polling("python", lambda: turns.in_order(self.pairs, lambda top, names: time_python("open", top, names)))
        self.ratio("python.os.x_ext4", turns.in_order(self.pairs, lambda top, names: time_python("os", top, names)))
        self.ratio("110k.mmap.x_ext4", turns.reads(self.pairs, "mmap"))
        for readers in (2, 4):
            found = turns.reads(self.pairs, readers=readers)
            self.ratio(f"110k.readers{readers}.x_ext4", found)
            self.ratio(f"110k.readers{readers}.wall.x_ext4", found, lambda one: one["seconds"] * 1e9)
        self.compare(site, mount)

    def polling(self, name, read):
        """The same if the processors of a virtual machine do not halt between a request and its reply."""
        with polling_idle() as polls:
            if polls:
                self.ratio(f"{name}.polling.x_ext4", read(), note="idle processors wait for work for 0.2 ms")

    def walk(self, turns, mount):
        """A walk with stat, and the number of its requests."""
        asked = []

        def walk(top):
            before = sum(requests(mount.status()))
            found = time_reads("walk", top)
            if top == mount.mountpoint:
                asked.append((sum(requests(mount.status())) - before) / found["samples"])
            return found
        self.ratio("walk.x_ext4", turns.run(self.pairs, walk))
        self.add("walk.requests_per_entry", asked, "")

    def compare(self, site, mount):
        """Checks that the bytes are those of the source."""
        some = random.Random(1).sample(names_of(site.shape), 200 if site.shape.files > 200 else site.shape.files)
        wrong = [name for name in some
                 if wrong_bytes_in(os.path.join(site.source, name), os.path.join(mount.mountpoint, name))]
        if wrong:
            raise RunError(f"{len(wrong)} of {len(some)} files are wrong, e.g. {wrong[0]}")

    def watched(self, site, mount):
        """Without an order: belady keeps what a first epoch reads, and sees each open."""
        turns = Turns(site, mount)
        turns.ways.pop("tmpfs", None)
        turns.reads(1)
        self.ratio("110k.watch.x_ext4", self.read(turns), mode=mount.status()["mode"])
        self.polling("110k.watch", lambda: turns.reads(self.pairs))

    def pushed(self, site):
        """How fast pages get into the page cache, and the CPU of staging and reading together."""
        speeds, belady_cpu, local_cpu = [], [], []
        names = site.order(0)
        for _ in range(self.pairs):
            site.warm()
            local = time_reads("read", site.list(site.source, names))
            with site.mount("--order", ORDER, "--set", "prefetch.start=first-open") as mount:
                def turn(mount=mount):
                    before, elapsed = mount.cpu_us(), stopwatch()
                    with open(os.path.join(mount.mountpoint, names[0]), "rb") as f:
                        f.read()
                    wait_until_staged(mount)
                    seconds = elapsed()
                    read = time_reads("read", site.list(mount.mountpoint, names))
                    return local["bytes"] / seconds, mount.cpu_us() - before + read["cpu_us"]
                speed, cpu = self.guarded(turn, mount)
            speeds.append(speed / rate(local))
            belady_cpu.append(cpu / len(names))
            local_cpu.append(local["cpu_us"] / len(names))
        self.add("push.x_pread", speeds)
        self.add("110k.cpu_us", belady_cpu, "us", note="staging included")
        self.add("110k.ext4.cpu_us", local_cpu, "us")

    def shard(self):
        """One big file in pieces of 128 KiB."""
        site = self.big_file("shard")
        try:
            with site.mount("--order", ORDER) as mount:
                wait_until_staged(mount)
                self.pieces(site, mount, "push")
        finally:
            site.clean()

    def shard_passed(self):
        """The same, with the whole file in the cache directory, from which the kernel itself reads."""
        site = self.big_file("passed")
        cache = fresh_dir(os.path.join(self.top, "cache"))
        name = names_of(site.shape)[0]
        try:
            with site.mount("--cache-dir", cache, "--set", "mount.mode=passthrough", "--set", "order.learn=off") as mount:
                warm = [binary("belady"), "warmup", mount.mountpoint]
                subprocess.run(warm, check=True, timeout=LONGEST, stdout=subprocess.DEVNULL)
                self.wait_until_passed(mount, os.path.join(mount.mountpoint, name))
                before = mount.status()
                self.pieces(site, mount, "passthrough")
                after = mount.status()
                if after["source_bytes"] != before["source_bytes"] or after["requests"]["read"] != before["requests"]["read"]:
                    raise RunError("what is passed through was asked of belady")
        finally:
            site.clean()

    def big_file(self, name):
        return Site(os.path.join(self.top, name), Shape("shard", 1, (128 if self.quick else 2_048) * MIB, 1))

    def wait_until_passed(self, mount, path):
        """Opens a file until the kernel reads it by itself, and reads it once."""
        deadline = time.monotonic() + LONGEST
        while time.monotonic() < deadline:
            before = mount.status()["requests"]["passed"]
            time_reads("shard-seq", path)
            if mount.status()["requests"]["passed"] > before:
                return
        raise RunError("no file is passed through")

    def pieces(self, site, mount, kind):
        """A big file read in turns, from its start to its end and in random order."""
        turns, name = Turns(site, mount), names_of(site.shape)[0]
        mode = mount.status()["mode"]
        for shape in ("shard-seq", "shard-random"):
            found = self.guarded(lambda shape=shape: turns.run(
                self.pairs, lambda top: time_reads(shape, os.path.join(top, name))), mount)
            self.neighbours = turns.neighbours()
            random_too = "" if shape == "shard-seq" else "random."
            self.ratio(f"shard.{kind}.{random_too}x_ext4", found, rate, max, mode=mode)


if __name__ == "__main__":
    Bench.main(__doc__, "a tenth of the files")
