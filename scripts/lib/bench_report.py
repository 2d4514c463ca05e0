"""What `belady report` says of jobs whose truth is known.

Goal: tell whether the verdicts are right, and the shares that are measured.
Method: scripts/lib/loader.py reads 1,000 imagenet-like files of about 110 KB, 2 workers, batches of 64, in nine regimes;
3,000 files where that takes less than a few seconds.
Steps and preparation are sleeps, so their times are the same on a busy machine. The source is local, or `slowpfs` with
the preset busy. How a regime is made tells which verdict is right. In two of them two verdicts are.
verdicts: the regimes whose verdict is right in each round.
parts.sum_error: by how much the shares of the workers' time miss 1, the mean over regimes.
trainer_wait.error: by how much the share in which the trainer waits misses what its loop measures, the mean over regimes.
trainer_wait.worst is the largest median of a regime.
nomount.error: `belady run --no-mount` over the slow source itself says how long an epoch takes if files take no time; this
is compared with the median of 5 epochs over local files, which are in the page cache.
whatif.NAME.error: one cold epoch of 3,000 files, with nothing read ahead, is reported with five changes; each is compared with
the median of 5 epochs in which it was made: all in RAM, RAM for half of the data (both the second epoch of a mount), half
of all latencies, twice the link, and twice the workers. whatif.mean_error and whatif.worst_error are of these five.
whatif.cores.error: the same of a job whose workers need the processors: half of them, by a job and a mount that may use one of
two. whatif.disk.error: the same of a mount with a cache disk for half of the data: a disk for all of it.
overhead.cpu_share: the processor time that looking takes, as a share of one core, for 64 workers, in epochs of 20 s.
"""

import json
import os
import statistics
import subprocess

from driver import PYTHON, RunError, fields, run_program
from make_data import ensure
from mounts import TOP, Belady, Slowpfs, Watchdog, binary, fresh_dir, say
from parts import Parts

FILES = 1_000
MANY_FILES = 3_000
LONGEST = 300
ORDER = "torch-distributed:seed=0,world=1,rank=0,index=imagefolder"
LOADER = os.path.join(TOP, "scripts", "lib", "loader.py")
CACHED = ("--ram", "1GiB", "--order", ORDER)
TOLD = ("--ram", "4MiB", "--order", ORDER)
COLD = ("--ram", "4MiB", "--set", "prefetch.enabled=false")
HALF_LATENCY = ("--lookup-ms", .25, "--getattr-ms", .25, "--open-ms", 1, "--read-ms", .5, "--seek-ms", 2, "--mds-us", 100)
TWICE_LINK = ("--mbs", 400)
JOB = ("--workers", 2, "--prep-ms", 4, "--step-ms", 100)
LATER = 5                    # epochs with a change
GPU, PROCESSOR, FETCH = "gpu", "processor", "fetch"

