"""What torch, numpy and Python give for orders with belady's names."""

import json
import random
import sys

import numpy as np
import torch
from torch.utils.data import (DataLoader, RandomSampler, SubsetRandomSampler,
                              WeightedRandomSampler, random_split)
from torch.utils.data.distributed import DistributedSampler


def generator(seed):
    g = torch.Generator()
    g.manual_seed(seed)
    return g


def once(loader):
    return [int(i) for batch in loader for i in batch]


def load(data, key, sampler, **others):
    """A loader of batches, or of whole batches only."""
    whole = key("whole_batches", 0)
    return DataLoader(data, batch_size=whole or 16, drop_last=whole > 0, sampler=sampler, **others)


def taken(data, key, sampler):
    """The samples that a sampler gives, through a loader only if that leaves some out."""
    return once(load(data, key, sampler)) if key("whole_batches", 0) else [data[i] for i in sampler]


def distributed(data, key, epochs):
    sampler = DistributedSampler(data, num_replicas=key("world", 1), rank=key("rank", 0),
                                 shuffle=key("shuffle", True), seed=key("seed", 0),
                                 drop_last=key("drop_last", False))
    for epoch in range(epochs):
        sampler.set_epoch(key("epoch", 0) + epoch)
        yield taken(data, key, sampler)


def explicit(data, key, epochs):
    g = generator(key("seed"))
    persistent = key("persistent_workers", False)
    sampler = RandomSampler(data, replacement=key("replacement", False), generator=g)
    loader = load(data, key, sampler, generator=g,
                  num_workers=int(persistent), persistent_workers=persistent)
    for _ in range(epochs):
        yield once(loader)


def default(data, key, epochs):
    torch.manual_seed(key("seed"))
    torch.rand(key("position", 3) - 3)
    loader = load(data, key, RandomSampler(data, replacement=key("replacement", False)))
    for _ in range(epochs):
        yield once(loader)
        torch.rand(key("stride", 4) - 4)


def subset(data, key, epochs):
    if key("gap", 2) == 0:
        sampler = SubsetRandomSampler(range(len(data)), generator=generator(key("seed")))
        for _ in range(epochs):
            yield taken(data, key, sampler)
        return
    torch.manual_seed(key("seed"))
    loader = load(data, key, SubsetRandomSampler(range(len(data))))
    for _ in range(epochs):
        yield once(loader)


def weighted(data, key, epochs):
    m, own = key("weights"), key("position", 2) == 0
    weights = [(7919 * i + 1) % m / m for i in range(len(data))]
    torch.manual_seed(key("seed"))
    sampler = WeightedRandomSampler(weights, key("num_samples", len(data)), key("replacement", True),
                                    generator=generator(key("seed")) if own else None)
    persistent = not own and key("gap", 2) == 0
    loader = load(data, key, sampler, num_workers=int(persistent), persistent_workers=persistent)
    for _ in range(epochs):
        yield once(loader)


def shuffled(make, draw):
    """Epochs of a list that `draw` shuffles with a generator that `make` seeds."""
    def run(data, key, epochs):
        seed, word = key("seed"), key("epochs", "same")
        g, order = make(seed), list(data)
        order = draw(g, order, key)
        for epoch in range(epochs):
            if word == "reseed":
                order = draw(make(seed + epoch), list(data), key)
            elif epoch and word == "fresh":
                order = draw(g, list(data), key)
            elif epoch and word == "again":
                order = draw(g, order, key)
            yield list(order)
    return run


def in_place(g, order, key):
    g.shuffle(order)
    return order


def python_draw(g, order, key):
    return g.sample(order, key("sample")) if key("sample", 0) else in_place(g, order, key)


SAMPLERS = {
    "sequential": lambda data, key, epochs: (taken(data, key, range(len(data))) for _ in range(epochs)),
    "torch-distributed": distributed,
    "torch-random": explicit,
    "torch-default": default,
    "torch-subset-random": subset,
    "torch-weighted": weighted,
    "numpy-random-state": shuffled(np.random.RandomState, in_place),
    "numpy-generator": shuffled(np.random.default_rng, in_place),
    "python-random": shuffled(random.Random, python_draw),
}


def value(text):
    if text.startswith("'"):
        return text[1:-1]
    words = {"true": True, "false": False}
    return words.get(text, int(text) if text.isdigit() else text)


def part_of(split, data):
    _, seed, lengths, part = split.split(":")
    lengths = [float(x) if "." in x else int(x) for x in lengths.split("+")]
    chosen = random_split(data, lengths, generator=generator(int(seed)))[int(part)]
    return [chosen[i] for i in range(len(chosen))]


def summary(order):
    h = 0
    for x in order:
        h = (h * 1000003 + int(x)) & 0xFFFFFFFFFFFFFFFF
    return [len(order), [int(x) for x in order[:8]], h]


def answer(spec, n, epochs):
    name, _, text = spec.partition(":")
    keys = dict(part.split("=", 1) for part in text.split(",")) if text else {}
    keys = {key: value(text) for key, text in keys.items()}
    data = list(range(n))
    if "split" in keys:
        data = part_of(keys["split"], data)
    return [summary(order) for order in SAMPLERS[name](data, lambda k, d=None: keys.get(k, d), epochs)]


print(json.dumps([answer(*case) for case in json.loads(sys.argv[1])]))
