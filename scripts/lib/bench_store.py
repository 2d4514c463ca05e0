"""What the local store costs and keeps, against plain files of the same disk.

Goal: tell whether packing samples is worth it, how fast a large store is there again, whether a full one slows a job,
and that neither a crash nor a kill gives a wrong byte or loses what was stored.  Method: a small compiled program
writes and reads the same samples, in a store and as a file each, in turns, with nothing of them in the page cache.  A
mount reads files that are new to it while its store fills, and when it is full.  RAM is full before either is timed:
a read for which RAM has room stores and drops nothing, and would make its side look faster.  So each timed read
stores one sample, and displaces one on the one side only.  Samples that were stored before a kill must be whole in
the store when it is opened again, and a remount must serve them without its source.  A figure is the median over the
turns of the ratio of the two sides.
"""

import glob
import json
import os
import random
import re
import shutil
import subprocess
import time

from driver import RunError, wrong_bytes_in
from hotdata import MIB, Shape, names_of, pages, write_files
from mounts import TOP, Belady, Watchdog, binary, fresh_dir
from parts import Parts
from readers import time_reads, write_list

KILLS = 200
LONGEST = 120                # seconds until a mount counts as hung
SEEN = re.compile(r"crash images: (\d+) of .* (\d+) wrong bytes, (\d+) synced samples lost")


