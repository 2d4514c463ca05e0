"""Nodes of Cassandra 5 for the tests, from Maven Central, with the driver of Debian's python3-cassandra.

Goal: as Server in servers.py: whatever happens, nothing that was started here is left behind.
Method: each node is a JVM in the foreground, on 127.0.0.1, 127.0.0.2 and so on, with one port.  All have empty
directories at first.  A node serves when it answers a request, not when its port is open.
"""

import contextlib
import glob
import os
import ssl
import subprocess
import time
import uuid

from cassandra import ConsistencyLevel, DriverException
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import RoundRobinPolicy

from driver import RunError
from mounts import TARGET
from servers import BUCKET, KEY, SECRET, Server, free_port

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
JARS = os.path.join(TARGET, "cassandra", "lib")
OPTIONS = os.path.join(ROOT, "scripts", "cassandra", "jvm17.options")
STARTING = 180
OWNER = ("cassandra", "cassandra")          # the first user of a server, and the password

# An unknown key is refused by the server.
SETTINGS = """cluster_name: test
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
num_tokens: 16
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:{storage}"
listen_address: {address}
rpc_address: {address}
storage_port: {storage}
native_transport_port: {port}
endpoint_snitch: SimpleSnitch
commitlog_sync: periodic
commitlog_sync_period: 10000ms
"""
PASSWORDS = """authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
"""


TLS = """client_encryption_options:
  enabled: true
  keystore: {top}/node.p12
  keystore_password: {password}
  require_client_auth: true
  truststore: {top}/ca.p12
  truststore_password: {password}
  store_type: PKCS12
"""


class Cassandra(Server):
    """One node with passwords.

    The rows are in the keyspace `samples`: `metadata` is listed, `data` has the bytes.  Role, keyspace and tables are
    made by `fill`.
    """

    NODES, HAS_PASSWORDS = 1, True

    def __init__(self, top):
        super().__init__(top)
        self.storage, self.ids = free_port(), {}

    def begin(self):
        for number in range(1, self.NODES + 1):
            self.start_node(number)

    def start_node(self, number):
        """Starts a node, which keeps what it has, and waits until it answers."""
        home, address = os.path.join(self.top, f"node{number}"), f"127.0.0.{number}"
        os.makedirs(home, exist_ok=True)
        with open(os.path.join(home, "cassandra.yaml"), "w") as f:
            f.write(self.settings(address))
        agent, = glob.glob(os.path.join(JARS, "jamm-*.jar"))
        self.start(f"node{number}", [
            "java", "-Xms1g", "-Xmx1g", f"-javaagent:{agent}", f"@{OPTIONS}",
            f"-Dcassandra.config=file://{home}/cassandra.yaml", f"-Dcassandra.storagedir={home}/data",
            "-Dcassandra-foreground=yes", "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=1000", "-Dcassandra.superuser_setup_delay_ms=100",
            "-cp", os.path.join(JARS, "*"), "org.apache.cassandra.service.CassandraDaemon"])
        self.await_node(address)

    def settings(self, address):
        """The settings of a node."""
        settings = SETTINGS.format(address=address, storage=self.storage, port=self.port)
        return settings + (PASSWORDS if self.HAS_PASSWORDS else "")

    def trust(self):
        """How a client of Python uses TLS; `None`: it does not."""
        return None

    def await_node(self, address):
        name, process = self.processes[-1]
        deadline = time.monotonic() + STARTING
        while True:
            try:
                with self.session(address) as session:
                    session.execute("SELECT release_version FROM system.local")
                return
            except (NoHostAvailable, DriverException) as e:
                if process.poll() is not None or time.monotonic() > deadline:
                    with open(os.path.join(self.top, name + ".log")) as log:
                        raise RunError(f"{name} does not serve: {e} {log.read()[-600:]}") from e
            time.sleep(.5)

    def kill_node(self, number):
        """Ends a node at once."""
        at = [name for name, _ in self.processes].index(f"node{number}")
        _, process = self.processes.pop(at)
        process.kill()
        process.wait(20)

    def signal_node(self, number, signal):
        dict(self.processes)[f"node{number}"].send_signal(signal)

    def restart_node(self):
        """Ends the first node at once, and starts it again."""
        self.kill_node(1)
        self.start_node(1)

    @contextlib.contextmanager
    def session(self, address="127.0.0.1"):
        """A session of the first user."""
        user = PlainTextAuthProvider(*OWNER) if self.HAS_PASSWORDS else None
        profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=60)
        cluster = Cluster([address], port=self.port, auth_provider=user, protocol_version=4, connect_timeout=10,
                          execution_profiles={EXEC_PROFILE_DEFAULT: profile}, ssl_context=self.trust())
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()

    def fill(self, top, names):
        """Makes the tables, and writes files as rows."""
        self.make_tables()
        with self.session() as session:
            self.write(session, ((name, os.path.join(top, name)) for name in names))

    def make_tables(self):
        """Makes the keyspace and its tables, and whoever reads them."""
        with self.session() as session:
            copies = f"{{'class': 'SimpleStrategy', 'replication_factor': {self.NODES}}}"
            session.execute(f"CREATE KEYSPACE {BUCKET} WITH replication = {copies}")
            session.execute(f"CREATE TABLE {BUCKET}.data (id uuid PRIMARY KEY, data blob)"
                            " WITH compression = {'enabled': 'false'}")
            for table in ("metadata", "apart"):
                session.execute(f"CREATE TABLE {BUCKET}.{table}"
                                " (id uuid PRIMARY KEY, directory text, name text, bytes int)")
            if self.HAS_PASSWORDS:
                session.execute(f"CREATE ROLE \"{KEY}\" WITH PASSWORD = '{SECRET}' AND LOGIN = true")
                for table in ("data", "metadata", "apart"):
                    session.execute(f"GRANT SELECT ON TABLE {BUCKET}.{table} TO \"{KEY}\"")

    def write(self, session, files, table="metadata", later=0):
        """Writes rows.  Both parts of one have one write time; `later` is how much later that of the size is."""
        data = session.prepare(f"INSERT INTO {BUCKET}.data (id, data) VALUES (?, ?) USING TIMESTAMP ?")
        row = session.prepare(
            f"INSERT INTO {BUCKET}.{table} (id, directory, name, bytes) VALUES (?, ?, ?, ?) USING TIMESTAMP ?")
        data.consistency_level = row.consistency_level = ConsistencyLevel.ALL
        rows, now = [], time.time_ns() // 1000

        def blobs():
            for name, content in files:
                if isinstance(content, str):
                    with open(content, "rb") as file:
                        content = file.read()
                key = self.ids.setdefault(name, uuid.uuid4())
                rows.append((key, os.path.dirname(name), os.path.basename(name), len(content), now + later))
                yield key, content, now
        execute_concurrent_with_args(session, data, blobs(), concurrency=16)
        execute_concurrent_with_args(session, row, rows, concurrency=64)

    def put(self, name, content):
        """Writes one row."""
        with self.session() as session:
            self.write(session, [(name, content)])

    def put_apart(self, name, content):
        """Writes one row to a table of its own.  Its size has another write time than its data."""
        with self.session() as session:
            self.write(session, [(name, content)], table="apart", later=1)

    def delete(self, name):
        with self.session() as session:
            for table in ("metadata", "data"):
                session.execute(f"DELETE FROM {BUCKET}.{table} WHERE id = %s", [self.ids[name]])

    def lets_in(self, address):
        """Whether a node knows the first user."""
        try:
            with self.session(address):
                return True
        except (NoHostAvailable, DriverException):
            return False

    def drop_data(self):
        """Removes the column of the bytes."""
        with self.session() as session:
            session.execute(f"ALTER TABLE {BUCKET}.data DROP data")

    def url(self, port):
        return f"cassandra://127.0.0.1:{port}/{BUCKET}"

    def tables(self, port):
        """What tells clientbench where the tables are."""
        return f"127.0.0.1:{port}", BUCKET

    def reading(self, port, _order):
        """What tells clientbench to read the data of all rows."""
        return "cassandra-read", *self.tables(port)

    @staticmethod
    def user(name, password):
        """Who asks a server, for programs of belady."""
        return {"CASSANDRA_USERNAME": name, "CASSANDRA_PASSWORD": password}

    def variables(self, _port):
        user = self.user(KEY, SECRET) if self.HAS_PASSWORDS else {}
        return {**user, "BELADY_SOURCE_ROWS": "metadata", "BELADY_SOURCE_PATH": "{directory}/{name}",
                "BELADY_SOURCE_DATA": "data.data", "BELADY_SOURCE_SIZE": "bytes"}


