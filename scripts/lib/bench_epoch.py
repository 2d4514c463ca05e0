"""Epoch times over a busy source: belady, the source itself, its caching client, staging, local files.

Goal: tell how near belady comes to what the link allows (cold) and to local files (steady), at several cache sizes.
Method: 5,000 imagenet-like JPEGs of about 110 KB behind `slowpfs --preset busy`; a torch DataLoader with 2 workers,
batches of 64, DistributedSampler; prefetching held until the first open, so that the loader's start is no free head
start.  Shape A reads and checks, B pauses 50 ms a batch besides, C decodes.  cold is epoch 1, steady the median of
the later epochs; a row is the median over its mounts, each divided by what ran in the same turn.  "bound" is the
time of the best of 8, 16 and 32 parallel copiers; "ideal bytes" is the data less what the cache can hold, in pages.
"""

import argparse
import json
import os
import statistics
import sys

from driver import FAILURES, stopwatch
from make_data import default_files, ensure
from mounts import TARGET, TOP, exit_on_signals, say
from rig import MIB, Rig

LINK = 200e6                 # bytes a second of the preset busy
LIMIT = 12.5 * 60            # without --full no run begins that would end later than this
BARS = {"cold.x_bound": .95, "cold.x_link": 1.08, "cold.step.x_local": 1.04, "steady.step.x_local": 1.03,
        "cold.decode.x_local": 1.12, "steady.100.decode.x_local": 1.05, "steady.50.x_bound": .95,
        "steady.20.x_bound": .95, "steady.50.x_ideal_bytes": 1.02, "steady.20.x_ideal_bytes": 1.02,
        "steady.0.x_bound": .95, "memory_over_budget_mib": 48}
COPIERS = (8, 16, 32)
SIZES = ("100", "50", "20", "0", "dir")


def sizes_of(rig, size):
    """(ram, disk, settings) of a cache size: percent of the data in pages, or 20 % with a directory for the rest."""
    if size == "0":
        return 32 * MIB, 0, ["cache.policy=none"]
    if size == "dir":
        return rig.pages // 5, int(1.1 * rig.pages), []
    if size == "100":
        return int(1.05 * rig.pages) + 32 * MIB, 0, []
    return rig.pages * int(size) // 100, 0, []


class Bench:
    """What is to be run, in order of importance, and what came out of it."""

    def __init__(self, rig, full):
        self.rig, self.full = rig, full
        self.runs, self.took, self.notes = {}, {}, []
        self.elapsed = stopwatch()

    def plan(self):
        """(name, what to call), the most important first; a name may occur again."""
        mounts, few = (5, 5) if self.full else (3, 3)
        for turn in range(mounts):
            yield from self.copier_jobs(read=turn == 0)
            yield "local.A", lambda: self.rig.local("A", 5)
            for size in SIZES:
                yield f"belady.A.{size}", self.belady_job("A", size, 5)
            if turn == 0:
                yield from self.slow_jobs(few)
                yield from self.source_jobs()
        for _ in range(1, mounts):
            yield from self.slow_jobs(few)

    def slow_jobs(self, epochs):
        """The shapes with a step and with decoding."""
        yield "local.B", lambda: self.rig.local("B", epochs)
        for size in SIZES if self.full else ("100", "50", "20"):
            yield f"belady.B.{size}", self.belady_job("B", size, epochs)
        yield "local.C", lambda: self.rig.local("C", epochs)
        yield "belady.C.100", self.belady_job("C", "100", epochs)

    def source_jobs(self):
        """The slow source with several numbers of workers, and its caching client."""
        for workers in (2, 8, 16):
            yield f"direct.{workers}", lambda workers=workers: self.rig.direct(workers, 1)
        yield "client_cache", lambda: self.rig.direct(2, 2, client_cache=True)

    def copier_jobs(self, read):
        for copiers in COPIERS:
            yield f"staged.{copiers}", lambda copiers=copiers: self.rig.staged(copiers, read)

    def belady_job(self, shape, size, epochs):
        ram, disk, settings = sizes_of(self.rig, size)
        return lambda: self.rig.belady(shape, epochs, ram, disk, settings)

    def run(self):
        """Runs the plan; a job that failed is noted and not tried again, one that would take too long is left."""
        failed, left = set(), []
        for name, job in self.plan():
            if name in failed:
                continue
            if not self.full and self.elapsed() + self.took.get(name, 20) > LIMIT:
                left.append(name)
                continue
            began = self.elapsed()
            try:
                run = job()
            except FAILURES as e:
                failed.add(name)
                self.notes.append(f"{name} failed: {e}".replace(TARGET, "target"))
                say(f"{self.elapsed():5.0f} s  {name:14} FAILED: {e}")
                continue
            self.took[name] = self.elapsed() - began
            self.runs.setdefault(name, []).append(run)
            say(f"{self.elapsed():5.0f} s  {name:14} " + " ".join(f"{e['seconds']:.2f}" for e in run.epochs))
        if left:
            self.notes.append(f"left out for lack of time: {len(left)} runs ({', '.join(sorted(set(left)))})")
        return not failed

    def get(self, name):
        return self.runs.get(name, [])


