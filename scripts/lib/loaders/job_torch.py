#!/usr/bin/python3
"""torch's DataLoader over torchvision's ImageFolder, in the ways in which it is asked to shuffle.

shuffled     shuffle=True, no seed
seeded       torch.manual_seed(42) before it, as in most scripts
generator    a generator of its own, seed 7
persistent   torch.manual_seed(42), workers that stay
distributed  DistributedSampler with set_epoch, one rank
sequential   no shuffling
bursts       seed 42, 8 workers that are each 8 batches ahead
split        random_split of seed 42 in 80 % to train and 20 % to validate
subset       SubsetRandomSampler over two parts of a permutation of seed 42, to train and to validate
weighted     WeightedRandomSampler, by class
"""

import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler, random_split
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

from job import BATCH, Job, read_image


def loaders(kind, dataset, workers):
    """The loaders that an epoch uses, one after the other."""
    more = {"batch_size": BATCH, "num_workers": workers}
    if kind in ("seeded", "persistent", "bursts", "subset"):
        torch.manual_seed(42)
    if kind == "generator":
        return [DataLoader(dataset, shuffle=True, generator=torch.Generator().manual_seed(7), **more)]
    if kind == "persistent":
        return [DataLoader(dataset, shuffle=True, persistent_workers=True, **more)]
    if kind == "distributed":
        return [DataLoader(dataset, sampler=DistributedSampler(dataset, num_replicas=1, rank=0), **more)]
    if kind == "sequential":
        return [DataLoader(dataset, **more)]
    if kind == "bursts":
        return [DataLoader(dataset, shuffle=True, prefetch_factor=8, **more)]
    if kind == "split":
        train, val = random_split(dataset, [.8, .2], generator=torch.Generator().manual_seed(42))
        return [DataLoader(train, shuffle=True, **more), DataLoader(val, **more)]
    if kind == "subset":
        order = torch.randperm(len(dataset)).tolist()
        parts = order[200:], order[:200]
        return [DataLoader(dataset, sampler=SubsetRandomSampler(part), **more) for part in parts]
    if kind == "weighted":
        weights = [1 + label % 4 for label in dataset.targets]
        return [DataLoader(dataset, sampler=WeightedRandomSampler(weights, len(dataset)), **more)]
    return [DataLoader(dataset, shuffle=True, **more)]


def main():
    job = Job()
    chosen = loaders(job.kind, ImageFolder(job.data, loader=read_image), job.workers)
    for epoch in job.epochs():
        for loader in chosen:
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
            for (names, wrong), _ in loader:
                job.handed(names, wrong.sum())


if __name__ == "__main__":
    main()
