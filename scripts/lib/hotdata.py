"""Files of one size whose pages are in memory in a known way, for measurements of cached reads.

Goal: a baseline that is as fast as can be.  Method: the same files are there several times.  "written" has just been
filled by write(), one call a file, so that its pages lie in large folios.  "reread" was written, evicted and read
again, which is how data usually get into memory.  "tmpfs" has no disk below.  Eviction is by file, so that only these
pages go.
"""

import os
from collections import namedtuple

from mounts import fresh_dir

PAGE = 4096
MIB = 1 << 20
Shape = namedtuple("Shape", "name files size folders")


def pages(shape):
    """The bytes of a shape in whole pages."""
    return shape.files * -(-shape.size // PAGE) * PAGE


def names_of(shape):
    """The relative paths of a shape's files, sorted."""
    return [f"{i * shape.folders // shape.files:03}/{i:06}" for i in range(shape.files)]


def write_files(top, shape):
    """Writes the files of a shape; no two are alike."""
    fresh_dir(top)
    noise = os.urandom(shape.size + PAGE)
    last = None
    for i, name in enumerate(names_of(shape)):
        folder = os.path.dirname(name)
        if folder != last:
            os.makedirs(os.path.join(top, folder))
            last = folder
        data = b"%08d" % i + noise[i % PAGE:][:shape.size - 8]
        with open(os.path.join(top, name), "wb", buffering=0) as f:
            f.write(data)
    return top


def evict_and_read(top, shape):
    """Makes the files' pages come from the disk: they are written back, dropped, and read."""
    os.sync()
    for name in names_of(shape):
        fd = os.open(os.path.join(top, name), os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            while os.read(fd, MIB):
                pass
        finally:
            os.close(fd)
    return top


def available():
    """Bytes of memory that are available without taking memory from others."""
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))


def fitting(shape, copies):
    """The shape, with fewer files if `copies` of it would take more than half of the memory."""
    most = available() // 2 // copies
    if pages(shape) <= most:
        return shape
    return shape._replace(files=max(shape.folders, shape.files * most // pages(shape)))
