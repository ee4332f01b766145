#!/usr/bin/env python3
"""Trains on scikit-learn's handwritten digits with DiLoCo: AdamW on every rank alone, and every --every steps the
difference of weights, compressed, as the gradient of an outer optimizer with Nesterov momentum.

    srun --mpi=pmix -N4 --gradcomp=block:bits=4 python3 diloco.py
    GRADCOMP=block:bits=4 torchrun --nproc-per-node=4 diloco.py --fragments 4 --delay 5
    torchrun --nproc-per-node=4 diloco.py

Without --gradcomp the differences are averaged uncompressed.
"""

import argparse

import torch
import torch.distributed as dist
from digits import batches, load, network
from torch import nn

import gradcomp.torch


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description="DiLoCo on scikit-learn's digits")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--every", type=int, default=50, help="steps from a synchronisation to the next (default 50)")
    p.add_argument("--fragments", type=int, default=1, help="parts of the model that are synchronised one after another (default 1)")
    p.add_argument("--delay", type=int, default=0, help="steps from the sending of a part to its average (default 0)")
    p.add_argument("--batch", type=int, default=8, help="images a rank and step (default 8)")
    p.add_argument("--width", type=int, default=256, help="units of each hidden layer (default 256)")
    return p.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    torch.manual_seed(0)
    x, y, test_x, test_y = load()
    model = network(args.width, 3)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    sync = gradcomp.torch.DiLoCo(model, outer, every=args.every, fragments=args.fragments, delay=args.delay)
    batch = batches(len(x), args.batch, 0)
    for step in range(1, args.steps + 1):
        rows = next(batch)
        inner.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        inner.step()
        sync.step()
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    sync.finish()
    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        numbers, nranks = sum(p.numel() for p in model.parameters()), dist.get_world_size()
        every_step = 2 * (nranks - 1) / nranks * 4 * numbers
        stats = sync.stats()
        sent = (stats["wire_bytes"] or stats["exchanges"] / args.fragments * every_step) / args.steps
        print(f"{sent / 1e3:.2f} kB sent a rank and step, gradients of every step are {every_step / 1e3:.0f} kB; "
              f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
