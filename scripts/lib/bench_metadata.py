"""What a million names cost: the first scan, a remount, a walk, and bytes of memory for each file.

Goal: tell whether a job over a million small files can start at once on a node where it ran before, and what that
takes.  Method: a tree of files of one byte, a thousand to a directory, with names as long as ImageNet's: for the scan
behind a filesystem that is slow by a model, and on the local disk for the rest.  The limit of the source itself is
measured on 20,000 files, with so many processes that more make it no faster, and scaled; the note says so.  A remount
is timed from the command to its return.  Then one thread lists and stats everything.  The kernel's own part, which
makes a million inodes and names, is the time of the same walk of the local disk, after its directories were read and
its inodes forgotten.  A remount is timed again with samples of these files stored as well, and with neither catalog
nor index in memory.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

from driver import FAILURES, RunError, stopwatch
from mounts import TARGET, Belady, Slowpfs, Watchdog, binary, exit_on_signals, fresh_dir, say
from report import publish, quartiles, row

BARS = {"remount_s": 1, "remount_full_s": 1, "walk_s": 5, "bytes_per_file": 150}
BASELINE = 20_000            # files on which the source's own limit is measured
PER_DIRECTORY = 1_000
FILL = 60                    # seconds in which samples are stored
PAGE = 4096                  # bytes that each sample takes
LONGEST = 300                # seconds until a mount counts as hung, and one more for 10,000 files
SLABS = ("fuse_inode", "dentry")


def make_tree(top, files):
    """Files of one byte in directories of a thousand; names are 20 bytes long."""
    for first in range(0, files, PER_DIRECTORY):
        folder = os.path.join(top, f"n{first // PER_DIRECTORY:08d}")
        os.makedirs(folder)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for number in range(first, min(first + PER_DIRECTORY, files)):
                name = f"n{number // PER_DIRECTORY:08d}_{number % PER_DIRECTORY:05d}.JPEG"
                file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory)
                os.truncate(file, 1)     # no block is allocated for it
                os.close(file)
        finally:
            os.close(directory)
    return top


def walk(top):
    """Lists every directory and stats every file. Returns their number."""
    found, queue = 0, [top]
    while queue:
        with os.scandir(queue.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    queue.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
                    found += 1
    return found


def walk_at_once(top, processes):
    """Seconds in which `processes` processes list and stat everything below `top`."""
    folders = [os.path.join(top, name) for name in sorted(os.listdir(top))]
    shares = [folders[k::processes] for k in range(processes)]
    code = "import sys; sys.path.insert(0, sys.argv[1]); import bench_metadata as b; [b.walk(f) for f in sys.argv[2:]]"
    command = [sys.executable, "-c", code, os.path.dirname(os.path.abspath(__file__))]
    elapsed = stopwatch()
    running = [subprocess.Popen(command + share) for share in shares if share]
    try:
        if any([process.wait(LONGEST) for process in running]):
            raise RunError(f"a walk through {top} failed")
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return elapsed()


def memory(pid, key):
    """Bytes of memory of a process, under this key of its status."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


def resident(pid):
    """Bytes of memory of a process itself, without files that it has mapped."""
    return memory(pid, "RssAnon")


def peak(pid):
    """The most bytes of memory that a process has had."""
    return memory(pid, "VmHWM")


def slab_bytes():
    """Bytes of kernel memory for inodes and names; None if the kernel does not tell."""
    try:
        with open("/proc/slabinfo") as f:
            rows = [line.split() for line in f]
    except OSError:
        return None
    return sum(int(words[1]) * int(words[3]) for words in rows if words[0] in SLABS)


