"""Checks mounts of real servers: every byte, every name, and what readers get while a server is away.

Goal: belady works with servers that others have written, as they are used.
Method: the same samples are in a directory and in a server.  What the mount shows is compared with the directory.  A
check that fails raises, so the script ends with an error, and takes all servers and mounts down.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

from driver import RunError
from hotdata import Shape, names_of, write_files
from mounts import TARGET, Belady, MountError, Watchdog, exit_on_signals, fresh_dir, say
from servers import BOTO_PYTHON, BUCKET, Azurite, Ceph, Link, Redis

SAMPLES = Shape("samples", files=2_000, size=110_000, folders=20)
LARGE = "large/9"
RANGES = 20_000
THREADS = 16
PATIENCE = 180
AWAY_S = 15

PUT = """
import sys, boto3
boto3.client("s3").put_object(Bucket=sys.argv[1], Key=sys.argv[2], Body=sys.argv[3].encode() * int(sys.argv[4]))
"""


def check(holds, what):
    """Ends the script if something does not hold."""
    if not holds:
        raise RunError(what)


def in_threads(work):
    """Runs `work(number)` in threads, and raises what one of them has raised."""
    failed = []

    def run(number):
        try:
            work(number)
        except Exception as e:              # whatever it is, it is raised below
            failed.append(e)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def read_range(path, offset, length):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, length, offset)
    finally:
        os.close(fd)


class Meanwhile:
    """Work that begins after some time, while something else goes on. Its error is raised at the end."""

    def __init__(self, seconds, work):
        self.seconds, self.work, self.began, self.failed = seconds, work, None, None
        self.thread = threading.Thread(target=self.run)

    def run(self):
        time.sleep(self.seconds)
        self.began = time.monotonic()
        try:
            self.work()
        except Exception as e:              # whatever it is, it is raised at the end
            self.failed = e

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.thread.join()
        if kind is None and self.failed:
            raise self.failed


class Servers:
    """The checks of one kind of server."""

    def __init__(self, top, kind, name):
        self.top, self.name = os.path.join(top, name), name
        self.samples, self.mountpoint = os.path.join(self.top, "samples"), os.path.join(self.top, "mount")
        os.makedirs(self.top)
        write_files(self.samples, SAMPLES)
        os.makedirs(os.path.join(self.samples, os.path.dirname(LARGE)))
        with open(os.path.join(self.samples, LARGE), "wb") as f:
            f.write(os.urandom((5 << 20) + 17))
        self.names = [*names_of(SAMPLES), LARGE]
        self.server = kind(os.path.join(self.top, "server"))

    def mount(self, port, *options, immutable=True):
        settings = ["--set", "source.consistency=immutable"] if immutable else []
        words = ["--ram", "1GiB", *settings, *options]
        return Belady(self.server.url(port), self.mountpoint, words, variables=self.server.variables(port))

    def same(self, mounted, names):
        """Compares whole files."""
        def work(number):
            for name in names[number::THREADS]:
                with open(os.path.join(self.samples, name), "rb") as a, open(os.path.join(mounted, name), "rb") as b:
                    check(a.read() == b.read(), f"{self.name}: {name} differs")
        in_threads(work)

    def shows_all(self):
        """All names and bytes, and ranges at random."""
        with self.mount(self.server.port) as belady, Watchdog(PATIENCE, [belady]) as dog:
            belady.await_scan()
            shown = sorted(os.path.relpath(os.path.join(at, name), self.mountpoint)
                           for at, _, names in os.walk(self.mountpoint) for name in names)
            check(shown == sorted(self.names), f"{self.name}: the names differ")
            self.same(self.mountpoint, self.names)
        with self.mount(self.server.port, "--set", "prefetch.enabled=false") as belady:
            def work(number):
                rng = random.Random(number)
                for _ in range(RANGES // THREADS):
                    name = rng.choice(self.names) if rng.random() < .9 else LARGE
                    size = os.path.getsize(os.path.join(self.samples, name))
                    offset = rng.randrange(size)
                    length = rng.randrange(1, 200_000)
                    pair = [read_range(os.path.join(top, name), offset, length)
                            for top in (self.samples, self.mountpoint)]
                    check(pair[0] == pair[1], f"{self.name}: {name} differs at {offset}")
            with Watchdog(PATIENCE, [belady]):
                in_threads(work)
        check(not dog.bitten, f"{self.name}: the mount hangs")

    def waits(self):
        """A link that stands still, and one that is cut, in the middle of an epoch."""
        order = os.path.join(self.top, "order.txt")
        with open(order, "w") as f:
            f.writelines(f"{name}\n" for name in self.names)
        for word in ("stall", "cut"):
            with Link(os.path.join(self.top, "link"), self.server.port, "5ms", "40MB") as link:
                with self.mount(link.port, "--order", order) as belady, Watchdog(PATIENCE, [belady]) as dog:
                    belady.await_scan()
                    with Meanwhile(1, lambda link=link, word=word: link.pause(word, AWAY_S)) as away:
                        self.same(self.mountpoint, self.names)
                        check(away.began, f"{self.name}: all was read before the link was away")
                check(not dog.bitten, f"{self.name}: readers hang after {word}")

    def run(self, *checks):
        with self.server:
            self.server.fill(self.samples, self.names)
            for one in (self.shows_all, self.waits, *checks):
                began = time.monotonic()
                one()
                say(f"ok  {self.name}: {one.__name__} ({time.monotonic() - began:.0f} s)")


class Bucket(Servers):
    """The checks of a server of S3."""

    def changes(self):
        """An object is replaced while readers read it: each gets one version or the other."""
        name = "large/changing"
        self.put(name, "a", 3 << 20)
        with self.mount(self.server.port, "--set", "source.revalidate=1s", immutable=False) as belady:
            belady.await_scan()
            path, deadline = os.path.join(self.mountpoint, name), time.monotonic() + PATIENCE
            writer = threading.Thread(target=self.put, args=(name, "b", 2 << 20))
            writer.start()
            while True:
                try:
                    with open(path, "rb") as f:
                        found = f.read()
                except OSError:
                    found = b""             # the version that was opened has gone
                check(len(set(found)) <= 1, f"{self.name}: two versions in one file")
                if found == b"b" * (2 << 20):
                    break
                check(time.monotonic() < deadline, f"{self.name}: the new version is never seen")
                time.sleep(.05)
            writer.join()

    def put(self, name, letter, size):
        environment = {**os.environ, **self.server.variables(self.server.port)}
        subprocess.run([BOTO_PYTHON, "-c", PUT, BUCKET, name, letter, str(size)], check=True, env=environment)

    def refuses(self):
        """A wrong key, and a bucket that is not there."""
        right = self.server.variables(self.server.port)
        for url, variables, said in ((f"s3://{BUCKET}", {"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidAccessKeyId"),
                                     (f"s3://{BUCKET}", {"AWS_SECRET_ACCESS_KEY": "x"}, "SignatureDoesNotMatch"),
                                     ("s3://nothing", {}, "NoSuchBucket")):
            belady = Belady(url, self.mountpoint, [], variables={**right, **variables})
            try:
                with belady:
                    raise RunError(f"{url} is mounted with {variables}")
            except MountError as e:
                check(" gave 4: " in str(e) and said in str(e), str(e))

    def restarts(self):
        """The server is ended in the middle of an epoch, and started again."""
        with self.mount(self.server.port, "--set", "prefetch.enabled=false") as belady:
            belady.await_scan()
            with Watchdog(PATIENCE, [belady]) as dog, Meanwhile(.2, self.server.restart_gateway) as away:
                self.same(self.mountpoint, self.names)
                check(away.began, f"{self.name}: all was read before the server was away")
            check(not dog.bitten, f"{self.name}: readers hang after a restart")


def main():
    exit_on_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    top = fresh_dir(os.path.join(TARGET, f"test-servers-{os.getpid()}"))
    try:
        Servers(top, Redis, "redis").run()
        Servers(top, Azurite, "azurite").run()
        bucket = Bucket(top, Ceph, "radosgw")
        bucket.run(bucket.changes, bucket.refuses, bucket.restarts)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    say("all servers passed")
    sys.exit(0)


if __name__ == "__main__":
    main()
