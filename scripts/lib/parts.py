"""A bench of several parts. Each part gives rows, and may fail without the others."""

import argparse
import os
import shutil
import sys

from driver import FAILURES, stopwatch
from mounts import TARGET, exit_on_signals, fresh_dir, say
from report import publish, quartiles, row


def arguments(doc, full, quick=None, parts=(), part="nothing is written"):
    """The command line of a bench. `doc` is its description; `full`, `quick` and `part` say what these options mean."""
    name = os.path.basename(sys.argv[0]).removeprefix("bench_").removesuffix(".py")
    parser = argparse.ArgumentParser(prog=f"scripts/bench {name}", description=doc.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help=full)
    if quick:
        size.add_argument("--quick", action="store_true", help=f"{quick}; nothing is written")
    if parts:
        parser.add_argument("--part", action="append", default=[], choices=parts,
                            help=f"only this part; {part}")
    args = parser.parse_args()
    args.name = name
    exit_on_signals()
    return args


def spread(found):
    return f"{found['q1']:.3f}-{found['q3']:.3f}" if "q1" in found else "-"


class Parts:
    """The base of such benches: each method that `PARTS` names measures, and calls `add`."""

    PARTS = ()                  # names of methods, in their order
    BARS = {}                   # by name of a row
    AT_LEAST = ()               # rows whose bar is a lower bound
    MISSING = {}                # why a row may be missing, by its name
    TURNS = (9, 3, 21)          # usual, quick, full
    COLUMNS = (("quartiles", 15, spread),)

    def __init__(self, top, quick, turns):
        self.top, self.quick, self.pairs = top, quick, turns
        self.rows, self.notes = [], []
        self.elapsed = stopwatch()

    def add(self, name, runs, unit="x", **more):
        """Adds a row with quartiles and, if there is one, its bar."""
        if name in self.AT_LEAST:
            more["at_least"] = True
        self.rows.append(row(name, runs, unit, self.BARS.get(name), **quartiles(runs), **more))
        say(f"{self.elapsed():5.0f} s  {name:26} {self.rows[-1]['value']}")

    def run(self, parts=()):
        """Runs all parts, or those named. A part that fails is noted. Returns whether all succeeded."""
        ran = True
        for part in parts or self.PARTS:
            try:
                getattr(self, part)()
            except FAILURES as e:
                ran = False
                self.notes.append(f"{part} failed: {e}".replace(TARGET, "target"))
                say(f"{part} FAILED: {e}")
        made = {found["name"] for found in self.rows}
        for name in self.BARS:
            if name not in made and not parts:
                self.add(name, [], note=self.MISSING.get(name, "no run"))
        order = list(self.BARS)
        self.rows.sort(key=lambda found: order.index(found["name"]) if found["name"] in order else len(order))
        return ran

    @classmethod
    def main(cls, doc, quick):
        """The program: measures, and publishes the results."""
        usual, few, many = cls.TURNS
        args = arguments(doc, f"{many} turns instead of {usual}", f"{quick}, {few} turns", cls.PARTS)
        top = fresh_dir(os.path.join(TARGET, f"bench-{os.getpid()}"))
        bench = cls(top, args.quick, many if args.full else few if args.quick else usual)
        try:
            ran = bench.run(args.part)
        finally:
            shutil.rmtree(top, ignore_errors=True)
        publish(args.name, bench.rows, bench.notes, args.json, cls.COLUMNS, keep=not args.quick and not args.part)
        sys.exit(0 if ran else 1)