class Bench:
    """The measurements, and the rows they give."""

    def __init__(self, top, files, turns):
        self.top, self.files, self.turns = top, files, turns
        self.longest = LONGEST + files // 10_000
        self.rows, self.notes = [], []
        self.cache = os.path.join(top, "cache")
        self.mountpoint = os.path.join(top, "mount")

    def add(self, name, runs, unit="s", **more):
        self.rows.append(row(name, runs, unit, BARS.get(name), **quartiles(runs), **more))

    def mount(self, source, cache=True, disk="1GiB"):
        options = ["--ram", "256MiB", "--set", "source.revalidate=1h"]
        if cache:
            options += ["--cache-dir", self.cache, "--disk", disk]
        return Belady(source, self.mountpoint, options, patience=self.longest)

    def run(self):
        """Measures everything. Returns whether all of it ran."""
        ran = True
        elapsed = stopwatch()
        make_tree(fresh_dir(os.path.join(self.top, "few")), BASELINE)
        self.many = make_tree(fresh_dir(os.path.join(self.top, "many")), self.files)
        say(f"{self.files} files made in {elapsed():.0f} s")
        for part in (self.scan, self.local, self.remount, self.remount_full):
            try:
                part()
                say(f"{part.__name__}: {elapsed():.0f} s so far")
            except FAILURES as e:
                ran = False
                self.notes.append(f"{part.__name__} failed: {e}".replace(TARGET, "target"))
                say(f"{part.__name__} FAILED: {e}")
        for name in BARS:
            if name not in {found["name"] for found in self.rows}:
                self.add(name, [])
        return ran

    def timed(self, mount):
        """Seconds until a mount serves. The caller must leave the mount."""
        elapsed = stopwatch()
        mount.__enter__()
        return elapsed()

    def first(self, source, name, limit, what):
        """The first mount of a source, and its scan against the source's own limit for as many files."""
        elapsed = stopwatch()
        with self.mount(source) as mount:
            serves = elapsed()
            mount.await_scan()
            took = elapsed()
        shutil.rmtree(self.cache, ignore_errors=True)
        self.add(f"{name}.serves_s", [serves], note="the first mount, from the command to its return")
        self.add(f"{name}.first_s", [took], files_per_s=round(self.files / took), note="until all files are known")
        self.add(f"{name}.x_source", [limit / took], "x", files_per_s=round(self.files / limit),
                 note=f"{what}, measured on {BASELINE} files and scaled")

    def limit(self, top):
        """Seconds that the source itself needs for all files, with the best number of processes."""
        runs = {processes: walk_at_once(top, processes) for processes in (2, 8, 16, 32)}
        best = min(runs, key=runs.get)
        return runs[best] * self.files / BASELINE, f"{best} processes that list and stat"

    def scan(self):
        """The first mount of a slow filesystem: how near the scan comes to the filesystem's limit."""
        with Slowpfs(os.path.join(self.top, "few"), os.path.join(self.top, "slow"), patience=self.longest) as slow:
            with Watchdog(self.longest, [slow]):
                limit, what = self.limit(slow.mountpoint)
        with Slowpfs(self.many, os.path.join(self.top, "slow"), patience=self.longest) as slow:
            with Watchdog(self.longest, [slow]):
                self.first(slow.mountpoint, "slow", limit, what)

    def local(self):
        """The first mount of a local disk, whose names are cached as in the baseline."""
        limit, what = self.limit(os.path.join(self.top, "few"))
        walk(self.many)
        self.first(self.many, "local", limit, what)

    def remount(self):
        """Mounts again: the time until it serves, a walk, and the memory of both."""
        with self.mount(os.path.join(self.top, "few"), cache=False) as mount:
            mount.await_scan()
            (pid,) = mount.pids()
            nothing, least = resident(pid), peak(pid)
        with self.mount(self.many) as mount:
            mount.await_scan()
            self.await_saved()
            (pid,) = mount.pids()
            highest = (peak(pid) - least) / (self.files - BASELINE)
        names = ("remount_s", "walk_s", "walk_again_s", "local.forgotten_walk_s", "bytes_per_file", "bytes_per_file_idle",
                 "slab_bytes_per_file")
        found = {name: [] for name in names}
        for _ in range(self.turns):
            try:
                found["local.forgotten_walk_s"].append(self.forgotten())
            except PermissionError:
                self.notes.append("only root can have the kernel forget inodes")
            mount = self.mount(self.many)
            try:
                found["remount_s"].append(self.timed(mount))
                with Watchdog(self.longest, [mount]):
                    self.turn(mount, found, nothing)
            finally:
                mount.__exit__()
        self.add("remount_s", found["remount_s"], note="from the command to its return")
        self.add("walk_s", found["walk_s"], note="lists and stats everything, in one process, right after the remount")
        self.add("walk_again_s", found["walk_again_s"])
        self.add("local.forgotten_walk_s", found["local.forgotten_walk_s"], note="the local disk, its inodes forgotten")
        pairs = zip(found["walk_s"], found["local.forgotten_walk_s"])
        self.add("walk.x_local", [ours / local for ours, local in pairs], "x", note="the two, turn by turn")
        less = f"less what a mount of {BASELINE} files takes, scaled"
        self.add("bytes_per_file", found["bytes_per_file"], "B", note=f"of the daemon, after the walk; {less}")
        self.add("bytes_per_file_idle", found["bytes_per_file_idle"], "B", note="the same before the walk")
        self.add("peak_bytes_per_file", [highest], "B",
                 note=f"the most that the first mount has had, which scans and saves; {less}")
        self.add("slab_bytes_per_file", found["slab_bytes_per_file"], "B", note=" and ".join(SLABS) + " of the kernel")
        size = sum(os.path.getsize(os.path.join(folder, "catalog"))
                   for folder, _, files in os.walk(self.cache) if "catalog" in files)
        self.add("saved_bytes_per_file", [size / self.files], "B")

    def await_saved(self):
        """Waits until the catalog is saved."""
        elapsed = stopwatch()
        while not any("catalog" in names for _, _, names in os.walk(self.cache)):
            if elapsed() > self.longest:
                raise RunError("the catalog is not saved")
            time.sleep(0.05)

    def remount_full(self):
        """Mounts again, with as many samples stored as the store takes within a minute."""
        disk = self.files * PAGE * 9 // 8
        with self.mount(self.many, disk=disk) as mount:
            mount.await_scan()
            command = [binary("belady"), "warmup", mount.mountpoint, "--deadline", f"{FILL}s"]
            subprocess.run(command, capture_output=True, timeout=self.longest, check=False)
        stored, runs = self.stored(), []
        for _ in range(self.turns):
            self.forget()
            mount = self.mount(self.many, disk=disk)
            try:
                runs.append(self.timed(mount))
            finally:
                mount.__exit__()
        if not 0 < stored <= self.stored():
            raise RunError(f"{stored} samples were stored, and {self.stored()} are left")
        self.add("remount_full_s", runs, samples=stored,
                 note=f"the same with {stored:,} samples stored; catalog and index are read from the disk")

    def stored(self):
        """Samples in the largest store."""
        command = [binary("belady"), "cache", "ls", self.cache, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.longest, check=True)
        return max((store["samples"] or 0 for store in json.loads(done.stdout)), default=0)

    def forget(self):
        """Drops the cache directory's files from the page cache."""
        os.sync()
        for folder, _, names in os.walk(self.cache):
            for name in names:
                file = os.open(os.path.join(folder, name), os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)

    def forgotten(self):
        """Seconds of a walk of the local disk, for whose inodes and names the kernel has to find memory again."""
        os.sync()
        for what in ("3", "2"):              # pages first: inodes with pages stay
            with open("/proc/sys/vm/drop_caches", "w") as f:
                f.write(what)
        for _ in os.walk(self.many):         # lists, and stats no file
            pass
        elapsed = stopwatch()
        walk(self.many)
        return elapsed()

    def turn(self, mount, found, nothing):
        """One walk, and the memory taken before and after it."""
        more = self.files - BASELINE
        (pid,) = mount.pids()
        before = slab_bytes()
        if before is None:
            self.notes.append("the kernel does not tell of its slabs")
        found["bytes_per_file_idle"].append((resident(pid) - nothing) / more)
        for name in ("walk_s", "walk_again_s"):
            elapsed = stopwatch()
            seen = walk(mount.mountpoint)
            found[name].append(elapsed())
            if seen != self.files:
                raise RunError(f"{seen} of {self.files} files are there")
            if name == "walk_s":
                found["bytes_per_file"].append((resident(pid) - nothing) / more)
                if before is not None:
                    found["slab_bytes_per_file"].append((slab_bytes() - before) / self.files)


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench metadata", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    parser.add_argument("--files", type=int, help="another number of files, in one turn; a result of its own")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="9 turns instead of 3")
    size.add_argument("--quick", action="store_true", help="100,000 files; nothing is written")
    args = parser.parse_args()
    files = args.files or (100_000 if args.quick else 1_000_000)
    exit_on_signals()
    top = fresh_dir(os.path.join(TARGET, f"bench-{os.getpid()}"))
    free = os.statvfs(top).f_favail
    if 0 < free < files * 5 // 4:
        os.rmdir(top)
        sys.exit(f"bench metadata: {free} inodes are free at {top}, and {files} are needed with room to spare")
    bench = Bench(top, files, 1 if args.files else 9 if args.full else 3)
    try:
        ran = bench.run()
    finally:
        shutil.rmtree(top, ignore_errors=True)
    name = f"metadata.{files}" if args.files else "metadata"
    publish(name, bench.rows, bench.notes, args.json, COLUMNS, keep=not args.quick)
    sys.exit(0 if ran else 1)


def rate(found):
    """Files a second, if that is known."""
    return f"{found['files_per_s']:,}" if "files_per_s" in found else "-"


COLUMNS = (("files/s", 12, rate),)


if __name__ == "__main__":
    main()
