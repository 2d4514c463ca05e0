"""Servers that hold samples, and a long link in front of them.

Goal: whatever happens, nothing that was started here is left behind.
Method: each is a context manager that knows its own processes, which listen on 127.0.0.1 at ports that are free.
Redis and Ceph keep everything in memory.  Ceph is a monitor, one OSD without copies, and radosgw, which speaks S3.
slowlink passes connections on with a delay and one rate for each direction.
"""

import base64
import os
import socket
import subprocess
import time

from driver import RunError
from mounts import TARGET, binary, fresh_dir

PATIENCE = 60
BUCKET = "samples"
KEY, SECRET = "samples-reader", "samples-secret"
AZURE_PYTHON = os.path.join(TARGET, "azurite", "venv", "bin", "python")
BOTO_PYTHON = os.path.join(TARGET, "object-servers", "bin", "python")

# Makes a bucket, and puts every file below a directory into it.
FILL = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import boto3
from botocore.config import Config
bucket, top = sys.argv[1], sys.argv[2]
store = boto3.client("s3", config=Config(max_pool_connections=16))
store.create_bucket(Bucket=bucket)
paths = [os.path.join(at, name) for at, _, names in os.walk(top) for name in names]
def put(path):
    with open(path, "rb") as file:
        store.put_object(Bucket=bucket, Key=os.path.relpath(path, top), Body=file.read())
with ThreadPoolExecutor(16) as threads:
    list(threads.map(put, paths))
"""


# The same with a container of Azure.
FILL_AZURE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from azure.storage.blob import BlobServiceClient
address, name, key, container, top = sys.argv[1:]
account = BlobServiceClient(address, {"account_name": name, "account_key": key})
target = account.create_container(container)
paths = [os.path.join(at, name) for at, _, names in os.walk(top) for name in names]
def put(path):
    with open(path, "rb") as file:
        target.upload_blob(os.path.relpath(path, top), file.read())
with ThreadPoolExecutor(16) as threads:
    list(threads.map(put, paths))
"""


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(port):
    """Whether somebody listens on a port."""
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """Processes that end with this object. Their output goes to files in `top`."""

    def __init__(self, top):
        self.top, self.port, self.processes = top, free_port(), []

    def __enter__(self):
        fresh_dir(self.top)
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self):
        raise NotImplementedError

    def start(self, name, command):
        """Starts a process."""
        with open(os.path.join(self.top, name + ".log"), "w") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                       cwd=self.top, start_new_session=True)
        self.processes.append((name, process))
        return process

    def await_port(self, port=None):
        """Waits until the process that was started last listens."""
        name, process = self.processes[-1]
        deadline = time.monotonic() + PATIENCE
        while not answers(port or self.port):
            if process.poll() is not None or time.monotonic() > deadline:
                with open(os.path.join(self.top, name + ".log")) as log:
                    raise RunError(f"{name} does not serve: {log.read()[-600:]}")
            time.sleep(.05)

    def __exit__(self, *_):
        for _, process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
        self.processes = []


class Redis(Server):
    """A Redis server."""

    PROGRAM = "redis-server"

    def begin(self):
        self.start("redis", [self.PROGRAM, "--port", self.port, "--bind", "127.0.0.1", "--save", ""])
        self.await_port()

    def fill(self, top, names):
        """Writes files as values."""
        with socket.create_connection(("127.0.0.1", self.port)) as link, link.makefile("rb") as back:
            for name in names:
                with open(os.path.join(top, name), "rb") as file:
                    value = file.read()
                key = f"{BUCKET}/{name}".encode()
                link.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value))
                if back.readline() != b"+OK\r\n":
                    raise RunError("redis does not take a value")

    def url(self, port):
        return f"redis://127.0.0.1:{port}/0/{BUCKET}"

    def reading(self, port, order):
        """What tells clientbench to read the samples that an order file names."""
        return "redis-read", f"redis://127.0.0.1:{port}/0", order, "--prefix", BUCKET + "/"

    def variables(self, _port):
        return {}


class Valkey(Redis):
    """A Valkey server."""

    PROGRAM = os.path.join(TARGET, "valkey", "usr", "bin", "valkey-server")


