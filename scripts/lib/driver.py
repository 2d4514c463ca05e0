"""Runs a training program and reads counters at its epoch borders.

The program prints one line per epoch ("epoch K name value name value ...").  It is started with --sync and waits for
a line before the next epoch, so what is counted between two borders belongs to one epoch.
"""

import os
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

PYTHON = "/usr/bin/python3"


class RunError(Exception):
    """A training program failed, or something that it needs."""


# All that can go wrong in a run: a filesystem that dies gives readers errors, and counters that are not JSON.
FAILURES = (RunError, OSError, ValueError, subprocess.SubprocessError)


def fields(line):
    """The names and values of an epoch line."""
    words = line.split()
    return {name: float(value) for name, value in zip(words[0::2], words[1::2])}


def end_group(process):
    """Ends a program and the workers in its process group."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait(30)


def close_pipes(process):
    """Closes our ends, even if data are still unsent."""
    for pipe in (process.stdin, process.stdout):
        try:
            pipe.close()
        except BrokenPipeError:
            pass


def run_program(command, at_border, at_start=None, inside=None, python=PYTHON):
    """Runs `command`; calls at_border(fields) for each epoch line while the program waits.

    at_start is called when the program says "ready", that is, when its imports are done. inside is called in the new
    process before it becomes the program, which `python` runs.
    Returns the results of at_border, in order.
    """
    results = []
    errors = tempfile.TemporaryFile("w+")       # a file: a full pipe would stop the program
    process = subprocess.Popen([python, *map(str, command), "--sync"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=errors, text=True, start_new_session=True, preexec_fn=inside,
                               env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    try:
        for line in process.stdout:
            if line.startswith("epoch "):
                results.append(at_border(fields(line)))
                process.stdin.write("\n")
                process.stdin.flush()
            elif line.startswith("ready") and at_start:
                at_start()
    except BrokenPipeError:
        pass                                    # it ended while it was written to: the exit status tells
    else:
        process.wait()
    finally:
        end_group(process)
        close_pipes(process)
    if process.returncode != 0:
        errors.seek(0)
        raise RunError(f"{os.path.basename(command[0])} gave {process.returncode}: {errors.read().strip()[-1500:]}")
    return results


class IdleMeter:
    """The machine's idle share since the last look; waiting for I/O counts as idle (FUSE waits show as such)."""

    def __init__(self):
        self.last = self.now()

    @staticmethod
    def now():
        with open("/proc/stat") as f:
            ticks = [int(x) for x in f.readline().split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    def percent(self):
        total, idle = self.now()
        share = 100 * (idle - self.last[1]) / max(total - self.last[0], 1)
        self.last = total, idle
        return round(share, 1)


def files_of(top):
    """The relative paths of all files under `top`, sorted."""
    out = []
    for folder, _, names in os.walk(top):
        out += [os.path.relpath(os.path.join(folder, name), top) for name in names]
    return sorted(out)


def wrong_bytes_in(true_path, seen_path):
    """How many bytes of the file differ, with missing and surplus ones; an unreadable file is all wrong."""
    with open(true_path, "rb") as f:
        true = f.read()
    try:
        with open(seen_path, "rb") as f:
            seen = f.read()
    except OSError:
        return max(len(true), 1)
    if true == seen:
        return 0
    return sum(a != b for a, b in zip(true, seen)) + abs(len(true) - len(seen))


def verify(true_dir, seen_dir, threads=16):
    """Compares every file under both directories, byte for byte: (files, wrong bytes, names of wrong files)."""
    names = files_of(true_dir)
    with ThreadPoolExecutor(threads) as pool:
        wrong = list(pool.map(lambda n: wrong_bytes_in(os.path.join(true_dir, n), os.path.join(seen_dir, n)), names))
    surplus = set(files_of(seen_dir)) - set(names)
    bad = [n for n, w in zip(names, wrong) if w] + sorted(surplus)
    return len(names), sum(wrong) + len(surplus), bad


def stopwatch():
    """A function that gives the seconds since this call."""
    began = time.monotonic()
    return lambda: time.monotonic() - began