def storebench(what, directory, samples, size, *options):
    """The result of `storebench WHAT`."""
    command = [binary("storebench"), what, directory, "--samples", str(samples), "--bytes", str(size), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RunError(f"`{' '.join(command)}` gave {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def sides(found):
    """The medians of both sides, in megabytes a second."""
    return f"{found['mb_s']} : {found['plain_mb_s']}" if "mb_s" in found else "-"


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("middle", "small", "full", "reopen", "kill", "crash")
    BARS = {"110k.ingest.x_plain": 1, "110k.read.x_plain": 1, "4k.ingest.x_plain": 1, "4k.read.x_plain": 1,
            "reopen_s": 1, "full.x_before": .95, "full.x_none": .95, "crash.images": 10_000, "crash.wrong_bytes": 0,
            "crash.lost": 0, "kill.wrong_bytes": 0, "kill.lost": 0}
    AT_LEAST = ("110k.ingest.x_plain", "110k.read.x_plain", "4k.ingest.x_plain", "4k.read.x_plain", "full.x_before",
                "full.x_none", "crash.images")
    TURNS = (7, 3, 15)
    COLUMNS = (*Parts.COLUMNS, ("MB/s", 12, sides))

    def middle(self):
        """110 KB: a file for each sample is the best that a filesystem can do."""
        self.disk("110k", 400 if self.quick else 4_000, 112_283)

    def small(self):
        """4 KiB: files cost more than their bytes."""
        self.disk("4k", 2_000 if self.quick else 10_000, 4_096)

    def disk(self, name, samples, size):
        """Writing and reading, a store and files in turns."""
        ways = {"store": ("ingest", "read"), "plain": ("plain-ingest", "plain-read")}
        found = {(way, what): [] for way in ways for what in ("ingest", "read", "forgotten")}
        for turn in range(self.pairs):
            for way in sorted(ways, reverse=turn % 2 == 0):
                place = fresh_dir(os.path.join(self.top, way))
                os.sync()
                for verb, what in zip(ways[way], ("ingest", "read")):
                    found[way, what].append(self.rate(storebench(verb, place, samples, size)))
                if way == "store":
                    again = storebench("read", place, samples, size, "--buffered")
                    found[way, "forgotten"].append(self.rate(again))
                shutil.rmtree(place)
        for what in ("ingest", "read"):
            pairs = zip(found["store", what], found["plain", what])
            self.add(f"{name}.{what}.x_plain", [a / b for a, b in pairs],
                     mb_s=self.megabytes(found["store", what]), plain_mb_s=self.megabytes(found["plain", what]))
        pairs = zip(found["store", "read"], found["store", "forgotten"])
        self.add(f"{name}.direct.x_forgotten", [a / b for a, b in pairs],
                 note="reads past the page cache, against reads by way of it that it is told to forget")

    @staticmethod
    def rate(found):
        return found["bytes"] / found["seconds"]

    @staticmethod
    def megabytes(rates):
        return round(sorted(rates)[len(rates) // 2] / 1e6)

    def reopen(self):
        """How long until a store of a million samples can be used."""
        samples = 100_000 if self.quick else 1_000_000
        place = fresh_dir(os.path.join(self.top, "million"))
        try:
            storebench("ingest", place, samples, 4_096)
            runs = [storebench("reopen", place, samples, 4_096) for _ in range(self.pairs)]
        finally:
            shutil.rmtree(place)
        if any(run["entries"] != samples for run in runs):
            raise RunError(f"not all samples were there again: {runs}")
        self.add("reopen_s", [run["seconds"] for run in runs], "s", entries=samples)

    def full(self):
        """Reading files that are new to the mount: while the store fills, when it is full, and without a store."""
        shape = Shape("full", 450 if self.quick else 4_500, 112_283, 20)
        source = write_files(os.path.join(self.top, "source"), shape)
        names = names_of(shape)
        random.Random(3).shuffle(names)
        ninth = len(names) // 9                     # one for RAM, four to fill the store, four to displace those
        lead, halves = names[:ninth], [names[ninth:5 * ninth], names[5 * ninth:]]
        options = ["--ram", pages(shape) // 9, "--set", "cache.policy=lru", "--set", "order.learn=off"]
        rates = {"store": [], "none": []}
        # A turn takes two seconds, and the disk writes back in some turns. So there are more turns than elsewhere.
        for _ in range(3 * self.pairs):
            for way, found in rates.items():
                cache = ["--cache-dir", fresh_dir(os.path.join(self.top, "cache")), "--disk", pages(shape) * 4 // 9]
                time_reads("read", self.listed(source, names))
                with Belady(source, os.path.join(self.top, "mount"), options + cache * (way == "store")) as mount:
                    with Watchdog(LONGEST, [mount]):
                        time_reads("read", self.listed(mount.mountpoint, lead))
                        found.append([self.rate(time_reads("read", self.listed(mount.mountpoint, halves[0])))])
                        if way == "store":
                            self.fill(mount, lead + halves[0])
                            full = mount.status()
                        found[-1].append(self.rate(time_reads("read", self.listed(mount.mountpoint, halves[1]))))
                        if way == "store":
                            self.await_displaced(mount, full, pages(shape) // shape.files)
        shutil.rmtree(source)
        ratios = {way: [after / before for before, after in found] for way, found in rates.items()}
        self.add("full.x_before", ratios["store"], note="every read displaces a sample")
        self.add("full.x_none", [store[1] / none[1] for store, none in zip(rates["store"], rates["none"])],
                 note="a source in memory: the store only costs")
        self.add("none.x_before", ratios["none"], note="the same reads without a store: what the mount itself does")

    def fill(self, mount, names):
        """Has the store take those of these files that it did not take when they were read. It is full then."""
        command = [binary("belady"), "warmup", mount.mountpoint, "--files-from",
                   write_list(os.path.join(self.top, "wanted"), names)]
        subprocess.run(command, capture_output=True, timeout=LONGEST, check=False)
        disk = mount.status()["disk"]
        if disk["kept"] < disk["budget"] * 9 // 10:
            raise RunError(f"the store is not full: {disk['kept']} of {disk['budget']} bytes after a warmup")

    @staticmethod
    def await_displaced(mount, full, size):
        """Waits until samples of `size` bytes have displaced some of those that were stored when it was `full`."""
        room = full["disk"]["budget"] - full["disk"]["kept"]
        deadline = time.monotonic() + 10
        while (mount.status()["placed"] - full["placed"]) * size <= room:
            if time.monotonic() > deadline:
                raise RunError(f"nothing was displaced: {mount.status()['placed'] - full['placed']} placed since")
            time.sleep(.1)

    def listed(self, top, names):
        return write_list(os.path.join(self.top, "list"), [os.path.join(top, name) for name in names])

    def crash(self):
        """What is left when the machine stops: the test of crash images."""
        command = ["cargo", "test", "--quiet", "--lib", "store::tests::crash::crash_images", "--", "--nocapture"]
        done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=900, check=False)
        seen = SEEN.search(done.stdout)
        if not seen:
            raise RunError(f"the test of crash images says nothing: {done.stdout[-500:]} {done.stderr[-500:]}")
        for name, value in zip(("crash.images", "crash.wrong_bytes", "crash.lost"), seen.groups()):
            self.add(name, [int(value)], "")

    def kill(self):
        """A daemon is killed while it stores: stored samples are there, and all bytes are right."""
        shape = Shape("kill", 200 if self.quick else 1_000, 112_283, 10)
        source = write_files(os.path.join(self.top, "source"), shape)
        cache, names = fresh_dir(os.path.join(self.top, "cache")), names_of(shape)
        options = ["--ram", 16 * MIB, "--cache-dir", cache, "--disk", 2 * pages(shape), "--set", "order.learn=off"]
        wrong, lost, whole, stored, kills = [], [], 0, 0, 0
        for turn in range(KILLS // 20 if self.quick else KILLS):
            chosen = random.Random(turn)
            if turn % 10 == 0 and turn > 0:
                # A store that has everything writes nothing more.
                lost.append(self.lost_at_remount(source, cache, shape, whole))
                fresh_dir(cache)
            with Belady(source, os.path.join(self.top, "mount"), options) as mount:
                with Watchdog(LONGEST, [mount]):
                    wrong.append(sum(self.differ(mount, name) for name in chosen.sample(names, len(names) // 20)))
                    reader = subprocess.Popen([binary("hotpath"), "read", self.listed(mount.mountpoint, names)],
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    time.sleep(chosen.uniform(.05, .3))
                    index = self.index(cache)
                    mount.kill()
                    reader.wait(60)
            kills += 1
            whole = self.whole(cache)
            found = storebench("kept", self.store(cache), 0, shape.size, "--before", index)
            stored += found["samples"]
            lost.append(found["lost"])
        lost.append(self.lost_at_remount(source, cache, shape, whole))
        with Belady(source, os.path.join(self.top, "mount"), options) as mount:
            wrong.append(sum(self.differ(mount, name) for name in names))
        shutil.rmtree(source)
        self.add("kill.wrong_bytes", wrong, "", value=sum(wrong))
        self.add("kill.lost", lost, "", value=sum(lost), stored=stored, kills=kills,
                 note="each of those recorded before a kill that is not whole in the store opened again, or not served "
                      "by a remount")

    def lost_at_remount(self, source, cache, shape, stored):
        """How many stored samples a remount reads from the source nevertheless."""
        names = names_of(shape)
        # RAM has room for all of them, so that each sample is fetched from the source at most once.
        options = ["--ram", 2 * pages(shape), "--cache-dir", cache, "--disk", 2 * pages(shape),
                   "--set", "order.learn=off", "--set", "cache.slow-after=1h"]
        with Belady(source, os.path.join(self.top, "mount"), options) as mount, Watchdog(LONGEST, [mount]):
            time_reads("read", self.listed(mount.mountpoint, names))
            time.sleep(1)        # the status shows it a moment later
            served = shape.files - mount.status()["source_bytes"] // shape.size
        return max(0, stored - served)

    @staticmethod
    def whole(cache):
        """Samples that the only store serves when it is opened again, by their checksums."""
        command = [binary("belady"), "cache", "verify", cache, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
        if done.returncode not in (0, 5) or not done.stdout:
            raise RunError(f"`{' '.join(command)}` gave {done.returncode}: {done.stderr.strip()}")
        found = json.loads(done.stdout)[0]
        return found["checked"] - found["damaged"]

    @staticmethod
    def differ(mount, name):
        return wrong_bytes_in(os.path.join(mount.source, name), os.path.join(mount.mountpoint, name))

    @staticmethod
    def store(cache):
        """The directory of the only store."""
        (owner,) = glob.glob(os.path.join(cache, "belady-store-*", "*", "owner"))
        return os.path.dirname(owner)

    def index(self, cache):
        """A copy of the only store's index at this moment, while the daemon lives."""
        copy = fresh_dir(os.path.join(self.top, "index"))
        for name in glob.glob(os.path.join(self.store(cache), "index-0*")):
            shutil.copy(name, copy)
        return copy


if __name__ == "__main__":
    Bench.main(__doc__, "a tenth of the samples")
