#!/usr/bin/python3
"""One rank of a training job: torchvision's ImageFolder, DistributedSampler and torch's DataLoader, as a user has it.

Every sample is checked against the identity in its COM segments. The imports are done before anything is timed.
With --pace, a batch takes at least so many seconds, as if a model were trained with it.
One line per epoch: epoch K images N seconds S longest L wrong B, where L is the longest read in milliseconds and B
counts samples that were wrong or could not be read.  With --in-step, the rank says step after each batch and waits for
a line, as the ranks of a job wait for each other's gradients.
"""

import argparse
import os
import sys
import time

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

from make_data import identity_ok


def arguments():
    parser = argparse.ArgumentParser(description="Read a rank's part of a directory of class folders.")
    parser.add_argument("data")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sync", action="store_true", help="wait for a line on stdin before each epoch")
    parser.add_argument("--pace", type=float, default=0)
    parser.add_argument("--in-step", action="store_true", help="wait for a line on stdin after each batch")
    return parser.parse_args()


class Reader:
    """Reads one file.  A sample is (milliseconds, whether it was wrong)."""

    def __init__(self, top):
        self.top = top

    def __call__(self, path):
        began = time.perf_counter()
        try:
            with open(path, "rb") as f:
                data = f.read()
        except OSError:
            return 1000 * (time.perf_counter() - began), True
        took = 1000 * (time.perf_counter() - began)
        return took, not identity_ok(data, os.path.relpath(path, self.top))


def main():
    args = arguments()
    torch.set_num_threads(1)
    dataset = ImageFolder(args.data, loader=Reader(args.data))
    sampler = DistributedSampler(dataset, num_replicas=args.ranks, rank=args.rank, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler, num_workers=1, persistent_workers=True)
    print("ready", flush=True)
    for epoch in range(args.epochs):
        if args.sync:
            sys.stdin.readline()
        sampler.set_epoch(epoch)
        images = wrong = longest = 0
        due = began = time.perf_counter()
        for (took, bad), _ in loader:
            due += args.pace
            time.sleep(max(0, due - time.perf_counter()))
            images, wrong = images + len(took), wrong + int(bad.sum())
            longest = max(longest, float(took.max()))
            if args.in_step:
                print("step", flush=True)
                sys.stdin.readline()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1} images {images} seconds {seconds:.4f} longest {longest:.2f} wrong {wrong}", flush=True)


if __name__ == "__main__":
    main()
