#!/usr/bin/python3
"""Makes the data sets of `scripts/bench loaders` that are not plain files, once, under target/data.

Each sample begins with its number in eight digits, so that a wrong, torn or stale one is recognised.  A finished set
has a marker file beside it.
"""

import io
import os
import shutil
import sys
import tarfile

import numpy as np

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import make_data                            # noqa: E402  (beside the directory of the jobs)

ROWS, ROW = 2_000, (96, 96, 3)              # images as STL-10 has them: 27,648 bytes, which do not fit pages evenly
LARGE_ROWS = 4_000, (183, 180, 3)          # 98,820 bytes a row
SMALL_ROWS = 8_000, (83, 80, 3)             # 19,920 bytes a row
PARTS, ROWS_EACH = 64, 64                   # files of 6.3 MB, with rows of 98,820 bytes
WINDOW = 4_096                              # tokens of 16 bits: 8 KiB
WINDOWS = 5_120
VOLUMES, VOLUME = 64, 8_000_000
IMAGES, SHARDS = 1_000, 20                  # files of 110 KB, and the files that shards of them are in
MANY_IMAGES, MANY_SHARDS = 4_000, 80
VERSION = 1


def rows(count=ROWS, row=ROW):
    """The images, each with its number at its start."""
    out = np.random.default_rng(1).integers(0, 256, (count, *row), dtype=np.uint8)
    return stamped(out)


def stamped(array):
    """The array with the number of each row in its first eight bytes."""
    flat = array.reshape(len(array), -1).view(np.uint8)
    for i in range(len(array)):
        flat[i, :8] = np.frombuffer(b"%08d" % i, np.uint8)
    return array


def make_memmap(out):
    """One array in one file."""
    np.save(os.path.join(out, "rows.npy"), rows())


def make_large_rows(out):
    """Rows of about 100 KB, in one array."""
    np.save(os.path.join(out, "rows.npy"), rows(*LARGE_ROWS))


def make_small_rows(out):
    """Rows of about 20 KB, in one array."""
    np.save(os.path.join(out, "rows.npy"), rows(*SMALL_ROWS))


def make_raw(out):
    """Rows of about 100 KB, in many files without any header."""
    whole = rows(PARTS * ROWS_EACH, LARGE_ROWS[1])
    for nth, part in enumerate(np.split(whole, PARTS)):
        part.tofile(os.path.join(out, f"{nth:03}.bin"))


def make_large_h5py(out):
    """The same rows as those of about 100 KB, in one data set that lies in one piece."""
    import h5py
    with h5py.File(os.path.join(out, "rows.h5"), "w") as f:
        f["rows"] = rows(*LARGE_ROWS)


def make_large_chunks(out):
    """The same rows in chunks of one row each, with the index that h5py writes by itself."""
    import h5py
    with h5py.File(os.path.join(out, "rows.h5"), "w") as f:
        f.create_dataset("rows", data=rows(*LARGE_ROWS), chunks=(1, *LARGE_ROWS[1]))


def make_large_mds(out):
    """The same rows in MosaicML's shards, of 64 MiB."""
    write_mds(out, rows(*LARGE_ROWS), 64 << 20)


def make_large_arrow(out):
    """The same rows in a data set of Hugging Face's library."""
    write_arrow(out, rows(*LARGE_ROWS))


