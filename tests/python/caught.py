"""One rank of caught.t: rank 1 fails in the middle of a backward pass, catches that, and goes on, as
programs do that skip what they cannot train on. Prints what each iteration came to."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradcomp.torch

gradcomp.torch.init_process_group()
rank = dist.get_rank()
torch.manual_seed(1)
# Each matrix is a bucket of DDP's: rank 1 fails when some have been given.
model = DDP(nn.Sequential(*[nn.Linear(600, 600) for _ in range(3)]), bucket_cap_mb=1)
attachment = gradcomp.torch.attach(model)
failing = False


def fail(gradient):
    if failing:
        raise ValueError("of the program's own")


model.module[0].weight.register_hook(fail)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    failing = rank == 1 and step == 2
    try:
        optimizer.zero_grad()
        model(torch.randn(4, 600)).square().mean().backward()
        optimizer.step()
        print(step, "done", flush=True)
    except Exception as e:
        print(step, type(e).__name__, " ".join(str(e).split()), flush=True)
dist.barrier()  # as before a checkpoint: all come
