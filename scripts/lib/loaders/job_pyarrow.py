#!/usr/bin/python3
"""pyarrow over Parquet files.

groups   row groups of all files in an order drawn anew for each epoch
scan     a scan of the directory, as it is listed
"""

import glob
import os
import sys

import numpy as np
import pyarrow.dataset
import pyarrow.parquet

from job import Job, check_row


def check(job, table):
    """Hands the rows of a table over."""
    rows, numbers = table.column("row"), table.column("number")
    wrong = sum(check_row(row.as_buffer(), number.as_py()) for row, number in zip(rows, numbers))
    return [number.as_py() for number in numbers], wrong


def main():
    job = Job(shards=sys.argv[2] == "scan")
    paths = sorted(glob.glob(f"{job.data}/*.parquet"))
    for epoch in job.epochs():
        if job.kind == "scan":
            for path in pyarrow.dataset.dataset(job.data, format="parquet").get_fragments():
                numbers, wrong = check(job, path.to_table())
                job.handed([os.path.basename(path.path)] * len(numbers), wrong)
            continue
        files = [pyarrow.parquet.ParquetFile(path) for path in paths]
        groups = [(file, group) for file in files for group in range(file.num_row_groups)]
        for i in np.random.default_rng(epoch).permutation(len(groups)):
            file, group = groups[i]
            job.handed(*check(job, file.read_row_group(group)))


if __name__ == "__main__":
    main()
