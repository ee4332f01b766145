#!/usr/bin/env python3
"""torch.distributed's collectives on Gloo, timed as mpi_collectives.c times MPI's.
Gloo has no reduce-scatter.

    gloo_collectives.py SECONDS PRIMITIVE:BYTES...      PRIMITIVE: all-reduce, all-gather
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from gradcomp.launch import init_process_group

SMALL, SMALL_CALLS, FEWEST, MOST = 65536, 100, 3, 20


class Case:
    def __init__(self, primitive, size):
        self.primitive, self.rank, self.nranks = primitive, dist.get_rank(), dist.get_world_size()
        self.buf = torch.zeros(size // 4 // self.nranks * self.nranks)
        self.blocks = list(self.buf.chunk(self.nranks))
        self.block = self.blocks[self.rank].clone()

    def call(self):
        if self.primitive == "all-reduce":
            dist.all_reduce(self.buf)
        else:
            dist.all_gather(self.blocks, self.block)

    def correct(self):
        pattern = (torch.arange(len(self.buf)) % 97).float()
        if self.primitive == "all-reduce":
            self.buf.copy_(pattern * (self.rank + 1))
            expected = pattern * (self.nranks * (self.nranks + 1) // 2)
        else:
            self.block.copy_(pattern.chunk(self.nranks)[self.rank] * (self.rank + 1))
            expected = torch.cat([b * (r + 1) for r, b in enumerate(pattern.chunk(self.nranks))])
        self.call()
        right = torch.tensor([int(torch.equal(self.buf, expected))])
        dist.all_reduce(right, op=dist.ReduceOp.MIN)
        return bool(right.item())

    def sample(self, calls):
        (self.buf if self.primitive == "all-reduce" else self.block).zero_()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            self.call()
        seconds = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return seconds.item()


def measure(budget, primitive, size):
    case, calls = Case(primitive, size), SMALL_CALLS if size < SMALL else 1
    correct = case.correct()
    once = case.sample(1)
    calls = max(1, min(calls, int(budget / FEWEST / once)))
    n = max(FEWEST, min(MOST, int(budget / (once * calls))))
    if n > FEWEST:
        case.sample(calls)
    seconds = statistics.median(case.sample(calls) for _ in range(n))
    if case.rank == 0:
        print(json.dumps({"primitive": primitive, "bytes": size, "seconds": seconds, "ranks": case.nranks,
                          "correct": correct}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    init_process_group()
    for argument in sys.argv[2:]:
        name, number = argument.split(":")
        measure(float(sys.argv[1]), name, int(number))
    # A process that ends with the group open may abort: Gloo's threads still run.
    dist.barrier()
    dist.destroy_process_group()
