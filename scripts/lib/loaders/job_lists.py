#!/usr/bin/python3
"""Lists of files that are shuffled anew before each epoch, read by a DataLoader that does not shuffle.

random    random.seed(42), random.shuffle
numpy     np.random.seed(42), np.random.shuffle
rng       np.random.default_rng(42).shuffle
opencv    random.seed(42), random.shuffle; read and decoded by cv2.imread, an eighth of the size
"""

import os
import random

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from job import BATCH, Job, images_below, read_image


class Listed(Dataset):
    """The images of a list."""

    def __init__(self, top, paths, decode):
        self.top, self.paths, self.decode = top, paths, decode

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        if self.decode:
            image = cv2.imread(self.paths[i], cv2.IMREAD_REDUCED_COLOR_8)
            return os.path.relpath(self.paths[i], self.top), image is None or image.ndim != 3
        return read_image(self.paths[i])


def main():
    job = Job()
    cv2.setNumThreads(0)
    random.seed(42)
    np.random.seed(42)
    rng = np.random.default_rng(42)
    shuffles = {"random": random.shuffle, "opencv": random.shuffle, "numpy": np.random.shuffle, "rng": rng.shuffle}
    paths = images_below(job.data)
    for _ in job.epochs():
        shuffles[job.kind](paths)
        dataset = Listed(job.data, paths, job.kind == "opencv")
        for names, wrong in DataLoader(dataset, batch_size=BATCH, num_workers=job.workers):
            job.handed(names, wrong.sum())


if __name__ == "__main__":
    main()
