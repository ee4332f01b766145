"""Training that goes on when a rank is lost, and that begins again from its checkpoint on any number of ranks:

    GRADCOMP_ON_FAILURE=shrink gradcomp run -n 4 --gradcomp=topk:density=0.1 python3 shrink.py /tmp/shrink.pt
    srun -n4 --no-kill --kill-on-bad-exit=0 --gradcomp=topk:density=0.1 python3 shrink.py /shared/shrink.pt

A step's batch is the same 64 samples for any number of ranks: they share it, and weigh what they have."""

import os
import sys
import time

import torch
from torch import nn

import gradcomp.torch

checkpoint, steps, batch = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200, 64
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
n, kept = 0, {}
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    n, kept = saved["n"], saved["gradcomp"]

shared = gradcomp.torch.attach(model, on_failure="shrink")
shared.load_state_dict(kept)
print(f"rank {shared.rank} of {shared.nranks} is process {os.getpid()}, and begins at step {n}", flush=True)
while n < steps:
    try:
        if n % 50 == 49:
            state = shared.state_dict(shared=True)  # of any number of ranks: the mean of what they keep
            if shared.rank == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "n": n, "gradcomp": state},
                           checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)
        with shared.step():
            optimizer.zero_grad()
            samples = torch.randn(batch, 32, generator=torch.Generator().manual_seed(n))
            own = samples[shared.rank::shared.nranks]
            error = model(own) - own.sum(1, keepdim=True)
            loss = error.square().sum() / batch * shared.nranks
            loss.backward()
    except gradcomp.PeersLost as lost:
        print(f"step {n}: {lost}", flush=True)
        continue
    optimizer.step()
    if shared.rank == 0 and n % 50 == 0:
        print(f"step {n}: loss {loss.item():.4f} on {shared.nranks} ranks", flush=True)
    n += 1
    time.sleep(float(os.environ.get("EXAMPLE_PAUSE", 0)))
print(f"rank {shared.rank} of {shared.nranks} ends at step {n}, weights {sum(p.sum().item() for p in model.parameters()):.6f}")
