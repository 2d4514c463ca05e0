"""The demonstration: one unmodified training script, three ways to the same slow filesystem.

Goal: see on one's own machine what belady does, within a few minutes.
Method: scripts/train.py trains on (direct) slowpfs, a model of a busy parallel filesystem; (client_cache) slowpfs as
a caching client of such a filesystem shows it; (belady) a belady mount over slowpfs, whose memory and cache directory
hold the data.  Each way starts cold, with a slowpfs of its own.  slowpfs counts the opens and bytes that reach it,
read at each epoch's end.  After the training every file is read through the mount and compared with the truth.
"""

import argparse
import json
import os
import shutil
import sys

from driver import FAILURES, RunError, files_of, run_program, stopwatch, verify
from make_data import default_files, ensure
from mounts import TARGET, TOP, Belady, Slowpfs, Watchdog, exit_on_signals, fresh_dir, say

WAYS = {"direct": "the slow filesystem itself",
        "client_cache": "the same behind a caching client",
        "belady": "the same behind belady"}
EPOCHS = 3
ORDER = "torch-distributed:seed=0,world=1,rank=0,index=imagefolder"
MIB = 1 << 20
LONGEST = {"quick": 120, "usual": 900, "full": 7200}     # seconds until a way counts as hung


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Train the same PyTorch script over a slow filesystem: directly, through "
        "a caching client, and through belady; 3 epochs each.")
    parser.add_argument("--data", choices=["fashion-mnist", "imagenet-like"], default="fashion-mnist")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer images: under a minute once built")
    size.add_argument("--full", action="store_true", help="all images")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line, last")
    parser.add_argument("--keep", action="store_true", help="keep the cache directory and the logs")
    return parser.parse_args()


class Demo:
    """The data and the places of one demonstration."""

    def __init__(self, args):
        self.args = args
        self.speed = "quick" if args.quick else "full" if args.full else "usual"
        files = default_files(args.data, args.quick, args.full)
        self.data = ensure(args.data, files)
        self.work = fresh_dir(os.path.join(TARGET, f"demo-{os.getpid()}"))
        sizes = [os.path.getsize(os.path.join(self.data, name)) for name in files_of(self.data)]
        self.files, self.bytes = len(sizes), sum(sizes)
        pages = sum(-(-size // 4096) * 4096 for size in sizes)
        self.budget_mib = 64 + int(1.2 * pages / MIB)
        self.image_size = 28 if args.data == "fashion-mnist" else 64

    def train(self, name, path, slow):
        """Trains on `path` and returns the figures of each epoch."""
        last = slow.stats()

        def border(line):
            nonlocal last
            now = slow.stats()
            row = {"images_per_s": round(line["images"] / line["seconds"], 1), "wait_s": line["wait"],
                   "source_opens": now["open"] - last["open"], "source_bytes": now["bytes"] - last["bytes"]}
            last = now
            say(f"  {name} epoch {int(line['epoch'])}: {row['images_per_s']:,.0f} images/s, waited {line['wait']:.1f} s"
                f" of {line['seconds']:.1f} s, loss {line['loss']:.3f}")
            return row

        script = os.path.join(TOP, "scripts", "train.py")
        return run_program([script, path, "--epochs", EPOCHS, "--size", self.image_size], border)

    def measure(self, name, path, slow, mounts):
        """Trains and verifies under a watchdog."""
        with Watchdog(LONGEST[self.speed], mounts) as dog:
            epochs = self.train(name, path, slow)
            if len(epochs) != EPOCHS:
                raise RunError(f"train.py went through {len(epochs)} of {EPOCHS} epochs")
            files, wrong, bad = verify(self.data, path)
        if dog.bitten:
            raise RunError(f"{name} hung")
        say(f"  {name}: {files:,} files compared, {wrong:,} wrong bytes" + (f", e.g. in {bad[0]}" if bad else ""))
        return {"epochs": epochs, "wrong_bytes": wrong}

    def way(self, name):
        """One of the three ways, on fresh mounts."""
        say(f"{name}: {WAYS[name]}")
        source = os.path.join(self.work, f"{name}-source")
        with Slowpfs(self.data, source, client_cache=name == "client_cache") as slow:
            if name != "belady":
                return self.measure(name, source, slow, [slow])
            cache = fresh_dir(os.path.join(self.work, "cache"))
            size = f"{self.budget_mib}MiB"
            options = ["--order", ORDER, "--ram", size, "--cache-dir", cache, "--disk", size]
            with Belady(source, os.path.join(self.work, "mount"), options) as mount:
                return self.measure(name, mount.mountpoint, slow, [slow, mount])

    def clean(self):
        """Removes what the demonstration wrote, but not the data."""
        if self.args.keep:
            say(f"kept: {self.work}")
        else:
            shutil.rmtree(self.work, ignore_errors=True)


def print_table(demo, results):
    """One line per way and epoch."""
    print(f"\n{demo.files:,} images, {demo.bytes / 1e6:,.1f} MB, {EPOCHS} epochs, 2 workers")
    print(f"{'':14} {'epoch':>5} {'images/s':>9} {'waited s':>9} {'source opens':>13} {'source bytes':>13}")
    for name in WAYS:
        for number, row in enumerate(results[name]["epochs"], 1):
            print(f"{name if number == 1 else '':14} {number:>5} {row['images_per_s']:>9,.0f} {row['wait_s']:>9.2f}"
                  f" {row['source_opens']:>13,} {row['source_bytes']:>13,}")
    total = {name: sum(row["wait_s"] for row in results[name]["epochs"]) for name in WAYS}
    print("waited in all: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in total.items()))


def main():
    args = arguments()
    exit_on_signals()
    demo = Demo(args)
    if args.quick:
        say(f"--quick: {demo.files:,} images instead of {default_files(args.data):,}, to end within a minute")
    elapsed = stopwatch()
    try:
        results = {name: demo.way(name) for name in WAYS}
    except FAILURES as e:
        sys.exit(f"demo: {e}")
    finally:
        demo.clean()
    wrong = sum(result.pop("wrong_bytes") for result in results.values())
    print_table(demo, results)
    print(f"wrong bytes: {wrong:,}; took {elapsed():.0f} s")
    if args.json:
        print(json.dumps({"wrong_bytes": wrong, **results}))
    again = sum(row["source_bytes"] for row in results["belady"]["epochs"][1:])
    if again:
        sys.exit(f"demo: belady read {again:,} bytes again from the slow filesystem, though its cache holds the data")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
