#!/usr/bin/python3
"""Makes the files beside it, by the libraries that write such files.

Each sample has its number in eight digits at its start.  `scripts/lib/loaders/requirements.txt` names the libraries and their
versions.
"""

import os
import shutil

import datasets
import h5py
import lmdb
import numpy as np
import pyarrow
import pyarrow.feather
from streaming import MDSWriter

TOP = os.path.dirname(os.path.abspath(__file__))


def path(name):
    """The path of a file beside this program."""
    return os.path.join(TOP, name)


def sample(number, length=40):
    """A sample of some bytes."""
    return b"%08d" % number + bytes(length - 8)


def rows(count, length=40):
    """Samples as rows of an array."""
    return np.stack([np.frombuffer(sample(i, length), np.uint8) for i in range(count)])


def make_npy():
    """A mapped array."""
    np.save(path("rows.npy"), rows(12).reshape(12, 8, 5))


def make_mds():
    """A shard of two columns."""
    out = path("mds")
    with MDSWriter(out=out, columns={"row": "bytes", "number": "int"}) as writer:
        for i in range(9):
            writer.write({"row": sample(i, 40 + i), "number": i})
    shutil.move(f"{out}/shard.00000.mds", path("shard.mds"))
    shutil.rmtree(out)


def make_hdf5():
    """Data sets in one piece and in chunks, with the indexes of old and of new files."""
    for name, version in [("old.h5", ("earliest", "v108")), ("new.h5", ("latest", "latest"))]:
        with h5py.File(path(name), "w", libver=version) as f:
            f["whole"] = rows(7)
            f.create_dataset("in/chunks", data=rows(90), chunks=(1, 40))
            f.create_dataset("growing", data=rows(30), chunks=(1, 40), maxshape=(None, 40))
            f.create_dataset("several", data=rows(10), chunks=(4, 40))
            f.create_dataset("pieces", data=rows(3, 80), chunks=(1, 20))
            f.create_dataset("small", data=rows(20), chunks=(5, 40), compression="gzip")
            apart = f.create_dataset("apart", (8, 3_000), np.uint8, chunks=(1, 1_500))
            apart[:, :1_500] = 1            # all first halves lie before all second ones
            apart[:, 1_500:] = 2
            f.create_dataset("unwritten", (4, 40), np.uint8)
            f["words"] = np.array([b"00000000", b"00000001"])
            f.create_dataset("texts", data=["00000000", "00000001"], dtype=h5py.string_dtype())
            f["number"] = 7


def make_arrow():
    """A data set as Hugging Face's library saves it, and other columns."""
    out = path("hf")
    found = [{"number": i, "image": {"bytes": sample(i, 40 + i), "path": None}, "list": list(sample(i))} for i in range(25)]
    features = datasets.Features({"number": datasets.Value("int64"), "image": datasets.Image(decode=False),
                                  "list": datasets.List(datasets.Value("uint8"))})
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_list(found, features=features)
    table.save_to_disk(out)
    shutil.move(f"{out}/data-00000-of-00001.arrow", path("hf.arrow"))
    shutil.rmtree(out)
    binary = [sample(i, 40 + i % 3) for i in range(25)]
    columns = {
        "view": pyarrow.array([True, None] * 12 + [False]),
        "word": pyarrow.array(["cat", "dog", None, "cat", "x"] * 5).dictionary_encode(),
        "union": pyarrow.UnionArray.from_dense(pyarrow.array([0, 1, 0, 0, 1] * 5, pyarrow.int8()),
                                               pyarrow.array([0, 0, 1, 2, 1] * 5, pyarrow.int32()),
                                               [pyarrow.array([1, 2, 3]), pyarrow.array(["a", "b"])]),
        "bytes": pyarrow.array(binary, pyarrow.binary()),
        "large": pyarrow.array(binary, pyarrow.large_binary()),
        "fixed": pyarrow.array([sample(i) for i in range(25)], pyarrow.binary(40)),
        "grid": pyarrow.array([[list(sample(i)[:20]), list(sample(i)[20:])] for i in range(25)],
                              pyarrow.list_(pyarrow.list_(pyarrow.uint8(), 20))),
        "a.b": pyarrow.array([{"c": sample(i), "d": i} for i in range(25)]),
    }
    table = pyarrow.table(columns)
    with pyarrow.OSFile(path("stream.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    pyarrow.feather.write_feather(table.drop_columns(["union"]), path("file.arrow"), compression="uncompressed", chunksize=7)
    pyarrow.feather.write_feather(table.select(["bytes"]), path("compressed.arrow"), compression="lz4")


def make_lmdb():
    """Long values and short ones, with a note about them; a database with names; one that is empty."""
    def environment(name, **more):
        shutil.rmtree(path("db"), ignore_errors=True)
        return lmdb.open(path("db"), map_size=1 << 20, **more), path(name)

    def keep(env, name):
        env.close()
        shutil.move(path("db/data.mdb"), name)
        shutil.rmtree(path("db"))
    env, name = environment("values.lmdb")
    with env.begin(write=True) as txn:
        for i in reversed(range(150)):
            txn.put(b"%04d" % i, sample(i, 3_000 if i % 25 == 0 else 40))
        txn.put(b"__len__", b"150")
    with env.begin(write=True) as txn:
        txn.delete(b"0149")
    keep(env, name)
    env, name = environment("named.lmdb", max_dbs=2)
    with env.begin(write=True, db=env.open_db(b"train")) as txn:
        txn.put(b"0", sample(0))
    keep(env, name)
    env, name = environment("empty.lmdb")
    keep(env, name)


if __name__ == "__main__":
    make_npy()
    make_mds()
    make_hdf5()
    make_arrow()
    make_lmdb()
