#!/usr/bin/python3
"""fio, which reads all files of a directory, each from its start to its end.

files    in an order drawn anew in each epoch by random.seed(42), four threads
"""

import os
import random
import subprocess
import tempfile

from job import Job, images_below


def replay(path, names):
    """Writes what fio reads to `path`."""
    with open(path, "w") as f:
        f.write("fio version 2 iolog\n")
        for name in names:
            f.write(f"{name} add\n{name} open\n{name} read 0 {os.path.getsize(name)}\n{name} close\n")
    return path


def main():
    job = Job()
    paths, rng = images_below(job.data), random.Random(42)
    # Without invalidate=0 fio has the kernel drop the pages of each file before it reads it.
    common = ["--ioengine=psync", "--invalidate=0", "--replay_no_stall=1", "--thread"]
    for _ in job.epochs():
        rng.shuffle(paths)
        options = list(common)
        with tempfile.TemporaryDirectory() as work:
            for i in range(job.workers):
                log = replay(os.path.join(work, str(i)), paths[i::job.workers])
                options += [f"--name={i}", f"--read_iolog={log}", "--rw=read"]
            subprocess.run(["fio", *options], check=True, stdout=subprocess.DEVNULL)
        job.handed(os.path.relpath(path, job.data) for path in paths)


if __name__ == "__main__":
    main()
