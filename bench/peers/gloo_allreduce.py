#!/usr/bin/env python3
"""torch.distributed's all-reduce on Gloo, as mpi_allreduce.c does it.

    gloo_allreduce.py ITERATIONS BYTES...
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from gradcomp.launch import init_process_group


def measure(iterations, size):
    rank, nranks = dist.get_rank(), dist.get_world_size()
    pattern = (torch.arange(size // 4) % 97).float()
    buf = pattern * (rank + 1)
    dist.all_reduce(buf)
    correct = torch.tensor([int(torch.equal(buf, pattern * (nranks * (nranks + 1) // 2)))])
    dist.all_reduce(correct, op=dist.ReduceOp.MIN)
    buf.zero_()
    for _ in range(3):
        dist.all_reduce(buf)
    calls = 100 if size < 65536 else 1
    seconds = torch.zeros(iterations, dtype=torch.float64)
    for i in range(iterations):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(buf)
        seconds[i] = (time.perf_counter() - start) / calls
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"bytes": size, "seconds": statistics.median(seconds.tolist()), "ranks": nranks,
                          "correct": bool(correct.item())}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    init_process_group()
    for argument in sys.argv[2:]:
        measure(int(sys.argv[1]), int(argument))
