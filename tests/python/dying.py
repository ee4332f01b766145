"""One rank of dying.t and fsdp.t. In the third step rank 1 dies, and the others are in a backward pass ("hsdp") or in a collective
of PyTorch's ("ddp"); or all have an error of the program's ("own"). argv[1] says which."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
if sys.argv[1] == "hsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, nranks // 2), mesh_dim_names=("replicate", "shard"))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
else:
    model = nn.parallel.DistributedDataParallel(model)
hook = gradcomp.torch.attach(model)
for step in range(3):
    loss = model(torch.randn(4, 16)).square().mean()
    if step == 2 and sys.argv[1] == "own":
        raise RuntimeError("not of communication")
    if step == 2 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 2 and sys.argv[1] == "ddp":
        dist.all_reduce(loss.detach())
    loss.backward()
