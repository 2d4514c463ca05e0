#!/usr/bin/python3
"""Hugging Face's datasets.

files   a table of paths, shuffle(seed=42 + epoch), read by a transform in a DataLoader's workers
arrow   a data set on the disk, whose rows are mapped; shuffle(seed=42 + epoch)
"""

import os

from datasets import Dataset, disable_progress_bars, load_from_disk
from torch.utils.data import DataLoader

from job import BATCH, Job, check_row, images_below, read_image


def read_all(batch):
    """The samples of some paths."""
    names, wrong = zip(*map(read_image, batch["path"]))
    return {"name": names, "wrong": wrong}


def check_all(batch):
    """Rows of the data set on the disk."""
    wrong = [check_row(row, number) for row, number in zip(batch["row"], batch["number"])]
    return {"name": batch["number"], "wrong": wrong}


def main():
    job = Job()
    disable_progress_bars()
    if job.kind == "files":
        dataset = Dataset.from_dict({"path": images_below(job.data)}).with_transform(read_all)
    else:
        dataset = load_from_disk(os.path.join(job.data, "rows")).with_transform(check_all)
    for epoch in job.epochs():
        shuffled = dataset.shuffle(seed=42 + epoch, keep_in_memory=True)
        for batch in DataLoader(shuffled, batch_size=BATCH, num_workers=job.workers):
            names = batch["name"]
            job.handed(names if job.kind == "files" else names.tolist(), batch["wrong"].sum())


if __name__ == "__main__":
    main()
