"""What the training jobs of `scripts/bench loaders` share.

Goal: each job beside this file reads as its library's users write it, and all of them are measured alike.
Method: a job reports what it was handed, sample by sample.  The bytes of each sample say which sample it is.  So a
wrong, torn or lost one is counted, and the order of reads is known: it is written to --log as an order file of
belady.
One line per epoch: epoch K images N reads N seconds S wrong B; a shard is one read.
"""

import argparse
import glob
import os
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from make_data import identity_ok                    # noqa: E402  (beside the directory of the jobs)

BATCH = 32
EPOCHS = 3


class Job:
    """One job's command line, its epochs, and what it was handed in them. It is made when all imports are done."""

    def __init__(self, shards=False):
        """`shards`: the job is handed names of shards, and each shard is read once an epoch."""
        parser = argparse.ArgumentParser()
        parser.add_argument("data")
        parser.add_argument("kind", help="which of the program's loaders")
        parser.add_argument("--workers", type=int, default=4)
        parser.add_argument("--log", help="write what was read to this order file")
        parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each epoch")
        self.args = parser.parse_args()
        self.data, self.kind, self.workers = self.args.data, self.args.kind, self.args.workers
        self.shards = shards
        self.epoch, self.read, self.wrong, self.log = 0, [], 0, self.args.log and open(self.args.log, "w")
        print("ready", flush=True)

    def path(self, *parts):
        """A path below the data."""
        return os.path.join(self.data, *parts)

    def epochs(self):
        """The numbers of the epochs. Each is timed until the next one is asked for."""
        for epoch in range(EPOCHS):
            self.begin()
            yield epoch
            self.end()

    def begin(self):
        """An epoch begins. Called by libraries that have the loop themselves."""
        self.read, self.wrong, self.began = [], 0, time.perf_counter()

    def end(self):
        """An epoch has ended."""
        seconds = time.perf_counter() - self.began
        self.epoch += 1
        images = len(self.read)
        if self.shards:
            self.read = list(dict.fromkeys(self.read))
        self.write()
        print(f"epoch {self.epoch} images {images} reads {len(self.read)} seconds {seconds:.4f} wrong {self.wrong}",
              flush=True)
        if self.args.sync:
            sys.stdin.readline()

    def handed(self, names, wrong=0):
        """Notes what the loop was handed: the names of the samples in an order file, and how many of them are wrong."""
        self.read.extend(map(str, names))
        self.wrong += int(wrong)

    def write(self):
        """Appends an epoch to the log."""
        if self.log:
            self.log.write(f"# epoch {self.epoch - 1}\n" + "".join(f"{name}\n" for name in self.read))
            self.log.flush()


def check_file(data):
    """(path, whether its bytes are wrong) of the imagenet-like file whose bytes these are."""
    data = bytes(data)
    if data[6:13] != b"belady:":
        return "?", True
    name = data[13:200].split(b":", 1)[0].decode(errors="replace")
    return name, not identity_ok(data, name)


def read_image(path):
    """A sample of most jobs: the name of an image by its bytes, and whether these are wrong."""
    with open(path, "rb") as f:
        name, wrong = check_file(f.read())
    return name, wrong or not path.endswith(name)


def images_below(top):
    """The paths of all images, sorted."""
    return sorted(glob.glob(os.path.join(top, "*", "*.jpg")))


def check_row(row, number):
    """Whether the row of this number does not begin with the number."""
    return bytes(memoryview(row).cast("B")[:8]) != b"%08d" % number
