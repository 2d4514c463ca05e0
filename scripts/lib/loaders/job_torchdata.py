#!/usr/bin/python3
"""torchdata's StatefulDataLoader after torch.manual_seed(42).

stateful   three epochs
resumed    the first epoch is left after 40 %, and another loader goes on from the saved state
"""

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.datasets import ImageFolder

from job import BATCH, Job, read_image


def main():
    job = Job()
    torch.manual_seed(42)
    dataset = ImageFolder(job.data, loader=read_image)

    def new():
        return StatefulDataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=job.workers)
    loader, stop = new(), len(dataset) * 2 // 5 if job.kind == "resumed" else None
    for epoch in job.epochs():
        for (names, wrong), _ in loader:
            job.handed(names, wrong.sum())
            if epoch == 0 and stop and len(job.read) >= stop:
                break
        if epoch == 0 and stop:
            state, loader = loader.state_dict(), new()
            loader.load_state_dict(state)
            for (names, wrong), _ in loader:
                job.handed(names, wrong.sum())


if __name__ == "__main__":
    main()
