"""What the training jobs of `scripts/bench loaders` share.

Goal: each job beside this file reads as its library's users write it, and all of them are measured alike.
Method: a job says what it was handed, sample by sample.  Each sample carries what it is in its own bytes, so a wrong,
torn or lost one is counted, and what was read is known in its order without asking anyone: it is written to --log as
an order file of belady.  One line per epoch: epoch K images N seconds S wrong B.
"""

import argparse
import os
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from make_data import identity_ok                    # noqa: E402  (beside the directory of the jobs)

BATCH = 32


class Job:
    """One job's command line, its epochs, and what it was handed in them. Made when all imports are done."""

    def __init__(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("data")
        parser.add_argument("kind", help="which of the program's loaders")
        parser.add_argument("--samples", type=int, default=0, help="how many an epoch must have")
        parser.add_argument("--epochs", type=int, default=3)
        parser.add_argument("--workers", type=int, default=4)
        parser.add_argument("--log", help="write what was read to this order file")
        parser.add_argument("--sync", action="store_true", help="wait for a line on stdin after each epoch")
        self.args = parser.parse_args()
        self.data, self.kind, self.workers = self.args.data, self.args.kind, self.args.workers
        self.read, self.wrong, self.log = [], 0, self.args.log and open(self.args.log, "w")
        print("ready", flush=True)

    def path(self, *parts):
        """A path below the data."""
        return os.path.join(self.data, *parts)

    def epochs(self):
        """The numbers of the epochs, each timed from when it is given until the next is asked for."""
        for epoch in range(self.args.epochs):
            self.read, self.wrong = [], 0
            began = time.perf_counter()
            yield epoch
            seconds = time.perf_counter() - began
            if self.args.samples and len(set(self.read)) > self.args.samples:
                self.wrong += 1
            self.write(epoch)
            print(f"epoch {epoch + 1} images {len(self.read)} seconds {seconds:.4f} wrong {self.wrong}", flush=True)
            if self.args.sync:
                sys.stdin.readline()

    def handed(self, names, wrong=0):
        """What the loop was handed: the samples by their names in an order file, and how many of them are wrong."""
        self.read.extend(map(str, names))
        self.wrong += int(wrong)

    def write(self, epoch):
        """Appends an epoch to the log."""
        if self.log:
            self.log.write(f"# epoch {epoch}\n" + "".join(f"{name}\n" for name in self.read))
            self.log.flush()


def check_file(data):
    """(path, whether its bytes are wrong) of the imagenet-like file whose bytes these are."""
    data = bytes(data)
    if data[6:13] != b"belady:":
        return "?", True
    name = data[13:200].split(b":", 1)[0].decode(errors="replace")
    return name, not identity_ok(data, name)


def check_row(row, number):
    """Whether the row of this number does not begin with it."""
    return bytes(memoryview(row).cast("B")[:8]) != b"%08d" % number
