"""Makes the data sets of the demo and of the benches, once, under target/data.

Goal: data that look real to a filesystem and to a decoder, with no download.
Method:
* fashion-mnist: the images of Debian's dataset-fashion-mnist as PNG files, class/00001.png.
* imagenet-like: JPEGs of 100 classes whose sizes are log-normal with a mean of about 110 KB.  A pool of 256 encoded
  images is made once.  A file is the largest pool image that fits the wanted size, filled up with COM segments.  Its
  first COM segment holds its identity ("belady:PATH:SIZE:"), and so does its last one, just before the end marker.
  So another file's bytes, a short file and a torn file are all recognised.
A finished set carries a marker file beside it; a set without its marker is made again.
"""

import argparse
import gzip
import io
import json
import os
import shutil
import struct
import sys

import numpy as np
from PIL import Image

FASHION_DIR = "/usr/share/datasets/fashion-mnist"
FASHION_CLASSES = ["t-shirt", "trouser", "pullover", "dress", "coat",
                   "sandal", "shirt", "sneaker", "bag", "ankle-boot"]
CLASSES = 100
POOL = 256
MEDIAN_BYTES, SIGMA = 95_000, 0.545       # the mean of this log-normal is about 110 KB
SMALLEST, LARGEST = 12_000, 420_000
VERSION = 1                               # raise it when the bytes made change


def idx(name):
    """The array inside one gzipped idx file."""
    path = os.path.join(FASHION_DIR, name)
    try:
        with gzip.open(path, "rb") as f:
            raw = f.read()
    except FileNotFoundError:
        sys.exit(f"make_data: {path} is missing; install the package dataset-fashion-mnist")
    dims = raw[3]
    shape = struct.unpack(f">{dims}I", raw[4:4 + 4 * dims])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def make_fashion(out, files):
    """Writes the first `files` of the 70,000 images."""
    images = np.concatenate([idx("train-images-idx3-ubyte.gz"), idx("t10k-images-idx3-ubyte.gz")])
    labels = np.concatenate([idx("train-labels-idx1-ubyte.gz"), idx("t10k-labels-idx1-ubyte.gz")])
    if not 0 < files <= len(images):
        sys.exit(f"make_data: fashion-mnist has {len(images)} images, {files} were asked for")
    for name in FASHION_CLASSES:
        os.makedirs(os.path.join(out, name))
    numbers = [0] * len(FASHION_CLASSES)
    for image, label in zip(images[:files], labels[:files]):
        numbers[label] += 1
        path = os.path.join(out, FASHION_CLASSES[label], f"{numbers[label]:05}.png")
        Image.fromarray(image).save(path, compress_level=1)


def picture(rng, side):
    """A picture with large shapes and fine grain, so that it does not compress to nothing and is not just noise."""
    coarse = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
    base = np.asarray(Image.fromarray(coarse).resize((side, side), Image.BICUBIC), np.int16)
    grain = rng.integers(-24, 25, (side, side, 1), dtype=np.int16)
    return Image.fromarray(np.clip(base + grain, 0, 255).astype(np.uint8))


def jpeg_pool(rng):
    """POOL encoded images whose sizes follow the wanted distribution, smallest first."""
    pool = []
    bytes_per_pixel = 0.4                 # corrected after each image
    for i in range(POOL):
        spread = np.sort(rng.standard_normal(POOL))[i]
        want = min(max(MEDIAN_BYTES * np.exp(SIGMA * spread), SMALLEST), LARGEST) * 0.97
        side = max(64, int(np.sqrt(want / bytes_per_pixel)))
        buf = io.BytesIO()
        picture(rng, side).save(buf, "JPEG", quality=85)
        pool.append(buf.getvalue())
        bytes_per_pixel = len(pool[-1]) / (side * side)
    return sorted(pool, key=len)


def com(payload):
    """A JPEG comment segment."""
    return b"\xff\xfe" + struct.pack(">H", len(payload) + 2) + payload


