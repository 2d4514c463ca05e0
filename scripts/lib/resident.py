"""How much of a directory's files is in the page cache, by the kernel's own count.

It uses cachestat(2), Linux 6.5.  If the kernel does not have it, resident() returns None.
"""

import ctypes
import os

from driver import files_of

CACHESTAT = 451
PAGE = os.sysconf("SC_PAGE_SIZE")


class Range(ctypes.Structure):
    """struct cachestat_range: all of a file."""

    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class Cached(ctypes.Structure):
    """struct cachestat."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")]


def resident_of(path):
    """Bytes of a file that are in the page cache, or None."""
    libc, found = ctypes.CDLL(None, use_errno=True), Cached()
    fd = os.open(path, os.O_RDONLY)
    try:
        failed = libc.syscall(CACHESTAT, fd, ctypes.byref(Range(0, 0)), ctypes.byref(found), 0)
    finally:
        os.close(fd)
    return None if failed else found.cache * PAGE


def resident(top):
    """Bytes of all files below a directory that are in the page cache, or None."""
    sizes = [resident_of(os.path.join(top, name)) for name in files_of(top)]
    return None if None in sizes else sum(sizes)
