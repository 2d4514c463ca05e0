#!/usr/bin/python3
"""fio, which reads one large file at random.

random   all of its blocks of 16 KiB once an epoch, in an order drawn anew; four threads, each in its part of the file

fio says nothing about the bytes that it reads: this row shows time and bytes of the source, and no wrong samples.
"""

import os
import subprocess

from job import Job

BLOCK = 16 << 10


def main():
    job = Job()
    path = job.path("train.bin")
    blocks = os.path.getsize(path) // BLOCK
    # Without invalidate=0 fio has the kernel drop the file's pages first.
    command = ["fio", "--name=random", f"--filename={path}", "--rw=randread", f"--bs={BLOCK}", "--ioengine=psync",
               "--thread", f"--numjobs={job.workers}", f"--size={100 // job.workers}%",
               f"--offset_increment={100 // job.workers}%", "--invalidate=0", "--group_reporting"]
    for epoch in job.epochs():
        subprocess.run([*command, f"--randseed={epoch + 1}"], check=True, stdout=subprocess.DEVNULL)
        job.handed(range(blocks))


if __name__ == "__main__":
    main()
