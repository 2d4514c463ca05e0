#!/usr/bin/python3
"""A loop over images as most vision models are trained: RandomResizedCrop(224), flips and tensors in batches of 64.

The model itself is left out. One line per epoch: epoch K images N seconds S.
"""

import argparse
import sys
import time

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


def arguments():
    parser = argparse.ArgumentParser(description="Read a directory of class folders through a DataLoader.")
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each epoch")
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    dataset = ImageFolder(args.data, transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]))
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=args.workers)
    print("ready", flush=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        images = sum(len(labels) for _, labels in loader)
        print(f"epoch {epoch + 1} images {images} seconds {time.perf_counter() - began:.4f}", flush=True)
        if args.sync:
            sys.stdin.readline()


if __name__ == "__main__":
    main()
