"""Real loaders of many libraries, each with and without belady, at half the data's size of RAM.

Goal: tell what belady does for loaders that it was not made with, and where it costs something.
Method: small training jobs as the users of each library write them (scripts/lib/loaders), over `slowpfs --preset
busy`, three epochs each.  NAME.x_direct are the seconds of all epochs through belady over those of the same job on
the source itself, whose page cache has as much memory.  The next three are from the second epoch on.  NAME.pred is
the share of the job's opens that belady predicted.  NAME.ready is the share of opens that found their samples there.
NAME.x_bytes is what the source gave over what Bélády's rule takes on the sequence that was read (`belady simulate`,
or the rule itself over all epochs if files have many blocks), without what is staged in the end for an epoch that is
not read.  For random reads in large files, NAME.x_direct_bytes are the source's bytes of all epochs over those of the
job on the source itself.  NAME.x_ram is what the page cache has of the mount in the end over the RAM that belady was
given.  If it is above one, belady had more memory than the other side, and the row's other figures say little.  A row
whose order is not told and has no popular seed is compared with belady that learns nothing: NAME.ready may be no more
than 0.01 below NAME.ready_unread.  For rows of few files, in which chance decides, NAME.as_ready is the share of
pairs of runs, one with learning and one without, in which the first is at most 0.01 less ready.  With five runs each,
learning does harm beyond chance if that share is below 0.2 (Mann and Whitney's test, at five in a hundred).  A row
whose x_direct is above 0.9, or that misses another bar, is measured five times, and the medians are compared.
"""

import shutil
import statistics
import sys

from driver import FAILURES, RunError, stopwatch
from loading import Loading, prepared, scratch
from mounts import TARGET, TOP, say
from parts import arguments
from report import publish, row

sys.path.append(f"{TOP}/scripts/lib/loaders")

from matrix import LARGE, ROWS          # noqa: E402  (beside the jobs)

LIMIT = 24 * 60              # seconds after which no row is measured again
NEAR = .9                    # x_direct above which one pair is not enough
PAIRS, FULL = 5, 9
SLOWEST, MOST_BYTES, MOST_DIRECT_BYTES, MOST_RAM = 1.03, 1.03, 1.1, 1.1
MOST_OF = {"unet3d": 1.1}    # x_bytes of rows that have no other bar
PREDICTED = .99
LESS_READY = .01             # than without learning


class Pair:
    """One run of a row through belady, one without it, and, with `unread`, one through belady that learns nothing."""

    def __init__(self, loading, which, data, unread):
        self.room, self.known = data.room, which.known
        self.belady = loading.belady(which, data)
        self.ideal, self.since = (None, 0) if which in LARGE else loading.ideal(which, data)
        self.direct = loading.direct(which, data)
        if self.belady.sum("images") != self.direct.sum("images"):
            raise RunError(f"{self.belady.sum('images'):.0f} samples through belady, "
                           f"{self.direct.sum('images'):.0f} directly")
        self.unread = loading.belady(which, data, "--set", "order.learn=off") if unread else None

    @property
    def x_direct(self):
        return self.belady.seconds / self.direct.seconds

    @property
    def x_direct_bytes(self):
        return self.belady.sum("source_bytes") / self.direct.sum("source_bytes")

    @property
    def x_bytes(self):
        return self.belady.bytes_for(self.since) / self.ideal if self.ideal else None

    @property
    def x_ram(self):
        return None if self.belady.resident is None else self.belady.resident / self.room

    @property
    def predicted(self):
        return self.belady.sum("predicted", 1) / self.belady.sum("reads", 1)

    @property
    def ready(self):
        return self.belady.ready

    @property
    def unread_ready(self):
        return self.unread.ready if self.unread else None

    @property
    def near(self):
        """Whether one pair is not enough."""
        foreseen = self.predicted >= PREDICTED and self.x_bytes <= MOST_BYTES
        return self.x_direct > NEAR or self.less_ready or bool(self.known) and not foreseen

    @property
    def less_ready(self):
        return self.unread is not None and self.ready < self.unread.ready - LESS_READY


