#!/usr/bin/env python3
"""LARS on scikit-learn's handwritten digits, with the norms of layers shared among ranks.

    srun --mpi=pmix -N4 --gradcomp=none python3 lars.py
    GRADCOMP=none torchrun --nproc-per-node=4 lars.py

LARS (You et al., 2017) makes a layer's step as long as its weights are. The norms that
takes are the same work on every rank; gradcomp.Parallel has each rank do a share of it and
gathers the numbers, if that is faster here, and says what it found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from digits import batches, load, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradcomp
import gradcomp.torch


class LARS(torch.optim.SGD):
    """SGD whose rate of each layer is lr * trust * |w| / (|g| + decay |w|)."""

    def __init__(self, parameters: Iterable[nn.Parameter], group: gradcomp.Group, lr: float, momentum: float = 0.9,
                 decay: float = 1e-4, trust: float = 0.02):
        super().__init__(parameters, lr=lr, momentum=momentum)
        self._layers = [p for g in self.param_groups for p in g["params"]]
        self._trust, self._decay = trust, decay
        self._norms = torch.zeros(len(self._layers), 2)
        self._shared = gradcomp.Parallel(group, list(self._norms))

    def _measure(self, i: int) -> None:
        p = self._layers[i]
        self._norms[i, 0], self._norms[i, 1] = p.norm(), p.grad.norm()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self._shared.apply(self._measure)
        for p, (weight, gradient) in zip(self._layers, self._norms.tolist()):
            if p.dim() > 1 and weight and gradient:
                p.grad.add_(p, alpha=self._decay)
                p.grad.mul_(self._trust * weight / (gradient + self._decay * weight))
        return super().step(closure)

    @property
    def reason(self) -> str:
        return self._shared.reason

    def free(self) -> None:
        self._shared.free()


def main() -> None:
    p = argparse.ArgumentParser(description="LARS on scikit-learn's digits, data-parallel")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=8, help="images a rank and step (default 8)")
    p.add_argument("--width", type=int, default=1024, help="units of each hidden layer (default 1024)")
    args = p.parse_args()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    torch.manual_seed(0)
    x, y, test_x, test_y = load()
    model = DistributedDataParallel(network(args.width, 4), gradient_as_bucket_view=True)
    gradcomp.torch.attach(model)
    optimizer = LARS(model.parameters(), gradcomp.torch.group(), lr=0.2)
    batch = batches(len(x), args.batch, 0)
    for step in range(args.steps):
        rows = next(batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = (model.module(test_x).argmax(1) == test_y).float().mean().item()
        print(f"norms: {optimizer.reason}\ntest accuracy {accuracy:.4f}", flush=True)
    optimizer.free()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
