"""One worker of torchrun: trains a few steps, fails in the first life of rank 1 where argv[1]
says so, and prints what became of it. All ranks print the same digest."""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch
from gradcomp import job

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(20, 3))
attachment = gradcomp.torch.attach(model)
for step in range(4):
    if sys.argv[1:] == ["fail"] and (life, rank, step) == (0, 1, 2):
        sys.exit("rank 1 fails in its first life")
    torch.manual_seed(100 * rank + step)
    model(torch.randn(8, 20)).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
# In one write: torchrun's workers share a pipe.
sys.stdout.write(f"life {life}: rank {rank} of {dist.get_world_size()} is {job.current().rank} of {job.current().nranks}, "
                 f"{attachment.stats()['steps']} steps, digest {bits}\n")
sys.stdout.flush()
dist.destroy_process_group()
