"""Orders found out of stock torch loaders that nobody told about: how soon, how exactly, at what cost.

Goal: tell what a job gains if belady finds its order out, and that no order is believed that is not read.
Method: 50,000 files of one page behind `slowpfs --preset busy`, and a cache for half of them; a torch DataLoader with
4 workers in all, whose loop sleeps as an accelerator would compute. a: unseeded shuffle; a.noioctl reads by os.open
and os.read with a cache for all; a.received is told its order. b: seed 42, a model made first, a validation loader
between the epochs. c: DistributedSampler, 2 ranks. d: no shuffling. e: an order from the system's entropy.  X.unread
is X with order.learn=off: only the unread set.  A first epoch in which all seeds are searched lasts as long as the
search takes one core, of which it gets a part.  So the duration of jobs depends on the processor, and jobs for which
there is no time are left out. --full: 4 epochs each, none shorter than 60 s, each beside its X.unread.  Otherwise
epochs without a search are short, and one a.unread stands for all.
Then: a thousand simulated jobs (their unit test), and how many opens a second one core takes.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time

from driver import RunError, IdleMeter, run_program, stopwatch
from hotdata import PAGE
from mounts import TARGET, TOP, Belady, Slowpfs, Watchdog, binary, fresh_dir, say
from parts import arguments
from report import publish, quartiles, row
from schedule import Schedule

FILES, VALIDATION, FOLDERS = 50_000, 2_000, 100
NODE = 1_100                 # bytes of the RAM budget that the kernel takes for each file that it knows
WORKERS = 4
SHORT, LONG, FULL = 18, None, 60             # seconds of sleep in an epoch; LONG: as long as all seeds take
SEARCHING = .6               # of a core is the part of a search on two cores that are half idle
TOLD = "torch-random:seed=7,index=imagefolder,root=train"
BARS = {"a.crack_core_s": 80, "a.exact": .999, "a.noioctl.exact": .999, "b.known_before_start": 2,
        "c.opens_to_commit": 64, "d.known_from_epoch": 2, "e.false_commits": 0, "trials.false_commits": 0, "trials.committed": .95,
        "observations_per_s": 200_000}
AVX512_CORE_S = 30
AT_LEAST = ("a.exact", "a.noioctl.exact", "b.known_before_start", "trials.committed", "observations_per_s")
KNOWN = .95                  # of an epoch's opens were in their place: its order was known
SLACK = .02                  # of an epoch's files: the first ones are read before anything can be fetched

# The most important first. By name: the job, its sleeps, the share of the data that the cache holds, what belady is
# told, and the job's options.
CASES = {
    "a": ("shuffled", (LONG, SHORT), .5, [], []),
    "c": ("distributed", (SHORT,) * 3, .5, [], []),
    "e": ("secret", (SHORT,) * 4, .5, [], []),
    "d": ("sequential", (SHORT,) * 3, .5, [], []),
    "b": ("seeded", (LONG, SHORT, SHORT, SHORT), .5, [], []),
    "a.noioctl": ("shuffled", (LONG, SHORT), 1.1, [], ["--descriptors"]),
    "a.unread": ("shuffled", (SHORT,) * 3, .5, ["--set", "order.learn=off"], []),
    "a.received": ("own", (SHORT,) * 2, .5, ["--order", TOLD], []),
}


def write_data(top):
    """The files: train/ and val/, folders of classes; each begins with its number."""
    noise = os.urandom(2 * PAGE)
    for part, files in (("train", FILES), ("val", VALIDATION)):
        for i in range(files):
            folder = os.path.join(top, part, f"{i * FOLDERS // files:03}")
            if i * FOLDERS % files < FOLDERS:
                os.makedirs(folder)
            with open(os.path.join(folder, f"{i:06}.bin"), "wb", buffering=0) as f:
                f.write(b"%08d" % i + noise[i % PAGE:][:PAGE - 8])
    return top


def processor_has(flag):
    with open("/proc/cpuinfo") as f:
        return any(line.startswith("flags") and flag in line.split() for line in f)


class Opens:
    """Opens of all streams, as each status counts them: predicted, strayed, and those of the predicted opens that
    were seen (an open that was not seen proves nothing).  A withdrawn order is counted anew, so the looks must not be
    far apart."""

    FIELDS = ("opens_predicted", "opens_strayed", "opens_seen")

    def __init__(self):
        self.last, self.sums = {}, [0, 0, 0]

    def look(self, status):
        streams = {("order", order["stream"]): order for order in status["orders"]}
        streams |= {("loader", loader["loader"]): loader["progress"] for loader in status["loaders"]}
        for key, progress in streams.items():
            now = [(progress or {}).get(field) or 0 for field in self.FIELDS]
            last = self.last.get(key, [0, 0, 0])
            fresh = now[0] < last[0]
            self.sums = [total + (n if fresh else n - l) for total, n, l in zip(self.sums, now, last)]
            if progress:
                self.last[key] = now


class Watch(threading.Thread):
    """Looks at a mount's status again and again: when each loader's order became known, and the opens predicted."""

    def __init__(self, mount):
        super().__init__(daemon=True)
        self.mount, self.over, self.known, self.lock = mount, threading.Event(), [], threading.Lock()
        self.opens = Opens()

    def run(self):
        followed = {}
        while not self.over.wait(.2):
            try:
                loaders = self.status()["loaders"]
            except (subprocess.SubprocessError, ValueError):
                continue
            now = time.monotonic()
            for loader in loaders:
                state = loader["followed"] and (loader["epoch"], loader["bits"])
                if state and state != followed.get(loader["loader"]):
                    with self.lock:
                        self.known.append((now, loader))
                followed[loader["loader"]] = state

    def status(self):
        """The status. Its counts are added up before it is asked for again."""
        with self.lock:
            status = self.mount.status()
            self.opens.look(status)
            return status

    def counted(self):
        """Opens predicted, strayed and seen so far."""
        with self.lock:
            return list(self.opens.sums)

    def since(self, moment, ids):
        """Seconds from `moment` until the orders of all these loaders were known for the first time; or None."""
        with self.lock:
            times = [min((at for at, loader in self.known if at >= moment and loader["loader"] == number), default=None)
                     for number in ids]
        return None if not times or None in times else max(times) - moment

    def cracks(self):
        """The processor seconds of searches after which a search of all seeds first found an order."""
        with self.lock:
            return [loader["search_cpu_s"] for _, loader in self.known if "searching all seeds" in loader["belief"]][:1]


class Job:
    """One case: its mounts, its job, and its results, epoch by epoch."""

    def __init__(self, rig, name, kind, sleeps, share, told, options):
        self.rig, self.name, self.kind, self.sleeps = rig, name, kind, sleeps
        self.told, self.options = told, options
        self.ranks = 2 if kind == "distributed" else 1
        pages = FILES * PAGE
        self.ram = int(share * pages) + (FILES + VALIDATION) * NODE + (1 << 20)
        self.epochs, self.cracks, self.loaders, self.commits, self.held_late_us = [], [], [], 0, 0
        self.seen, self.strayed = 0, 0

    def run(self):
        with Slowpfs(self.rig.data, os.path.join(self.rig.work, "source")) as slow:
            options = ["--ram", self.ram, "--set", "mount.mode=push", *self.told]
            with Belady(slow.mountpoint, os.path.join(self.rig.work, "mount"), options) as mount:
                watch = Watch(mount)
                watch.start()
                try:
                    self.train(slow, mount, watch)
                finally:
                    watch.over.set()
                    watch.join(30)
                self.cracks, self.commits = watch.cracks(), len(watch.known)
                self.held_late_us = slow.stats()["held_late_us_max"]
        return self

    def train(self, slow, mount, watch):
        """Runs the ranks side by side. What is counted between two borders belongs to one epoch."""
        meter, lines, failed = IdleMeter(), {}, []
        border = threading.Barrier(self.ranks, action=lambda: self.border(lines, mount, watch, meter))
        self.begin(mount, watch, meter)

        def rank(number):
            def at_border(line):
                lines[number] = line
                border.wait(self.rig.longest)
                return line
            command = [os.path.join(TOP, "scripts", "lib", "jobs.py"), mount.mountpoint, self.kind,
                       "--sleeps", ",".join(map(str, self.sleeps)), "--workers", WORKERS // self.ranks,
                       "--rank", number, "--ranks", self.ranks, *self.options]
            try:
                run_program(command, at_border, lambda: self.begin(mount, watch, meter))
            except Exception as e:               # in a thread: raised in the thread that waits for it
                failed.append(e)
                border.abort()

        with Watchdog(self.rig.longest, [slow, mount]) as dog:
            threads = [threading.Thread(target=rank, args=(number,)) for number in range(self.ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failed or dog.bitten or len(self.epochs) != len(self.sleeps):
            raise RunError(f"{self.name}: only {len(self.epochs)} of {len(self.sleeps)} epochs: {failed[:1]}")

    def begin(self, mount, watch, meter):
        """An epoch begins."""
        meter.percent()
        self.status, self.cpu, self.began = watch.status(), mount.cpu_us(), time.monotonic()
        self.counted = watch.counted()

    def border(self, lines, mount, watch, meter):
        """An epoch has ended."""
        before, cpu, began = self.status, self.cpu, self.began
        idle = meter.percent()
        now = watch.status()
        predicted, strayed, seen = (after - before for after, before in zip(watch.counted(), self.counted))
        self.seen, self.strayed = self.seen + seen, self.strayed + strayed
        if sum(line["images"] for line in lines.values()) < FILES or any(line["wrong"] for line in lines.values()):
            raise RunError(f"{self.name}: not what was to be read: {lines}")
        self.loaders = training(now)
        change = {key: now[key] - before[key] for key in ("opens", "hits", "late", "source_bytes")}
        searched = sum(l["search_cpu_s"] for l in now["loaders"]) - sum(l["search_cpu_s"] for l in before["loaders"])
        seconds = max(line["seconds"] for line in lines.values())
        known = watch.since(began, [loader["loader"] for loader in self.loaders])
        followed = bool(self.loaders) and all(loader["followed"] for loader in self.loaders)
        self.epochs.append({
            "seconds": round(seconds, 2),
            "stall_share": round(max(line["wait"] / line["seconds"] for line in lines.values()), 4),
            "hit_share": round(change["hits"] / max(change["opens"], 1), 4),
            "late_share": round(change["late"] / max(change["opens"], 1), 4),
            "fetched": round(change["source_bytes"] / (FILES * PAGE), 3),
            "predicted_share": round(predicted / FILES, 4),
            "strayed": strayed,
            "known_after_opens": max(l["known_after"] or 0 for l in self.loaders) if followed else None,
            "known_after_s": None if known is None or not followed else round(known, 2),
            "foreseen": min((loader["epochs_foreseen"] for loader in self.loaders), default=0),
            "search_core_s": round(searched, 2),
            "belady_cpu_s": round((mount.cpu_us() - cpu) / 1e6 - searched, 2),
            "kept_share": round(now["ram"]["kept"] / (FILES * PAGE), 4),
            "idle": idle,
        })
        say(f"        {self.name} epoch {len(self.epochs)}: {self.epochs[-1]}")
        self.begin(mount, watch, meter)

    def exact(self):
        """The share of a known order's opens that were where the order has them, of those that were seen."""
        return self.seen / (self.seen + self.strayed) if self.seen else None