# By name: whether the source is slow, options of the mount, options of the loader, the verdicts that are right.
SHORT = ("told", "cached.prep", "told.prep")
REGIMES = {
    "cached.step": (False, CACHED, ("--step-ms", 300), (GPU,)),
    "cached.prep.step": (False, CACHED, ("--prep-ms", 5, "--step-ms", 800), (GPU,)),
    "cached.prep": (False, CACHED, ("--prep-ms", 5), (PROCESSOR,)),
    "told": (True, TOLD, (), (FETCH,)),
    "cold": (True, COLD, (), (FETCH,)),
    "cold.prep": (True, COLD, ("--prep-ms", 5), (FETCH,)),
    "cold.step": (True, COLD, ("--step-ms", 300), (GPU, FETCH)),
    "told.step": (True, TOLD, ("--step-ms", 300), (GPU,)),
    "told.prep": (True, TOLD, ("--prep-ms", 5), (PROCESSOR,)),
}


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("regimes", "whatif", "machine", "nomount", "overhead")
    BARS = {"verdicts": 9, "parts.sum_error": .03, "trainer_wait.error": .03, "trainer_wait.worst": .06,
            "whatif.mean_error": .05, "whatif.worst_error": .10, "whatif.cores.error": .10, "whatif.disk.error": .10,
            "nomount.error": .06, "overhead.cpu_share": .005}
    AT_LEAST = ("verdicts",)
    TURNS = (3, 1, 7)

    def regime(self, data, is_slow, options, job):
        """An epoch: what its loop measured, and the report of it."""
        slow = Slowpfs(data, os.path.join(self.top, "source"))
        if is_slow:
            with slow:
                return self.epoch(slow.mountpoint, [slow], options, job)
        return self.epoch(data, [], options, job)

    def epoch(self, source, guards, options, job, what_if=()):
        """The last epoch of the loader over a fresh mount."""
        belady, found = Belady(source, os.path.join(self.top, "mount"), options), []
        with belady, Watchdog(LONGEST, [*guards, belady]):
            belady.await_scan()

            def border(line):
                found.append((line, report(belady.mountpoint, what_if)))
            run_program([LOADER, belady.mountpoint, "--workers", 2, *job], border)
        return found[-1]

    def slow_epoch(self, data, options, job, slow_options=(), what_if=()):
        """The same over a slow source."""
        with Slowpfs(data, os.path.join(self.top, "source"), options=slow_options) as slow:
            return self.epoch(slow.mountpoint, [slow], options, job, what_if)

    def whatif(self):
        """Other configurations, told from one cold epoch."""
        data = ensure("imagenet-like", MANY_FILES)
        names = [os.path.join(folder, name) for folder, _, files in os.walk(data) for name in files]
        pages = sum(-(-os.path.getsize(name) // 4096) * 4096 for name in names)
        half = ("--ram", pages // 2, "--set", "prefetch.enabled=false")
        whole = ("--ram", "1GiB", "--set", "prefetch.enabled=false")
        twice = ("--epochs", 2, *JOB)
        ways = {"cached": ("ram=100%", whole, twice, ()), "ram50": ("ram=50%", half, twice, ()),
                "latency": ("latency=0.5", COLD, JOB, HALF_LATENCY), "link": ("link=2", COLD, JOB, TWICE_LINK),
                "workers": ("workers=4", COLD, ("--workers", 4, *JOB[2:]), ())}
        line, found = self.slow_epoch(data, COLD, JOB, what_if=[change for change, *_ in ways.values()])
        if line["seconds"] < 20:
            raise RunError(f"the cold epoch took only {line['seconds']:.1f} s")
        told = dict(zip(ways, (change["seconds"] for change in found["what_if"])))
        if len(told) != len(ways):
            raise RunError(f"the report says nothing about what would be: {found['notes']}")
        errors = []
        for name, (_, options, job, slow_options) in ways.items():
            runs = [self.slow_epoch(data, options, job, slow_options)[0]["seconds"] for _ in range(LATER)]
            errors.append(abs(told[name] / statistics.median(runs) - 1))
            say(f"{name}: told {told[name]:.2f} s, measured {' '.join(f'{run:.2f}' for run in runs)}")
            self.add(f"whatif.{name}.error", [errors[-1]])
            self.add(f"whatif.{name}.told_s", [told[name]], "s")
            self.add(f"whatif.{name}.measured_s", runs, "s")
        self.add("whatif.mean_error", errors, value=round(statistics.fmean(errors), 4))
        self.add("whatif.worst_error", errors, value=round(max(errors), 4))
        self.add("whatif.cold_s", [line["seconds"]], "s")

    def machine(self):
        """Fewer processors, and a larger cache disk."""
        self.cores()
        self.disk()

    def cores(self):
        """Half of the processors, by binding everything to one of two."""
        data, usable = ensure("imagenet-like", MANY_FILES), os.sched_getaffinity(0)
        job = ("--workers", 4, "--burn-ms", 8, "--step-ms", 10)
        two = sorted(usable)[:2]
        if len(two) < 2 or len(usable) > 2:
            raise RunError(f"this part needs a machine with two processors, not {len(usable)}")
        line, found = self.slow_epoch(data, COLD, job, what_if=["cores=1"])
        os.sched_setaffinity(0, two[:1])
        try:
            runs = [self.slow_epoch(data, COLD, job)[0]["seconds"] for _ in range(LATER)]
        finally:
            os.sched_setaffinity(0, usable)
        self.tell("cores", line, found, runs)

    def disk(self):
        """A cache disk for all of the data, told from one for half of it."""
        data, runs = ensure("imagenet-like", MANY_FILES), []
        cache = os.path.join(self.top, "cache")
        size = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, files in os.walk(data) for name in files)

        def with_disk(size, what_if=()):
            options = (*COLD, "--cache-dir", fresh_dir(cache), "--disk", size)
            return self.slow_epoch(data, options, ("--epochs", 3, *JOB), what_if=what_if)

        line, found = with_disk(size // 2, ["disk=100%"])
        for _ in range(LATER):
            runs.append(with_disk("1GiB")[0]["seconds"])
        self.tell("disk", line, found, runs)

    def tell(self, name, line, found, runs):
        """One prediction beside what was measured."""
        if not found["what_if"]:
            raise RunError(f"the report says nothing about what would be: {found['notes']}")
        told = found["what_if"][0]["seconds"]
        say(f"{name}: from {line['seconds']:.2f} s told {told:.2f} s, measured {' '.join(f'{run:.2f}' for run in runs)}")
        self.add(f"whatif.{name}.error", [abs(told / statistics.median(runs) - 1)])
        self.add(f"whatif.{name}.told_s", [told], "s")
        self.add(f"whatif.{name}.measured_s", runs, "s")

    def regimes(self):
        """The nine regimes."""
        few, many = ensure("imagenet-like", FILES), ensure("imagenet-like", MANY_FILES)
        right, sums, waits, errors = {}, {}, {}, {}
        for turn in range(self.pairs):
            for name, (is_slow, options, job, verdicts) in REGIMES.items():
                line, found = self.regime(many if name in SHORT else few, is_slow, options, job)
                parts = found["parts"]
                right.setdefault(name, []).append(found["bottleneck"] in verdicts)
                sums.setdefault(name, []).append(abs(sum(parts.values()) - 1))
                told = found["trainer_wait"]
                told = 2 if told is None else told       # not known: as wrong as can be
                waits.setdefault(name, []).append(abs(told - line["wait"] / line["seconds"]))
                model = (found["model"] or {}).get("error", 1)
                errors.setdefault(name, []).append(abs(model))
                say(f"{self.elapsed():5.0f} s  {turn} {name:18} {found['bottleneck']} {line['seconds']:.2f} s, wait"
                    f" {line['wait'] / line['seconds']:.3f}, told {told:.3f}, model {model:+.3f}, sum"
                    f" {sum(parts.values()):.3f}")
        middle = {name: statistics.median(runs) for name, runs in waits.items()}
        each = [sum(runs[turn] for runs in right.values()) for turn in range(self.pairs)]
        self.add("verdicts", each, "", value=sum(all(runs) for runs in right.values()))
        self.add("parts.sum_error", per_turn(sums, self.pairs))
        self.add("trainer_wait.error", per_turn(waits, self.pairs))
        self.add("trainer_wait.worst", list(middle.values()), value=round(max(middle.values()), 4))
        for name, runs in errors.items():
            self.add(f"model.{name}.error", runs)

    def nomount(self):
        """What the job would gain, told without a mount."""
        data = ensure("imagenet-like", MANY_FILES)
        with Slowpfs(data, os.path.join(self.top, "source")) as slow, Watchdog(LONGEST, [slow]):
            line, found = self.alone(slow.mountpoint, JOB)
        if line["seconds"] < 20:
            raise RunError(f"the cold epoch took only {line['seconds']:.1f} s")
        for name in sorted(os.listdir(data)):
            subprocess.run(f"cat {data}/{name}/* > /dev/null", shell=True, check=True)
        local = [self.alone(data, JOB)[0]["seconds"] for _ in range(5)]
        cap = found["cap_s"]
        if cap is None:
            raise RunError(f"the report says nothing about what would be: {found['notes']}")
        say(f"cold {line['seconds']:.2f} s, told {cap:.2f} s, local {' '.join(f'{s:.2f}' for s in local)}")
        self.add("nomount.error", [abs(cap / statistics.median(local) - 1)])
        self.add("nomount.cold_s", [line["seconds"]], "s")
        self.add("nomount.told_s", [cap], "s")
        self.add("nomount.local_s", local, "s")

    def overhead(self):
        """64 workers that do next to nothing."""
        data = ensure("imagenet-like", MANY_FILES)
        shares = []
        for _ in range(self.pairs):
            job = ("--workers", 64, "--batch", 4, "--prep-ms", 400, "--epochs", 2)
            whole, lines = self.profile(data, job)
            shares.append(whole["cpu_s"] / sum(epoch["seconds"] for epoch in whole["epochs"]))
            seconds = sum(line["seconds"] for line in lines)
            say(f"{whole['cpu_s']:.3f} s of processor time in {seconds:.1f} s")
        self.add("overhead.cpu_share", shares)

    def alone(self, data, job):
        """The loader without a mount: its first epoch, and the report of that."""
        whole, lines = self.profile(data, job)
        return lines[0], whole["epochs"][0]

    def profile(self, data, job):
        """The report of a run without a mount, and the lines of its epochs."""
        to = os.path.join(fresh_dir(os.path.join(self.top, "report")), "report.json")
        words = [binary("belady"), "run", "--no-mount", "--report", to, "--", PYTHON, LOADER, data, *map(str, job)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST, check=False)
        if done.returncode != 0:
            raise RunError(f"belady run gave {done.returncode}: {done.stderr[-800:]}")
        with open(to) as f:
            whole = json.load(f)[0]
        return whole, [fields(line) for line in done.stdout.splitlines() if line.startswith("epoch ")]


def per_turn(by_regime, turns):
    """The mean over all regimes, by turn."""
    return [statistics.fmean(runs[turn] for runs in by_regime.values()) for turn in range(turns)]


def report(mountpoint, what_if=()):
    """The last epoch of the report of a mount."""
    words = [word for change in what_if for word in ("--what-if", change)]
    done = subprocess.run([binary("belady"), "report", mountpoint, "--json", *words], capture_output=True, timeout=60,
                          check=True)
    epochs = [epoch for epoch in json.loads(done.stdout)["epochs"] if epoch["kind"] == "workers"]
    if not epochs:
        raise RunError("the report tells of no workers")
    return epochs[-1]


if __name__ == "__main__":
    Bench.main(__doc__, "one round")
