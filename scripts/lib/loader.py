#!/usr/bin/python3
"""The loader that the benches time: torchvision's ImageFolder and torch's DataLoader, as a user would write it.

Three shapes: no decode (a sample is the number of its bytes), no decode with a pause per batch (--step-ms, what an
accelerator's step looks like to the filesystem), and real decoding (--decode).  With --prep-ms a worker also sleeps for
each sample: that stands for decoding, and takes the same time on a busy machine.  With --burn-ms it uses a processor for
so long.  Every sample of an imagenet-like
set is checked against the identity in its COM segments.  The imports are done before anything is timed.
One line per epoch: epoch K images N seconds S wait W scan T wrong B, where T is the listing of the directory
(first epoch only, not part of S) and B counts the samples that were not what they should be.
"""

import argparse
import io
import os
import sys
import time

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from make_data import identity_ok


def arguments():
    parser = argparse.ArgumentParser(description="Read a directory of class folders through a DataLoader.")
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=0, help="sleep so long after each batch")
    parser.add_argument("--prep-ms", type=float, default=0, help="sleep so long for each sample, in the worker")
    parser.add_argument("--burn-ms", type=float, default=0, help="use a processor so long for each sample, in the worker")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each epoch")
    return parser.parse_args()


class Reader:
    """Reads one file: its identity is checked; the sample is (length or picture, whether it was wrong)."""

    def __init__(self, top, args):
        self.top, self.prep, self.burn = top, args.prep_ms / 1000, args.burn_ms / 1000
        self.scale = None
        if args.decode:
            self.scale = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])

    def __call__(self, path):
        with open(path, "rb") as f:
            data = f.read()
        wrong = not identity_ok(data, os.path.relpath(path, self.top))
        if self.prep:
            time.sleep(self.prep)
        until = time.thread_time() + self.burn
        while time.thread_time() < until:
            pass
        if self.scale is None:
            return len(data), wrong
        return self.scale(Image.open(io.BytesIO(data)).convert("RGB")), wrong


def read_epoch(loader, step):
    """One pass: images, seconds waited, wrong samples."""
    images = wrong = 0
    waited = 0.0
    it = iter(loader)
    while True:
        began = time.perf_counter()
        batch = next(it, None)
        waited += time.perf_counter() - began
        if batch is None:
            return images, waited, wrong
        (_, bad), labels = batch
        images += len(labels)
        wrong += int(bad.sum())
        if step:
            time.sleep(step)


def main():
    args = arguments()
    torch.set_num_threads(1)
    print("ready", flush=True)
    began = time.perf_counter()
    dataset = ImageFolder(args.data, loader=Reader(args.data, args))
    scan = time.perf_counter() - began
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=0)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler, num_workers=args.workers)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        images, waited, wrong = read_epoch(loader, args.step_ms / 1000)
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1} images {images} seconds {seconds:.4f} wait {waited:.4f} scan {scan:.4f}"
              f" wrong {wrong}", flush=True)
        scan = 0.0
        if args.sync:
            sys.stdin.readline()


if __name__ == "__main__":
    main()
