"""One rank of bench/run --only ablation: a perceptron whose gradients are sent in one of the ways of bench/ablation.py. Its argument is
a JSON object: `backend` of torch.distributed, `hook` (gradcomp: attached with the job's SPEC; powersgd: PyTorch's hook; none: DDP
alone), `rank`, `width`, `layers`, `steps`. Rank 0 prints one line, a JSON object."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

WARM = 30  # steps: PyTorch's hook compresses from the third on, and a schedule that measures is there after 20
BATCH = 8


def distributed(told):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(told["width"], told["width"]), nn.ReLU()) for _ in range(told["layers"])]
    model = nn.Sequential(*layers)
    if told["hook"] == "powersgd":
        # With several buckets it aborts on Gloo, hence a single one.
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1000)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=told["rank"], start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if told["hook"] == "gradcomp":
        gradcomp.torch.attach(model)
    return model


def main():
    (text,) = sys.argv[1:]
    told = json.loads(text)
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group(told["backend"])
    model = distributed(told)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    took = []
    for _ in range(WARM + told["steps"]):
        x = torch.randn(BATCH, told["width"], generator=generator)
        start = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        took.append(time.perf_counter() - start)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": 1e3 * statistics.median(took[WARM:])}), flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
