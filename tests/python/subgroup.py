"""One rank of subgroup.t: ranks 1 and 2 attach a model of their own process group, the others
argv[1]: "join" the job, or are "absent"."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank = dist.get_rank()
pair = dist.new_group([1, 2])
began = time.monotonic()
if rank in (1, 2):
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(20, 3), process_group=pair)
    try:
        attachment = gradcomp.torch.attach(model)
        for step in range(2):
            torch.manual_seed(10 * rank + step)
            model.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
        print("sum", sum(p.grad.double().sum().item() for p in model.parameters()), "steps", attachment.stats()["steps"])
        attachment.detach()
        gradcomp.torch.attach(model).detach()
    except gradcomp.Error as e:
        print("refused", e)
elif sys.argv[1] == "join":
    gradcomp.torch.join()
sys.stdout.flush()
dist.barrier()