class TwoNodes(Cassandra):
    """Two nodes, each with all rows, and without passwords: each node would need all roles, too."""

    NODES, HAS_PASSWORDS = 2, False


class TwoNodesWithRoles(TwoNodes):
    """Two nodes with passwords.  By default, one of them has the roles."""

    HAS_PASSWORDS = True


class Secured(Cassandra):
    """One node that takes connections with TLS only, and wants to know who asks.

    Its certificate is of the name localhost, and not of its address.
    """

    def begin(self):
        self.openssl("req", "-x509", "-days", 2, "-subj", "/CN=authority", *self.new_key("ca"), "-out", "ca.pem")
        self.certify("node", "localhost")
        self.certify("client", "client")
        self.openssl("pkcs12", "-export", "-in", "node.pem", "-inkey", "node.key", "-out", "node.p12", "-passout",
                     f"pass:{SECRET}")
        self.call("keytool", "-importcert", "-noprompt", "-file", "ca.pem", "-keystore", "ca.p12", "-storetype",
                  "PKCS12", "-storepass", SECRET)
        super().begin()

    def call(self, *words):
        """Runs a program in `top`."""
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, cwd=self.top)
        if done.returncode != 0:
            raise RunError(f"{words[0]}: {done.stdout[-300:]} {done.stderr[-300:]}")

    def openssl(self, *words):
        self.call("openssl", *words)

    @staticmethod
    def new_key(name):
        return "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key"

    def certify(self, file, name):
        """Makes a key and its certificate, signed by the authority."""
        with open(os.path.join(self.top, f"{file}.ext"), "w") as f:
            f.write(f"subjectAltName=DNS:{name}\n")
        self.openssl("req", "-subj", f"/CN={name}", *self.new_key(file), "-out", f"{file}.csr")
        self.openssl("x509", "-req", "-days", 2, "-in", f"{file}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                     "-CAcreateserial", "-extfile", f"{file}.ext", "-out", f"{file}.pem")

    def path(self, name):
        return os.path.join(self.top, name)

    def settings(self, address):
        return super().settings(address) + TLS.format(top=self.top, password=SECRET)

    def trust(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.path("ca.pem"))
        context.load_cert_chain(self.path("client.pem"), self.path("client.key"))
        return context

    def url(self, port):
        return f"cassandra://localhost:{port}/{BUCKET}"

    def variables(self, port):
        files = {"CA": "ca.pem", "CERT": "client.pem", "KEY": "client.key"}
        tls = {f"CASSANDRA_TLS_{name}": self.path(file) for name, file in files.items()}
        return {**super().variables(port), **tls}
