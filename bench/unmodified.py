"""One rank of bench/run --only no-code, a program that knows nothing of gradcomp. Rank 0 prints one line, a JSON object: wall and
processor time of the first step and of those after it, in ms."""

import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
os.environ.setdefault("USE_LIBUV", "0")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
took = []
for _ in range(20):
    x = torch.randn(8, 256)
    dist.barrier()
    wall, processor = time.monotonic(), time.process_time()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    took.append((1e3 * (time.monotonic() - wall), 1e3 * (time.process_time() - processor)))
if rank == 0:
    print(json.dumps({"first": took[0], "later": [statistics.median(t) for t in zip(*took[1:])]}), flush=True)
dist.destroy_process_group()
