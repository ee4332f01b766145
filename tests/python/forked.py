"""Two ranks that multiprocessing forks, as launchers in notebooks do. argv[1]: "fail" ends rank 1
with an exception."""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

torch.set_num_threads(1)


def work(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    gradcomp.torch.init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(20, 3))
    gradcomp.torch.attach(model)
    for step in range(3):
        if (sys.argv[1:], rank, step) == (["fail"], 1, 2):
            raise ValueError("rank 1 has had enough")
        model(torch.randn(8, 20)).square().mean().backward()
    dist.barrier()


context = multiprocessing.get_context("fork")
started = [context.Process(target=work, args=(rank,)) for rank in (0, 1)]
for p in started:
    p.start()
for p in started:
    p.join()
print("ended", *(p.exitcode for p in started))
