"""How far the running slowpfs is from its own model: what readers of distinct files get, and what the model says.

Goal: figures over slowpfs mean what the model means, or this bench says that they do not.
Method: files of one size, each read in one request and only once, by 1 and by 16 readers.  `slowpfs model` runs the
same load through the pure model in virtual time.
"""

import json
import os
import subprocess
from collections import namedtuple

from driver import RunError
from mounts import Slowpfs, Watchdog, binary, fresh_dir, say
from readers import time_reads, write_list

BYTES = 110_000
LOADS = {1: 400, 16: 3_200}            # files by readers: two or three seconds each
TIMES = 2


def predicted(readers, files):
    """Files a second, as the model has it."""
    command = [binary("slowpfs"), "model", "--preset", "busy", "--readers", str(readers), "--files", str(files),
               "--bytes", str(BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)["files_per_s"]


Load = namedtuple("Load", "rate held_late_us")


def measured(work, data, readers, files):
    """Files a second, as slowpfs serves them."""
    with Slowpfs(data, os.path.join(work, "source")) as slow, Watchdog(60, [slow]):
        names = [os.path.join(slow.mountpoint, f"{i:05}") for i in range(files)]
        found = time_reads("read", write_list(os.path.join(work, "model-list"), names), readers)
        if found["bytes"] != files * BYTES:
            raise RunError(f"{found['bytes']} bytes read of {files} files of {BYTES}")
        return Load(found["samples"] / found["seconds"], slow.stats()["held_late_us_max"])


def model_error(rig):
    """By run: (readers, measured / predicted - 1, late microseconds)."""
    data = fresh_dir(os.path.join(rig.work, "model-data"))
    for i in range(max(LOADS.values())):
        with open(os.path.join(data, f"{i:05}"), "wb") as f:
            f.truncate(BYTES)            # a hole costs no disk, and its content is not compared
    runs = []
    for _ in range(TIMES):
        for readers, files in LOADS.items():
            load = rig.on_time(lambda readers=readers, files=files: measured(rig.work, data, readers, files))
            expected = predicted(readers, files)
            say(f"       model, {readers:2} readers: {load.rate:,.1f} files/s, predicted {expected:,.1f}")
            runs.append((readers, load.rate / expected - 1, load.held_late_us))
    return runs
