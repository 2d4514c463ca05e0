"""A memory cgroup of a process's own: what the kernel charges to it, page cache included.

Works with the memory controller of cgroup v1 and with v2.  If neither can be used, create() returns None.
"""

import contextlib
import os
import threading
import time


def own_path(controller):
    """This process's group in the hierarchy of `controller` ("" is v2)."""
    with open("/proc/self/cgroup") as f:
        for line in f:
            _, names, path = line.rstrip("\n").split(":", 2)
            if controller in names.split(","):
                return path.strip("/")
    return ""


def candidates():
    """(parent directory, file of the peak) of the hierarchies that may have a memory controller."""
    for top, controller, peak in [("/sys/fs/cgroup/memory", "memory", "memory.max_usage_in_bytes"),
                                  ("/sys/fs/cgroup", "", "memory.peak")]:
        inside = os.path.join(top, own_path(controller))
        yield inside, peak        # below our own group, so that its limits hold
        yield top, peak           # v2 refuses children of a group with processes, unless it is the root


class MemoryGroup:
    """One group; make it with create()."""

    def __init__(self, path, peak_file):
        self.path, self.peak_file = path, os.path.join(path, peak_file)

    @classmethod
    def create(cls, name):
        """A new group, or None."""
        for parent, peak_file in candidates():
            path = os.path.join(parent, name)
            try:
                os.mkdir(path)
            except OSError:
                continue
            group = cls(path, peak_file)
            if os.path.exists(group.peak_file) and group.takes_processes():
                return group
            group.remove()
        return None

    def takes_processes(self):
        return os.access(os.path.join(self.path, "cgroup.procs"), os.W_OK)

    def enter(self):
        """Moves the calling process in; its children follow."""
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def peak(self):
        """The most bytes that were charged at once."""
        with open(self.peak_file) as f:
            return int(f.read())

    @property
    def is_v2(self):
        return self.peak_file.endswith("memory.peak")

    def charged(self):
        """The bytes that are charged now."""
        with open(os.path.join(self.path, "memory.current" if self.is_v2 else "memory.usage_in_bytes")) as f:
            return int(f.read())

    def page_cache(self):
        """Of these, the pages of files, which the kernel may take back."""
        with open(os.path.join(self.path, "memory.stat")) as f:
            found = dict(line.split() for line in f)
        cache, shared = ("file", "shmem") if self.is_v2 else ("total_cache", "total_shmem")
        return int(found[cache]) - int(found[shared])

    def limit(self, size):
        """Limits the group to `size` bytes."""
        with open(os.path.join(self.path, "memory.max" if self.is_v2 else "memory.limit_in_bytes"), "w") as f:
            f.write(str(size))

    def limit_more(self, more):
        """Limits the group to `more` bytes beyond what is charged at this moment."""
        self.limit(self.charged() + more)

    def wait_for_memory(self):
        """Processes that find no memory wait for a higher limit and are not killed, if the kernel can do that."""
        try:
            with open(os.path.join(self.path, "memory.oom_control"), "w") as f:
                f.write("1")
        except OSError:
            pass

    def remove(self):
        """Removes the group when its processes have ended."""
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)


class PageCacheLimit(threading.Thread):
    """Keeps the page cache of a group at `room` bytes, whatever memory its processes take."""

    LOOK = .02                               # seconds between two looks

    def __init__(self, group, room):
        super().__init__(daemon=True)
        self.group, self.room, self.over = group, room, threading.Event()
        group.wait_for_memory()

    def run(self):
        while not self.over.wait(self.LOOK):
            try:
                self.group.limit(self.group.charged() - self.group.page_cache() + self.room)
            except OSError:
                continue                     # more is charged than that, and not all of it has been given back yet

    def end(self):
        """Removes the limit."""
        self.over.set()
        if self.ident:
            self.join()
        self.group.limit(1 << 60)


@contextlib.contextmanager
def limited_page_cache(room):
    """A new group and its limit of `room` bytes of page cache, which is to be started.  The group is None if there is none."""
    group = MemoryGroup.create(f"belady-bench-{os.getpid()}-{time.monotonic_ns()}")
    if not group:
        yield None, None
        return
    limit = PageCacheLimit(group, room)
    try:
        yield group, limit
    finally:
        limit.end()
        group.remove()
