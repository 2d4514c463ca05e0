"""The tables of cassandra-dali, and what docs/cassandra.md says of them.

Goal: tables that others have made are mounted as the docs say.
Method: tables and rows are those of cassandra-dali.  Rights, settings and the column of sizes come from the blocks of
the docs, so a block that is wrong is a check that fails.
"""

import os
import re
import uuid

from cassandra.query import BatchStatement

from cassandra_nodes import ROOT

DOCS = os.path.join(ROOT, "docs", "cassandra.md")
KEYSPACE, READER = "imagenet", ("belady", "PASSWORD")       # as in the docs
FILES, LABELS = 200, 10
STEP = 97                   # bytes that a file is larger than the one before; the first one is empty
TABLES = f"""
CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}};
CREATE TABLE {KEYSPACE}.data_train (id uuid PRIMARY KEY, label int, data blob)
    WITH compression = {{'enabled': 'false'}};
CREATE TABLE {KEYSPACE}.metadata_train (id uuid PRIMARY KEY, label int, or_label text, or_split text);
"""


def block(language, word):
    """The block of the docs that is in a language and has a word."""
    with open(DOCS) as f:
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", f.read(), re.MULTILINE | re.DOTALL)
    found, = (text for kind, text in blocks if kind == language and word in text)
    return found


def execute_all(session, statements):
    """Executes statements, each of which ends with a semicolon."""
    for statement in filter(str.strip, statements.split(";")):
        session.execute(statement)


def fill(session):
    """Makes the tables and whoever reads them, and writes rows. Returns the bytes of each file, by name."""
    execute_all(session, TABLES)
    execute_all(session, block("text", "CREATE ROLE"))
    session.set_keyspace(KEYSPACE)
    row = session.prepare("INSERT INTO metadata_train (id, label, or_label, or_split) VALUES (?, ?, ?, ?)")
    data = session.prepare("INSERT INTO data_train (id, label, data) VALUES (?, ?, ?)")
    files = {}
    for nth in range(FILES):
        key, label, content = uuid.uuid4(), nth % LABELS, os.urandom(STEP * nth)
        batch = BatchStatement()
        batch.add(row, (key, label, f"class{label}", "train"))
        batch.add(data, (key, label, content))
        session.execute(batch)
        files[f"train/class{label}/{key}.JPEG"] = content
    return files


def add_sizes(session):
    """Makes the column of sizes, and fills it with the script of the docs, which gets this session."""
    execute_all(session, block("text", "ADD bytes"))
    script = re.sub(r"^session = .*", "", block("python", "SET bytes"), flags=re.MULTILINE)
    exec(script, {"session": session})
