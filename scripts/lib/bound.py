"""What Bélády's rule reads from the source, block by block, with nothing fetched ahead.

Goal: a bound that is right even if a sample has many blocks or is read several times; the simulated planner is not.
Method: each block that is read and not cached is fetched.  It is kept if the next use of a cached block is later than
its own; that block is dropped.
"""

import heapq

BLOCK = 1 << 20
NEVER = 1 << 62


def blocks_of(path, size):
    """The blocks of a file, each with its bytes."""
    return [((path, start), min(BLOCK, size - start)) for start in range(0, size, BLOCK)]


def pages(size):
    """A size in whole pages."""
    return -(-size // 4096) * 4096


def read_from(log):
    """The epochs of an order file that lists paths."""
    epochs = []
    with open(log) as f:
        for line in map(str.rstrip, f):
            if line.startswith("# epoch"):
                epochs.append([])
            else:
                epochs[-1].append(line)
    return epochs


def fetched(epochs, sizes, room):
    """Bytes that each epoch fetches. `epochs`: lists of paths; `sizes`: bytes by path; `room`: bytes of the cache."""
    reads = [(number, block, size) for number, paths in enumerate(epochs) for path in paths
             for block, size in blocks_of(path, sizes[path])]
    following, last = [NEVER] * len(reads), {}
    for at in range(len(reads) - 1, -1, -1):
        following[at] = last.get(reads[at][1], NEVER)
        last[reads[at][1]] = at
    kept, heap, free, out = {}, [], room, [0] * len(epochs)
    for at, (number, block, size) in enumerate(reads):
        if block in kept:
            free += pages(size)              # it is looked at again, with its next use
        else:
            out[number] += size
        kept.pop(block, None)
        if following[at] == NEVER:
            continue
        kept[block] = following[at]
        heapq.heappush(heap, (-following[at], block, size))
        free -= pages(size)
        while free < 0:
            use, dropped, its = heapq.heappop(heap)
            if kept.get(dropped) == -use:
                del kept[dropped]
                free += pages(its)
    return out
