"""Samples inside large files, read in a random order that is known, at half the data's size of RAM.

Goal: a large file costs what its samples would cost as files of their own.
Method: loaders of libraries (scripts/lib/loaders) over `slowpfs --preset busy`, three epochs each, and the same jobs on the
source itself, whose page cache has as much memory.  NAME.x_direct are the seconds of all epochs through belady over those on
the source.  NAME.steady.x_ideal_bytes is what the source gave in an epoch after the first one, over the half of the data that
RAM cannot hold.  The rest is what is staged ahead, and pages that samples share, if neither is in RAM.
npy and small are arrays that are mapped, with rows of about 100 and 20 KB.  hdf5 is a data set in one piece, chunks one with
a chunk for each row, mds are shards of MosaicML, arrow is a data set of Hugging Face's library, and lmdb a database, with rows
of 100 KB.  Their orders are told with `index=`.
npz are files of 8 MB that are read whole, tar and tfrecord are 80 shards of 5.5 MB that are read in sequence.  The order of the
files is told.
coalesce are 64 files of 64 rows of about 100 KB, told by an order file, where each operation takes 5 ms.  With RAM for all,
coalesce.ops_share is how many reads reach the source in the first epoch, over the rows, and coalesce.amplification its bytes
over the data.  With RAM for half, coalesce.half.x_seconds is the time of all epochs over the time of the same if each row is
read by itself.
The kernel divides a read of a FUSE filesystem, such as slowpfs, by fs.fuse.max_pages_limit.  So that is raised meanwhile.
"""

import contextlib
import os
import shutil
import sys

import torch

from driver import FAILURES, stopwatch
from loading import EPOCHS, SHARE, Loading, prepared, scratch
from mounts import TARGET, TOP, say
from parts import arguments
from report import publish, row

sys.path.append(f"{TOP}/scripts/lib/loaders")

from make_sets import PARTS, ROWS_EACH    # noqa: E402  (beside the jobs)
from matrix import Row                       # noqa: E402

PAIRS = 5
SEEDED = "torch-random:seed=7"
ROWS = {                                    # program, loader, data, order, most bytes
    "npy": ("large", "memmap.seeded", "large_rows", f"{SEEDED},index=npy", 1.06),
    "small": ("large", "memmap.seeded", "small_rows", f"{SEEDED},index=npy", 1.25),
    "hdf5": ("large", "h5py.seeded", "large_h5py", f"{SEEDED},index=hdf5:rows", 1.06),
    "chunks": ("large", "h5py.seeded", "large_chunks", f"{SEEDED},index=hdf5:rows", 1.06),
    "mds": ("mds", "random", "large_mds", f"{SEEDED},index=mds", 1.06),
    "arrow": ("datasets", "arrow", "large_arrow", "numpy-generator:seed=42,epochs=reseed,index=arrow:row", 1.06),
    "lmdb": ("large", "lmdb.seeded", "large_lmdb", f"{SEEDED},index=lmdb", 1.06),
    "npz": ("npz", "seeded", "npz", SEEDED, 1.06),
    "tar": ("webdataset", "seeded", "many_wds", "python-random:seed=42,epochs=same", 1.06),
    "tfrecord": ("tensorflow", "seeded", "many_tfrecord", "tf-shuffle:seed=42", 1.06),
}
COALESCE = "coalesce"
SLOW_READS = ["--direct-io", "--ra-kb", 8_192, "--read-ms", 5, "--slots", 8, "--mbs", 400]
ALONE = ["--set", "prefetch.request=0"]
PAGES_LIMIT = "/proc/sys/fs/fuse/max_pages_limit"
PAGES_OF_RUN = 2_048                        # 8 MiB


@contextlib.contextmanager
def long_reads():
    """The kernel sends reads of up to 8 MiB to FUSE filesystems that are mounted meanwhile."""
    with open(PAGES_LIMIT) as f:
        before = f.read()

    def put(value):
        with open(PAGES_LIMIT, "w") as f:
            f.write(str(value))
    put(PAGES_OF_RUN)
    try:
        yield
    finally:
        put(before)


