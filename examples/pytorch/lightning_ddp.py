#!/usr/bin/env python3
"""Lightning: one callback, and checkpoints that any number of ranks go on from.

    srun --mpi=pmix -N4 --gradcomp=powersgd:rank=4 python3 lightning_ddp.py
    srun --mpi=pmix -N2 --gradcomp=powersgd:rank=4 python3 lightning_ddp.py --resume last.ckpt

Learns the outputs of a network that was drawn at random. Needs the packages torch and lightning.
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
from torch import Tensor, nn

import gradcomp.lightning


class Student(lightning.LightningModule):
    def __init__(self, width: int = 128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8))
        self.loss = torch.zeros(())

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        del index
        x, y = batch
        self.loss = nn.functional.mse_loss(self.net(x), y)
        return self.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class End(lightning.Callback):
    """Saves at the end of training, while the callback that compresses still has its state, and counts."""

    def __init__(self, compression: gradcomp.lightning.GradComp, file: str):
        self.compression, self.file = compression, file
        self.bytes = self.steps = 0.0

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        del pl_module
        attachment = self.compression.attachment
        if attachment is not None:
            stats = attachment.stats()
            self.bytes, self.steps = stats["wire_bytes"], stats["steps"]
        trainer.save_checkpoint(self.file)


def data() -> torch.utils.data.TensorDataset:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4096, 32, generator=draw)
    teacher = torch.randn(32, 8, generator=draw) / 32 ** 0.5
    return torch.utils.data.TensorDataset(x, torch.tanh(x @ teacher))


def main() -> None:
    p = argparse.ArgumentParser(description="Lightning with gradcomp's callback")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--devices", type=int, default=1, help="ranks a node (default 1)")
    p.add_argument("--nodes", type=int, default=int(os.environ.get("SLURM_NNODES", 1)))
    p.add_argument("--save", default="last.ckpt")
    p.add_argument("--resume")
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    student, compression = Student(), gradcomp.lightning.GradComp()
    end = End(compression, args.save)
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=args.devices, num_nodes=args.nodes, max_steps=args.steps,
                                max_epochs=-1, callbacks=[compression, end], logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(student, torch.utils.data.DataLoader(data(), batch_size=16), ckpt_path=args.resume)
    if trainer.is_global_zero:
        print(f"step {trainer.global_step}: loss {student.loss.item():.4f}, {end.bytes / max(end.steps, 1) / 1e3:.1f} kB sent a step")


if __name__ == "__main__":
    main()
