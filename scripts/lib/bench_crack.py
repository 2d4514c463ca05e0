"""How fast the seed of a permutation is searched for: seeds a second on one core, by instructions and hypotheses.

Goal: tell how long the 2^32 seeds take, and what more hypotheses cost.
Method: a small compiled program searches a range on one thread, and the kinds of instructions take turns.  Besides,
the bench measures how many opens a second the learner takes of a loader whose order is known, and how long it takes to
read an order file of 10^7 samples whose text is in memory.  A figure is a median over the turns.
"""

import json
import subprocess
import sys

from driver import FAILURES, stopwatch
from mounts import binary, say
from parts import arguments
from report import publish, quartiles, row

SEEDS = {"baseline": 1 << 22, "avx2": 1 << 26, "avx512": 1 << 26}
HYPOTHESES = (1, 4, 16, 64)
# With the best instructions that the processor has.
BARS = {"full_space": 300, "64_hypotheses": 1.6, "observations": .2, "order.binary_s": 1, "order.numbers_s": 1,
        "order.bytes_per_entry": 8}
WRITTEN = ("binary", "numbers", "paths")
AT_LEAST = ("observations",)


def run(*args):
    """The result of the program; None if the processor lacks the instructions."""
    command = [binary("learnspeed"), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0 and "this processor has no" in done.stderr:
        return None
    done.check_returncode()
    return json.loads(done.stdout)


def measure(turns, scale):
    """By path: seeds a second by number of hypotheses.  Besides: opens a second, in millions, and the cost of order
    files, by what is written in them."""
    found, observed, loaded = {}, [], {written: [] for written in WRITTEN}
    elapsed = stopwatch()
    for turn in range(turns):
        for path, seeds in SEEDS.items():
            for count in HYPOTHESES:
                speed = run("crack", path, "--hypotheses", count, "--seeds", seeds // scale)
                if speed is not None:
                    found.setdefault(path, {}).setdefault(count, []).append(speed["seeds_per_second"])
        observed.append(run("observe")["opens_per_second"] / 1e6)
        for written, runs in loaded.items():
            runs.append(run("load", written, "--entries", 10_000_000 // scale))
        say(f"{elapsed():5.0f} s  turn {turn + 1} of {turns}")
    return found, observed, loaded


def rows_of(found, observed, loaded):
    """The figures of every path, then those of the fastest one."""
    rows = []
    for path, one in found.items():
        for count in HYPOTHESES:
            runs = [speed / 1e6 for speed in one[count]]
            rows.append(row(f"{path}.{count}", runs, "M/s", **quartiles(runs)))
    best = list(found)[-1]

    def bar(name, runs, unit, **more):
        rows.append(row(name, runs, unit, BARS[name], at_least=name in AT_LEAST, **quartiles(runs), **more))
    bar("full_space", [2 ** 32 / speed for speed in found[best][1]], "s", note=f"2^32 seeds on one core with {best}")
    bar("64_hypotheses", [one / many for one, many in zip(found[best][1], found[best][64])], "x", note="as long as one")
    bar("observations", observed, "M/s", note="opens of a loader whose order is known")
    for written, runs in loaded.items():
        seconds = [one["seconds"] for one in runs]
        note = f"{runs[0]['entries']:,} samples"
        rows.append(row(f"order.{written}_s", seconds, "s", BARS.get(f"order.{written}_s"), note=note, at_least=False,
                        **quartiles(seconds)))
    bar("order.bytes_per_entry", [max(ones) for ones in zip(*([one["bytes_per_entry"] for one in runs]
                                                              for runs in loaded.values()))], "B",
        note="of memory, the worst of these")
    return rows


def main():
    args = arguments(__doc__, "15 turns instead of 5", "a tenth of the seeds, 2 turns")
    try:
        found, observed, loaded = measure(15 if args.full else 2 if args.quick else 5, 10 if args.quick else 1)
    except FAILURES as e:
        sys.exit(f"crack: {e}")
    publish("crack", rows_of(found, observed, loaded), [], args.json, keep=not args.quick)


if __name__ == "__main__":
    main()
