#!/usr/bin/python3
"""tf.data and Keras.

files        paths shuffled with seed 42, read by a parallel map
interleave   files of records in random order, four at a time, and a buffer that shuffles
seeded       the same with a seed for the order of the files
pydataset    keras.utils.PyDataset that shuffles in on_epoch_end, read by fit() with four threads
"""

import os
import sys

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import keras                                         # noqa: E402  (after its environment)
import numpy as np                                   # noqa: E402
import tensorflow as tf                              # noqa: E402

from job import BATCH, EPOCHS, Job, check_file, images_below, read_image     # noqa: E402


def files(job):
    """Elements of (contents,)."""
    paths = tf.data.Dataset.from_tensor_slices(images_below(job.data))
    return paths.shuffle(1_000, seed=42).map(tf.io.read_file, num_parallel_calls=job.workers)


def interleave(job):
    """The same of files of records."""
    seed = 42 if job.kind == "seeded" else None
    records = tf.data.Dataset.list_files(os.path.join(job.data, "*.tfrecord"), shuffle=True, seed=seed)
    records = records.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=job.workers)
    return records.shuffle(100)


def check_record(record):
    """The file that a record says it is of, and whether its image is wrong."""
    return f"{record[:3].decode()}.tfrecord", check_file(record[3:])[1]


class Images(keras.utils.PyDataset):
    """Batches of images in an order of its own."""

    def __init__(self, job):
        super().__init__(workers=job.workers, use_multiprocessing=False)
        self.job, self.paths, self.rng = job, images_below(job.data), np.random.default_rng(42)
        self.rng.shuffle(self.paths)

    def __len__(self):
        return -(-len(self.paths) // BATCH)

    def __getitem__(self, i):
        names, wrong = zip(*map(read_image, self.paths[i * BATCH:(i + 1) * BATCH]))
        self.job.handed(names, sum(wrong))
        return np.zeros((len(names), 1)), np.zeros(len(names))

    def on_epoch_end(self):
        self.rng.shuffle(self.paths)


def fit(job):
    """Runs Keras' own loop."""
    class Borders(keras.callbacks.Callback):
        """Tells the job where epochs begin and end."""

        def on_epoch_begin(self, *_, **__):
            job.begin()

        def on_epoch_end(self, *_, **__):
            job.end()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    # The dataset shuffles itself. Otherwise fit() would shuffle its batches again, by a generator without a seed.
    model.fit(Images(job), epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Borders()])


def main():
    job = Job(shards=sys.argv[2] in ("interleave", "seeded"))
    if job.kind == "pydataset":
        fit(job)
        return
    dataset = {"files": files, "interleave": interleave, "seeded": interleave}[job.kind](job).batch(BATCH).prefetch(2)
    # All numbers are set, so there is nothing to tune. An iterator that ends waits until its tuner wakes, .14, .31,
    # .63 or 1.27 s after its start.
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    check = check_file if job.kind == "files" else check_record
    for _ in job.epochs():
        for batch in dataset.as_numpy_iterator():
            names, wrong = zip(*map(check, batch))
            job.handed(names, sum(wrong))


if __name__ == "__main__":
    main()
