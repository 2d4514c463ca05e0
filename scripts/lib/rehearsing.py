#!/usr/bin/python3
"""The job that `scripts/bench rehearsal` times: batches of new samples and old ones, from stock torch loaders.

A pair is a directory with the class folders of the task and one with those of old samples.  Two workers read the task
in the order of a DistributedSampler, and one worker reads old samples at random.  A batch of the one comes with one
of the other.  A mix is a directory with both, read in a DistributedSampler's order by two workers.  Workers stay from
one epoch to the next, and hand over only the number of samples that they have read, since tensors cost a loop the
same over any filesystem.  A sample begins with its class and its number, as "012/002400".
One line per epoch: epoch K images N seconds S wait W wrong B.  `wait` is the part that the loop waited for batches.
After each batch it sleeps as long as an accelerator would compute.
"""

import argparse
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import DatasetFolder

ENDING = ".bin"
LARGEST = 1 << 20            # bytes of a sample


def arguments():
    parser = argparse.ArgumentParser(description="Read new samples with old ones among them.")
    parser.add_argument("epochs", help="the pair of each epoch, from 0, and a + where old samples are read too, or m and "
                        "a mix: 0+,0,m0")
    parser.add_argument("--pair", nargs=2, action="append", default=[], metavar=("NEW", "OLD"))
    parser.add_argument("--mix", action="append", default=[], metavar="DIR")
    parser.add_argument("--os", action="store_true", help="read by os.open and os.read, which do not ask of each file "
                        "whether it is a terminal, as open() does")
    parser.add_argument("--batch", nargs=2, type=int, default=(56, 7), metavar=("NEW", "OLD"))
    parser.add_argument("--pace-us", type=float, default=0, help="microseconds that a sample keeps the loop busy")
    parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each epoch")
    return parser.parse_args()


def by_open(path):
    with open(path, "rb") as f:
        return f.read()


def by_os(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, LARGEST)
    finally:
        os.close(fd)


contents = by_open


def read_new(path):
    """Whether a sample is not the one that its name says."""
    data = contents(path)
    return not path.encode().endswith(data[:10] + ENDING.encode())


def read_old(path):
    """Whether a sample is not of its class: a slot shows any sample of it."""
    data = contents(path)
    return os.path.basename(os.path.dirname(path)).encode() != data[:3]


def read_mixed(path):
    """Whether a sample is not the one of its name, before which an old sample has a prefix."""
    data = contents(path)
    folder, name = os.path.split(path.encode())
    return not (folder.endswith(b"/" + data[:3]) and name.endswith(data[4:10] + ENDING.encode()))


def counted(samples):
    """How many samples a batch has, and how many of them are wrong."""
    return len(samples), sum(wrong for wrong, _ in samples)


def loader(dataset, sampler, batch, workers):
    return DataLoader(dataset, batch_size=batch, sampler=sampler, num_workers=workers, persistent_workers=True,
                      collate_fn=counted)


class Task:
    """The samples of a task, or of a mix, each once an epoch."""

    def __init__(self, top, batch, read):
        dataset = DatasetFolder(top, read, extensions=(ENDING,))
        self.sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=0)
        self.loader = loader(dataset, self.sampler, batch, 2)
        self.epoch = 0

    def batches(self):
        """The next epoch."""
        self.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return self.loader


def draws(top, batch, count):
    """`count` batches of old samples."""
    dataset = DatasetFolder(top, read_old, extensions=(ENDING,))
    return loader(dataset, RandomSampler(dataset, replacement=True, num_samples=batch * count), batch, 1)


def run_epoch(loaders, pace):
    """One pass through loaders side by side: images, seconds waited, wrong samples."""
    images, wrong, waited = 0, 0, 0.0
    began = time.perf_counter()
    batches = zip(*loaders, strict=True)
    while True:
        parts = next(batches, None)
        waited += time.perf_counter() - began
        if parts is None:
            return images, waited, wrong
        count = sum(count for count, _ in parts)
        images += count
        wrong += sum(wrong for _, wrong in parts)
        if pace:
            time.sleep(count * pace)
        began = time.perf_counter()


def main():
    global contents
    args = arguments()
    contents = by_os if args.os else by_open
    torch.set_num_threads(1)
    print("ready", flush=True)
    new, old = args.batch
    tasks = {top: Task(top, new, read_new) for top, _ in args.pair}
    mixes = [Task(top, new + old, read_mixed) for top in args.mix]
    rehearsed = [draws(top, old, len(tasks[task].loader)) for task, top in args.pair]
    for epoch, word in enumerate(args.epochs.split(",")):
        of = int(word.strip("m+"))
        began = time.perf_counter()
        if word.startswith("m"):
            loaders = [mixes[of].batches()]
        else:
            loaders = [tasks[args.pair[of][0]].batches(), *([rehearsed[of]] if word.endswith("+") else [])]
        images, waited, wrong = run_epoch(loaders, args.pace_us / 1e6)
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1} images {images} seconds {seconds:.4f} wait {waited:.4f} wrong {wrong}", flush=True)
        if args.sync:
            sys.stdin.readline()


if __name__ == "__main__":
    main()