class Rows:
    """Makes rows of a bench's runs."""

    def __init__(self, bench):
        self.bench, self.rig, self.rows = bench, bench.rig, []

    def middle(self, values):
        return statistics.median(values) if values else None

    def add(self, name, runs, figure, unit="x", part="steady", note=None, by=(1.0,)):
        """A row: the median of figure(run) over `by`, the figure of the same turn to compare with."""
        values = [round(figure(run) / by[min(turn, len(by) - 1)], 4) for turn, run in enumerate(runs)] if by else []
        row = {"name": name, "value": self.middle(values), "unit": unit, "runs": values, "bar": BARS.get(name)}
        if runs:
            row["idle_percent"] = round(statistics.fmean(run.mean("idle", part) for run in runs), 1)
            row["slowpfs_cpu_us"] = round(statistics.fmean(run.mean("slow_cpu_us", part) for run in runs))
            row["held_late_us_max"] = max(run.held_late_us for run in runs)
        if note or not values:
            row["note"] = note or ("no run" if not runs else "nothing to compare with")
        self.rows.append(row)

    def copy_times(self):
        """By turn, the seconds of the best number of copiers; the best number is the same in all turns."""
        times = [[run.cold for run in self.bench.get(f"staged.{n}")] for n in COPIERS]
        return min(filter(None, times), key=self.middle, default=[])

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
        self.add("steady.100.decode.x_local", get("belady.C.100"), lambda r: r.steady(), by=decode)
        for size in ("50", "20"):
            runs = get(f"belady.A.{size}")
            self.add(f"steady.{size}.x_bound", runs, lambda r: r.steady() / self.share_missed(r), by=copy)
            self.add(f"steady.{size}.x_ideal_bytes", runs, lambda r: r.steady("bytes") / (data * self.share_missed(r)))
        self.add("steady.0.x_bound", get("belady.A.0"), lambda r: r.steady(), by=copy)
        self.memory()

    def worst_step(self, step):
        """With a step: the cache size that comes off worst."""
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
        for name in ["client_cache", "local.A", "local.B", "local.C",
                     *(f"belady.{shape}.{size}" for shape in "ABC" for size in SIZES)]:
            if self.bench.get(name):
                self.add(f"{name}.cold.s", self.bench.get(name), lambda r: r.cold, "s", "cold")
                self.add(f"{name}.steady.s", self.bench.get(name), lambda r: r.steady(), "s")


def machine():
    """What this ran on."""
    def first(path, word):
        with open(path) as f:
            return next((line.split(":", 1)[1].strip() for line in f if line.startswith(word)), "unknown")
    return {"cores": len(os.sched_getaffinity(0)), "mem": first("/proc/meminfo", "MemTotal"),
            "kernel": os.uname().release, "cpu": first("/proc/cpuinfo", "model name")}


def print_table(rows, notes):
    print(f"\n{'row':28} {'value':>9} {'bar':>7}      {'unit':5} {'idle %':>6} {'slowpfs s':>9} {'late ms':>8}  runs")
    for row in rows:
        value, bar = row["value"], row["bar"]
        shown = "-" if value is None else f"{value:.3f}"
        verdict = "" if bar is None or value is None else "ok" if value <= bar else "MISS"
        print(f"{row['name']:28} {shown:>9} {'' if bar is None else bar:>7} {verdict:4} {row['unit']:5}"
              f" {row.get('idle_percent', '-'):>6} {row.get('slowpfs_cpu_us', 0) / 1e6:>9.2f}"
              f" {row.get('held_late_us_max', 0) / 1000:>8.1f}  {' '.join(f'{v:.3f}' for v in row['runs'][:6])}"
              + (f"  ({row['note']})" if "note" in row else ""))
    for note in notes:
        print(f"note: {note}")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench epoch", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    parser.add_argument("--full", action="store_true", help="5 mounts, all shapes at all sizes, no limit of time")
    args = parser.parse_args()
    exit_on_signals()
    rig = Rig(ensure("imagenet-like", default_files("imagenet-like")), None if args.full else LIMIT)
    try:
        rig.warm()
        bench = Bench(rig, args.full)
        ran = bench.run()
    finally:
        rig.clean()
    rows = Rows(bench)
    rows.barred()
    rows.plain()
    result = json.dumps({"bench": "epoch", "machine": machine(), "rows": rows.rows, "notes": bench.notes})
    os.makedirs(os.path.join(TOP, "benches", "results"), exist_ok=True)
    with open(os.path.join(TOP, "benches", "results", "epoch.json"), "w") as f:
        f.write(result + "\n")
    if not args.json:
        print_table(rows.rows, bench.notes)
    print(result)
    sys.exit(0 if ran else 1)


if __name__ == "__main__":
    main()
