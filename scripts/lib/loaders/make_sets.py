#!/usr/bin/python3
"""Makes the data sets of `scripts/bench loaders` that are no plain files, once, under target/data.

Each sample begins with its number in eight digits, so that a wrong, torn or stale one is recognised.  A finished set
carries a marker file beside it.
"""

import os
import shutil
import sys

import numpy as np

ROWS, ROW = 2_000, (96, 96, 3)              # images as STL-10 has them: 27,648 bytes, in no step with pages
WINDOW = 4_096                              # tokens of 16 bits: 8 KiB
WINDOWS = 5_120
VOLUMES, VOLUME = 64, 8_000_000
VERSION = 1


def rows():
    """The images, each with its number at its start."""
    out = np.random.default_rng(1).integers(0, 256, (ROWS, *ROW), dtype=np.uint8)
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
    from streaming import MDSWriter
    columns = {"number": "int", "row": "bytes"}
    with MDSWriter(out=out, columns=columns, size_limit=16 << 20) as writer:
        for i, row in enumerate(rows()):
            writer.write({"number": i, "row": row.tobytes()})


def ensure(kind, root):
    """The directory of a set, made first where its marker is not there."""
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
