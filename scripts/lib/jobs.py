#!/usr/bin/python3
"""The training jobs that `scripts/bench learn` watches: stock torch loaders whose order belady is not told.

One line per epoch: epoch K images N seconds S wait W wrong B.  `wait` is the part that the loop waited for a batch.
After each batch it sleeps as long as an accelerator would compute.
"""

import argparse
import os
import secrets
import sys
import time

import torch
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import DatasetFolder

from loader import read_epoch

BATCH = 64
KINDS = ("shuffled", "own", "seeded", "distributed", "sequential", "secret")


def arguments():
    parser = argparse.ArgumentParser(description="Read a directory with train/ and val/ through a DataLoader.")
    parser.add_argument("data")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--sleeps", default="0", help="seconds that the loop of each epoch sleeps in all: 60,60")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--descriptors", action="store_true", help="read by os.open and os.read")
    parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each epoch")
    return parser.parse_args()


def sample(path, data):
    """A file's number by its bytes, and whether its name says another one."""
    number = int(data[:8])
    return number, number != int(os.path.basename(path)[:6])


def read_file(path):
    """A sample, by Python's files."""
    with open(path, "rb") as f:
        return sample(path, f.read())


def read_descriptor(path):
    """The same by system calls alone: only opening and reading."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return sample(path, os.read(fd, 1 << 20))
    finally:
        os.close(fd)


class Secret(Sampler):
    """An order from the system's entropy, which cannot be known."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        order = list(range(self.count))
        secrets.SystemRandom().shuffle(order)
        return iter(order)

    def __len__(self):
        return self.count


def main():
    args = arguments()
    torch.set_num_threads(1)
    validation = None
    if args.kind == "seeded":
        torch.manual_seed(42)
    print("ready", flush=True)
    read = read_descriptor if args.descriptors else read_file
    dataset = DatasetFolder(os.path.join(args.data, "train"), read, extensions=(".bin",))
    sampler = None
    if args.kind == "seeded":
        _model = [torch.nn.Linear(1000, 1000) for _ in range(10)]
        validation = DataLoader(DatasetFolder(os.path.join(args.data, "val"), read, extensions=(".bin",)),
                                batch_size=BATCH, num_workers=args.workers)
    elif args.kind == "distributed":
        sampler = DistributedSampler(dataset, num_replicas=args.ranks, rank=args.rank)
    elif args.kind == "secret":
        sampler = Secret(len(dataset))
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=args.workers,
                        generator=torch.Generator().manual_seed(7) if args.kind == "own" else None,
                        shuffle=args.kind in ("shuffled", "own", "seeded"))
    for epoch, sleep in enumerate(map(float, args.sleeps.split(","))):
        if args.kind == "distributed":
            sampler.set_epoch(epoch)
        began = time.perf_counter()
        images, waited, wrong = read_epoch(loader, sleep / len(loader))
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1} images {images} seconds {seconds:.4f} wait {waited:.4f} wrong {wrong}", flush=True)
        if args.sync:
            sys.stdin.readline()
        if validation:
            read_epoch(validation, 0)


if __name__ == "__main__":
    main()
