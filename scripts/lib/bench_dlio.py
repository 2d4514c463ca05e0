"""DLIO, the storage benchmark of MLPerf, unmodified: how busy its accelerators are, on the source and through belady.

Goal: a judge from outside, that knows nothing of belady.
Method: `dlio_benchmark` of PyPI generates data and "trains" three epochs on them: it reads batches as its loaders do, and sleeps
for a step's time.  *AU* is the time that it sleeps over the time of an epoch without its first step, in percent.  The source is
`slowpfs --preset busy`, and RAM has half of the data.  *direct* is the job on the source itself, with as much page cache.  *blind*
is through belady without an order.  *aware* is through belady with the order that `belady order record` has written at an
earlier run.  *local* is the job on the local disk.
The step's time is such that the job needs nine tenths of what the source's link carries.  So the link allows an AU of 100, and
what the job loses on the local disk is lost by the machine.
SHAPE.blind.x_direct is the AU of blind over that of direct.  It has a bar for shapes whose direct AU is below a third of the
link's.  SHAPE.aware.gap_points is the AU of local minus that of aware.  SHAPE.below_direct counts runs through belady whose AU is
below that of the direct run beside them.
DLIO shuffles with a seed that its configuration has.  MLPerf Storage forbids caches that know the order, so these figures are
no submission to it.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys

from cgroup import limited_page_cache
from driver import FAILURES, RunError, end_group
from loading import NODE, Data
from mounts import TARGET, Belady, Slowpfs, Watchdog, binary, fresh_dir, say
from parts import Parts

EPOCHS = 3
LONGEST = 240                # seconds until a run counts as hung

# What each shape changes of a workload that DLIO comes with.
SHAPES = {
    "unet3d": ("unet3d_h100", {"num_files_train": 64, "record_length": 8_000_000}, {"batch_size": 4}, .18),
    "jpeg": ("unet3d_h100", {"format": "jpeg", "num_files_train": 2_000, "record_length": 100_000}, {"batch_size": 40}, .025),
    "tfrecord": ("resnet50_h100", {"num_files_train": 16, "num_samples_per_file": 256, "record_length": 114_660},
                 {"batch_size": 64, "read_threads": 4}, .041),
    "cosmoflow": ("cosmoflow_h100", {"num_files_train": 160, "record_length": 2_828_486}, {}, .0157),
}
SAME = {"record_length_stdev": 0, "record_length_resize": 0}


class Dlio(Parts):
    """The shapes, one after the other."""

    PARTS = tuple(SHAPES)
    BARS = {f"{shape}.{name}": bar for shape in SHAPES for name, bar in
            [("direct", None), ("blind", None), ("aware", None), ("local", None), ("blind.x_direct", None),
             ("aware.gap_points", 2.0), ("below_direct", 0)]}
    BARS["jpeg.blind.x_direct"] = 3.0
    AT_LEAST = ("jpeg.blind.x_direct",)
    TURNS = (7, 1, 11)

    def __getattr__(self, part):
        """The method of a part measures a shape."""
        if part in SHAPES:
            return lambda: self.shape(part)
        raise AttributeError(part)

    def command(self, shape, top, **workflow):
        """DLIO's command line."""
        workload, dataset, reader, step = SHAPES[shape]
        sections = {
            "workflow": {"generate_data": False, "train": False, "checkpoint": False, **workflow},
            "dataset": {**SAME, **dataset, "data_folder": top},
            "reader": reader,
            "train": {"epochs": EPOCHS, "computation_time": step},
        }
        settings = [f"++workload.{section}.{key}={value}" for section, keys in sections.items() for key, value in keys.items()]
        program = os.path.join(os.path.dirname(sys.executable), "dlio_benchmark")
        return [program, f"workload={workload}", f"hydra.run.dir={self.top}/out", *settings]

    def call(self, command, mounts=(), inside=None):
        """Runs DLIO."""
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
        shutil.rmtree(f"{self.top}/out", ignore_errors=True)
        with open(f"{self.top}/dlio.log", "w+") as log, Watchdog(LONGEST, list(mounts)) as dog:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                       start_new_session=True, preexec_fn=inside, cwd=self.top)
            try:
                process.wait(2 * LONGEST)
            finally:
                end_group(process)
            if process.returncode != 0 or dog.bitten:
                log.seek(0)
                raise RunError(f"DLIO gave {process.returncode}: {log.read()[-1000:]}")

    def train(self, shape, top, mounts=(), inside=None):
        """The mean AU of the epochs, in percent."""
        self.call(self.command(shape, top, train=True), mounts, inside)
        with open(f"{self.top}/out/summary.json") as f:
            metric = json.load(f)["metric"]
        if len(metric["train_au_percentage"]) != EPOCHS:
            raise RunError(f"{shape}: not {EPOCHS} epochs: {metric}")
        return metric["train_au_mean_percentage"]

    def data(self, shape):
        """The data of a shape. They are generated if they are not there."""
        top = os.path.join(TARGET, "data", f"dlio-{shape}")
        if not os.path.exists(top + ".done"):
            say(f"generating {top}")
            fresh_dir(top)
            self.call(self.command(shape, top, generate_data=True))
            with open(top + ".done", "w"):
                pass
        return Data(top)

    @contextlib.contextmanager
    def source(self, data, client_cache=False):
        """The slow filesystem."""
        data.warm()
        with Slowpfs(data.top, f"{self.top}/source", client_cache) as slow:
            yield slow

    def direct(self, shape, data):
        """On the source itself, with as much page cache as belady has RAM."""
        with limited_page_cache(data.room) as (group, limit):
            if not group:
                raise RunError("no memory cgroup could be made here")
            with self.source(data, client_cache=True) as slow:
                limit.start()
                return self.train(shape, slow.mountpoint, [slow], group.enter)

    def belady(self, shape, data, *options, record=None):
        """Through belady; with `record`, the order of the reads is written to that file."""
        options = ["--ram", data.room + data.files * NODE + (1 << 20), *options]
        with self.source(data) as slow, Belady(slow.mountpoint, f"{self.top}/mount", options) as mount:
            mount.await_scan()
            found = self.train(shape, mount.mountpoint, [slow, mount])
            if record:
                command = [binary("belady"), "order", "record", mount.mountpoint, "-o", record]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                if done.returncode != 0:
                    raise RunError(f"{shape}: no order was recorded: {done.stderr.strip()}")
            return found

    def shape(self, shape):
        """Measures a shape."""
        data, order = self.data(shape), f"{self.top}/{shape}.order"
        self.belady(shape, data, record=order)
        runs = {name: [] for name in ("direct", "blind", "aware", "local")}
        ways = {"direct": lambda: self.direct(shape, data), "blind": lambda: self.belady(shape, data),
                "aware": lambda: self.belady(shape, data, "--order", order), "local": lambda: self.train(shape, data.top)}
        for turn in range(self.pairs):
            names = list(ways)
            for name in names if turn % 2 == 0 else reversed(names):
                runs[name].append(ways[name]())
            say(f"{self.elapsed():5.0f} s  {shape:9} " + "  ".join(f"{name} {found[-1]:.1f}" for name, found in runs.items()))
        for name, found in runs.items():
            self.add(f"{shape}.{name}", found, "AU %")
        pairs = list(zip(*runs.values()))
        self.add(f"{shape}.blind.x_direct", [blind / direct for direct, blind, _, _ in pairs])
        self.add(f"{shape}.aware.gap_points", [local - aware for _, _, aware, local in pairs], "points")
        below = [(blind < direct) + (aware < direct) for direct, blind, aware, _ in pairs]
        self.add(f"{shape}.below_direct", below, "runs", value=sum(below))


if __name__ == "__main__":
    Dlio.main(__doc__, "each shape once")
