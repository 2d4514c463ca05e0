#!/usr/bin/python3
"""DALI's readers.file on the CPU, shuffled.

mmap     as it is by default: files are mapped
read     dont_use_mmap=True
epochs   shuffle_after_epoch=True, which draws from all of the files
"""

from nvidia.dali import fn, pipeline_def

from job import Job, check_file

BATCH = 25                   # a divisor of the number of images: epochs end with a batch


@pipeline_def(batch_size=BATCH, device_id=None, seed=42)
def images(top, kind):
    """The encoded images."""
    shuffle = {"shuffle_after_epoch": True} if kind == "epochs" else {"random_shuffle": True}
    files, labels = fn.readers.file(file_root=top, name="images", dont_use_mmap=kind == "read", **shuffle)
    return files, labels


def main():
    job = Job()
    pipeline = images(job.data, job.kind, num_threads=job.workers)
    pipeline.build()
    batches = pipeline.epoch_size("images") // BATCH
    for _ in job.epochs():
        for _ in range(batches):
            files, _ = pipeline.run()
            names, wrong = zip(*(check_file(files.at(i)) for i in range(BATCH)))
            job.handed(names, sum(wrong))


if __name__ == "__main__":
    main()
