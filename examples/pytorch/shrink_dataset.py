"""Training on a dataset in the nodes' memory that goes on when a rank is lost. What is left of the epoch is divided among
the ranks that are left, and what a lost node kept is prepared again by the others:

    GRADCOMP_ON_FAILURE=shrink gradcomp run -n 4 --gradcomp=topk:density=0.1 python3 shrink_dataset.py
    srun -n4 --no-kill --kill-on-bad-exit=0 --gradcomp=topk:density=0.1 python3 shrink_dataset.py"""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

import gradcomp.torch
from gradcomp.data import Dataset, Sampler


class Squares:
    """In place of files."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(32, generator=torch.Generator().manual_seed(i))
        return x, x.square().sum(0, keepdim=True)


epochs, workers = int(sys.argv[1]) if len(sys.argv) > 1 else 4, int(sys.argv[2]) if len(sys.argv) > 2 else 0
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
shared = gradcomp.torch.attach(model, on_failure="shrink")  # first: the job may lose ranks from the beginning
ds = Dataset(Squares(), memory="16M")
sampler = Sampler(ds, drop_last=True)  # equally many steps on all ranks
loader = DataLoader(ds, batch_size=16, sampler=sampler, num_workers=workers)
print(f"rank {shared.rank} of {shared.nranks} is process {os.getpid()}", flush=True)
epoch = steps = 0
while epoch < epochs:
    sampler.set_epoch(epoch)  # or the rest of it, when ranks have been lost
    try:
        for x, y in loader:
            with shared.step():
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                loss.backward()
            optimizer.step()
            sampler.done(len(x))
            steps += 1
            time.sleep(float(os.environ.get("EXAMPLE_PAUSE", 0)))
    except gradcomp.PeersLost as lost:
        print(f"epoch {epoch}: {lost}", flush=True)
        continue
    if shared.rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f} on {shared.nranks} ranks", flush=True)
    epoch += 1
print(f"rank {shared.rank} of {shared.nranks} ends after {steps} steps, weights {sum(p.sum().item() for p in model.parameters()):.6f}")
shared.detach()
ds.close()
