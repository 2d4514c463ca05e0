"""The rows of `scripts/bench loaders`: which loader reads what, and what is asked of belady there."""

from collections import namedtuple

# job: the program beside this file, job_JOB.py; kind: which of its loaders; data: the set; known: what tells the order,
# "told" (by `order`), "popular" (a seed that belady tries by itself) or "" (neither); workers: of the job.
Row = namedtuple("Row", "name job kind data known order workers", defaults=("", "", 4))

# Random reads in large files: what is compared are bytes and time with the source's.
LARGE = [
    Row("memmap", "large", "memmap", "memmap"),
    Row("mds", "mds", "shuffled", "mds"),
    Row("h5py", "large", "h5py", "h5py"),
    Row("tokens", "large", "tokens", "tokens"),
]

# Samples of 8 MB.
VOLUMES = [Row("unet3d", "npz", "shuffled", "npz")]
