"""Local work of PyTorch and LAPACK, one thread: seconds a call, medians, beside a
memcpy of the same 2^24 floats. Prints one JSON object.

    python3 local.py FILE       FILE: raw floats, as gradcomp bench compressors reads them; or none: Gaussian
"""

import json
import os
import statistics
import sys
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

D = 1 << 24
RUNS = 5


def median(call, before=lambda: None):
    times = []
    for _ in range(RUNS + 1):
        before()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def numbers():
    if len(sys.argv) > 1:
        x = torch.from_file(sys.argv[1], size=os.path.getsize(sys.argv[1]) // 4)
        return x.repeat(D // len(x) + 1)[:D].clone()
    return torch.randn(D, generator=torch.Generator().manual_seed(1))


def topk_with_error(x):
    """What a top-k hook does with torch: select, and keep the rest."""
    error = torch.empty_like(x)

    def step():
        _, index = torch.topk(x.abs(), D // 1000, sorted=False)
        x[index]
        error.copy_(x)
        error[index] = 0
    return median(step)


def powersgd(rank):
    """All local work of PyTorch's hook on one 4096 x 4096 gradient: a group of one
    rank, whose all-reduces move nothing."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(4096, 4096, bias=False), gradient_as_bucket_view=True,
                                    bucket_cap_mb=1000)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    times = []

    def timed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        start = time.perf_counter()
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        future.wait()
        times.append(time.perf_counter() - start)
        return future
    model.register_comm_hook(state, timed)
    x = torch.randn(8, 4096)
    for _ in range(RUNS + 4):
        model(x).square().mean().backward()
    return statistics.median(times[4:])


def main():
    torch.set_num_threads(1)
    x, y = numbers(), torch.empty(D)
    tall = torch.randn(65536, 4)
    rows = {"memcpy": median(lambda: y.copy_(x)), "torch_topk": median(lambda: torch.topk(x, D // 1000, sorted=False)),
            "torch_topk_error": topk_with_error(x), "lapack_qr": median(lambda: torch.linalg.qr(tall)),
            "torch_powersgd_4": powersgd(4)}
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
