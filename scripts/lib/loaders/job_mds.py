#!/usr/bin/python3
"""MosaicML's StreamingDataset over shards that lie in the dataset's directory.

shuffled   samples of all shards in random order
ordered    one after the other
"""

import bisect
import itertools
import sys

from streaming import StreamingDataset
from torch.utils.data import DataLoader

from job import BATCH, Job, check_row


class Rows(StreamingDataset):
    """Samples that say whether their bytes are right."""

    def __getitem__(self, i):
        sample = super().__getitem__(i)
        return sample["number"], check_row(sample["row"], sample["number"])


def main():
    job = Job(shards=sys.argv[2] == "ordered")
    dataset = Rows(local=job.data, shuffle=job.kind == "shuffled", batch_size=BATCH)
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
