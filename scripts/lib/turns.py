"""One set of files, local in several fills and behind a mount, read in turns.

Goal: both sides of a ratio saw the same machine.  Method: each turn reads every way once, the same files in the order
that belady was told, and each turn begins with another way.  Memory is compacted before files are written and before
a mount: otherwise the last fill would get the scattered pages.
"""

import contextlib
import os
import shutil
import subprocess
import time

from driver import RunError
from hotdata import MIB, evict_and_read, fitting, names_of, pages, write_files
from mounts import Belady, binary, fresh_dir, say
from readers import count_neighbours, time_reads, write_list

ORDER = "torch-random:seed=7,index=path"
STAGED_WITHIN = 240          # seconds


class Site:
    """One shape: its files in several fills, and the files written beside them."""

    def __init__(self, top, shape, tmpfs=None):
        self.top, self.shape = fresh_dir(top), fitting(shape, 4 if tmpfs else 3)
        say(f"making {self.shape.files:,} files of {self.shape.size:,} bytes")
        compact_memory()
        self.source = write_files(os.path.join(top, "reread"), self.shape)
        self.fills = {"reread": evict_and_read(self.source, self.shape)}
        self.fills["written"] = write_files(os.path.join(top, "written"), self.shape)
        if tmpfs:
            self.fills["tmpfs"] = write_files(tmpfs, self.shape)
        self.mountpoint = os.path.join(top, "mounted")

    def order(self, epoch):
        """The names of an epoch in the order that ORDER stands for."""
        command = [binary("belady"), "order", "show", ORDER, self.source, "--from", str(epoch)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return [line for line in done.stdout.splitlines() if not line.startswith("#")]

    def list(self, top, names):
        """A list of files below `top` for the compiled reader."""
        return write_list(os.path.join(self.top, "list"), [os.path.join(top, name) for name in names])

    def warm(self):
        """Brings the source back into the page cache: belady drops what it has read there."""
        return time_reads("read", self.list(self.source, names_of(self.shape)))

    def mount(self, *options):
        """A mount with memory for everything."""
        compact_memory()
        ram = pages(self.shape) + pages(self.shape) // 8 + 64 * MIB
        return Belady(self.source, self.mountpoint, ["--ram", ram, *options])

    def clean(self):
        shutil.rmtree(self.top, ignore_errors=True)
        if "tmpfs" in self.fills:
            shutil.rmtree(self.fills["tmpfs"], ignore_errors=True)


def compact_memory():
    """Has the kernel put its free pages together, if we may: adjacent pages are copied faster, and all sides should
    get such pages."""
    try:
        with open("/proc/sys/vm/compact_memory", "w") as f:
            f.write("1")
    except OSError:
        pass


@contextlib.contextmanager
def polling_idle():
    """Makes idle processors of a virtual machine wait for work for a while, as by the kernel's default.  Returns
    whether this changed anything."""
    path = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"
    try:
        with open(path) as f:
            before = f.read()
        with open(path, "w") as f:
            f.write("200000")
    except OSError:
        yield False
        return
    try:
        yield int(before) == 0
    finally:
        with open(path, "w") as f:
            f.write(before)


def wait_until_staged(mount, longest=STAGED_WITHIN):
    """Waits until all data are in the page cache of the mount. Returns the last status."""
    deadline = time.monotonic() + longest
    while time.monotonic() < deadline:
        status = mount.status()
        if status["ram"]["kept"] + status["staged"] >= status["bytes"] and status["fetching"] == 0:
            return status
        time.sleep(.05)
    raise RunError(f"not all was staged within {longest} s: {status['ram']}, {status['staged']} staged")


def requests(status):
    """Requests that the kernel has sent: for readers, and for threads of belady itself."""
    own = status["requests"]["own"]
    return sum(status["requests"].values()) - own, own


class Turns:
    """Reads a site's fills and its mount in turns, each epoch in its order."""

    def __init__(self, site, mount):
        self.site, self.epoch = site, 0
        site.warm()
        self.ways = {**site.fills, "belady": mount.mountpoint}

    def run(self, count, read, first=0):
        """The results of read(top) by way and turn. Each turn begins with another way."""
        ways, found = list(self.ways), {way: [] for way in self.ways}
        for turn in range(first, first + count):
            for i in range(len(ways)):
                way = ways[(turn + i) % len(ways)]
                found[way].append(read(self.ways[way]))
            if len({(runs[-1]["samples"], runs[-1]["bytes"]) for runs in found.values()}) != 1:
                raise RunError(f"not the same was read everywhere: { {way: runs[-1] for way, runs in found.items()} }")
        return found

    def in_order(self, count, read):
        """As run(), with read(top, names). Each turn goes through the next epoch of the mount."""
        found = {way: [] for way in self.ways}
        for turn in range(count):
            names = self.site.order(self.epoch)
            self.epoch += 1
            for way, runs in self.run(1, lambda top, names=names: read(top, names), turn).items():
                found[way] += runs
        return found

    def neighbours(self):
        """By way, the share of pages of cached files whose file's next page is right behind them in memory.
        Scattered pages are copied more slowly, on any filesystem.  This goes through the next epoch of the mount."""
        names = self.site.order(self.epoch)
        self.epoch += 1
        shares = {way: count_neighbours(self.site.list(top, names)) for way, top in self.ways.items()}
        return {way: share for way, share in shares.items() if share is not None}

    def reads(self, count, mode="read", readers=1):
        """in_order() with the compiled reader."""
        return self.in_order(count, lambda top, names: time_reads(mode, self.site.list(top, names), readers))
