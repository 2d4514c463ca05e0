"""The demonstration of rehearsal: a network learns Split Fashion-MNIST, five tasks of two classes each.

Goal: see what a network forgets, and how much of it a buffer of old samples brings back, which the filesystem keeps
and serves.  Method: scripts/continual.py trains the same small network over a belady mount (incremental) on the
classes of each task alone, (rehearsal) on the directories mix-K of a buffer of 5 % of the images, one way for each
policy, and (scratch) anew on all classes so far.  All accuracies are over the test images of all ten classes.  Ways
of one seed have the same initial network.  Every way has a mount and a cache directory of its own.  The means of 5
seeds are judged: the exit code is 1 if they miss their bounds.  Fewer seeds or policies, as with --quick, are not
judged.
"""

import argparse
import json
import os
import shutil
import statistics
import sys

from buffers import rehearse, stats_of, wait_until_offered
from driver import FAILURES, RunError, run_program, stopwatch
from make_data import ensure
from mounts import TARGET, TOP, Belady, Watchdog, exit_on_signals, fresh_dir, say

TRAIN, TEST, TASK_CLASSES = 1000, 150, 2      # images of a class, classes of a task
FILES = 13_000                                # of which each class has at least TRAIN + TEST
BUFFER = 500                                  # samples: 5 % of 10 classes of 1000
BATCH = REPLAY = 32                           # old samples for new ones
POLICIES = ["class-balanced", "reservoir", "random-replace", "ring"]
LONGEST = 900                                 # seconds until a way counts as hung
RECOVERED, SCRATCH, INCREMENTAL = .7, .8, .25 # at least, at least and at most, as means of JUDGED seeds
JUDGED = 5
NEOMEM = "random-replace"                     # the policy that rehearsal must not be worse than


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/demo --continual", description="Learn ten classes of Fashion-MNIST two by two: without and with "
        "rehearsal, and from scratch.")
    parser.add_argument("--continual", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one seed and one policy, not judged: a few minutes")
    parser.add_argument("--seeds", type=int, default=5, help="how often everything is done (5)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a task (3)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line, last: the "
                        "final accuracies as incremental, rehearsal and scratch, and by policy")
    return parser.parse_args()


def split(files):
    """The directory of the data set with train/CLASS and test/CLASS, made of links the first time."""
    images = ensure("fashion-mnist", files)
    out = os.path.join(os.path.dirname(images), f"split-fashion-mnist-{TRAIN}-{TEST}")
    if os.path.isdir(out):
        return out
    making = fresh_dir(out + ".making")
    for name in sorted(os.listdir(images)):
        numbers = sorted(os.listdir(os.path.join(images, name)))
        if len(numbers) < TRAIN + TEST:
            raise RunError(f"{name} has {len(numbers)} images, {TRAIN + TEST} are needed")
        for part, chosen in [("train", numbers[:TRAIN]), ("test", numbers[TRAIN:TRAIN + TEST])]:
            folder = os.path.join(making, part, name)
            os.makedirs(folder)
            for number in chosen:
                os.link(os.path.join(images, name, number), os.path.join(folder, number))
    os.rename(making, out)
    return out


class Demo:
    """The data and the places of one demonstration."""

    def __init__(self, args):
        self.args = args
        self.data = split(FILES)
        self.classes = sorted(os.listdir(os.path.join(self.data, "train")))
        self.tasks = len(self.classes) // TASK_CLASSES
        self.work = fresh_dir(os.path.join(TARGET, f"continual-{os.getpid()}"))

    def begin_task(self, mount, task):
        """Tells the buffer which files are new, when all that was read before has been offered."""
        wait_until_offered(mount, task * TASK_CLASSES * TRAIN, 30)
        names = self.classes[task * TASK_CLASSES:(task + 1) * TASK_CLASSES]
        if names:
            rehearse(mount, "task", "old", task, "-", given="".join(f"train/{name}\n" for name in names))

    def run(self, way, seed, policy=None):
        """One way on a fresh mount: the accuracies after each task, and the samples of each task in the buffer."""
        cache = fresh_dir(os.path.join(self.work, "cache"))
        options = ["--cache-dir", cache, "--ram", "256MiB", "--disk", "256MiB"]
        sets = {"size": BUFFER, "policy": policy, "seed": seed, "root": "train", "batch": BATCH, "replay": REPLAY}
        for key, value in sets.items() if policy else []:
            options += ["--set", f"rehearsal.old.{key}={value}"]
        with Belady(self.data, os.path.join(self.work, "mount"), options) as mount, Watchdog(LONGEST, [mount]) as dog:
            command = [os.path.join(TOP, "scripts", "continual.py"), mount.mountpoint, "--way", way, "--seed", seed,
                       "--epochs", self.args.epochs]
            if policy:
                command += ["--old", os.path.join(mount.mountpoint, "rehearsal", "old")]
                self.begin_task(mount, 0)

            def border(line):
                if policy:
                    self.begin_task(mount, int(line["epoch"]) + 1)
                return line["accuracy"]

            accuracies = run_program(command, border)
            held = stats_of(mount)["tasks"] if policy else {}
        if dog.bitten or len(accuracies) != self.tasks:
            raise RunError(f"{way} came to {len(accuracies)} of {self.tasks} tasks")
        shares = [held.get(str(task), 0) / BUFFER for task in range(self.tasks)]
        say(f"  {policy or way}, seed {seed}: " + " ".join(f"{a:.3f}" for a in accuracies))
        return {"accuracies": accuracies, "shares": shares}


def plot(rows, path):
    """Accuracy after each task, as an SVG: one line a row."""
    width, height, margin = 640, 360, 40
    colours = ["#c0392b", "#2c3e50", "#2980b9", "#27ae60", "#f39c12", "#8e44ad"]
    tasks = len(next(iter(rows.values())))
    x = lambda task: margin + task * (width - 200) / max(tasks - 1, 1)
    y = lambda accuracy: height - margin - accuracy * (height - 2 * margin)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for tenth in range(0, 11, 2):
        parts.append(f'<line x1="{margin}" x2="{x(tasks - 1):.0f}" y1="{y(tenth / 10):.0f}" y2="{y(tenth / 10):.0f}" '
                     f'stroke="#ddd"/><text x="8" y="{y(tenth / 10) + 4:.0f}">{tenth / 10:.1f}</text>')
    for task in range(tasks):
        parts.append(f'<text x="{x(task) - 20:.0f}" y="{height - 15}">task {task + 1}</text>')
    for number, (name, values) in enumerate(rows.items()):
        points = " ".join(f"{x(task):.1f},{y(value):.1f}" for task, value in enumerate(values))
        colour = colours[number % len(colours)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
                     f'<text x="{width - 130}" y="{margin + 18 * number}" fill="{colour}">{name}</text>')
    with open(path, "w") as f:
        f.write("\n".join(parts + ["</svg>\n"]))


def mean_of(runs, key):
    """Means over seeds, place by place."""
    return [round(statistics.mean(values), 4) for values in zip(*(run[key] for run in runs))]


def missed(incremental, rehearsal, scratch, recovered, neomem):
    """The bounds that the means of the final accuracies miss, in words."""
    bars = [(recovered >= RECOVERED, f"rehearsal recovers {recovered:.3f} of the gap, not {RECOVERED}"),
            (scratch >= SCRATCH, f"from scratch it comes to {scratch:.3f}, not {SCRATCH}"),
            (incremental <= INCREMENTAL, f"without rehearsal it comes to {incremental:.3f}, not down to {INCREMENTAL}"),
            (rehearsal >= neomem, f"rehearsal comes to {rehearsal:.3f}, {NEOMEM} to {neomem:.3f}")]
    return [words for holds, words in bars if not holds]


def print_table(rows, shares):
    """Accuracies over all classes after each task, and the buffers' shares of each task."""
    tasks = len(next(iter(rows.values())))
    print(f"\naccuracy over all classes after task" + "".join(f"{task + 1:>8}" for task in range(tasks)))
    for name, values in rows.items():
        print(f"{name:>36}" + "".join(f"{value:>8.3f}" for value in values))
    print("share of the buffer that is of task ")
    for name, values in shares.items():
        print(f"{name:>36}" + "".join(f"{value:>8.3f}" for value in values))


def main():
    args = arguments()
    exit_on_signals()
    seeds = range(1 if args.quick else args.seeds)
    policies = POLICIES[:1] if args.quick else POLICIES
    elapsed = stopwatch()
    demo = None
    try:
        demo = Demo(args)
        ways = {"incremental": ("incremental", None), "scratch": ("scratch", None)}
        ways.update({policy: ("rehearsal", policy) for policy in policies})
        runs = {name: [demo.run(way, seed, policy) for seed in seeds] for name, (way, policy) in ways.items()}
    except FAILURES as e:
        sys.exit(f"demo: {e}")
    finally:
        if demo:
            shutil.rmtree(demo.work, ignore_errors=True)
    rows = {name: mean_of(row, "accuracies") for name, row in runs.items()}
    shares = {policy: mean_of(runs[policy], "shares") for policy in policies}
    print_table(rows, shares)
    a, b, c = (rows[name][-1] for name in ("incremental", policies[0], "scratch"))
    recovered = (b - a) / (c - a) if c > a else 0.0
    picture = os.path.join(TARGET, "continual.svg")
    plot(rows, picture)
    print(f"rehearsal recovers {recovered:.0%} of what is forgotten; plot in {picture}; took {elapsed():.0f} s")
    if args.json:
        final = {policy: rows[policy][-1] for policy in policies}
        print(json.dumps({"incremental": a, "rehearsal": b, "scratch": c, "recovered": round(recovered, 4),
                          "seeds": len(seeds), "policies": final, "task_shares": shares, "after_task": rows}))
    if len(seeds) < JUDGED or NEOMEM not in rows:
        return print(f"not judged: that takes {JUDGED} seeds and all policies", file=sys.stderr)
    if failures := missed(a, b, c, recovered, rows[NEOMEM][-1]):
        sys.exit("demo: " + "; ".join(failures))


if __name__ == "__main__":
    main()
