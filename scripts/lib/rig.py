"""One measured run of a bench: fresh mounts, the loader, the counters at its epoch borders.

Goal: a run's figures mean what they say.  Method: every run has a slowpfs of its own, whose counters are read at the
epoch borders.  A run in which slowpfs answered late (the machine was short of CPU, so the model did not hold) is
thrown away and repeated.  The loader checks every sample's identity. belady runs in a memory cgroup of its own.
"""

import os
import shutil
import statistics
import subprocess
import time

from cgroup import MemoryGroup
from driver import IdleMeter, RunError, files_of, run_program, stopwatch
from mounts import TARGET, TOP, Belady, Slowpfs, Watchdog, fresh_dir, say

ORDER = "torch-distributed:seed=0,world=1,rank=0,index=imagefolder"
LATE_US = 10_000
TRIES = 4                                    # the first run, and three repetitions of late ones
SHAPES = {"A": [], "B": ["--step-ms", 50], "C": ["--decode"]}
MIB = 1 << 20
WORKER = 48 * MIB                            # what a worker of the loader takes for itself, approximately


class Run:
    """The figures of one run."""

    def __init__(self, epochs, held_late_us=0, mount_s=0.0):
        self.epochs, self.held_late_us, self.mount_s = epochs, held_late_us, mount_s
        self.memory_over = self.budget = None
        self.bytes_before = 0                # that the source gave before the first epoch
        self.refetched = 0                   # bytes an epoch of what the kernel had taken back

    @property
    def cold(self):
        """Seconds of the first epoch."""
        return self.epochs[0]["seconds"]

    @property
    def cold_with_scan(self):
        """The first epoch with all listing of directories: ours at the mount, and the loader's."""
        return self.mount_s + self.epochs[0]["scan"] + self.cold

    def steady(self, field="seconds"):
        """The median of the later epochs."""
        return statistics.median(epoch[field] for epoch in self.epochs[1:] or self.epochs)

    def mean(self, field, part):
        """The mean of `field` over the "cold" epoch or over the "steady" ones."""
        chosen = self.epochs[:1] if part == "cold" else self.epochs[1:] or self.epochs
        return statistics.fmean(epoch[field] for epoch in chosen)


