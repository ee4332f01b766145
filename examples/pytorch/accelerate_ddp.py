#!/usr/bin/env python3
"""Accelerate: attach() what prepare() returns, and register its shared state, which any number of ranks go on from.

    srun --mpi=pmix -N4 --gradcomp=powersgd:rank=4 python3 accelerate_ddp.py
    srun --mpi=pmix -N2 --gradcomp=powersgd:rank=4 python3 accelerate_ddp.py --resume state

Learns the outputs of a matrix that was drawn at random. Needs the packages torch and accelerate.
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn

import gradcomp.torch


def data() -> torch.utils.data.TensorDataset:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4096, 32, generator=draw)
    teacher = torch.randn(32, 8, generator=draw) / 32 ** 0.5
    return torch.utils.data.TensorDataset(x, torch.tanh(x @ teacher))


def main() -> None:
    p = argparse.ArgumentParser(description="Accelerate with gradcomp")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--save", default="state")
    p.add_argument("--resume")
    args = p.parse_args()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()  # ranks from Slurm or torchrun
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = torch.utils.data.DataLoader(data(), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    hook = gradcomp.torch.attach(model)
    accelerator.register_for_checkpointing(hook.shared)
    if args.resume:
        accelerator.load_state(args.resume)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    accelerator.save_state(args.save)
    if accelerator.is_main_process:
        stats = hook.stats()
        print(f"step {step}: loss {loss.item():.4f}, {stats['wire_bytes'] / max(stats['steps'], 1) / 1e3:.1f} kB sent a step")


if __name__ == "__main__":
    main()
