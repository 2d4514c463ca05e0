"""Real loaders of many libraries, each with and without belady, at half the data's size of RAM.

Goal: tell what belady does for loaders that it was not made with, and where it costs something.
Method: small training jobs as the users of each library write them (scripts/lib/loaders), over `slowpfs --preset busy`,
three epochs each.  NAME.x_direct are the seconds of all epochs through belady over those of the same job on the source
itself, whose page cache has as much memory.  From the second epoch on: NAME.pred is the share of the job's opens that
belady predicted, NAME.ready the share that found their samples there, NAME.x_bytes what the source gave over what
Bélády's rule takes on the sequence that was read (`belady simulate`).  Of random reads in large files,
NAME.x_direct_bytes are the source's bytes of all epochs over those of the job on the source itself.  NAME.x_ram is
what the page cache has of the mount in the end over the RAM that belady was given: above one, belady had more memory
than the other side.  A row whose x_direct is above 0.9 is measured five times.
"""

import shutil
import statistics
import sys

from driver import FAILURES, stopwatch
from loading import Loading, prepared, scratch
from mounts import TARGET, say
from parts import arguments
from report import publish, row

sys.path.append(__file__.rsplit("/", 1)[0] + "/loaders")

from matrix import LARGE, VOLUMES       # noqa: E402  (beside the jobs)

NEAR = .9                    # x_direct above which one pair is not enough
PAIRS = 5
SLOWEST = 1.03               # x_direct
MOST = {"x_direct_bytes": 1.1, "x_ram": 1.1, "unet3d.x_bytes": 1.03}


class Pair:
    """One run of a row through belady and one without."""

    def __init__(self, loading, which, data):
        self.room = data.room
        self.belady = loading.belady(which, data)
        self.ideal = None if which in LARGE else loading.ideal_bytes(which, data)
        self.direct = loading.direct(which, data)

    @property
    def x_direct(self):
        return self.belady.seconds / self.direct.seconds

    @property
    def x_direct_bytes(self):
        return self.belady.sum("source_bytes") / self.direct.sum("source_bytes")

    @property
    def x_bytes(self):
        later = self.belady.epochs[1:]
        return self.belady.sum("source_bytes", 1) / len(later) / self.ideal

    @property
    def x_ram(self):
        return None if self.belady.resident is None else self.belady.resident / self.room

    @property
    def ready(self):
        return self.belady.sum("hits", 1) / max(self.belady.sum("opens", 1), 1)

    @property
    def predicted(self):
        return self.belady.sum("predicted", 1) / self.belady.sum("images", 1)


class Bench:
    """The rows that were measured, and what they gave."""

    def __init__(self, loading, pairs):
        self.loading, self.pairs = loading, pairs
        self.rows, self.notes, self.elapsed = [], [], stopwatch()

    def measure(self, which, data):
        """One row, again where its time is near the source's."""
        pairs = [Pair(self.loading, which, data)]
        if pairs[0].x_direct > NEAR:
            pairs += [Pair(self.loading, which, data) for _ in range(self.pairs - 1)]
        self.add(which.name, "x_direct", [pair.x_direct for pair in pairs], SLOWEST, epochs=pairs[0].belady.epochs,
                 direct_epochs=pairs[0].direct.epochs, held_late_us_max=max(pair.belady.held_late_us for pair in pairs))
        self.add(which.name, "x_ram", [pair.x_ram for pair in pairs if pair.x_ram is not None], MOST["x_ram"])
        if which in LARGE:
            self.add(which.name, "x_direct_bytes", [pair.x_direct_bytes for pair in pairs], MOST["x_direct_bytes"])
            return
        self.add(which.name, "x_bytes", [pair.x_bytes for pair in pairs], MOST.get(f"{which.name}.x_bytes"))
        self.add(which.name, "pred", [pair.predicted for pair in pairs])
        self.add(which.name, "ready", [pair.ready for pair in pairs])

    def add(self, name, figure, runs, bar=None, **more):
        found = row(f"{name}.{figure}", runs, "x" if figure.startswith("x") else "", bar, **more)
        say(f"{self.elapsed():5.0f} s  {found['name']:28} {found['value']}")
        self.rows.append(found)

    def attempt(self, which):
        """Measures a row; says so where it failed. Gives whether it did not."""
        try:
            self.measure(which, prepared(sys.executable, which.data))
        except FAILURES as e:
            self.notes.append(f"{which.name} failed: {e}".replace(TARGET, "target"))
            say(f"{self.elapsed():5.0f} s  {which.name} FAILED: {e}")
            return False
        return True

    def worst(self):
        """The row that belady slows down most."""
        found = [each for each in self.rows if each["name"].endswith(".x_direct")]
        if found:
            slowest = max(found, key=lambda each: each["value"])
            self.add("worst", "x_direct", [slowest["value"]], SLOWEST, note=slowest["name"])


def main():
    rows = [*LARGE, *VOLUMES]
    args = arguments(__doc__, "the same: all rows are always there", "one pair a row", parts=[each.name for each in rows])
    work = scratch()
    try:
        bench = Bench(Loading(sys.executable, work), 1 if args.quick else PAIRS)
        ran = [bench.attempt(each) for each in rows if not args.part or each.name in args.part]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    bench.worst()
    publish("loaders", bench.rows, bench.notes, args.json, keep=not args.part and not args.quick)
    sys.exit(0 if all(ran) else 1)


if __name__ == "__main__":
    main()
