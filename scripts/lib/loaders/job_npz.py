#!/usr/bin/python3
"""The shape of DLIO's unet3d: each sample is an npz file of 8 MB, read whole by numpy.load.

shuffled   as DataLoader shuffles
seeded     by a generator with a seed
"""

import glob

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from job import Job, check_row


class Volumes(Dataset):
    """The arrays in the files of a directory."""

    def __init__(self, top):
        self.paths = sorted(glob.glob(f"{top}/*.npz"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with np.load(self.paths[i]) as f:
            return i, check_row(f["x"], i)


def main():
    job = Job()
    generator = torch.Generator().manual_seed(7) if job.kind == "seeded" else None
    loader = DataLoader(Volumes(job.data), batch_size=4, shuffle=True, num_workers=job.workers, generator=generator)
    for _ in job.epochs():
        for numbers, wrong in loader:
            job.handed((f"{i:03}.npz" for i in numbers.tolist()), wrong.sum())


if __name__ == "__main__":
    main()
