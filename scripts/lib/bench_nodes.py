"""Where the nodes of a cluster find their samples, by simulation: how much is left to the source, how much is local.

Goal: compare where samples are placed: by belady without and with known orders, by the rule of NoPFS, as in CoorDL, and
by each node alone.
Method: `belady simulate --nodes`.  A job reads permutations, each node one rank of it.  Nodes hold .25, .8, 1 and 2
times the data together.  A row `nN.rR.PLACING`, of N nodes that hold R per cent of the data, has the share of reads
after the first epoch that were local; its `.source` those that went to the source.  Rows that begin with c13 are of
nodes of which every second one holds three times as much.  `plan.s` is the time in which a node computes the homes of
1.28 million samples for 64 nodes, and `plan.differs` how many of its runs find other homes.
`nopfs.SCENARIO.cMBS.POLICY` is the time of a job of 10 epochs over that of a job that never waits, in the scenarios of
NoPFS, by its model; each node trains MBS MB/s.  Its `.source` is what the parallel filesystem gets of the reads after
the first epoch.
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
PLANS = 7
NOPFS_EPOCHS = 10            # of the scenarios of NoPFS; the paper has none
LONGEST = 600                # seconds until the simulation counts as hung


def run(words):
    """What belady says."""
    done = subprocess.run([binary("belady"), *map(str, words)], capture_output=True, text=True, timeout=LONGEST,
                          check=False)
    if done.returncode != 0:
        raise RunError(f"belady simulate: {done.stderr[-600:]}")
    return done.stdout


def simulate(nodes, capacities):
    """The rows of a simulation."""
    words = ["simulate", "--json", "--nodes", nodes, "--samples", SAMPLES[nodes], "--epochs", EPOCHS[nodes],
             "--held", ",".join(map(str, HELD)), "--capacities", capacities]
    return json.loads(run(words))


def bars(placing, held, capacities):
    """The bars of a placing: the least local share, and the most that is left to the source."""
    covered = min(1, held)
    if placing == "next-reader" and capacities == "1":
        return round(covered - CHANCE, 4), round(1 - covered + .005, 4)
    return None, round(1 - covered + .005, 4) if placing in ("homes", "next-reader") else None


def plans():
    """The rows of the plan that each node computes."""
    words = ["simulate", "--json", "--nodes", 64, "--samples", 1_280_000, "--held", .8, "--plan"]
    found = [json.loads(run(words))[0] for _ in range(PLANS)]
    return [row("plan.s", [plan["plan_s"] for plan in found], "s", 1),
            row("plan.differs", [len({plan["digest"] for plan in found}) - 1], "", 0)]


def shares():
    """The rows of all simulations."""
    rows = []
    for nodes, capacities in itertools.product(SAMPLES, ("1", "1,3")):
        for found in simulate(nodes, capacities):
            kind, placing = "c13." if capacities == "1,3" else "", found["placing"].replace("-", "_")
            name = f"{kind}n{nodes}.r{round(100 * found['held'])}.{placing}"
            local, source = bars(found["placing"], found["held"], capacities)
            at_least = {} if local is None else {"at_least": True}
            rows.append(row(name, [found["local"]], "", local, **at_least))
            rows.append(row(name + ".source", [found["source"]], "", source))
    return rows


def comparison():
    """The rows of the scenarios of NoPFS."""
    words = ["simulate", "--json", "--nopfs", "--epochs", NOPFS_EPOCHS]
    rows = []
    for found in json.loads(run(words)):
        if found["x_bound"] is None:
            continue
        policy = found["policy"].replace("-", "_")
        name = f"nopfs.{found['scenario']}.c{found['compute']}.{policy}"
        rows.append(row(name, [found["x_bound"]], "x"))
        rows.append(row(name + ".source", [found["source"]], ""))
    return rows


PARTS = {"shares": shares, "plan": plans, "nopfs": comparison}


def main():
    args = arguments(__doc__, "the same", parts=tuple(PARTS))
    try:
        rows = [found for name, part in PARTS.items() if not args.part or name in args.part for found in part()]
    except FAILURES as e:
        sys.exit(f"nodes: {e}")
    publish(args.name, rows, [], args.json, keep=not args.part)


if __name__ == "__main__":
    main()
