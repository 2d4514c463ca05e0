"""A job that reads each file once in a told order, and its epoch over a mount."""

import os
import threading
import time

from driver import RunError
from mounts import Watchdog

THREADS = 8
BATCH = 32
LONGEST = 240                # seconds until a mount counts as hung


def read_file(path):
    """Reads a file, and returns its bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        total = 0
        while chunk := os.read(fd, 1 << 20):
            total += len(chunk)
        return total
    finally:
        os.close(fd)


class Job:
    """Threads that read files batch by batch. `done` has the seconds and bytes of each file."""

    def __init__(self, top, names):
        self.top, self.done, self.failed = top, [], None
        self.batches = iter([names[i:i + BATCH] for i in range(0, len(names), BATCH)])
        self.lock, self.began = threading.Lock(), time.perf_counter()
        self.threads = [threading.Thread(target=self.work) for _ in range(THREADS)]

    def work(self):
        try:
            while True:
                with self.lock:
                    batch = next(self.batches, None)
                if batch is None:
                    return
                for name in batch:
                    size = read_file(os.path.join(self.top, name))
                    self.done.append((time.perf_counter() - self.began, size))
        except OSError as e:
            self.failed = e

    def run(self):
        """Reads all, and returns the seconds."""
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        if self.failed:
            raise RunError(f"a reader failed: {self.failed}")
        return time.perf_counter() - self.began

    def rate_from(self, start):
        """Bytes a second from a time to the end."""
        end = max(at for at, _ in self.done)
        return sum(size for at, size in self.done if at >= start) / (end - start)


def run_epoch(belady, names, guards=(), after=None):
    """Mounts, runs the job, and calls `after`. Returns the job, its seconds, and those of the mount with its scan.

    If the job does not end, the mount and the `guards` are killed."""
    began = time.perf_counter()
    with belady:
        belady.await_scan()
        scan = time.perf_counter() - began
        with Watchdog(LONGEST, [*guards, belady]) as dog:
            job = Job(belady.mountpoint, names)
            seconds = job.run()
        if dog.bitten:
            raise RunError("the job did not end")
        if after:
            after()
    return job, seconds, scan
