"""The rehearsal buffers of a mount, as commands see them."""

import json
import os
import subprocess
import time

from driver import RunError
from mounts import binary

PATIENCE = 60                # seconds that a command may take


def rehearse(mount, verb, *rest, given=None, patience=PATIENCE):
    """What `belady rehearse VERB` says; `given` is its standard input."""
    done = subprocess.run([binary("belady"), "rehearse", verb, mount.mountpoint, *map(str, rest)], input=given,
                          capture_output=True, text=True, timeout=patience, check=False)
    if done.returncode != 0:
        raise RunError(f"belady rehearse {verb}: {done.stderr.strip()}")
    return done.stdout


def stats_of(mount):
    """What is said of the only buffer."""
    return json.loads(rehearse(mount, "stats", "--json"))[0]


def wait_until_offered(mount, count, longest):
    """Waits until so many samples were offered to the only buffer, and decided."""
    end = time.monotonic() + longest
    while True:
        began = time.monotonic()
        offered = stats_of(mount)["offered"]
        if offered >= count:
            return
        if began > end:
            raise RunError(f"only {offered} of {count} samples were offered to the buffer within {longest} s")
        # Of a large buffer the answer takes its owner a while.
        time.sleep(.05 + 10 * (time.monotonic() - began))


def view_of(mount, name, view):
    """The directory of a view of a buffer."""
    return os.path.join(mount.mountpoint, "rehearsal", name, view)