def order_of_raw(data, work):
    """An order file of the rows, in the order of the job's loader."""
    each, generator = next(iter(data.sizes.values())) // ROWS_EACH, torch.Generator().manual_seed(7)
    told = os.path.join(work, "raw.order")
    with open(told, "w") as f:
        for epoch in range(EPOCHS):
            f.write(f"# epoch {epoch}\n")
            torch.empty((), dtype=torch.int64).random_(generator=generator)      # the seed of the loader's workers
            for i in torch.randperm(PARTS * ROWS_EACH, generator=generator).tolist():
                f.write(f"{i // ROWS_EACH:03}.bin\t{i % ROWS_EACH * each}\t{each}\n")
    return told


def coalesce(python, work, times, elapsed):
    """The rows of files whose samples are read together."""
    loading, data = Loading(python, work, "idle", SLOW_READS), prepared(python, "raw")
    which = Row(COALESCE, "large", "raw.seeded", "raw", "told", order_of_raw(data, work))
    count, all_bytes = PARTS * ROWS_EACH, sum(data.sizes.values())
    shares, amplified, seconds = [], [], []
    with long_reads():
        for nth in range(times):
            first = loading.belady(which, data, ram=int(1.3 * all_bytes)).epochs[0]
            shares.append(first["source_reads"] / count)
            amplified.append(first["source_bytes"] / all_bytes)
            turn = 1 - nth % 2 * 2           # each of them is first in turn
            both = [loading.belady(which, data, *settings).seconds for settings in [(), ALONE][::turn]]
            together, alone = both[::turn]
            seconds.append(together / alone)
            say(f"{elapsed():5.0f} s  {COALESCE} ops_share {shares[-1]:.4f}  amplification {amplified[-1]:.3f}  "
                f"half.x_seconds {seconds[-1]:.3f}")
    return [row(f"{COALESCE}.ops_share", shares, "reads/row", 1 / 32), row(f"{COALESCE}.amplification", amplified, "x", 1.1),
            row(f"{COALESCE}.half.x_seconds", seconds, "x", 1.0)]


def main():
    args = arguments(__doc__, f"each row {PAIRS} times", "each row once", [*ROWS, COALESCE], "other rows stay as they are")
    times_each = 1 if args.quick else PAIRS
    python, work, elapsed = sys.executable, scratch(), stopwatch()
    loading, rows, notes, failed = Loading(sys.executable, work), [], [], False
    try:
        for name, (job, kind, kept, order, most) in ROWS.items():
            if args.part and name not in args.part:
                continue
            data = prepared(python, kept)
            which = Row(name, job, kind, kept, "told", order)
            times, shares, runs = [], [], []
            for _ in range(times_each):
                try:
                    through, direct = loading.belady(which, data), loading.direct(which, data)
                except FAILURES as e:
                    notes.append(f"{name} failed: {e}".replace(TARGET, "target"))
                    say(f"{elapsed():5.0f} s  {name} FAILED: {e}")
                    failed = True
                    continue
                ideal = (1 - SHARE) * sum(data.sizes.values())
                times.append(through.seconds / direct.seconds)
                shares.append(through.bytes_for(1) / (len(through.epochs) - 1) / ideal)
                runs.append({"belady": through.epochs, "direct": direct.epochs})
                say(f"{elapsed():5.0f} s  {name:6} x_direct {times[-1]:.3f}  x_ideal_bytes {shares[-1]:.3f}  "
                    f"ready {through.ready:.3f}")
            rows.append(row(f"{name}.x_direct", times, "x", 1.03))
            rows.append(row(f"{name}.steady.x_ideal_bytes", shares, "x", most, last=runs[-1:]))
        if not args.part or COALESCE in args.part:
            try:
                rows += coalesce(python, work, times_each, elapsed)
            except (*FAILURES, OSError) as e:
                notes.append(f"{COALESCE} failed: {e}".replace(TARGET, "target"))
                say(f"{elapsed():5.0f} s  {COALESCE} FAILED: {e}")
                failed = True
    finally:
        shutil.rmtree(work, ignore_errors=True)
    publish("shards", rows, notes, args.json, keep=not args.quick and not (args.part and failed), merge=bool(args.part))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
