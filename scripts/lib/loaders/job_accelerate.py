#!/usr/bin/python3
"""accelerate's loaders after set_seed(42).

plain     as prepare() makes it
seedable  with the seedable sampler
"""

from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from job import BATCH, Job, read_image


def main():
    job = Job()
    set_seed(42)
    config = DataLoaderConfiguration(use_seedable_sampler=job.kind == "seedable")
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    dataset = ImageFolder(job.data, loader=read_image)
    loader = accelerator.prepare(DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=job.workers))
    for epoch in job.epochs():
        loader.set_epoch(epoch)
        for (names, wrong), _ in loader:
            job.handed(names, wrong.sum())


if __name__ == "__main__":
    main()