def training(status):
    """Of each process the loader that began first: validation comes after an epoch."""
    first = {}
    for loader in status["loaders"]:
        first.setdefault(loader["process"], loader)
    return list(first.values())


class Rig:
    """The data and the scratch directory."""

    def __init__(self, longest):
        self.longest = longest
        self.work = fresh_dir(os.path.join(TARGET, f"bench-{os.getpid()}"))
        say(f"making {FILES + VALIDATION:,} files")
        self.data = write_data(os.path.join(self.work, "data"))

    def clean(self):
        shutil.rmtree(self.work, ignore_errors=True)


def trials():
    """The figures of the thousand simulated jobs, as their test prints them."""
    command = ["cargo", "test", "--locked", "--quiet", "--lib", "a_thousand_jobs", "--", "--nocapture"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("trials ")]
    if not found:
        raise RunError(f"the simulated jobs say nothing: {(done.stdout + done.stderr)[-1500:]}")
    return json.loads(found[0].split(" ", 1)[1])


class Rows:
    """Makes rows of what ran."""

    def __init__(self, schedule):
        self.schedule, self.rows = schedule, []

    def add(self, name, runs, unit="", bar=None, **more):
        bar = BARS.get(name) if bar is None else bar
        self.rows.append(row(name, runs, unit, bar, at_least=name in AT_LEAST, **more))

    def jobs(self):
        get, avx512 = self.schedule.get, processor_has("avx512f")
        cracks = [s for name in ("a", "a.noioctl", "b") for job in get(name) for s in job.cracks]
        self.add("a.crack_core_s", cracks, "s", AVX512_CORE_S if avx512 else BARS["a.crack_core_s"],
                 note=f"processor seconds until a seed was found, {'AVX-512' if avx512 else 'no AVX-512'}; 2^32 seeds"
                 f" take {2 ** 32 / crack_speed():.0f} s here, so half of that on average", **quartiles(cracks))
        for name in ("a", "a.noioctl"):
            self.add(f"{name}.exact", [job.exact() for job in get(name) if job.exact() is not None], digits=6,
                     note=f"of {sum(job.seen + job.strayed for job in get(name)):,} opens seen in known orders")
        self.add("b.known_before_start", [job.epochs[-1]["foreseen"] for job in get("b")], "epochs")
        for job in get("d"):
            known = [epoch["predicted_share"] > KNOWN for epoch in job.epochs]
            self.add("d.known_from_epoch", [known.index(True) + 1] if True in known else [], "epochs",
                     note="the first epoch of which that share was predicted: " + str(KNOWN))
        firsts = [job.epochs[0]["known_after_opens"] for job in get("c")]
        self.add("c.opens_to_commit", [first for first in firsts if first is not None], "opens")
        self.add("e.false_commits", [job.commits for job in get("e")],
                 note="orders that were followed at any time, of any loader")
        for job in get("e"):
            steady = job.epochs[1:]
            kept = min(epoch["kept_share"] for epoch in steady)
            theory = kept * (1 + math.log(1 / kept))
            self.add("e.miss_share", [1 - epoch["hit_share"] for epoch in steady], bar=round(1 - theory + SLACK, 4),
                     note=f"unread set: x (1 + ln 1/x) of the files are there where the cache holds x = {kept}")

    def epochs(self):
        """The figures of each epoch, to compare with."""
        for name in self.schedule.runs:
            for job in self.schedule.get(name):
                for field, unit in (("seconds", "s"), ("stall_share", ""), ("hit_share", ""), ("predicted_share", "")):
                    self.add(f"{name}.{field}", [epoch[field] for epoch in job.epochs], unit)
                self.rows[-1]["epochs"] = job.epochs
                self.rows[-1]["held_late_us_max"] = job.held_late_us

    def simulated(self, found):
        """The thousand jobs."""
        knowable = sum(kind["knowable"] for kind in found["kinds"])
        self.add("trials.false_commits", [found["false_commits"]])
        self.add("trials.committed", [sum(kind["known"] for kind in found["kinds"]) / knowable],
                 note=f"of {knowable} jobs with an order that can be found; {sum(k['jobs'] for k in found['kinds'])} in all: the"
                 " others read in none, or in one of a dataset too small for a search of all seeds to pay")
        for kind in found["kinds"]:
            if kind["opens"]:
                opens = sorted(kind["opens"])
                self.add(f"trials.{kind['kind'].lower()}.opens_to_commit", opens, "opens", **quartiles(opens))
                self.rows[-1].update(runs=opens[::max(1, len(opens) // 10)], most=opens[-1], jobs=kind["jobs"])


def speed_of(*args):
    command = [binary("learnspeed"), *map(str, args)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def crack_speed():
    """Seeds a second on one core, with the best instructions that the processor has."""
    path = "avx512" if processor_has("avx512f") else "avx2" if processor_has("avx2") else "baseline"
    seeds = 1 << (21 if path == "baseline" else 26)
    return speed_of("crack", path, "--hypotheses", 4, "--seeds", seeds)["seeds_per_second"]


def plan(rig, full):
    """(name, what to call), the most important first."""
    long = max(FULL, round(2 ** 32 / crack_speed() / SEARCHING))
    cases = {name: (kind, [length or long for length in sleeps], *more) for name, (kind, sleeps, *more) in CASES.items()}
    if full:
        for name, (kind, sleeps, *more) in cases.items():
            cases[name] = (kind, ([max(FULL, length) for length in sleeps] + [FULL] * 4)[:4], *more)
        for name in "bcde":
            kind, sleeps, share, told, options = cases[name]
            cases[f"{name}.unread"] = (kind, sleeps, share, [*told, "--set", "order.learn=off"], options)
    for name, case in cases.items():
        yield name, lambda name=name, case=case: Job(rig, name, *case).run()


def main():
    args = arguments(__doc__, "4 epochs of 60 s, no limit of time", parts=list(CASES))
    elapsed = stopwatch()
    rig = Rig(longest=1_800)
    try:
        schedule = Schedule(args.full, 1)
        jobs = [(name, job) for name, job in plan(rig, args.full) if not args.part or name in args.part]
        ran = schedule.run(jobs)
    finally:
        rig.clean()
    rows = Rows(schedule)
    rows.jobs()
    found = True
    if not args.part:
        say(f"{elapsed():5.0f} s  a thousand simulated jobs")
        found = schedule.attempt("trials", trials)
    if not args.part and found:
        rows.simulated(found)
    say(f"{elapsed():5.0f} s  opens a second")
    rows.add("observations_per_s", [speed_of("observe")["opens_per_second"] for _ in range(5)], "1/s", digits=0,
             note="through planner and learner, on one core")
    rows.epochs()
    publish("learn", rows.rows, schedule.notes, args.json, keep=not args.part)
    sys.exit(0 if ran and found else 1)


if __name__ == "__main__":
    main()
