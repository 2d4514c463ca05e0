"""The rows of `scripts/bench loaders`: which loader reads what, and what is expected of belady."""

from collections import namedtuple

# job: the program beside this file, job_JOB.py; kind: which of its loaders; data: the set; known: the source of the
# order, "told" (by `order`), "popular" (a seed that belady tries by itself) or "" (neither).
Row = namedtuple("Row", "name job kind data known order workers", defaults=("images", "", "", 4))


def seeded(job, kind, data="images", **more):
    """A row whose order belady can find out."""
    return Row(f"{job}.{kind}", job, kind, data, "popular", **more)


def told(job, kind, order):
    """A row whose order belady is told."""
    return Row(f"{job}.{kind}.told", job, kind, "images", "told", order)


def unknown(job, kind, data="images"):
    """A row whose order cannot be known, or not by belady, for example an order of a few shards."""
    return Row(f"{job}.{kind}", job, kind, data)


# Random reads in large files: their bytes and times are compared with those on the source.
LARGE = [
    Row("memmap", "large", "memmap", "memmap"),
    Row("mds", "mds", "shuffled", "mds"),
    Row("h5py", "large", "h5py", "h5py"),
    Row("tokens", "large", "tokens", "tokens"),
    Row("fio", "fio", "random", "tokens"),
    unknown("datasets", "arrow", "arrow"),
    unknown("pyarrow", "groups", "parquet"),
]

ROWS = [
    *LARGE,
    Row("unet3d", "npz", "shuffled", "npz"),
    unknown("torch", "shuffled"),
    seeded("torch", "seeded"),
    seeded("torch", "generator"),
    told("torch", "generator", "torch-random:seed=7,index=imagefolder"),
    seeded("torch", "persistent"),
    seeded("torch", "distributed"),
    told("torch", "distributed", "torch-distributed:seed=0,index=imagefolder"),
    seeded("torch", "sequential"),
    seeded("torch", "bursts", workers=8),
    unknown("torch", "split"),
    seeded("torch", "subset"),
    unknown("torch", "weighted"),
    seeded("lists", "random"),
    seeded("lists", "numpy"),
    seeded("lists", "rng"),
    seeded("lists", "opencv"),
    seeded("lightning", "fit"),
    seeded("lightning", "val"),
    seeded("accelerate", "plain"),
    seeded("accelerate", "seedable"),
    seeded("transformers", "trainer"),
    seeded("datasets", "files"),
    seeded("timm", "shuffled"),
    told("timm", "repeated", "timm-repeat-aug:index=imagefolder"),
    seeded("torchdata", "stateful"),
    seeded("torchdata", "resumed"),
    unknown("webdataset", "shuffled", "wds"),
    unknown("webdataset", "ordered", "wds"),
    unknown("mds", "ordered", "mds"),
    unknown("litdata", "shuffled", "litdata"),
    unknown("dali", "mmap"),
    seeded("dali", "read"),
    unknown("dali", "epochs"),
    seeded("tensorflow", "files"),
    unknown("tensorflow", "interleave", "tfrecord"),
    seeded("tensorflow", "pydataset"),
    unknown("pyarrow", "scan", "parquet"),
]