def make_large_lmdb(out):
    """Half of the same rows as the values of a database, whose pages are read one by one."""
    import lmdb
    with lmdb.open(out, map_size=1 << 30) as env, env.begin(write=True) as txn:
        for i, row in enumerate(rows(LARGE_ROWS[0] // 2, LARGE_ROWS[1])):
            txn.put(b"%08d" % i, row.tobytes())
    os.remove(os.path.join(out, "lock.mdb"))


def make_tokens(out):
    """Tokens of 16 bits without any header."""
    tokens = np.random.default_rng(2).integers(0, 50_257, (WINDOWS, WINDOW), dtype=np.uint16)
    stamped(tokens).tofile(os.path.join(out, "train.bin"))


def make_h5py(out):
    """One data set that lies in one piece."""
    import h5py
    with h5py.File(os.path.join(out, "rows.h5"), "w") as f:
        f["rows"] = rows()


def make_npz(out):
    """A file for each volume."""
    for i in range(VOLUMES):
        volume = np.random.default_rng(i).integers(0, 256, (1, VOLUME), dtype=np.uint8)
        volume[0, :8] = np.frombuffer(b"%08d" % i, np.uint8)
        np.savez(os.path.join(out, f"{i:03}.npz"), x=volume[0], y=np.array([i]))


def make_mds(out):
    """MosaicML's shards, of 16 MiB."""
    write_mds(out, rows(), 16 << 20)


def write_mds(out, found, shard_bytes):
    """Shards of rows with their numbers."""
    from streaming import MDSWriter
    columns = {"number": "int", "row": "bytes"}
    with MDSWriter(out=out, columns=columns, size_limit=shard_bytes) as writer:
        for i, row in enumerate(found):
            writer.write({"number": i, "row": row.tobytes()})


def parts(sequence, count):
    """A sequence in `count` parts of the same length."""
    size = len(sequence) // count
    return [sequence[i * size:(i + 1) * size] for i in range(count)]


def images(count=IMAGES):
    """The images by name, in an order that the names do not tell."""
    top = make_data.ensure("imagenet-like", count)
    folders = sorted(os.listdir(top))
    names = [f"{folder}/{name}" for folder in folders for name in sorted(os.listdir(f"{top}/{folder}"))]
    np.random.default_rng(3).shuffle(names)
    for name in names:
        with open(os.path.join(top, name), "rb") as f:
            yield name, f.read()


def make_wds(out):
    """Tar files of WebDataset."""
    write_wds(out, parts(list(images()), SHARDS))


def make_many_wds(out):
    """More of them."""
    write_wds(out, parts(list(images(MANY_IMAGES)), MANY_SHARDS))


def write_wds(out, shards):
    """Tar files of images."""
    for shard, found in enumerate(shards):
        with tarfile.open(os.path.join(out, f"{shard:03}.tar"), "w") as tar:
            for i, (_, data) in enumerate(found):
                info = tarfile.TarInfo(f"{shard:03}{i:04}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def make_tfrecord(out):
    """Files of records."""
    write_tfrecord(out, parts(list(images()), SHARDS))


def make_many_tfrecord(out):
    """More of them."""
    write_tfrecord(out, parts(list(images(MANY_IMAGES)), MANY_SHARDS))


def write_tfrecord(out, shards):
    """Files of records: each begins with its file's number in three digits."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    import tensorflow
    for shard, found in enumerate(shards):
        with tensorflow.io.TFRecordWriter(os.path.join(out, f"{shard:03}.tfrecord")) as writer:
            for _, data in found:
                writer.write(b"%03d" % shard + data)


def make_parquet(out):
    """Parquet files of 100 rows, in row groups of 10."""
    import pyarrow
    import pyarrow.parquet
    numbered = list(enumerate(rows()))
    for shard, found in enumerate(parts(numbered, SHARDS)):
        table = pyarrow.table({"number": [i for i, _ in found], "row": [row.tobytes() for _, row in found]})
        path = os.path.join(out, f"{shard:03}.parquet")
        pyarrow.parquet.write_table(table, path, compression="none", row_group_size=10)


def make_arrow(out):
    """A data set of Hugging Face's library."""
    write_arrow(out, rows())


def write_arrow(out, found):
    """A data set of rows with their numbers."""
    import datasets
    datasets.disable_progress_bars()
    columns = {"number": range(len(found)), "row": [row.tobytes() for row in found]}
    datasets.Dataset.from_dict(columns).save_to_disk(os.path.join(out, "rows"))


def litdata_sample(number):
    """One sample of litdata's chunks."""
    row = np.random.default_rng(number).integers(0, 256, ROW, dtype=np.uint8)
    row.reshape(-1)[:8] = np.frombuffer(b"%08d" % number, np.uint8)
    return {"number": number, "row": row.tobytes()}


def make_litdata(out):
    """litdata's chunks, of 8 MB."""
    import litdata
    litdata.optimize(litdata_sample, list(range(ROWS)), out, chunk_bytes="8MB", num_workers=1)


def ensure(kind, root):
    """The directory of a set. It is made if its marker is not there."""
    out = os.path.join(root, f"loaders-{kind}")
    marker, wanted = out + ".done", f"{VERSION}\n"
    if os.path.isdir(out) and os.path.exists(marker):
        with open(marker) as f:
            if f.read() == wanted:
                return out
    print(f"making {out}", file=sys.stderr, flush=True)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    globals()[f"make_{kind}"](out)
    with open(marker, "w") as f:
        f.write(wanted)
    return out


if __name__ == "__main__":
    ensure(sys.argv[1], sys.argv[2])
