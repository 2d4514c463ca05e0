"""Where the nodes of a cluster find their samples, by simulation: how much is left to the source, how much is local.

Goal: compare where samples are placed: by belady without and with known orders, by the rule of NoPFS, as in CoorDL, and
by each node alone.
Method: `belady simulate --nodes`.  A job reads permutations, each node one rank of it.  Nodes hold .25, .8, 1 and 2
times the data together.  A row `nN.rR.PLACING`, of N nodes that hold R per cent of the data, has the share of reads
after the first epoch that were local; its `.source` those that went to the source.  Rows that begin with c13 are of
nodes of which every second one holds three times as much.
"""

import itertools
import json
import subprocess
import sys

from driver import FAILURES, RunError
from mounts import binary
from parts import arguments
from report import publish, row

SAMPLES = {4: 16_384, 16: 32_768, 64: 65_536, 1024: 262_144}
HELD = (.25, .8, 1, 2)
EPOCHS = {4: 31, 16: 31, 64: 91, 1024: 11}      # the rule of NoPFS counts the reads of all but the first
CHANCE = .03                 # the most samples whose next reader has no room
LONGEST = 600                # seconds until the simulation counts as hung


def simulate(nodes, capacities):
    """The rows of a simulation."""
    words = ["simulate", "--json", "--nodes", nodes, "--samples", SAMPLES[nodes], "--epochs", EPOCHS[nodes],
             "--held", ",".join(map(str, HELD)), "--capacities", capacities]
    done = subprocess.run([binary("belady"), *map(str, words)], capture_output=True, text=True, timeout=LONGEST,
                          check=False)
    if done.returncode != 0:
        raise RunError(f"belady simulate: {done.stderr[-600:]}")
    return json.loads(done.stdout)


def bars(placing, held, capacities):
    """The bars of a placing: the least local share, and the most that is left to the source."""
    covered = min(1, held)
    if placing == "next-reader" and capacities == "1":
        return round(covered - CHANCE, 4), round(1 - covered + .005, 4)
    return None, round(1 - covered + .005, 4) if placing in ("homes", "next-reader") else None


def main():
    args = arguments(__doc__, "the same")
    rows = []
    for nodes, capacities in itertools.product(SAMPLES, ("1", "1,3")):
        try:
            simulated = simulate(nodes, capacities)
        except FAILURES as e:
            sys.exit(f"nodes: {e}")
        for found in simulated:
            kind, placing = "c13." if capacities == "1,3" else "", found["placing"].replace("-", "_")
            name = f"{kind}n{nodes}.r{round(100 * found['held'])}.{placing}"
            local, source = bars(found["placing"], found["held"], capacities)
            at_least = {} if local is None else {"at_least": True}
            rows.append(row(name, [found["local"]], "", local, **at_least))
            rows.append(row(name + ".source", [found["source"]], "", source))
    publish(args.name, rows, [], args.json)


if __name__ == "__main__":
    main()
