#!/usr/bin/python3
"""Random reads in large files: rows of a memory map, windows of a map of tokens, rows of an HDF5 data set, values of LMDB.

memmap   numpy.load(mmap_mode="r"), a row a sample, shuffled
raw      numpy.memmap of many files, a row a sample, shuffled
tokens   numpy.memmap of 16 bit tokens, windows of 8 KiB, shuffled, as GPT trainers read their tokens
h5py     an HDF5 data set opened by each worker, a row a sample, shuffled
lmdb     a database opened by each worker, a value a sample, shuffled

With `.seeded` after its name, the shuffle has a generator with a seed.
"""

import os

import h5py
import lmdb
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from job import BATCH, Job, check_row
from make_sets import ROWS_EACH, WINDOW


class Memmap(Dataset):
    """Rows of an array that is mapped."""

    def __init__(self, data):
        self.rows = np.load(os.path.join(data, "rows.npy"), mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return i, check_row(np.array(self.rows[i]), i)


class Raw(Dataset):
    """Rows of mapped files without any header."""

    def __init__(self, data):
        names = sorted(name for name in os.listdir(data) if name.endswith(".bin"))
        self.files = [np.memmap(os.path.join(data, name), np.uint8, "r").reshape(ROWS_EACH, -1) for name in names]

    def __len__(self):
        return ROWS_EACH * len(self.files)

    def __getitem__(self, i):
        file, row = divmod(i, ROWS_EACH)
        return i, check_row(np.array(self.files[file][row]), i)


class Tokens(Dataset):
    """Windows of a mapped file of tokens."""

    def __init__(self, data):
        self.tokens = np.memmap(os.path.join(data, "train.bin"), np.uint16, "r")

    def __len__(self):
        return len(self.tokens) // WINDOW

    def __getitem__(self, i):
        window = self.tokens[i * WINDOW:(i + 1) * WINDOW].astype(np.int64)
        return i, check_row(window.astype(np.uint16), i)


class Hdf5(Dataset):
    """Rows of an HDF5 data set; each worker opens the file for itself."""

    def __init__(self, data):
        self.path, self.file = os.path.join(data, "rows.h5"), None
        with h5py.File(self.path, "r") as f:
            self.count = len(f["rows"])

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return i, check_row(self.file["rows"][i], i)


class Lmdb(Dataset):
    """Values of a database; each worker opens it for itself, without lock and readahead, as is usual."""

    def __init__(self, data):
        self.path, self.env = data, None
        with lmdb.open(data, readonly=True, lock=False) as env:
            self.count = env.stat()["entries"]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.env is None:
            self.env = lmdb.open(self.path, readonly=True, lock=False, readahead=False)
        with self.env.begin() as txn:
            return i, check_row(txn.get(b"%08d" % i), i)


def main():
    job = Job()
    kind, _, seeded = job.kind.partition(".")
    dataset = {"memmap": Memmap, "raw": Raw, "tokens": Tokens, "h5py": Hdf5, "lmdb": Lmdb}[kind](job.data)
    generator = torch.Generator().manual_seed(7) if seeded else None
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=job.workers, generator=generator)
    for _ in job.epochs():
        for numbers, wrong in loader:
            job.handed(numbers.tolist(), wrong.sum())


if __name__ == "__main__":
    main()
