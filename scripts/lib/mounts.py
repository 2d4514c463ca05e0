"""The mounts that the demo and the benches measure: slowpfs, and belady over it.

Goal: whatever happens, nothing that was started here is left behind.
Method: each mount is a context manager that knows its own process and its own path.  It first ends politely, then
with SIGKILL of that very process, then with a lazy unmount of that very path.  Readers of a filesystem that hangs
cannot be killed until its daemon dies.  So a Watchdog kills the daemons, and not the readers, when time is up.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from driver import RunError

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target")))


class MountError(RunError):
    """A mount did not come up, or ended by itself."""


def say(text):
    """Prints progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def binary(name):
    """The path of a built release binary."""
    path = os.path.join(TARGET, "release", name)
    if not os.access(path, os.X_OK):
        raise MountError(f"{path} is missing: build it with `cargo build --release --bins`")
    return path


def exit_on_signals():
    """Lets SIGTERM and SIGHUP unwind the stack, so that every mount is taken down."""
    def leave(number, _frame):
        raise SystemExit(128 + number)
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)


def is_mounted(path):
    """Whether something is mounted at exactly this path."""
    path = os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path)
    with open("/proc/self/mountinfo") as f:
        return any(line.split()[4] == path.replace(" ", "\\040") for line in f)


def kill_hard(pid):
    """Sends SIGKILL, if the process still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def detach(path):
    """Takes down what is still mounted at `path`."""
    if is_mounted(path):
        tool = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
        subprocess.run(tool + [path], stderr=subprocess.DEVNULL, check=False)


def fresh_dir(path):
    """An empty directory at `path`, which must not be a mount."""
    detach(path)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


class Served:
    """A filesystem at `mountpoint` that `command` serves in the foreground.

    It must serve within 15 seconds, and be gone within `patience` seconds: the kernel forgets its names first.
    """

    def __init__(self, command, mountpoint, patience=10):
        self.command, self.mountpoint, self.patience = list(map(str, command)), mountpoint, patience
        self.log = mountpoint + ".log"
        self.process = None

    def __enter__(self):
        fresh_dir(self.mountpoint)
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True)
        try:
            self.wait_until_it_serves(15)
        except BaseException:
            self.__exit__()
            raise
        return self

    def serves(self):
        """Whether it can be used."""
        return is_mounted(self.mountpoint)

    def wait_until_it_serves(self, seconds):
        """Waits until it can be used."""
        name, deadline = os.path.basename(self.command[0]), time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.serves():
                return
            if self.process.poll() is not None:
                raise MountError(f"{name} ended with {self.process.returncode}: {self.said()}")
            time.sleep(0.02)
        raise MountError(f"{name} did not serve within {seconds} s: {self.said()}")

    def said(self):
        """The end of its output."""
        with open(self.log) as log:
            return log.read()[-600:].strip() or "(it said nothing)"

    def kill(self):
        kill_hard(self.process.pid)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
        detach(self.mountpoint)
        self.process.wait(self.patience)


class Slowpfs(Served):
    """A slow parallel filesystem that shows `source` at `mountpoint`."""

    def __init__(self, source, mountpoint, client_cache=False, preset="busy", patience=10, options=()):
        options = ["--preset", preset, *options] + (["--client-cache"] if client_cache else [])
        super().__init__([binary("slowpfs"), source, mountpoint, *options], mountpoint, patience)

    def serves(self):
        with open(self.log) as log:
            return "is mounted at" in log.read()

    def stats(self):
        """Its counters, by name."""
        with open(os.path.join(self.mountpoint, ".slowpfs", "stats")) as f:
            return json.load(f)


class Belady:
    """belady over `source` at `mountpoint`; `options` are further arguments of `belady mount`, `variables` those of its
    environment.

    It must serve within `patience` seconds, and end within as many.
    """

    def __init__(self, source, mountpoint, options, cgroup=None, patience=60, variables=None):
        self.source, self.mountpoint, self.options = source, mountpoint, options
        self.environment = {**os.environ, **(variables or {})}
        self.cgroup, self.patience = cgroup, patience

    def __enter__(self):
        fresh_dir(self.mountpoint)
        command = self.wrapped([binary("belady"), "mount", self.source, self.mountpoint, *map(str, self.options)])
        enter = self.cgroup.enter if self.cgroup else None
        log = self.mountpoint + ".log"            # a file, and not a pipe that the daemon would hold open
        try:
            with open(log, "w+") as out:
                done = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                      timeout=self.patience, check=False, preexec_fn=enter, env=self.environment)
                out.seek(0)
                said = out.read()[-800:].strip() or "(it said nothing)"
            if done.returncode != 0:
                raise MountError(f"`{' '.join(command)}` gave {done.returncode}: {said}")
            if not is_mounted(self.mountpoint):
                raise MountError(f"`{' '.join(command)}` gave 0, but nothing is mounted: {said}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def wrapped(self, command):
        """The command that mounts; a subclass may have another program run it."""
        return command

    def status(self):
        """The output of `belady status --json`."""
        done = subprocess.run([binary("belady"), "status", self.mountpoint, "--json"], capture_output=True,
                              timeout=20, check=True, env=self.environment)
        return json.loads(done.stdout)

    def await_scan(self):
        """Waits until all files of its source are known."""
        deadline = time.monotonic() + self.patience
        while self.status()["catalog"] == "scanning":
            if time.monotonic() > deadline:
                raise MountError(f"{self.source} was not scanned within {self.patience} s")
            time.sleep(0.05)

    def pids(self):
        """The processes of this mount: those of the belady program that have the mountpoint as an argument."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if os.path.basename(words[0]) == b"belady" and self.mountpoint.encode() in words:
                found.append(int(pid))
        return found

    def cpu_us(self):
        """CPU time of its processes so far, in microseconds."""
        ticks = 0
        for pid in self.pids():
            with open(f"/proc/{pid}/stat") as f:
                words = f.read().rsplit(")", 1)[1].split()
            ticks += int(words[11]) + int(words[12])
        return ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")

    def kill(self):
        for pid in self.pids():
            kill_hard(pid)

    def __exit__(self, *_):
        if is_mounted(self.mountpoint):
            try:
                subprocess.run([binary("belady"), "umount", self.mountpoint], timeout=self.patience, check=False,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment)
            except subprocess.TimeoutExpired:
                say(f"belady umount did not end within {self.patience} s; its daemon is killed")
        deadline = time.monotonic() + 5
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill()
        detach(self.mountpoint)


class Watchdog:
    """Kills the daemons of `mounts` if the block has not ended after `seconds`, which frees their readers."""

    def __init__(self, seconds, mounts):
        self.seconds, self.mounts, self.bitten = seconds, mounts, False
        self.timer = threading.Timer(seconds, self.bite)
        self.timer.daemon = True

    def bite(self):
        self.bitten = True
        say(f"nothing came to an end within {self.seconds} s: the filesystems are killed")
        for mount in reversed(self.mounts):
            mount.kill()

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
