"""The same training job over belady and over what people use instead: caching mounts, staging, more workers.

Goal: each figure of belady stands beside the best that can be had without it, from the same source and loader.
Method: 5,000 imagenet-like JPEGs of about 110 KB behind `slowpfs --preset busy`, and a torch DataLoader with 2
workers that reads and checks each, without decoding. cold is the first epoch with all that comes before it: the
mount, the listing of directories, warming if there is any, and the first batch. steady is the median of the later
epochs. 100 and 50 are the cache in percent of the data. staging copies with the best of 8, 16 and 32 processes and
reads the copy. slowpfs counts source bytes from the start; they are given in multiples of the data. belady and
staging run in turns; a run of a minute or more runs once, in the middle.  The order is told to belady, except in
belady.untold; keep-cache and plain are its other modes.  Mounts that do not cache on a disk (slowpfs with a caching
client's page cache, mergerfs, bindfs) have all the memory they like, and so no column for 50 %.  In that column the
peer is rclone, which can be limited.
"""

import os
import shutil
import statistics
import subprocess
import sys

from driver import RunError
from make_data import default_files, ensure
from mounts import Served, fresh_dir
from parts import arguments
from report import publish, row
from rig import MIB, ORDER, Rig
from schedule import LIMIT, Schedule

BARS = {"x_best_mount": 4, "x_staging": .95, "cold.x_bytes": 1.01, "steady.50.x_bytes": .52}
COPIERS = (8, 16, 32)
TURNS, TURNS_FULL = 3, 7
EPOCHS = 3                   # in which staging and belady are counted together
LONGEST = 300                # seconds until a run counts as hung
BELADY = ("belady.100", "belady.50", "belady.untold.100", "belady.keep-cache.100", "belady.plain.100")
CACHING = {"100": ("client_cache.100", "rclone.100", "rclone.warmed.100", "mergerfs.100", "bindfs.100", "catfs.100"),
           "50": ("rclone.50",)}


def warm(mountpoint):
    """Reads everything once with 16 processes, as a user would do in a shell."""
    listing = subprocess.Popen(["find", mountpoint, "-type", "f", "-print0"], stdout=subprocess.PIPE)
    done = subprocess.run(["xargs", "-0", "-n", "25", "-P", "16", "cat"], stdin=listing.stdout,
                          stdout=subprocess.DEVNULL, check=False)
    listing.stdout.close()
    if listing.wait() != 0 or done.returncode != 0:
        raise RunError("warming failed")


class Peers(Schedule):
    """The ways to run the job, and when."""

    def __init__(self, rig, full):
        super().__init__(full, 1)
        self.rig = rig
        self.mountpoint = os.path.join(rig.work, "mount")

    def plan(self):
        """Turns of staging and belady, with the slow ways once among them; with `full`, all ways in every turn."""
        for turn in range(TURNS_FULL if self.full else TURNS):
            for number in COPIERS if turn == 0 else [self.best_copiers()]:
                yield f"staged.{number}", lambda number=number: self.rig.staged(number, EPOCHS)
            yield from self.belady()
            if self.full or turn == 0:
                yield from self.caching()
            if self.full or turn == 1:
                yield from self.others()

    def best_copiers(self):
        """The number of copiers that was quickest in the first turn."""
        return min(COPIERS, key=lambda n: self.get(f"staged.{n}")[0].cold if self.get(f"staged.{n}") else 1e9)

    def belady(self):
        half, whole = self.rig.pages // 2, int(1.05 * self.rig.pages) + 32 * MIB
        ways = {"belady.100": (whole, ORDER, "push"), "belady.50": (half, ORDER, "push"),
                "belady.untold.100": (whole, None, "push"), "belady.keep-cache.100": (whole, ORDER, "keep-cache"),
                "belady.plain.100": (whole, ORDER, "plain")}
        for name in BELADY:
            ram, order, mode = ways[name]
            if name in BELADY[:2] or self.full or not self.get(name):
                yield name, lambda ram=ram, order=order, mode=mode: self.rig.belady(
                    "A", EPOCHS, ram, settings=[f"mount.mode={mode}"], order=order)

    def caching(self):
        """Mounts that cache, on a disk or in the page cache."""
        rclone = ["rclone", "mount", "--config", "/dev/null", "--read-only", "--vfs-cache-mode", "full",
                  "--vfs-cache-poll-interval", "1s", "--cache-dir", "CACHE", "SOURCE", "MOUNT"]
        half = [*rclone, "--vfs-cache-max-size", f"{self.rig.bytes // 2}b"]
        yield "client_cache.100", lambda: self.rig.direct(2, 2, client_cache=True)
        yield "rclone.100", self.through(rclone, EPOCHS)
        yield "rclone.warmed.100", self.through(rclone, EPOCHS, warm)
        yield "rclone.50", self.through(half, 2)
        yield "mergerfs.100", self.through(["mergerfs", "-f", "-o", "cache.files=auto-full", "SOURCE", "MOUNT"], 2)
        if shutil.which("catfs"):
            yield "catfs.100", self.through(["catfs", "-f", "SOURCE", "CACHE", "MOUNT"], EPOCHS)
        elif "catfs is not on PATH" not in self.notes:
            self.notes.append("catfs is not on PATH")

    def others(self):
        """The source itself, and a mount that caches nothing."""
        for workers in (2, 8, 16):
            yield f"direct.{workers}", lambda workers=workers: self.rig.direct(workers, 1 if workers == 2 else 2)
        yield "bindfs.100", self.through(["bindfs", "-f", "--multithreaded", "SOURCE", "MOUNT"], 1)

    def through(self, command, epochs, prepare=None):
        """The loader over the mount that `command` makes, in which SOURCE, MOUNT and CACHE stand for directories."""
        def make(source):
            cache = fresh_dir(os.path.join(self.rig.work, "cache"))
            places = {"SOURCE": source, "MOUNT": self.mountpoint, "CACHE": cache}
            return Served([places.get(word, word) for word in command], self.mountpoint)
        # Some of these keep slowpfs from its CPU by themselves, so a second run would not be better.
        return lambda: self.rig.on_time(lambda: self.rig.mounted(make, "A", epochs, prepare), 1)


