#!/usr/bin/python3
"""litdata's StreamingDataset over chunks that lie in the dataset's directory, shuffled."""

import bisect
import itertools
import json

from litdata import StreamingDataLoader, StreamingDataset

from job import BATCH, Job, check_row


class Rows(StreamingDataset):
    """Samples that say whether their bytes are right."""

    def __getitem__(self, i):
        sample = super().__getitem__(i)
        return sample["number"], check_row(sample["row"], sample["number"])


def main():
    job = Job(shards=True)
    with open(job.path("index.json")) as f:
        chunks = json.load(f)["chunks"]
    names = [chunk["filename"] for chunk in chunks]
    ends = list(itertools.accumulate(chunk["chunk_size"] for chunk in chunks))
    loader = StreamingDataLoader(Rows(job.data, shuffle=True, seed=42), batch_size=BATCH, num_workers=job.workers)
    for _ in job.epochs():
        for numbers, wrong in loader:
            job.handed((names[bisect.bisect(ends, number)] for number in numbers.tolist()), wrong.sum())


if __name__ == "__main__":
    main()