class Bench:
    """The pairs of each row, and the rows made of them."""

    def __init__(self, loading, chosen, full):
        self.loading, self.chosen, self.full = loading, chosen, full
        self.pairs, self.rows, self.notes, self.elapsed = {which: [] for which in chosen}, [], [], stopwatch()

    def measure(self, which):
        """Measures one pair of a row, or notes why it failed. Returns whether it succeeded."""
        first = not self.pairs[which]
        again = self.full or not first and self.pairs[which][0].less_ready
        unread = not which.known and which not in LARGE and (first or again)
        try:
            pair = Pair(self.loading, which, prepared(sys.executable, which.data), unread)
        except FAILURES as e:
            self.notes.append(f"{which.name} failed: {e}".replace(TARGET, "target"))
            say(f"{self.elapsed():5.0f} s  {which.name} FAILED: {e}")
            return False
        self.pairs[which].append(pair)
        say(f"{self.elapsed():5.0f} s  {which.name:26} x_direct {pair.x_direct:.3f}  ready {pair.ready:.3f}  "
            f"predicted {pair.predicted:.3f}")
        return True

    def run(self, most):
        """Runs all rows once, then those near a bar up to `most` times. Returns whether none failed."""
        if self.full:
            return all([self.measure(which) for which in self.chosen for _ in range(FULL)])
        ran = all([self.measure(which) for which in self.chosen])
        for count in range(1, most):
            for which in self.chosen:
                pairs = self.pairs[which]
                if len(pairs) == count and pairs[0].near:
                    if self.elapsed() > LIMIT:
                        self.notes.append(f"{which.name} was measured only {count} times, for lack of time")
                    else:
                        ran = self.measure(which) and ran
        return ran

    def report(self):
        """Makes the rows."""
        for which, pairs in self.pairs.items():
            if pairs:
                self.report_of(which, pairs)
        times = [each for each in self.rows if each["name"].endswith(".x_direct")]
        if times:
            slowest = max(times, key=lambda each: each["value"])
            self.add("worst", "x_direct", [slowest["value"]], SLOWEST, note=slowest["name"])
        errors = [pair.belady.errors for pairs in self.pairs.values() for pair in pairs]
        self.add("all", "errors", errors, 0, value=sum(errors),
                 note="reads that belady answered with an error; wrong samples end a row")

    def report_of(self, which, pairs):
        """The figures of a row."""
        def values(name):
            return [value for value in (getattr(pair, name) for pair in pairs) if value is not None]
        one, of = pairs[0], which.name
        self.add(of, "x_direct", values("x_direct"), SLOWEST, epochs=one.belady.epochs, direct_epochs=one.direct.epochs,
                 held_late_us_max=max(pair.belady.held_late_us for pair in pairs))
        self.add(of, "x_ram", values("x_ram"), MOST_RAM)
        if which in LARGE:
            self.add(of, "x_direct_bytes", values("x_direct_bytes"), MOST_DIRECT_BYTES)
            return
        self.add(of, "x_bytes", values("x_bytes"), MOST_BYTES if which.known else MOST_OF.get(of), ideal=one.ideal)
        self.add(of, "pred", values("predicted"), PREDICTED if which.known else None, at_least=True,
                 belief=one.belady.belief, orders=one.belady.orders)
        ready, unread = values("ready"), values("unread_ready")
        least = round(statistics.median(unread) - LESS_READY, 4) if unread else None
        self.add(of, "ready", ready, least, at_least=True)
        if unread:
            self.add(of, "ready_unread", unread)
            no_less = [one >= other - LESS_READY for one in ready for other in unread]
            self.add(of, "as_ready", [sum(no_less) / len(no_less)])

    def add(self, name, figure, runs, bar=None, **more):
        self.rows.append(row(f"{name}.{figure}", runs, "x" if figure.startswith("x") else "", bar, **more))


def main():
    args = arguments(__doc__, f"each row {FULL} times, whatever comes out, no limit of time", "each row once",
                     [which.name for which in ROWS])
    work = scratch()
    try:
        chosen = [which for which in ROWS if not args.part or which.name in args.part]
        bench = Bench(Loading(sys.executable, work), chosen, args.full)
        ran = bench.run(1 if args.quick else PAIRS)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    bench.report()
    publish("loaders", bench.rows, bench.notes, args.json, keep=not args.part and not args.quick)
    sys.exit(0 if ran else 1)


if __name__ == "__main__":
    main()
