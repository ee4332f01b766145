#!/usr/bin/env python3
"""A sharded optimizer on scikit-learn's handwritten digits, with coded messages: gradients are
reduced to the owners of their shards in 4 bits a number, weights gathered in 8.

    srun --mpi=pmix -N4 --gradcomp=none python3 sharded.py
    GRADCOMP=none torchrun --nproc-per-node=4 sharded.py

ZeRO's second stage, written out with two gradcomp.Coder: every rank keeps the exact weights and
Adam's moments of its shard alone, and all ranks compute with the same rounded ones.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from digits import batches, load, network
from torch import nn

import gradcomp
import gradcomp.torch


class Sharded:
    """The weights of a model as one flat run, a shard of it on each rank."""

    def __init__(self, model: nn.Module, group: gradcomp.Group, lr: float):
        self.parameters = list(model.parameters())
        self.weights = gradcomp.Coder(group, "block:bits=8", name="weights")
        self.gradients = gradcomp.Coder(group, "block:bits=4", name="gradients")
        numel = sum(p.numel() for p in self.parameters)
        self.counts = [numel // group.nranks + (r < numel % group.nranks) for r in range(group.nranks)]
        self.flat = nn.utils.parameters_to_vector(self.parameters).detach()
        begin = sum(self.counts[:group.rank])
        self.shard = nn.Parameter(self.flat[begin:begin + self.counts[group.rank]].clone())
        self.shard.grad = torch.zeros_like(self.shard)
        self.adam = torch.optim.Adam([self.shard], lr=lr)
        self.scale = 1 / group.nranks

    @torch.no_grad()
    def step(self) -> None:
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        self.gradients.reduce_scatter(gradient, self.shard.grad, self.counts, scale=self.scale, slot=0).wait()
        self.adam.step()
        self.weights.all_gather(self.shard.detach(), self.flat, self.counts).wait()
        nn.utils.vector_to_parameters(self.flat, self.parameters)

    def sent(self) -> list[float]:
        return [c.stats()["wire_bytes"] / max(1, c.stats()["dense_bytes"]) for c in (self.gradients, self.weights)]

    def free(self) -> None:
        self.weights.free()
        self.gradients.free()


def main() -> None:
    p = argparse.ArgumentParser(description="a sharded optimizer on scikit-learn's digits")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=8, help="images a rank and step (default 8)")
    p.add_argument("--width", type=int, default=512, help="units of each hidden layer (default 512)")
    args = p.parse_args()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    torch.manual_seed(0)
    x, y, test_x, test_y = load()
    model = network(args.width, 4)
    optimizer = Sharded(model, gradcomp.torch.group(), lr=1e-3)
    batch = batches(len(x), args.batch, 0)
    for step in range(args.steps):
        rows = next(batch)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        sent = "reductions sent {:.3f} of their bytes, gathers {:.3f}".format(*optimizer.sent())
        print(f"{sent}\ntest accuracy {accuracy:.4f}", flush=True)
    optimizer.free()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
