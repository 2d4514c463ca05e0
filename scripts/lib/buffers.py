"""The rehearsal buffers of a mount, as commands see them."""

import json
import os
import subprocess
import time

from driver import RunError
from mounts import binary

PATIENCE = 60                # seconds that a command may take


def rehearse(mount, verb, *rest, given=None, patience=PATIENCE):
    """The output of `belady rehearse VERB`; `given` is its standard input."""
    done = subprocess.run([binary("belady"), "rehearse", verb, mount.mountpoint, *map(str, rest)], input=given,
                          capture_output=True, text=True, timeout=patience, check=False)
    if done.returncode != 0:
        raise RunError(f"belady rehearse {verb}: {done.stderr.strip()}")
    return done.stdout


def stats_of(mount):
    """The statistics of the only buffer."""
    return json.loads(rehearse(mount, "stats", "--json"))[0]


def wait_until_offered(mount, count, longest):
    """Waits until the only buffer has decided `count` offers."""
    end = time.monotonic() + longest
    while True:
        began = time.monotonic()
        offered = stats_of(mount)["offered"]
        if offered >= count:
            return
        if began > end:
            raise RunError(f"only {offered} of {count} samples were offered to the buffer within {longest} s")
        # For a large buffer, its owner takes a while to answer.
        time.sleep(.05 + 10 * (time.monotonic() - began))


def view_of(mount, name, view):
    """The directory of a view of a buffer."""
    return os.path.join(mount.mountpoint, "rehearsal", name, view)
