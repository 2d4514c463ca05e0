#!/usr/bin/python3
"""MosaicML's StreamingDataset over shards that lie in the dataset's directory.

shuffled   samples of all shards in random order
ordered    one after the other
random     by position, shuffled by a DataLoader with a seed
"""

import bisect
import itertools
import sys

import torch
from streaming import StreamingDataset
from torch.utils.data import DataLoader, Dataset

from job import BATCH, Job, check_row


class Rows(StreamingDataset):
    """Samples that say whether their bytes are right."""

    def __getitem__(self, i):
        sample = super().__getitem__(i)
        return sample["number"], check_row(sample["row"], sample["number"])


class ByPosition(Dataset):
    """The same samples for a sampler of torch."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return self.dataset[i]


def main():
    job = Job(shards=sys.argv[2] == "ordered")
    dataset = Rows(local=job.data, shuffle=job.kind == "shuffled", batch_size=BATCH)
    if job.kind == "random":
        loader = DataLoader(ByPosition(dataset), batch_size=BATCH, num_workers=job.workers, shuffle=True,
                            generator=torch.Generator().manual_seed(7))
    else:
        loader = DataLoader(dataset, batch_size=BATCH, num_workers=job.workers)
    ends = list(itertools.accumulate(dataset.samples_per_shard.tolist()))
    for _ in job.epochs():
        for numbers, wrong in loader:
            names = numbers.tolist()
            if job.shards:
                names = (f"shard.{bisect.bisect(ends, number):05}.mds" for number in names)
            job.handed(names, wrong.sum())


if __name__ == "__main__":
    main()