def identity(rel, size):
    """The identity that a file of this path and size carries."""
    return f"belady:{rel}:{size}:".encode()


def identity_ok(data, rel):
    """Whether `data` are the whole bytes of the imagenet-like file `rel`, as far as the file itself can tell."""
    want = identity(rel, len(data))
    tail = com(want) + b"\xff\xd9"
    return data[:2] == b"\xff\xd8" and data[6:6 + len(want)] == want and data[-len(tail):] == tail


def fill(count, noise):
    """COM segments of exactly `count` bytes (0, or at least 4)."""
    out = []
    while count:
        part = min(count, 65_537)
        if 0 < count - part < 4:
            part -= 4
        out.append(com(noise[count % 4096:][:part - 4]))
        count -= part
    return b"".join(out)


def jpeg_file(pool, lengths, rel, want, noise):
    """The bytes of one file of about `want` bytes."""
    head = len(com(identity(rel, 10 ** 6)))             # an upper bound of the identity's length
    at = max(0, int(np.searchsorted(lengths, want - 2 * head, side="right")) - 1)
    base = pool[at]
    size = max(want, len(base) + 2 * head + 4)
    mark = com(identity(rel, size))
    pad = fill(size - len(base) - 2 * len(mark), noise)
    return b"".join([base[:2], mark, pad, base[2:-2], mark, base[-2:]])


def make_imagenet(out, files, seed):
    """Writes `files` JPEGs spread evenly over CLASSES folders."""
    rng = np.random.default_rng(seed)
    pool = jpeg_pool(rng)
    lengths = [len(p) for p in pool]
    noise = rng.integers(0, 255, 70_000, dtype=np.uint8).tobytes()   # never 0xff
    wants = np.clip(MEDIAN_BYTES * np.exp(SIGMA * rng.standard_normal(files)), SMALLEST, LARGEST).astype(int)
    for c in range(CLASSES):
        os.makedirs(os.path.join(out, f"n{c:08}"))
    for i, want in enumerate(wants):
        rel = f"n{i % CLASSES:08}/{i // CLASSES + 1:05}.jpg"
        data = jpeg_file(pool, lengths, rel, int(want), noise)
        with open(os.path.join(out, rel), "wb") as f:
            f.write(data)


def default_root():
    """target/data of this checkout."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(top, "target")), "data")


def ensure(kind, files, seed=0, root=None):
    """The directory of the set. It is made if its marker is not there."""
    out = os.path.join(root or default_root(), f"{kind}-{files}" + (f"-seed{seed}" if seed else ""))
    marker = out + ".done"
    wanted = json.dumps({"version": VERSION, "kind": kind, "files": files, "seed": seed})
    if os.path.isdir(out) and os.path.exists(marker):
        with open(marker) as f:
            if f.read() == wanted:
                return out
    print(f"making {kind} ({files:,} files) in {out}", file=sys.stderr, flush=True)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    if kind == "fashion-mnist":
        make_fashion(out, files)
    else:
        make_imagenet(out, files, seed)
    with open(marker, "w") as f:
        f.write(wanted)
    return out


def main():
    parser = argparse.ArgumentParser(description="Make a data set under target/data and print its directory.")
    parser.add_argument("kind", choices=["fashion-mnist", "imagenet-like"])
    parser.add_argument("--files", type=int, help="how many (6,000; imagenet-like 5,000)")
    parser.add_argument("--quick", action="store_true", help="fewer files (fashion-mnist 2,000, imagenet-like 600)")
    parser.add_argument("--full", action="store_true", help="all 70,000 of fashion-mnist, imagenet-like 20,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", help="where (target/data)")
    args = parser.parse_args()
    print(ensure(args.kind, args.files or default_files(args.kind, args.quick, args.full), args.seed, args.root))


def default_files(kind, quick=False, full=False):
    """The number of files of a set if none is given."""
    few, usual, many = (2_000, 6_000, 70_000) if kind == "fashion-mnist" else (600, 5_000, 20_000)
    return few if quick else many if full else usual


if __name__ == "__main__":
    main()
