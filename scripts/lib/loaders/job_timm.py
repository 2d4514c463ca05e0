#!/usr/bin/python3
"""timm's ImageDataset.

shuffled   a shuffling loader after random_seed(42)
repeated   RepeatAugSampler, one rank
"""

from timm.data import ImageDataset
from timm.data.distributed_sampler import RepeatAugSampler
from timm.utils import random_seed
from torch.utils.data import DataLoader

from job import BATCH, Job, check_file


def main():
    job = Job()
    random_seed(42, 0)
    dataset = ImageDataset(job.data, load_bytes=True, transform=check_file)
    sampler = RepeatAugSampler(dataset, num_replicas=1, rank=0) if job.kind == "repeated" else None
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, shuffle=sampler is None, num_workers=job.workers)
    for epoch in job.epochs():
        if sampler:
            sampler.set_epoch(epoch)
        for (names, wrong), _ in loader:
            job.handed(names, wrong.sum())


if __name__ == "__main__":
    main()