class Ceph(Server):
    """radosgw over one OSD in memory."""

    def ceph(self, *words):
        """Runs a program of Ceph to its end."""
        done = subprocess.run([words[0], "-c", self.conf, *map(str, words[1:])], capture_output=True, text=True,
                              timeout=PATIENCE, check=False, cwd=self.top)
        if done.returncode != 0:
            raise RunError(f"{' '.join(map(str, words))}: {done.stderr[-600:]}")
        return done.stdout

    def begin(self):
        monitor, fsid = free_port(), "b0b5f9a4-6d4e-4c5c-9f39-0f0d3c8c5a11"
        self.conf = os.path.join(self.top, "ceph.conf")
        with open(self.conf, "w") as conf:
            conf.write(f"""[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor}
public addr = 127.0.0.1
keyring = {self.top}/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
run dir = {self.top}
admin socket = {self.top}/$name.$pid.asok
log file = {self.top}/$name.log
mon data = {self.top}/mon
osd data = {self.top}/osd
osd objectstore = memstore
memstore device bytes = 4294967296
rgw data = {self.top}/rgw
""")
        for part in ("mon", "osd", "rgw"):
            os.makedirs(os.path.join(self.top, part))
        keyring = os.path.join(self.top, "keyring")
        for number, name in enumerate(("mon.", "client.admin", "client.rgw", "osd.0")):
            rights = [word for part in ("mon", "osd", "mgr") for word in ("--cap", part, "allow *")]
            self.ceph("ceph-authtool", keyring, *["--create-keyring"][number:], "--gen-key", "-n", name, *rights)
        monmap = os.path.join(self.top, "monmap")
        subprocess.run(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{monitor}]", monmap],
                       check=True, capture_output=True, timeout=PATIENCE)
        self.ceph("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self.start("mon", ["ceph-mon", "-f", "-c", self.conf, "-i", "a"])
        self.await_port(monitor)
        self.ceph("ceph", "osd", "new", "5ac3f3b4-73c2-4ba6-8d0b-6f6ce0f0a001")
        self.ceph("ceph-osd", "-i", 0, "--mkfs", "--osd-uuid", "5ac3f3b4-73c2-4ba6-8d0b-6f6ce0f0a001")
        self.start("osd", ["ceph-osd", "-f", "-c", self.conf, "-i", "0"])
        self.ceph("radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=reader", "--display-name=reader",
                  f"--access-key={KEY}", f"--secret-key={SECRET}")
        self.start_gateway()

    def start_gateway(self):
        self.start("radosgw", ["radosgw", "-f", "-c", self.conf, "-n", "client.rgw",
                               f"--rgw_frontends=beast endpoint=127.0.0.1:{self.port} tcp_nodelay=1"])
        self.await_port()

    def restart_gateway(self):
        """Ends radosgw at once, and starts it again."""
        _, gateway = self.processes.pop()
        gateway.kill()
        gateway.wait(20)
        self.start_gateway()

    def fill(self, top, _names):
        """Writes files as objects."""
        environment = {**os.environ, **self.variables(self.port)}
        subprocess.run([BOTO_PYTHON, "-c", FILL, BUCKET, top], check=True, env=environment)

    def reading(self, _port, order):
        """What tells clientbench to read the samples that an order file names."""
        return "s3-read", BUCKET, order

    def url(self, _port):
        return f"s3://{BUCKET}"

    def variables(self, port):
        """What a client needs to know to ask through a port."""
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "default"}


class Azurite(Server):
    """A server of Azure Blob Storage."""

    ACCOUNT, KEY = "reader", base64.b64encode(SECRET.encode()).decode()

    def begin(self):
        os.environ["AZURITE_ACCOUNTS"] = f"{self.ACCOUNT}:{self.KEY}"
        self.start("azurite", [os.path.join(TARGET, "azurite", "node_modules", ".bin", "azurite-blob"), "--blobPort",
                               self.port, "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"])
        self.await_port()

    def fill(self, top, _names):
        """Writes files as blobs."""
        subprocess.run([AZURE_PYTHON, "-c", FILL_AZURE, self.address(self.port), self.ACCOUNT, self.KEY, BUCKET, top],
                       check=True)

    def address(self, port):
        return f"http://127.0.0.1:{port}/{self.ACCOUNT}"

    def url(self, _port):
        return f"az://{BUCKET}"

    def variables(self, port):
        return {"AZURE_STORAGE_ACCOUNT_NAME": self.ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": self.KEY,
                "AZURE_STORAGE_ENDPOINT": self.address(port)}


class Link(Server):
    """A long link to a port: the delay of one way, and bytes a second."""

    def __init__(self, top, port, delay, rate):
        super().__init__(top)
        self.target, self.delay, self.rate = port, delay, rate
        self.control = os.path.join(top, "control")

    def begin(self):
        self.start("slowlink", [binary("slowlink"), "--to", f"127.0.0.1:{self.target}", "--listen",
                                f"127.0.0.1:{self.port}", "--delay", self.delay, "--rate", self.rate, "--control",
                                self.control])
        self.await_port()

    def tell(self, word):
        """Sends a command to slowlink."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(self.control)
            control.sendall(word.encode() + b"\n")
            if control.recv(100) != b"ok\n":
                raise RunError(f"slowlink does not know {word}")

    def pause(self, word, seconds):
        """Stalls or cuts the link for some time."""
        self.tell(word)
        time.sleep(seconds)
        self.tell("go")
