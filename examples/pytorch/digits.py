#!/usr/bin/env python3
"""Trains on scikit-learn's handwritten digits with DistributedDataParallel.

    srun --mpi=pmix -N4 --gradcomp=powersgd:rank=4 python3 digits.py
    torchrun --nproc-per-node=4 digits.py
    python3 digits.py

The only line gradcomp needs is attach(); without --gradcomp it does nothing and
DDP averages the gradients itself. The network is far wider than 8x8 images need
(a linear classifier does as well): 3.2 million parameters at 8 images a rank make
gradients the larger part of a step on a 1 Gbit/s link, as they are for large
models on fast machines. A small network would have nothing to compress.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description="train on scikit-learn's digits, data-parallel")
    p.add_argument("--steps", type=int, default=300, help="optimizer steps (default 300)")
    p.add_argument("--warm-up", type=int, default=20, help="first steps that are not measured (default 20)")
    p.add_argument("--batch", type=int, default=8, help="images a rank and step (default 8)")
    p.add_argument("--width", type=int, default=1024, help="units of each hidden layer (default 1024)")
    p.add_argument("--layers", type=int, default=4, help="hidden layers (default 4)")
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=0, help="of weights and order; equal on all ranks")
    p.add_argument("--hook", choices=["gradcomp", "none", "torch-powersgd"], default="gradcomp",
                   help="who reduces gradients: gradcomp when it is asked for (default), DDP itself, or PyTorch's "
                        "PowerSGD hook at rank 4")
    p.add_argument("--delay", type=int, default=0, help="averages may be applied up to so many steps late (default 0)")
    p.add_argument("--json", metavar="FILE", help="rank 0 writes its figures there")
    p.add_argument("--gradients", metavar="FILE",
                   help="rank 0 writes every fiftieth step's gradient there, as raw floats for gradcomp bench compressors")
    args = p.parse_args()
    if not 0 <= args.warm_up < args.steps:
        p.error(f"--warm-up {args.warm_up} leaves nothing of --steps {args.steps}")
    return args


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardised training and test sets: a fifth of the images is for the test."""
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(1797))
    x = torch.tensor(digits.data, dtype=torch.float32)[order]
    y = torch.tensor(digits.target)[order]
    cut = len(x) * 4 // 5
    x = (x - x[:cut].mean(0)) / (x[:cut].std(0) + 1e-3)
    return x[:cut], y[:cut], x[cut:], y[cut:]


def network(width: int, hidden: int) -> nn.Sequential:
    sizes = [64] + [width] * hidden + [10]
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def distribute(model: nn.Module, hook: str, seed: int,
               delay: int) -> tuple[DistributedDataParallel, gradcomp.torch.Attachment | None]:
    """The model over all ranks, and what attach() gave for it."""
    if hook == "torch-powersgd":
        # With several buckets PyTorch's hook aborts on Gloo, hence a single one.
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1000)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2, random_seed=seed)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model, None
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model, gradcomp.torch.attach(model, seed=seed, delay=delay) if hook == "gradcomp" else None


def batches(n: int, size: int, seed: int) -> Iterator[Tensor]:
    """This rank's share of one random order after another."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n, generator=generator)
        for start in range(0, n - size * nranks + 1, size * nranks):
            yield order[start + rank * size:start + (rank + 1) * size]


def sent_bytes() -> int:
    """What this host's interfaces have sent, loopback aside."""
    with open("/proc/net/dev") as f:
        rows = [line.split(":") for line in f if ":" in line]
    return sum(int(counters.split()[8]) for name, counters in rows if name.strip() != "lo")


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    rank, nranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x, y, test_x, test_y = load()
    if args.batch * nranks > len(x):
        raise SystemExit(f"digits: --batch {args.batch} on {nranks} ranks is more than the {len(x)} training images")
    model, attached = distribute(network(args.width, args.layers), args.hook, args.seed, args.delay)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    batch = batches(len(x), args.batch, args.seed)

    times, sent = [], 0
    for step in range(args.steps):
        if step == args.warm_up:
            dist.barrier()
            sent = sent_bytes()
        start = time.perf_counter()
        rows = next(batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        if args.gradients and rank == 0 and (step + 1) % 50 == 0:
            with open(args.gradients, "wb" if step < 50 else "ab") as f:
                for p in model.parameters():
                    if p.grad is not None:
                        f.write(p.grad.numpy().tobytes())
        optimizer.step()
        times.append(time.perf_counter() - start)
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}, {times[-1] * 1e3:.1f} ms", flush=True)
    if attached:
        attached.drain(optimizer)  # with a delay: what the last steps are owed
    dist.barrier()
    # One rank speaks for each host.
    first = int(os.environ.get("LOCAL_RANK", 0)) == 0
    hosts = torch.tensor([sent_bytes() - sent if first else 0, int(first)], dtype=torch.float64)
    dist.all_reduce(hosts)

    if rank == 0:
        with torch.no_grad():
            accuracy = (model.module(test_x).argmax(1) == test_y).float().mean().item()
        step_ms = statistics.median(times[args.warm_up:]) * 1e3
        mb = (hosts[0] / hosts[1]).item() / (args.steps - args.warm_up) / 1e6
        print(f"{step_ms:.1f} ms a step (median), {mb:.3f} MB sent a host and step, "
              f"test accuracy {accuracy:.4f}", flush=True)
        if args.json:
            with open(args.json, "w") as f:
                json.dump({"step_ms": step_ms, "mb_per_step": mb, "accuracy": accuracy, "ranks": nranks,
                           "steps": args.steps, "parameters": sum(p.numel() for p in model.parameters())}, f)
                f.write("\n")


if __name__ == "__main__":
    main()
    # With its models gone the group can end, and Gloo's threads with it: they may abort a process that ends before.
    dist.destroy_process_group()
