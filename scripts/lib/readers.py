"""Reads samples and times each: with `hotpath`, and as Python programs read.

The result is the same for both: samples, bytes, seconds, p50_ns, mean_ns (and cpu_us of hotpath).
"""

import json
import os
import statistics
import subprocess
import time

from driver import RunError
from mounts import binary


def write_list(path, names):
    """Writes a list of files for time_reads."""
    with open(path, "w") as f:
        f.writelines(f"{name}\n" for name in names)
    return path


def time_reads(mode, path, readers=1, seed=0):
    """The result of `hotpath MODE PATH` over a list of files, a directory or a shard."""
    command = [binary("hotpath"), mode, path, "--readers", str(readers), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunError(f"`{' '.join(command)}` gave {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def count_neighbours(path):
    """The share of pages of listed files, which must be cached, whose file's next page is right behind them in
    memory.  None for files of one page, and if this user may not know."""
    done = subprocess.run([binary("hotpath"), "neighbours", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunError(f"`hotpath neighbours` gave {done.returncode}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return round(found["side_by_side"] / found["pairs"], 3) if found["pairs"] else None


def read_by_open(path):
    with open(path, "rb") as f:
        return len(f.read())


def read_by_descriptor(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return len(os.read(fd, os.fstat(fd).st_size + 1))
    finally:
        os.close(fd)


def time_python(which, top, names):
    """Reads the files `names` below `top`, by open() or by os.open()."""
    read = read_by_open if which == "open" else read_by_descriptor
    paths = [os.path.join(top, name) for name in names]
    times, total, clock = [], 0, time.perf_counter_ns
    for path in paths:
        began = clock()
        total += read(path)
        times.append(clock() - began)
    return {"samples": len(paths), "bytes": total, "seconds": sum(times) / 1e9,
            "p50_ns": statistics.median(times), "mean_ns": statistics.fmean(times)}
