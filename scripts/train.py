#!/usr/bin/python3
"""Trains a small CNN on a directory of class folders: an ordinary PyTorch script.

It knows only a directory, by torchvision's ImageFolder, a DistributedSampler and a DataLoader with worker processes.
After each epoch it prints one line,
    epoch K images N seconds S wait W loss L
where S is the whole epoch and W the part of it that the loop spent waiting for the next batch.  With --sync it then
reads one line from its standard input before it begins the next epoch, so that a measuring program can read its
counters in between.
"""

import argparse
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


def arguments():
    parser = argparse.ArgumentParser(description="Train a small CNN on a directory of class folders.")
    parser.add_argument("data", help="directory with one folder of images per class")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=28, help="images are scaled to this many pixels a side")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each epoch")
    return parser.parse_args()


class SmallNet(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7))
        self.head = nn.Linear(16 * 7 * 7, classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def batches(loader, waited):
    """The batches of one epoch; adds the seconds spent waiting for each to waited[0]."""
    it = iter(loader)
    while True:
        began = time.perf_counter()
        batch = next(it, None)
        waited[0] += time.perf_counter() - began
        if batch is None:
            return
        yield batch


def train_epoch(loader, model, optimizer, loss_fn):
    """One pass over the loader: images, seconds waited, mean loss."""
    images, total, waited = 0, 0.0, [0.0]
    for pictures, labels in batches(loader, waited):
        optimizer.zero_grad()
        loss = loss_fn(model(pictures), labels)
        loss.backward()
        optimizer.step()
        images += len(labels)
        total += loss.item() * len(labels)
    return images, waited[0], total / max(images, 1)


def main():
    args = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    scale = transforms.Compose([transforms.Resize((args.size, args.size)), transforms.ToTensor()])
    dataset = ImageFolder(args.data, transform=scale)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=0)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler, num_workers=args.workers)
    model = SmallNet(len(dataset.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        images, waited, loss = train_epoch(loader, model, optimizer, loss_fn)
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1} images {images} seconds {seconds:.3f} wait {waited:.3f} loss {loss:.4f}", flush=True)
        if args.sync:
            sys.stdin.readline()


if __name__ == "__main__":
    main()