def total(run):
    """Seconds of the job from the mount to the end of the last epoch."""
    return run.cold_with_scan + sum(epoch["seconds"] for epoch in run.epochs[1:])


def staging_total(run):
    """The copying, then the listing and the epochs of the copy."""
    return sum(epoch["seconds"] + epoch["scan"] for epoch in run.epochs)


class Rows:
    """The rows of the peers' runs."""

    def __init__(self, peers):
        self.peers, self.data, self.rows = peers, peers.rig.bytes, []

    def add(self, name, runs, unit="x", **more):
        if name == "x_best_mount":
            more["at_least"] = True
        self.rows.append(row(name, runs, unit, BARS.get(name), **more))

    def cold_bytes(self, run):
        return (run.bytes_before + run.epochs[0]["bytes"]) / self.data

    def steady_bytes(self, run):
        return run.steady("bytes") / self.data

    def best_mount(self):
        """The worst column: the time of the best caching mount over belady's."""
        columns = {}
        for size, names in CACHING.items():
            for part, figure in (("cold", lambda run: run.cold_with_scan), ("steady", lambda run: run.steady())):
                times = {name: statistics.median(map(figure, self.peers.get(name)))
                         for name in (f"belady.{size}", *names) if self.peers.get(name)}
                ours = times.pop(f"belady.{size}", None)
                if ours and times:
                    best = min(times, key=times.get)
                    columns[f"{part}.{size}"] = {"best": best, "x": round(times[best] / ours, 4)}
        ratios = [column["x"] for column in columns.values()]
        note = ", ".join(f"{name} {column['x']:.1f} over {column['best']}" for name, column in columns.items())
        self.add("x_best_mount", ratios, value=min(ratios, default=None), columns=columns, note=note or "no run")

    def barred(self):
        get = self.peers.get
        self.best_mount()
        staged = get(f"staged.{self.peers.best_copiers()}")
        self.add("x_staging", [total(ours) / staging_total(theirs) for ours, theirs in zip(get("belady.100"), staged)])
        self.add("cold.x_bytes", [self.cold_bytes(run) for run in get("belady.100")])
        self.add("steady.50.x_bytes", [self.steady_bytes(run) for run in get("belady.50")])

    def plain(self):
        """Seconds and bytes of everything."""
        staged = [f"staged.{n}" for n in COPIERS]
        direct = [f"direct.{n}" for n in (2, 8, 16)]
        for name in [*BELADY, *staged, *direct, *CACHING["100"], *CACHING["50"]]:
            runs = self.peers.get(name)
            if not runs:
                continue
            late = max(run.held_late_us for run in runs)
            self.add(f"{name}.cold.s", [run.cold_with_scan for run in runs], "s", held_late_us_max=late)
            self.add(f"{name}.cold.x_bytes", [self.cold_bytes(run) for run in runs])
            if len(runs[0].epochs) > 1:
                self.add(f"{name}.steady.s", [run.steady() for run in runs], "s", held_late_us_max=late)
                self.add(f"{name}.steady.x_bytes", [self.steady_bytes(run) for run in runs])
            if name in BELADY:
                self.add(f"{name}.steady.refetched_mib", [run.refetched / MIB for run in runs], "MiB",
                         note="taken back by the kernel and fetched again, an epoch")


COLUMNS = (("late ms", 8, lambda found: f"{found['held_late_us_max'] / 1000:.1f}" if "held_late_us_max" in found
            else ""),)


def main():
    args = arguments(__doc__, "7 turns with everything in each, no limit of time")
    rig = Rig(ensure("imagenet-like", default_files("imagenet-like")), None if args.full else LIMIT, LONGEST)
    try:
        rig.warm()
        peers = Peers(rig, args.full)
        ran = peers.run(peers.plan())
    finally:
        rig.clean()
    rows = Rows(peers)
    rows.barred()
    rows.plain()
    publish("peers", rows.rows, peers.notes, args.json, COLUMNS)
    sys.exit(0 if ran else 1)


if __name__ == "__main__":
    main()
