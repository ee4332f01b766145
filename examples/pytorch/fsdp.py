#!/usr/bin/env python3
"""A small transformer, sharded with fully_shard(): gradients and weights travel in 8 bits a number.
PyTorch 2.9 or later.

    srun --mpi=pmix -N4 --gradcomp=block:bits=8 python3 fsdp.py
    GRADCOMP=block:bits=8 torchrun --nproc-per-node=4 fsdp.py

The task: the next number of a sequence that adds its two last ones, modulo 32."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradcomp.torch

NUMBERS, LENGTH = 32, 16


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(NUMBERS, width)
        self.position = nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
                                    for _ in range(layers))
        self.head = nn.Linear(width, NUMBERS)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.embedding(x) + self.position
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        out: Tensor = self.head(x)
        return out


def sequences(count: int, generator: torch.Generator) -> Tensor:
    x = torch.randint(0, NUMBERS, (count, LENGTH + 1), generator=generator)
    for i in range(2, LENGTH + 1):
        x[:, i] = (x[:, i - 1] + x[:, i - 2]) % NUMBERS
    return x


def main() -> None:
    p = argparse.ArgumentParser(description="a sharded transformer")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--replicas", type=int, default=1, help="copies of the shards (HSDP; default 1)")
    args = p.parse_args()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    rank, nranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = Transformer(args.width, args.layers)
    shape = (nranks,) if args.replicas == 1 else (args.replicas, nranks // args.replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    hook = gradcomp.torch.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        x = sequences(16, generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            mean = loss.detach() / nranks
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1}: loss {mean.item():.4f}", flush=True)
    if rank == 0:
        for name, counted in hook.stats().parts.items():
            print(f"{name}: {counted['wire_bytes'] / args.steps / 1e6:.3f} MB a step, dense {counted['dense_bytes'] / args.steps / 1e6:.3f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
