"""Derived samples: a loop over images that belady resizes, beside copies that were made beforehand.

Goal: nobody has to prepare copies of a dataset.
Method: the dataset is 2,000 JPEGs of 500 x 375 pixels on the local disk, in the page cache.  The job is RandomResizedCrop(224) with
two workers.  It reads *originals*, or *offline* copies, whose shorter side has 256 pixels, that Pillow wrote beforehand, or
`.derived/256/` of a mount of belady over the originals.  belady is told no order.  The three take turns.
first.x_originals is the time of an epoch over the originals, divided by that of the first one through belady, which makes all
samples.  steady.x_originals is the same of the second epoch.  steady.x_offline is the time of the second epoch through belady,
divided by that of the offline copies.
decodes_per_sample counts what belady has made for each sample after three jobs have read all samples at the same time, each in
an order of its own.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image
from torchvision.transforms import Resize

from driver import RunError, run_program
from loading import Data
from mounts import TARGET, TOP, Belady, Watchdog, fresh_dir, say
from parts import Parts

IMAGES, CLASSES = 2_000, 20
WIDTH, HEIGHT = 500, 375
COPIES = 256                 # pixels of the shorter side
QUALITY = 90
EPOCHS = 2
LONGEST = 300                # seconds until a run counts as hung
JOB = os.path.join(TOP, "scripts", "lib", "cropping.py")


def photograph(number):
    """A picture of large shapes and fine grain, always the same for a number."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    base = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.BICUBIC), np.int16)
    grain = rng.integers(-14, 15, (HEIGHT, WIDTH, 1), dtype=np.int16)
    return Image.fromarray((base + grain).clip(0, 255).astype(np.uint8))


def names():
    return [f"class{number % CLASSES:02}/{number:05}.jpg" for number in range(IMAGES)]


def make(top, image):
    """Writes images to a directory, unless they are there."""
    if os.path.exists(top + ".done"):
        return Data(top)
    say(f"making {top}")
    fresh_dir(top)
    for number in range(CLASSES):
        os.makedirs(f"{top}/class{number:02}")
    for number, name in enumerate(names()):
        image(number, name).save(f"{top}/{name}", quality=QUALITY)
    with open(top + ".done", "w"):
        pass
    return Data(top)


class Derived(Parts):
    """The loop, and then three jobs."""

    PARTS = ("loop", "jobs")
    BARS = {"steady.x_offline": 1.05, "steady.x_originals": None, "first.x_originals": None, "decodes_per_sample": 1.0}
    TURNS = (7, 1, 15)

    def __init__(self, *args):
        super().__init__(*args)
        data = os.path.join(TARGET, "data")
        self.originals = make(f"{data}/photographs", lambda number, _: photograph(number))
        resize = Resize(COPIES)
        self.offline = make(f"{data}/photographs-{COPIES}",
                            lambda _, name: resize(Image.open(f"{self.originals.top}/{name}").convert("RGB")))

    def read(self, top, epochs, mounts=(), seed=0):
        """The seconds of each epoch of the job."""
        with Watchdog(LONGEST, list(mounts)) as dog:
            found = run_program([JOB, top, "--epochs", epochs, "--seed", seed], lambda epoch: epoch)
        if dog.bitten or [epoch["images"] for epoch in found] != [IMAGES] * epochs:
            raise RunError(f"not all images were read: {found}")
        return [epoch["seconds"] for epoch in found]

    def mount(self):
        """belady over the originals."""
        recipe = f'derived=[{{name="{COPIES}", resize={COPIES}, quality={QUALITY}}}]'
        return Belady(self.originals.top, f"{self.top}/mount", ["--ram", "1GiB", "--set", recipe])

    @staticmethod
    def made(mount):
        """How many samples were made. None may have failed."""
        [status] = mount.status()["derived"]
        if status["failed"]:
            raise RunError(f"samples could not be made: {status}")
        return status["made"]

    def derived(self):
        """The first epoch through belady, and the second one."""
        with self.mount() as mount:
            mount.await_scan()
            first, second = self.read(f"{mount.mountpoint}/.derived/{COPIES}", EPOCHS, [mount])
            # The kernel may have taken some pages back.
            if not IMAGES <= self.made(mount) <= 1.02 * IMAGES:
                raise RunError(f"{self.made(mount)} samples were made of {IMAGES}")
            return first, second

    def loop(self):
        """The three ways in turn."""
        ways = {"originals": lambda: self.read(self.originals.top, EPOCHS)[1],
                "offline": lambda: self.read(self.offline.top, EPOCHS)[1], "derived": self.derived}
        runs = {name: [] for name in ways}
        for turn in range(self.pairs):
            self.originals.warm()
            self.offline.warm()
            for name in list(ways) if turn % 2 == 0 else reversed(list(ways)):
                runs[name].append(ways[name]())
            say(f"{self.elapsed():5.0f} s  " + "  ".join(f"{name} {found[-1]}" for name, found in runs.items()))
        turns = list(zip(runs["originals"], runs["offline"], runs["derived"]))
        seconds = {"originals": runs["originals"], "offline": runs["offline"],
                   "first": [first for first, _ in runs["derived"]], "steady": [second for _, second in runs["derived"]]}
        for name, found in seconds.items():
            self.add(f"{name}.s", found, "s")
        self.add("steady.x_offline", [steady / offline for _, offline, (_, steady) in turns])
        self.add("steady.x_originals", [originals / steady for originals, _, (_, steady) in turns])
        self.add("first.x_originals", [originals / first for originals, _, (first, _) in turns])

    def jobs(self):
        """Three jobs at the same time."""
        self.originals.warm()
        with self.mount() as mount, ThreadPoolExecutor(3) as pool:
            mount.await_scan()
            top = f"{mount.mountpoint}/.derived/{COPIES}"
            list(pool.map(lambda seed: self.read(top, 1, [mount], seed), range(3)))
            self.add("decodes_per_sample", [self.made(mount) / IMAGES], "")


if __name__ == "__main__":
    Derived.main(__doc__, "each way once")
