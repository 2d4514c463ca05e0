"""Runs the jobs of `scripts/bench loaders`: over the source itself, and through belady.

Goal: both sides of a row are the same job with as much memory for the data.
Method: each run has a slowpfs of its own. *Direct* is a client of it that keeps pages, and the job runs in a memory
cgroup whose page cache is held at half the data. belady gets the same as its RAM.  What reached the source, and what
belady reports, is counted between the epochs.  A run in which slowpfs was late is repeated once.
"""

import errno
import json
import os
import subprocess
import time

import make_data
from bound import BLOCK, fetched, pages, read_from
from cgroup import limited_page_cache
from driver import RunError, files_of, run_program
from mounts import TARGET, TOP, Belady, Slowpfs, Watchdog, binary, fresh_dir, say
from resident import resident

JOBS = os.path.join(TOP, "scripts", "lib", "loaders")
EPOCHS = 3
IMAGES = 1_000
SHARE = .5                   # of the data is the RAM of both sides
NODE = 1_100                 # bytes of belady's RAM that the kernel takes for each file that it knows
LATE_US = 50_000             # if slowpfs is later than this, the run is repeated
STATUS_LAG = .3              # seconds until reads show in the status
DIRECT_TRIES = 4             # of a job in a memory cgroup
LONGEST = 300                # seconds until a run counts as hung
COUNTED = ("opens", "hits", "late", "source_bytes")


class Data:
    """One set of data, in the page cache."""

    def __init__(self, top):
        self.top = top
        self.sizes = {name: os.path.getsize(os.path.join(top, name)) for name in files_of(top)}
        self.files, self.pages = len(self.sizes), sum(map(pages, self.sizes.values()))
        self.room = int(self.pages * SHARE)

    def warm(self):
        """Brings the data into the page cache, so that the real disk does not distort the model."""
        for name in files_of(self.top):
            with open(os.path.join(self.top, name), "rb") as f:
                while f.read(1 << 20):
                    pass


class Run:
    """The result of a job: its epochs, and how late slowpfs was at most."""

    def __init__(self, epochs, held_late_us):
        self.epochs, self.held_late_us = epochs, held_late_us

    def sum(self, field, first=0):
        """The sum of a field over the epochs from `first` on."""
        return sum(epoch[field] for epoch in self.epochs[first:])

    def bytes_for(self, first):
        """Bytes that the source gave for the epochs from `first` on.  Bytes staged before them count.  Bytes staged
        after the last epoch do not, since they are not read."""
        before = self.epochs[first - 1]["staged"] if first else 0
        return self.sum("source_bytes", first) + before - self.epochs[-1]["staged"]

    @property
    def seconds(self):
        return self.sum("seconds")


class Predicted:
    """Counts the opens that belady predicted, over all orders that it follows. A withdrawn order is counted anew."""

    def __init__(self):
        self.last = {}

    def count(self, status):
        """How many there were since the last look."""
        streams = {("order", order["stream"]): order for order in status["orders"]}
        streams |= {("loader", loader["loader"]): loader["progress"] or {} for loader in status["loaders"]}
        found = 0
        for key, progress in streams.items():
            now, last = progress.get("opens_predicted") or 0, self.last.get(key, 0)
            found += now - last if now >= last else now
            if progress:
                self.last[key] = now
        return found


