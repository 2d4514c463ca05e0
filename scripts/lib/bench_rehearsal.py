"""What old samples among the new ones cost a training loop, and what their buffer does in how long.

Goal: tell whether rehearsal at b=56, r=7 costs a job more than the samples it adds, and what knowing them saves.
Method: files of 112 KB behind `slowpfs --preset busy`, and a mount that caches a twentieth of them and is told the
order of the new ones.  The job has two stock torch loaders (rehearsing.py).  Its own loader reads the task's
directory as without rehearsal, so its order can be told.  A second one reads old samples from `rehearsal/old/slots`.
view: the same for a script of one loader, over `rehearsal/old/mix` in an order that was told.
mix: epochs with and without old samples in turns, at .8 of the source's bandwidth.  The first one, in which workers
start and the new samples are offered, is a row of its own. x_local: without a pace, all cached, beside local copies
of the same samples.
many: a buffer of as many tiny files as ImageNet has, so that only their number counts.
b56r7, weighted: a small compiled program reads order files; hit is 1 - bytes of the source / bytes read.
latent: as many codes as REMIND keeps of ImageNet, appended in pieces. os.pread reads batches from `latent/all`, all
of which was read before.
"""

import json
import os
import random
import shutil
import subprocess

import numpy

from bench_metadata import make_tree
from buffers import rehearse, stats_of, view_of, wait_until_offered
from driver import RunError, run_program, stopwatch
from hotdata import MIB, PAGE, available
from mounts import TOP, Belady, Slowpfs, Watchdog, binary, fresh_dir, say
from parts import Parts
from readers import time_reads, write_list
from turns import polling_idle

NEW, OLD = 56, 7             # samples of a batch
SIZE, LINK = 112_283, 200e6  # bytes of a file, bytes a second of the preset busy
PACE = SIZE / (.8 * LINK)    # seconds that a sample keeps the loop busy
BATCHES = 144                # of the task, an epoch
OF_CLASS = 200               # samples
OLD_SHARE = .4               # old samples for each new one: a tenth of the samples of four such tasks
CACHED = .2                  # of the bytes of a dataset, when hits are counted
STEADY = 4                   # epochs in which hits are counted
MANY = 1_280_000
CODES, CODE = 960_000, 1_568 # and bytes of one code
APPEND = 20_000              # codes that are appended at once
LONGEST = 400                # seconds until a mount counts as hung
TOLD = "torch-distributed:seed=0,index=imagefolder,root=new,ext=.bin"


