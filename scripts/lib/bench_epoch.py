"""Epoch times over a busy source: belady, the source itself, its caching client, staging, local files.

Goal: tell how near belady comes to what the link allows (cold) and to local files (steady), at several cache sizes.
Method: 5,000 imagenet-like JPEGs of about 110 KB behind `slowpfs --preset busy`; a torch DataLoader with 2 workers,
batches of 64, DistributedSampler.  Prefetching waits for the first open, so that the loader's start gives no free
head start.  Shape A reads and checks, B also pauses 50 ms a batch, C decodes. cold is epoch 1, steady the median of
the later epochs.  A row is the median over its mounts, each divided by a run of the same turn.  A turn runs
everything that has a bar, with a few epochs each.  What is there only to compare with runs once. client_cache.50 is
the caching client with memory for half of the data.  "bound" is the time of the best of 8, 16 and 32 parallel copiers
(found in the first turn).  "ideal bytes" is the data less what the cache can hold, in pages. floor: with decoding
both cores are busy, and any reader of the source takes time from the loader.
"""

import statistics
import sys

from make_data import default_files, ensure
from model_error import model_error
from parts import arguments
from report import publish, row
from rig import LATE_US, MIB, Rig
from schedule import LIMIT, Schedule

LINK = 200e6                 # bytes a second of the preset busy
BARS = {"cold.x_bound": .95, "cold.x_link": 1.08, "cold.step.x_local": 1.04, "steady.step.x_local": 1.03,
        "cold.decode.x_local": 1.12, "steady.100.decode.x_local": 1.05, "steady.50.x_bound": .95,
        "steady.20.x_bound": .95, "steady.50.x_ideal_bytes": 1.02, "steady.20.x_ideal_bytes": 1.02,
        "steady.0.x_bound": .95, "memory_over_budget_mib": 48}
COPIERS = (8, 16, 32)
READERS = 16                 # readers of the slow source, beside a loader of local files
SIZES = ("100", "50", "20", "0", "dir")
TURNS = 3                    # then come the runs to compare with, and further turns while there is time
TURNS_MOST = 7
PAIRS = 7                    # turns of the part decode
EPOCHS = {"A": 3, "B": 2, "C": 2}
EPOCHS_FULL = 5


def sizes_of(rig, size):
    """(ram, disk, settings) of a cache size: percent of the data in pages, or 20 % with a directory for the rest."""
    if size == "0":
        return 32 * MIB, 0, ["cache.policy=none"]
    if size == "dir":
        return rig.pages // 5, int(1.1 * rig.pages), []
    if size == "100":
        return int(1.05 * rig.pages) + 32 * MIB, 0, []
    return rig.pages * int(size) // 100, 0, []


class Bench(Schedule):
    """The jobs to run, in order of importance, and their runs."""

    def __init__(self, rig, full):
        super().__init__(full, TURNS)
        self.rig = rig
        self.epochs = dict.fromkeys(EPOCHS, EPOCHS_FULL) if full else EPOCHS
        self.model = self.attempt("slowpfs.model_error", lambda: model_error(rig)) or []

    def plan(self):
        """(name, what to call), the most important first. A name may occur again."""
        for turn in range(TURNS_MOST):
            yield from self.turn(first=turn == 0)
            if turn + 1 == TURNS:
                yield from self.source_jobs()

    def turn(self, first):
        """One run of each job that has a bar, and of the jobs that it is divided by."""
        copiers = COPIERS if first else [self.best_copiers()]
        for number in copiers:
            yield f"staged.{number}", lambda number=number: self.rig.staged(number, 1 if first else 0)
        yield "local.A", lambda: self.rig.local("A", self.epochs["A"])
        for size in SIZES:
            yield f"belady.A.{size}", self.belady_job("A", size)
        yield "local.B", lambda: self.rig.local("B", self.epochs["B"])
        for size in SIZES if self.full else ("100", "50", "20"):
            yield f"belady.B.{size}", self.belady_job("B", size)
        yield "local.C", lambda: self.rig.local("C", self.epochs["C"])
        yield "belady.C.100", self.belady_job("C", "100")
        yield "floor.C", lambda: self.rig.beside_readers("C", READERS)

    def decode(self):
        """The job that decodes JPEGs: local files and belady in turn, and nothing beside them."""
        for _ in range(PAIRS):
            yield "local.C", lambda: self.rig.local("C", self.epochs["C"])
            yield "belady.C.100", self.belady_job("C", "100")

    def best_copiers(self):
        """The number of copiers that was quickest in the first turn."""
        return min(COPIERS, key=lambda n: self.get(f"staged.{n}")[0].cold if self.get(f"staged.{n}") else 1e9)

    def source_jobs(self):
        """The slow source with several numbers of workers, and its caching client."""
        for workers in (2, 8, 16):
            yield f"direct.{workers}", lambda workers=workers: self.rig.direct(workers, 1)
            yield f"client_cache.{workers}", lambda workers=workers: self.rig.direct(workers, 2, client_cache=True)
        yield "client_cache.50", lambda: self.rig.direct(2, 2, client_cache=True, share=.5)

    def belady_job(self, shape, size):
        ram, disk, settings = sizes_of(self.rig, size)
        return lambda: self.rig.belady(shape, self.epochs[shape], ram, disk, settings)