class Loading:
    """The ways to run a row's job."""

    def __init__(self, python, work, preset="busy", slowness=()):
        """`preset` and `slowness`: how slow the source is, as options of slowpfs."""
        self.python, self.work, self.preset, self.slowness = python, work, preset, slowness
        self.log = os.path.join(work, "read.order")

    def job(self, row, path, border, mounts, start=None, inside=None):
        """Runs the job over `path`; border(line) is called after each epoch."""
        command = [os.path.join(JOBS, f"job_{row.job}.py"), path, row.kind, "--workers", row.workers, "--log", self.log]
        with Watchdog(LONGEST, mounts) as dog:
            done = run_program(command, border, start, inside, self.python)
        if dog.bitten or len(done) != EPOCHS:
            raise RunError(f"{row.name}: only {len(done)} of {EPOCHS} epochs")
        if sum(epoch["wrong"] for epoch in done):
            raise RunError(f"{row.name}: {sum(epoch['wrong'] for epoch in done):.0f} wrong samples")
        return done

    def on_time(self, once):
        """The result of `once`; repeated if slowpfs was late."""
        run = once()
        if run.held_late_us > LATE_US:
            say(f"        slowpfs was {run.held_late_us / 1000:.0f} ms late: again")
            run = once()
        return run

    def source(self, data, client_cache=False):
        data.warm()
        return Slowpfs(data.top, os.path.join(self.work, "source"), client_cache, self.preset,
                       options=self.slowness)

    def direct(self, row, data):
        """The job over the source itself; repeated if its limit has left the job no memory."""
        for _ in range(DIRECT_TRIES - 1):
            try:
                return self.on_time(lambda: self.direct_once(row, data))
            except RunError as e:
                if f"Errno {errno.ENOMEM}]" not in str(e):
                    raise
                say("        the job found no memory beside its page cache: again")
        return self.on_time(lambda: self.direct_once(row, data))

    def direct_once(self, row, data):
        with limited_page_cache(data.room) as (group, limit):
            if not group:
                raise RunError("no memory cgroup could be made here")
            with self.source(data, client_cache=True) as slow:
                last = slow.stats()["bytes"]

                def border(line):
                    nonlocal last
                    before, last = last, slow.stats()["bytes"]
                    return {**line, "source_bytes": last - before}
                epochs = self.job(row, slow.mountpoint, border, [slow], limit.start, group.enter)
                return Run(epochs, slow.stats()["held_late_us_max"])

    def belady(self, row, data, *settings, ram=None):
        """The job through belady, with so many bytes of RAM if they are not those of both sides."""
        return self.on_time(lambda: self.belady_once(row, data, settings, ram))

    def belady_once(self, row, data, settings, ram):
        options = ["--ram", ram or data.room + data.files * NODE + (1 << 20), *settings]
        if row.order:
            options += ["--order", row.order]
        with self.source(data) as slow:
            with Belady(slow.mountpoint, os.path.join(self.work, "mount"), options) as mount:
                mount.await_scan()
                predicted = Predicted()
                last, given, asked = mount.status(), 0, 0        # what reached the source before counts, too

                def border(line):
                    nonlocal last, given, asked
                    time.sleep(STATUS_LAG)
                    before, last = last, mount.status()
                    found = {name: last[name] - before[name] for name in COUNTED}
                    stats = slow.stats()
                    found["source_bytes"], given = stats["bytes"] - given, stats["bytes"]
                    found["source_reads"], asked = stats["read"] - asked, stats["read"]
                    return {**line, **found, "staged": last["staged"], "predicted": predicted.count(last)}
                epochs = self.job(row, mount.mountpoint, border, [slow, mount])
                run = Run(epochs, slow.stats()["held_late_us_max"])
                run.ready = run.sum("hits", 1) / max(run.sum("opens", 1), 1)
                run.errors, run.belief = last["read_errors"], [loader["belief"] for loader in last["loaders"]]
                run.orders = last["orders"]
                run.resident = resident(mount.mountpoint)
                return run

    def ideal(self, row, data):
        """(source bytes by Bélády's rule on the sequence that was read last, the first epoch that they are of).

        The simulated planner gives them, which needs some room for what it fetches ahead.  It is not ideal for files
        of many blocks, or for samples that are read twice in an epoch.  For these, the rule itself gives them, over
        all epochs: the part of the cache that an epoch does not need is filled for the next one.
        """
        epochs = read_from(self.log)
        if max(data.sizes.values()) > BLOCK or any(len(set(epoch)) < len(epoch) for epoch in epochs):
            return sum(fetched(epochs, data.sizes, data.room)), 0
        return self.simulated(row, data) * (EPOCHS - 1), 1

    def simulated(self, row, data):
        """Source bytes of an epoch after the first, by `belady simulate`."""
        command = [binary("belady"), "simulate", "--order", self.log, "--dataset", data.top, "--epochs", EPOCHS,
                   "--cache", data.room, "--policy", "belady", "--workers", row.workers, "--json"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise RunError(f"{row.name}: belady simulate gave {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)[0]["source_bytes"]


def prepared(python, kind):
    """The data set of this name."""
    if kind == "images":
        return Data(make_data.ensure("imagenet-like", IMAGES))
    root = os.path.join(TARGET, "data")
    os.makedirs(root, exist_ok=True)
    subprocess.run([python, os.path.join(JOBS, "make_sets.py"), kind, root], check=True)
    return Data(os.path.join(root, f"loaders-{kind}"))


def scratch():
    """A directory for mounts and logs."""
    return fresh_dir(os.path.join(TARGET, f"bench-{os.getpid()}"))
