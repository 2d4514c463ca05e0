#!/usr/bin/python3
"""Trains a small CNN on one task after the other, each of a few classes: an ordinary PyTorch script.

It knows only directories of class folders, by torchvision's ImageFolder and a DataLoader.  There are three ways:
* incremental: each task's classes alone, one task after the other;
* rehearsal:   the same, but epoch K reads the directory OLD/mix-K, where old samples are among the new ones;
* scratch:     after each task a new network learns all classes so far from the beginning.
After each task it prints one line,
    epoch TASK accuracy A seconds S
where A is the accuracy over the test images of all classes, also those of later tasks.  With --sync it then reads one
line from its standard input before it begins the next task.
"""

import argparse
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

WAYS = ["incremental", "rehearsal", "scratch"]


def arguments():
    parser = argparse.ArgumentParser(description="Train a small CNN on one task after the other.")
    parser.add_argument("data", help="directory with train/CLASS and test/CLASS")
    parser.add_argument("--way", choices=WAYS, default="incremental")
    parser.add_argument("--old", help="rehearsal: where the directories mix-K are")
    parser.add_argument("--classes", type=int, default=2, help="classes of a task")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a task")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each task")
    return parser.parse_args()


class SmallNet(nn.Module):
    """Two convolutions and two linear layers, for 28 by 28 pixels."""

    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


SCALE = transforms.Compose([transforms.Grayscale(), transforms.ToTensor()])


class Folder(ImageFolder):
    """An ImageFolder whose labels are places in a list of all classes, whichever classes it has."""

    def __init__(self, root, classes):
        self.known = classes
        super().__init__(root, transform=SCALE)

    def find_classes(self, directory):
        present = sorted(set(os.listdir(directory)) & set(self.known))
        return present, {name: self.known.index(name) for name in present}


def train(model, dataset, args, optimizer):
    """One epoch."""
    model.train()
    for pictures, labels in DataLoader(dataset, batch_size=args.batch, shuffle=True, num_workers=1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()


def accuracy(model, tests):
    """The share of the test images that the model recognises."""
    model.eval()
    with torch.no_grad():
        right = sum((model(pictures).argmax(1) == labels).sum().item() for pictures, labels in tests)
    return right / sum(len(labels) for _, labels in tests)


def learn_task(task, classes, model, args):
    """Trains on a task; with rehearsal or from scratch, on samples of earlier tasks as well."""
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    own = classes[task * args.classes:(task + 1) * args.classes]
    so_far = classes[:(task + 1) * args.classes]
    for epoch in range(task * args.epochs, (task + 1) * args.epochs):
        if args.way == "rehearsal":
            dataset = Folder(os.path.join(args.old, f"mix-{epoch}"), classes)
        else:
            wanted = so_far if args.way == "scratch" else own
            train_dir = os.path.join(args.data, "train")
            whole = Folder(train_dir, classes)
            chosen = {classes.index(name) for name in wanted}
            dataset = Subset(
                whole, [at for at, label in enumerate(whole.targets) if label in chosen])
        train(model, dataset, args, optimizer)


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    classes = sorted(os.listdir(os.path.join(args.data, "train")))
    tests = list(DataLoader(Folder(os.path.join(args.data, "test"), classes), batch_size=500, num_workers=1))
    model = SmallNet(len(classes))
    for task in range(len(classes) // args.classes):
        began = time.perf_counter()
        if args.way == "scratch":
            model = SmallNet(len(classes))
        learn_task(task, classes, model, args)
        seconds = time.perf_counter() - began
        print(f"epoch {task} accuracy {accuracy(model, tests):.4f} seconds {seconds:.2f}", flush=True)
        if args.sync:
            sys.stdin.readline()


if __name__ == "__main__":
    main()
