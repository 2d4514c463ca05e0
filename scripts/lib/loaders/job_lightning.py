#!/usr/bin/python3
"""Lightning's Trainer after seed_everything(42).

fit      a loader to train
val      one loader to train and one to validate, made by random_split
"""

import logging
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, random_split
from torchvision.datasets import ImageFolder

from job import BATCH, EPOCHS, Job, read_image


class Model(lightning.LightningModule):
    """One weight, and a count of the samples that it was given."""

    def __init__(self, job):
        super().__init__()
        self.job, self.layer = job, torch.nn.Linear(1, 1)

    def training_step(self, batch, _):
        (names, wrong), labels = batch
        self.job.handed(names, wrong.sum())
        return self.layer(labels.float()[:, None]).square().mean()

    def validation_step(self, batch, _):
        (names, wrong), _ = batch
        self.job.handed(names, wrong.sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

    def on_train_epoch_start(self):
        self.job.begin()

    def on_train_epoch_end(self):
        self.job.end()


def main():
    job = Job()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    lightning.seed_everything(42)
    dataset = ImageFolder(job.data, loader=read_image)
    more = {"batch_size": BATCH, "num_workers": job.workers}
    val = None
    if job.kind == "val":
        dataset, val = random_split(dataset, [.8, .2])
        val = DataLoader(val, **more)
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(Model(job), DataLoader(dataset, shuffle=True, **more), val)


if __name__ == "__main__":
    main()
