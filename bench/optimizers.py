"""One rank of bench/run --only optimizer: what the step of an optimizer takes as it is, shared by gradcomp.torch.ParallelOptimizer, and by
PyTorch's ZeroRedundancyOptimizer, in turn in the same processes. Its argument is a JSON object {optimizer, layers, width, steps}.

    gradcomp run -n 4 python3 bench/optimizers.py '{"optimizer": "AdamW", "layers": 30, "width": 1000, "steps": 10}'

Rank 0 prints one line {stock, shared, zero, reason}: the median over steps of the slowest rank's time, in ms, and what was found."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

import gradcomp.torch
from gradcomp.torch import LAMB, LARS, ParallelOptimizer

MAKE = {"SGD": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}), "AdamW": (torch.optim.AdamW, {"lr": 1e-4}), "LAMB": (LAMB, {"lr": 1e-4}),
        "LARS": (LARS, {"lr": 1e-3})}
WARM_UP = 10  # the steps in which ParallelOptimizer measures


def parameters(layers, width):
    """Of equal layers, with gradients that are the same on all ranks."""
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(width, width)) for _ in range(layers)]
    for p in made:
        p.grad = torch.randn(width, width)
    return made


def slowest(seconds):
    t = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return t.item()


def main():
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    cls, options = MAKE[told["optimizer"]]
    shape = told["layers"], told["width"]
    made = {name: parameters(*shape) for name in ("stock", "shared", "zero")}
    shared = ParallelOptimizer(cls(made["shared"], **options), gradcomp.torch.group())
    optimizers = {"stock": cls(made["stock"], **options), "shared": shared, "zero": ZeroRedundancyOptimizer(made["zero"], cls, **options)}
    taken = {name: [] for name in optimizers}
    for step in range(WARM_UP + told["steps"]):
        for name, optimizer in optimizers.items():
            dist.barrier()
            began = time.perf_counter()
            optimizer.step()
            seconds = slowest(time.perf_counter() - began)
            if step >= WARM_UP:
                taken[name].append(1e3 * seconds)
    if not all(torch.equal(p, q) for p, q in zip(made["stock"], made["shared"])):
        sys.exit("the shared optimizer's parameters are not the stock one's")
    if dist.get_rank() == 0:
        print(json.dumps({**{name: statistics.median(ms) for name, ms in taken.items()}, "reason": shared.reason}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