class Rig:
    """The data, the scratch directory and the ways to run a loader over the data."""

    def __init__(self, data, repeat_until=None, longest=120):
        self.data, self.longest, self.repeat_until = data, longest, repeat_until
        self.elapsed = stopwatch()
        self.work = fresh_dir(os.path.join(TARGET, f"bench-{os.getpid()}"))
        sizes = [os.path.getsize(os.path.join(data, name)) for name in files_of(data)]
        self.files, self.bytes = len(sizes), sum(sizes)
        self.pages = sum(-(-size // 4096) * 4096 for size in sizes)
        self.no_cgroup = False

    def clean(self):
        shutil.rmtree(self.work, ignore_errors=True)

    def warm(self):
        """Brings the data into the page cache, so that the real disk does not distort the model."""
        for name in files_of(self.data):
            with open(os.path.join(self.data, name), "rb") as f:
                while f.read(MIB):
                    pass

    def load(self, path, shape, epochs, workers, slow, mounts, group=None, room=0):
        """Runs the loader over `path`.  Returns its epochs, with the counters of `slow` if there is one.

        In `group`, a memory cgroup, it has room for `room` bytes when its imports are done.
        """
        zero = {"open": 0, "bytes": 0, "cpu_us": 0}
        last, meter = slow.stats() if slow else zero, IdleMeter()

        def border(line):
            nonlocal last
            now = slow.stats() if slow else zero
            counted = {"opens": now["open"] - last["open"], "bytes": now["bytes"] - last["bytes"],
                       "slow_cpu_us": now["cpu_us"] - last["cpu_us"], "idle": meter.percent()}
            last = now
            if line["wrong"] or line["images"] != self.files:
                raise RunError(f"{line['wrong']:.0f} wrong samples, {line['images']:.0f} of {self.files} read")
            return {**line, **counted}

        def start():
            meter.percent()
            if group:
                group.limit_more(room)

        script = os.path.join(TOP, "scripts", "lib", "loader.py")
        with Watchdog(self.longest, mounts) as dog:
            done = run_program([script, path, "--epochs", epochs, "--workers", workers, *SHAPES[shape]],
                               border, start, group.enter if group else None)
        if dog.bitten or len(done) != epochs:
            raise RunError(f"only {len(done)} of {epochs} epochs")
        return done

    def on_time(self, once, tries=TRIES):
        """Runs `once` until slowpfs was not late, at most `tries` times."""
        for attempt in range(tries):
            run = once()
            if run.held_late_us <= LATE_US:
                return run
            again = attempt < tries - 1 and (self.repeat_until is None or self.elapsed() < self.repeat_until)
            say(f"    slowpfs was {run.held_late_us / 1000:.0f} ms late: {'again' if again else 'kept all the same'}")
            if not again:
                return run

    def local(self, shape, epochs):
        """The files themselves, warm."""
        return Run(self.load(self.data, shape, epochs, 2, None, []))

    def beside_readers(self, shape, readers):
        """The files themselves, warm, while `readers` processes read the whole slow source once."""
        def once():
            with Slowpfs(self.data, os.path.join(self.work, "source")) as slow:
                files = subprocess.Popen(["find", ".", "-type", "f", "-print0"], cwd=slow.mountpoint,
                                         stdout=subprocess.PIPE)
                reading = subprocess.Popen(["xargs", "-0", "-n", "25", "-P", str(readers), "cat"], cwd=slow.mountpoint,
                                           stdin=files.stdout, stdout=subprocess.DEVNULL)
                files.stdout.close()
                try:
                    done = self.load(self.data, shape, 1, 2, slow, [slow])
                    if reading.wait(self.longest) != 0 or files.wait() != 0 or done[0]["bytes"] < .99 * self.bytes:
                        raise RunError("the readers beside did not read it all within the epoch")
                finally:
                    for process in (reading, files):
                        process.terminate()
                        process.wait()
                return Run(done, slow.stats()["held_late_us_max"])
        return self.on_time(once)

    def direct(self, workers, epochs, client_cache=False, share=None):
        """The slow source itself. With `share`, its caching client has memory for this share of the data only."""
        def once():
            group = share and self.group()
            if share and not group:
                raise RunError("no memory cgroup could be made here")
            try:
                with Slowpfs(self.data, os.path.join(self.work, "source"), client_cache) as slow:
                    room = int((share or 0) * self.pages) + workers * WORKER
                    done = self.load(slow.mountpoint, "A", epochs, workers, slow, [slow], group, room)
                    return Run(done, slow.stats()["held_late_us_max"])
            finally:
                if group:
                    group.remove()
        return self.on_time(once)

    def group(self):
        """A memory cgroup of one process's own, or None."""
        return MemoryGroup.create(f"belady-bench-{os.getpid()}-{time.monotonic_ns()}")

    def staged(self, copiers, epochs):
        """Copies the source with `copiers` processes. The first epoch is the copying; `epochs` more read the copy."""
        def once():
            with Slowpfs(self.data, os.path.join(self.work, "source")) as slow:
                copy = fresh_dir(os.path.join(self.work, "copy"))
                with Watchdog(self.longest, [slow]):
                    meter, elapsed = IdleMeter(), stopwatch()
                    self.copy(slow.mountpoint, copy, copiers)
                    seconds = elapsed()
                now = slow.stats()
                epoch = {"seconds": seconds, "scan": 0.0, "opens": now["open"], "bytes": now["bytes"],
                         "slow_cpu_us": now["cpu_us"], "idle": meter.percent()}
                after = self.load(copy, "A", epochs, 2, None, []) if epochs else []
                shutil.rmtree(copy)
                return Run([epoch, *after], now["held_late_us_max"])
        return self.on_time(once)

    def copy(self, source, target, copiers):
        """Makes the folders, then copies the files, as a user would do in a shell."""
        steps = [("d", ["xargs", "-0", "mkdir", "-p"], target),      # one cp racing another for a folder would fail
                 ("f", ["xargs", "-0", "-n", "25", "-P", str(copiers), "cp", "--parents", "-t", target], source)]
        for kind, command, where in steps:
            listing = subprocess.Popen(["find", ".", "-type", kind, "-print0"], cwd=source, stdout=subprocess.PIPE)
            done = subprocess.run(command, cwd=where, stdin=listing.stdout, check=False)
            listing.stdout.close()
            if listing.wait() != 0 or done.returncode != 0:
                raise RunError(f"copying with {copiers} processes failed")

    def mounted(self, make, shape, epochs, prepare=None):
        """The loader over a mount of the slow source: make(source) gives the mount, and prepare(mountpoint) runs
        first."""
        with Slowpfs(self.data, os.path.join(self.work, "source")) as slow:
            elapsed = stopwatch()
            with make(slow.mountpoint) as mount:
                if prepare:
                    with Watchdog(self.longest, [slow, mount]):
                        prepare(mount.mountpoint)
                mount_s, before = elapsed(), slow.stats()["bytes"]
                done = self.load(mount.mountpoint, shape, epochs, 2, slow, [slow, mount])
                run = Run(done, slow.stats()["held_late_us_max"], mount_s)
                run.bytes_before = before
                if isinstance(mount, Belady):
                    run.refetched = mount.status()["refetched_bytes"] / epochs
                return run

    def belady(self, shape, epochs, ram, disk=0, settings=(), order=ORDER):
        """belady over the slow source, with `ram` bytes of memory and `disk` bytes of a cache directory."""
        options = ["--ram", ram] + (["--order", order] if order else [])
        for setting in ["prefetch.start=first-open", *settings]:
            options += ["--set", setting]

        def once():
            disk_options = []
            if disk:
                disk_options = ["--cache-dir", fresh_dir(os.path.join(self.work, "cache")), "--disk", disk]
            group = self.group()
            self.no_cgroup = self.no_cgroup or group is None
            mountpoint = os.path.join(self.work, "mount")
            try:
                run = self.mounted(lambda source: Belady(source, mountpoint, options + disk_options, group),
                                   shape, epochs)
                run.budget = ram
                if group:
                    run.memory_over = (group.peak() - ram) / MIB
                return run
            finally:
                if group:
                    group.remove()
        return self.on_time(once)