def pages(files):
    return files * -(-SIZE // PAGE) * PAGE


def write_samples(top, count, new):
    """Writes samples that begin with their class and number. The last `new` samples are the task's."""
    noise = os.urandom(SIZE + PAGE)
    names = []
    for number in range(count):
        part, name = "old" if number < count - new else "new", f"{number // OF_CLASS:03}/{number:06}"
        names.append(f"{part}/{name}.bin")
        path = os.path.join(top, names[-1])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as f:
            f.write(name.encode() + noise[number % PAGE:][:SIZE - len(name)])
    return names


def buffer_of(size, **more):
    """The options of a mount with a buffer `old` of `size` samples."""
    options = []
    for key, value in {"size": size, "policy": "class-balanced", **more}.items():
        options += ["--set", f"rehearsal.old.{key}={value}"]
    return options


def code_of(number):
    """The code of a number: all of its bytes depend on it."""
    return (number * 2_654_435_761 % 2**64).to_bytes(8, "little") * (CODE // 8)


def disk_bytes(top):
    """Bytes that the files below a directory take on the disk."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
    return sum(os.lstat(file).st_blocks * 512 for file in files)


class Bench(Parts):
    """The measurements, and the rows they give."""

    PARTS = ("mix", "cached", "view", "many", "b56r7", "weighted", "latent")
    BARS = {"mix.wait_share": .02, "mix.x_local": 1.1, "mix.growth": 1.155, "mix.view.wait_share": .02,
            "mix.view.x_local": 1.1, "sleep_s": 5, "scores.lines_per_s": 100_000,
            "scores.command_lines_per_s": 100_000, "b56r7.hit": .25, "weighted.hit": .65, "latent.x_payload": 1.05, "latent.batch512_ms": 5}
    AT_LEAST = ("scores.lines_per_s", "scores.command_lines_per_s", "b56r7.hit", "weighted.hit")

    def __init__(self, top, quick, turns):
        super().__init__(top, quick, turns)
        self.batches = BATCHES // 10 if quick else BATCHES
        self.samples = None

    def data(self):
        """The directory of the samples, made at the first call."""
        data = os.path.join(self.top, "data")
        if self.samples is None:
            new = self.batches * NEW
            old = round(OLD_SHARE * new)
            if 3 * pages(new + old) > available():
                raise RunError(f"{3 * pages(new + old) / MIB:.0f} MiB of memory are needed")
            say(f"making {new + old:,} files of {SIZE:,} bytes")
            self.samples = write_samples(fresh_dir(data), new + old, new)
        return data

    def names(self, part):
        return [name for name in self.samples if name.startswith(part)]

    def mount(self, source, ram, *options):
        return Belady(source, os.path.join(self.top, "mount"), ["--ram", ram, *options], patience=LONGEST)

    def rehearsing(self, source, ram):
        """A mount that is told the order of the task, with a buffer for all old samples."""
        cache = fresh_dir(os.path.join(self.top, "cache"))
        return self.mount(source, ram, "--order", TOLD, "--cache-dir", cache, "--disk", 16 * MIB,
                          *buffer_of(len(self.names("old"))))

    def fill(self, mount):
        """Offers the old samples. The buffer has room for all of them."""
        old = self.names("old")
        rehearse(mount, "offer", "old", given="".join(f"{name}\n" for name in old))
        wait_until_offered(mount, len(old), LONGEST)

    def job(self, pairs, epochs, pace=0.0, at_border=lambda: None, mixes=(), by_os=False):
        """Runs the job. Returns the lines of its epochs, each with the result of at_border."""
        command = [os.path.join(TOP, "scripts", "lib", "rehearsing.py"), ",".join(epochs), "--pace-us", pace * 1e6,
                   "--batch", NEW, OLD]
        for pair in pairs:
            command += ["--pair", *pair]
        for mix in mixes:
            command += ["--mix", mix]
        if by_os:
            command.append("--os")

        def border(line):
            epoch = epochs[int(line["epoch"]) - 1]
            expected = self.batches * (NEW + (0 if epoch.isdecimal() else OLD))
            if line["wrong"] or line["images"] != expected:
                raise RunError(f"{line['wrong']:.0f} wrong samples, {line['images']:.0f} of {expected} read")
            return {**line, "at": at_border()}
        return run_program(command, border)

    def mix(self):
        """At a pace, over the slow source."""
        data = self.data()
        with Slowpfs(data, os.path.join(self.top, "source")) as slow:
            with self.rehearsing(slow.mountpoint, pages(len(self.samples)) // 20) as mount:
                with Watchdog(LONGEST + 20 * self.pairs, [slow, mount]):
                    self.fill(mount)
                    pair = (os.path.join(mount.mountpoint, "new"), view_of(mount, "old", "slots"))
                    first, _, *turns = self.job([pair], ["0+", "0"] + ["0+", "0"] * self.pairs, PACE,
                                                lambda: slow.stats()["bytes"])
                held_late_us = slow.stats()["held_late_us_max"]
        mixed, plain = turns[0::2], turns[1::2]
        read = (len(turns) - 1) * self.batches * NEW * SIZE
        fetched = (turns[-1]["at"] - turns[0]["at"]) / read
        waits = [[epoch["wait"] / epoch["seconds"] for epoch in epochs] for epochs in (mixed, plain)]
        self.add("mix.wait_share", waits[0], "", fetched=round(fetched, 3), held_late_us_max=held_late_us,
                 note=f"{fetched:.0%} of the new samples came from the source")
        self.add("mix.first.wait_share", [first["wait"] / first["seconds"]], "", note="workers start, all is offered")
        self.add("mix.without.wait_share", waits[1], "", note="no old samples")
        self.add("mix.growth", [a["seconds"] / b["seconds"] for a, b in zip(mixed, plain)],
                 note=f"{1 + OLD / NEW} times as many samples")

    def cached(self):
        """Without a pace, all cached, in turns with local copies; then slots alone."""
        data = self.data()
        with self.rehearsing(data, 2 * pages(len(self.samples)) + 64 * MIB) as mount:
            with Watchdog(LONGEST, [mount]):
                self.fill(mount)
                held, slots = os.path.join(self.top, "held"), view_of(mount, "old", "slots")
                rehearse(mount, "export", "old", held)
                new, local = os.path.join(mount.mountpoint, "new"), os.path.join(data, "new")
                pairs = [(new, slots), (local, held), (new, view_of(mount, "old", "epoch-0"))]
                self.mixes(pairs, self.pairs)
                with polling_idle() as polls:
                    if polls:
                        self.mixes(pairs, max(2, self.pairs // 3), "polling.",
                                   note="idle processors wait for work for 0.2 ms")
                self.slots(slots, held)

    def mixes(self, pairs, count, how="", **more):
        """Rows of epochs of new and old samples, and of new ones alone, in turns."""
        turn = ["0+", "1+", "2+", "0", "1"]
        epochs = self.job(pairs, turn * (1 + count))[len(turn):]
        by_kind = [epochs[kind::len(turn)] for kind in range(len(turn))]
        self.x_local(f"mix.{how}x_local", by_kind[0], by_kind[1], **more)
        self.x_local(f"mix.epoch_view.{how}x_local", by_kind[2], by_kind[1],
                     **{"note": "old samples of epoch-0", **more})
        self.x_local(f"new.{how}x_local", by_kind[3], by_kind[4],
                     **{"note": "no old samples; Python's open() is a request of its own", **more})

    def x_local(self, name, belady, local, **more):
        """Adds a row: seconds of epochs over seconds of local ones, turn by turn."""
        belady, local = [[epoch["seconds"] for epoch in epochs] for epochs in (belady, local)]
        self.add(name, [a / b for a, b in zip(belady, local)], belady_s=belady, local_s=local, **more)

    def view(self):
        """One directory with both: at a pace over the slow source, then without a pace beside a local copy."""
        data = self.data()
        with Slowpfs(data, os.path.join(self.top, "source")) as slow:
            with self.rehearsing(slow.mountpoint, pages(len(self.samples)) // 20) as mount:
                with Watchdog(LONGEST + 20 * self.pairs, [slow, mount]):
                    mix = self.begin(mount)
                    _, *paced = self.job([], ["m0"] * (1 + self.pairs), PACE, mixes=[mix])
        self.add("mix.view.wait_share", [epoch["wait"] / epoch["seconds"] for epoch in paced], "")
        with self.rehearsing(data, 2 * pages(len(self.samples)) + 64 * MIB) as mount:
            with Watchdog(LONGEST, [mount]):
                mix = self.begin(mount)
                local = self.copied(mix, mount.mountpoint, data)
                for by_os, name, note in ((False, "mix.view.x_local", "Python's open() asks whether it is a terminal"),
                                          (True, "mix.view.os.x_local", "by os.open and os.read")):
                    epochs = self.job([], ["m0", "m1"] * (1 + self.pairs), mixes=[mix, local], by_os=by_os)[2:]
                    self.x_local(name, epochs[0::2], epochs[1::2], note=note)
        shutil.rmtree(local)

    def begin(self, mount):
        """Fills the buffer and begins the task. Returns its mix, whose order is told."""
        self.fill(mount)
        rehearse(mount, "task", "old", 1, "-", given="new\n")
        order = TOLD.replace("root=new", "root=rehearsal/old/mix")
        command = [binary("belady"), "order", "set", mount.mountpoint, order]
        subprocess.run(command, capture_output=True, timeout=LONGEST, check=True)
        return view_of(mount, "old", "mix")

    def copied(self, mix, mountpoint, data):
        """A local copy of the files of a mix."""
        local = fresh_dir(os.path.join(self.top, "mixed"))
        for folder, _, names in os.walk(mix):
            os.makedirs(os.path.join(local, os.path.relpath(folder, mix)), exist_ok=True)
            for name in names:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    source = os.path.relpath(os.path.realpath(path), os.path.realpath(mountpoint))
                else:
                    source = os.fsdecode(os.getxattr(path, "user.belady.source"))
                shutil.copyfile(os.path.join(data, source), os.path.join(local, os.path.relpath(path, mix)))
        return local

    def slots(self, slots, held):
        """Fresh samples one after the other, by one reader of the compiled program."""
        chosen = random.Random(1)
        below = {top: [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names
                       if folder != top] for top in (slots, held)}
        runs = {top: [] for top in below}
        for _ in range(self.pairs):
            for top, paths in below.items():
                listed = write_list(os.path.join(self.top, "list"), chosen.choices(paths, k=2_000))
                runs[top].append(time_reads("read", listed))
        rates = {top: [run["samples"] / run["seconds"] for run in found] for top, found in runs.items()}
        self.add("slots.opens_per_s", rates[slots], "1/s", p50_ns=[run["p50_ns"] for run in runs[slots]],
                 note="opened, read whole and closed, one after the other")
        self.add("held.opens_per_s", rates[held], "1/s", note="the same of local copies")

    def many(self):
        """A large buffer: how fast it fills, takes scores, and chooses a sleep set from all its samples."""
        count = MANY // 10 if self.quick else MANY
        tree = fresh_dir(os.path.join(self.top, "many"))
        if 0 < os.statvfs(tree).f_favail < count + count // 4:
            raise RunError(f"fewer than {count} inodes are free")
        say(f"making {count:,} files of one byte")
        make_tree(tree, count)
        names = [f"{folder}/{name}" for folder in sorted(os.listdir(tree))
                 for name in sorted(os.listdir(os.path.join(tree, folder)))]
        cache = fresh_dir(os.path.join(self.top, "cache"))
        options = ["--cache-dir", cache, "--disk", 16 * MIB, *buffer_of(count, **{"offer-rate": 0})]
        with self.mount(tree, 64 * MIB, *options) as mount, Watchdog(LONGEST, [mount]):
            elapsed = stopwatch()
            rehearse(mount, "offer", "old", given="".join(f"{name}\n" for name in names), patience=LONGEST)
            wait_until_offered(mount, count, LONGEST)
            self.add("offers_per_s", [count / elapsed()], "1/s", note="files of one byte, offered by command and kept")
            if stats_of(mount)["samples"] != count:
                raise RunError("the buffer does not hold all that was offered")
            self.scores(mount, names)
            self.sleep(mount, count)

    def scores(self, mount, names):
        """Scores of samples in the buffer: as a training loop writes them, by Python's files, and by the command."""
        def write(lines):
            with open(view_of(mount, "old", "scores"), "w") as scores:
                scores.writelines(lines)

        def command(lines):
            rehearse(mount, "score", "old", given="".join(lines), patience=LONGEST)

        random.Random(2).shuffle(names)
        turns, ways = min(self.pairs, 5), {write: [], command: []}
        for turn in range(turns):
            lines = [f"{name} {number % 997 / 100}\n" for number, name in enumerate(names[turn::turns])]
            for way, runs in ways.items():
                elapsed = stopwatch()
                way(lines)
                runs.append(len(lines) / elapsed())
        if stats_of(mount)["scored"] != len(ways) * len(names):
            raise RunError("not all scores were taken")
        self.add("scores.lines_per_s", ways[write], "1/s", digits=0, note="from the open to the close")
        self.add("scores.command_lines_per_s", ways[command], "1/s", digits=0, note="the whole command")

    def sleep(self, mount, count):
        """Sleep sets of as many samples as the buffer has."""
        runs = []
        for seed in range(min(self.pairs, 5)):
            elapsed = stopwatch()
            chosen = rehearse(mount, "sleep", "old", "--budget", count, "--seed", seed, patience=LONGEST)
            runs.append(elapsed())
            if len(set(chosen.splitlines())) != count:
                raise RunError("a sleep set has not every sample once")
        self.add("sleep_s", runs, "s", samples=count, note="the whole command: chosen in balance, shown, and printed")

    def b56r7(self):
        """New samples, each once an epoch, with draws from the old ones: what known draws spare the source."""
        data = self.data()
        chosen, old, epochs = random.Random(3), self.names("old"), []
        for _ in range(STEADY + 2):
            new, epoch = self.names("new"), []
            chosen.shuffle(new)
            for at in range(0, len(new), NEW):
                epoch += new[at:at + NEW] + chosen.choices(old, k=OLD)
            epochs.append(epoch)
        self.hits("b56r7.hit", data, epochs)

    def weighted(self):
        """A fifth of the samples makes three fifths of the draws."""
        source = os.path.join(self.data(), "new")
        chosen, names = random.Random(4), [name.removeprefix("new/") for name in self.names("new")]
        hot = names[::5]
        rest = sorted(set(names) - set(hot))
        epochs = [[chosen.choice(hot if chosen.random() < .6 else rest) for _ in names] for _ in range(STEADY + 2)]
        self.hits("weighted.hit", source, epochs)

    def hits(self, name, source, epochs):
        """Adds a row: the share of steady epochs' bytes that the source did not give. The last epoch is not read."""
        order = os.path.join(self.top, "order")
        with open(order, "w") as f:
            for number, epoch in enumerate(epochs):
                f.writelines([f"# epoch {number}\n", *(f"{sample}\n" for sample in epoch)])
        files = sum(len(found) for _, _, found in os.walk(source))
        runs = []
        with Slowpfs(source, os.path.join(self.top, "source")) as slow:
            with self.mount(slow.mountpoint, int(CACHED * pages(files)), "--order", order) as mount:
                with Watchdog(LONGEST, [slow, mount]):
                    for epoch in epochs[:-1]:
                        before = slow.stats()["bytes"]
                        listed = [os.path.join(mount.mountpoint, sample) for sample in epoch]
                        found = time_reads("read", write_list(os.path.join(self.top, "list"), listed))
                        runs.append(1 - (slow.stats()["bytes"] - before) / found["bytes"])
        simulated = self.simulated(order, source)
        told = ", ".join(f"{policy} {share:.3f}" for policy, share in simulated.items())
        self.add(name, runs[1:], "", simulated=simulated, first=round(runs[0], 4), note=f"simulated: {told}")

    def latent(self):
        """Codes: how fast they are kept, what they take on the disk, and what a batch of them costs."""
        count = CODES // 10 if self.quick else CODES
        source, cache = fresh_dir(os.path.join(self.top, "source")), fresh_dir(os.path.join(self.top, "cache"))
        with open(os.path.join(source, "file"), "wb") as f:
            f.write(b"x")
        options = ["--cache-dir", cache, "--disk", 16 * MIB, "--set", f"rehearsal.codes.latent={CODE}"]
        with self.mount(source, 64 * MIB, *options) as mount, Watchdog(LONGEST, [mount]):
            before, elapsed = disk_bytes(cache), stopwatch()
            for first in range(0, count, APPEND):
                codes = b"".join(number.to_bytes(8, "little") + code_of(number)
                                 for number in range(first, min(first + APPEND, count)))
                with open(view_of(mount, "codes", "latent/append"), "wb", buffering=0) as f:
                    f.write(codes)
            self.add("latent.appends_per_s", [count / elapsed()], "1/s", digits=0, note="what makes them included")
            os.sync()
            self.add("latent.x_payload", [(disk_bytes(cache) - before) / (count * CODE)], codes=count)
            self.batches_of_codes(view_of(mount, "codes", "latent/all"), count)

    def batches_of_codes(self, path, count):
        """Random batches. Codes are stored in the order in which they came."""
        chosen, found = random.Random(5), {"pread": [], "memmap": []}
        mapped = numpy.memmap(path, dtype="u1", mode="r").reshape(count, CODE)
        fd = os.open(path, os.O_RDONLY)
        try:
            while os.read(fd, 8 * MIB):
                pass
            for _ in range(8 * self.pairs):
                numbers = chosen.choices(range(count), k=512)
                elapsed = stopwatch()
                codes = [os.pread(fd, CODE, number * CODE) for number in numbers]
                found["pread"].append(1e3 * elapsed())
                elapsed = stopwatch()
                same = mapped[numbers]
                found["memmap"].append(1e3 * elapsed())
                if any(code != code_of(number) or code != one.tobytes()
                       for code, number, one in zip(codes, numbers, same)):
                    raise RunError("a code is not the one that was appended")
        finally:
            os.close(fd)
        self.add("latent.batch512_ms", found["pread"], "ms", note="by os.pread")
        self.add("latent.batch512.memmap_ms", found["memmap"], "ms", note="by numpy.memmap, page faults included")

    def simulated(self, order, source):
        """The result of the planner in virtual time, and of never evicting."""
        command = [binary("belady"), "simulate", "--order", order, "--dataset", source, "--cache", f"{CACHED:.0%}",
                   "--policy", "belady,minio", "--epochs", STEADY + 1, "--json"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LONGEST, check=True)
        return {found["policy"]: round(found["hits"], 4) for found in json.loads(done.stdout)}


if __name__ == "__main__":
    Bench.main(__doc__, "a tenth of the samples")