class Rows:
    """Makes rows of a bench's runs."""

    def __init__(self, bench):
        self.bench, self.rig, self.rows = bench, bench.rig, []

    def add(self, name, runs, figure, unit="x", part="steady", note=None, by=(1.0,)):
        """Adds a row: the median of figure(run) over `by`, the figures of the same turn."""
        values = [figure(run) / by[min(turn, len(by) - 1)] for turn, run in enumerate(runs)] if by else []
        found = row(name, values, unit, BARS.get(name))
        if runs:
            found["idle_percent"] = round(statistics.fmean(run.mean("idle", part) for run in runs), 1)
            found["slowpfs_cpu_us"] = round(statistics.fmean(run.mean("slow_cpu_us", part) for run in runs))
            found["held_late_us_max"] = max(run.held_late_us for run in runs)
            if found["held_late_us_max"] > LATE_US:
                late = sum(run.held_late_us > LATE_US for run in runs)
                note = "; ".join(filter(None, [note, f"in {late} runs slowpfs was late each time that it was tried"]))
        if note or not values:
            found["note"] = note or ("no run" if not runs else "nothing to compare with")
        self.rows.append(found)

    def copy_times(self):
        """By turn, the seconds of the best number of copiers; the best number is the same in all turns."""
        return [run.cold for run in self.bench.get(f"staged.{self.bench.best_copiers()}")]

    def local(self, shape):
        """By turn, the seconds of a warm local epoch."""
        return [run.steady() for run in self.bench.get(f"local.{shape}")]

    def share_missed(self, run):
        """The share of the data that a cache of the run's budget cannot hold."""
        return 1 - run.budget / self.rig.pages

    def barred(self):
        """The rows that have a bar."""
        get, copy, data = self.bench.get, self.copy_times(), self.rig.bytes
        full, step, decode = get("belady.A.100"), self.local("B"), self.local("C")
        self.add("cold.x_bound", full, lambda r: r.cold_with_scan, part="cold", by=copy)
        self.add("cold.x_link", full, lambda r: r.cold / (data / LINK), part="cold")
        self.add("cold.step.x_local", get("belady.B.100"), lambda r: r.cold, part="cold", by=step)
        self.worst_step(step)
        self.add("cold.decode.x_local", get("belady.C.100"), lambda r: r.cold, part="cold", by=decode)
        self.add("cold.decode.floor.x_local", get("floor.C"), lambda r: r.cold, part="cold", by=decode,
                 note=f"local files decoded while {READERS} processes read the source through, to nowhere")
        self.add("steady.100.decode.x_local", get("belady.C.100"), lambda r: r.steady(), by=decode)
        for size in ("50", "20"):
            runs = get(f"belady.A.{size}")
            self.add(f"steady.{size}.x_bound", runs, lambda r: r.steady() / self.share_missed(r), by=copy)
            self.add(f"steady.{size}.x_ideal_bytes", runs,
                     lambda r: (r.steady("bytes") - r.refetched) / (data * self.share_missed(r)))
            self.add(f"steady.{size}.refetched_mib", runs, lambda r: r.refetched / MIB, "MiB",
                     note="taken back by the kernel and fetched again, an epoch")
        self.add("steady.0.x_bound", get("belady.A.0"), lambda r: r.steady(), by=copy)
        self.memory()
        self.model()

    def worst_step(self, step):
        """With a step: the cache size with the worst ratio."""
        kept = len(self.rows)
        for size in SIZES:
            if self.bench.get(f"belady.B.{size}"):
                self.add("steady.step.x_local", self.bench.get(f"belady.B.{size}"), lambda r: r.steady(), by=step,
                         note=f"cache size {size}")
        if len(self.rows) == kept:
            self.add("steady.step.x_local", [], None)
        self.rows[kept:] = [max(self.rows[kept:], key=lambda row: row["value"] or 0)]

    def memory(self):
        """The worst of all belady runs."""
        runs = [r for name, runs in self.bench.runs.items() if name.startswith("belady.") for r in runs]
        charged = [r for r in runs if r.memory_over is not None]
        note = "no memory cgroup could be made here" if self.rig.no_cgroup and not charged else None
        self.add("memory_over_budget_mib", charged, lambda r: r.memory_over, "MiB", note=note)
        self.rows[-1]["value"] = max(self.rows[-1]["runs"], default=None)

    def model(self):
        """How far slowpfs is from its model, at the worst."""
        errors = [error for _, error, _ in self.bench.model]
        self.rows.append(row("slowpfs.model_error", errors, bar=BARS.get("slowpfs.model_error"),
                             value=round(max(map(abs, errors)), 4) if errors else None,
                             readers=[readers for readers, _, _ in self.bench.model],
                             held_late_us_max=max((late for _, _, late in self.bench.model), default=0)))

    def plain(self):
        """Rows without a bar: seconds, to compare with."""
        for n in COPIERS:
            runs = self.bench.get(f"staged.{n}")
            self.add(f"staged.{n}.s", runs, lambda r: r.cold, "s", "cold")
            self.add(f"staged.{n}.then_epoch.s", [r for r in runs if len(r.epochs) > 1],
                     lambda r: r.cold + r.epochs[1]["seconds"], "s", "cold")
        self.add("belady.A.100.mount_and_scan.s", self.bench.get("belady.A.100"),
                 lambda r: r.cold_with_scan - r.cold, "s", "cold")
        for workers in (2, 8, 16):
            self.add(f"direct.{workers}.s", self.bench.get(f"direct.{workers}"), lambda r: r.cold, "s", "cold")
        for name in [*(f"client_cache.{kind}" for kind in (2, 8, 16, 50)), "local.A", "local.B", "local.C",
                     *(f"belady.{shape}.{size}" for shape in "ABC" for size in SIZES)]:
            if self.bench.get(name):
                self.add(f"{name}.cold.s", self.bench.get(name), lambda r: r.cold, "s", "cold")
                self.add(f"{name}.steady.s", self.bench.get(name), lambda r: r.steady(), "s")


COLUMNS = (("idle %", 6, lambda found: found.get("idle_percent", "-")),
           ("slowpfs s", 9, lambda found: f"{found.get('slowpfs_cpu_us', 0) / 1e6:.2f}"),
           ("late ms", 8, lambda found: f"{found.get('held_late_us_max', 0) / 1000:.1f}"))


def main():
    args = arguments(__doc__, "7 turns of 5 epochs, all shapes at all sizes, no limit of time", parts=("decode",))
    rig = Rig(ensure("imagenet-like", default_files("imagenet-like")), None if args.full or args.part else LIMIT)
    try:
        rig.warm()
        bench = Bench(rig, args.full)
        ran = bench.run(bench.decode() if args.part else bench.plan())
    finally:
        rig.clean()
    rows = Rows(bench)
    rows.barred()
    rows.plain()
    found = [found for found in rows.rows if found["runs"]] if args.part else rows.rows
    publish("epoch", found, bench.notes, args.json, COLUMNS, keep=not args.part)
    sys.exit(0 if ran else 1)


if __name__ == "__main__":
    main()
