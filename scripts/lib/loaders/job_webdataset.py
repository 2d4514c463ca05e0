#!/usr/bin/python3
"""WebDataset over tar files.

shuffled   shards and samples shuffled anew in each epoch
ordered    neither
seeded     shards shuffled once with a seed, divided among the workers
"""

import glob
import os

import webdataset
from torch.utils.data import DataLoader

from job import BATCH, Job, check_file


def sample(found):
    """The shard of a sample, and whether the sample is wrong."""
    return os.path.basename(found["__url__"]), check_file(found["jpg"])[1]


def main():
    job = Job(shards=True)
    urls = sorted(glob.glob(f"{job.data}/*.tar"))
    if job.kind == "shuffled":
        dataset = webdataset.WebDataset(urls, shardshuffle=len(urls)).shuffle(100).map(sample)
    elif job.kind == "seeded":
        dataset = webdataset.DataPipeline(
            webdataset.SimpleShardList(urls, seed=42), webdataset.split_by_worker, webdataset.tarfile_to_samples(),
            webdataset.shuffle(100), webdataset.map(sample))
    else:
        dataset = webdataset.WebDataset(urls, shardshuffle=False).map(sample)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=job.workers)
    for _ in job.epochs():
        for shards, wrong in loader:
            job.handed(shards, wrong.sum())


if __name__ == "__main__":
    main()
