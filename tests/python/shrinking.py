"""One rank of shrink.t. SHRINK_KILL is a list of RANK:STEP:MOMENT, the number of a rank that began, at which that one is killed.
Every rank has its part of the same 12 samples a step, and weighs them so that the average is over the 12: the
weights are those of an undisturbed run, whoever is left. Prints what is left of the training."""

import hashlib
import os
import signal
import sys

import torch
from torch import nn

import gradcomp.torch

STEPS, BATCH = 12, 12
how = sys.argv[1]  # "ddp" or "module"
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, affine=False) if "bn" in sys.argv else nn.Tanh(), nn.Linear(16, 8), nn.Linear(8, 1))
model.register_parameter("unused", nn.Parameter(torch.ones(3)))
me = int(os.environ["RANK"])
if "MASTER_PORT" in os.environ and "GRADCOMP_RUN" not in os.environ:
    gradcomp.torch.init_process_group()
if how == "ddp":
    call = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=True)
else:
    torch.manual_seed(me)
    nn.init.normal_(model[0].weight)  # rank 0's count
    call = model
kills = [k.split(":") for k in os.environ.get("SHRINK_KILL", "").split(",") if k]


def at(step, moment):
    if [str(me), str(step), moment] in kills:
        os.kill(os.getpid(), signal.SIGKILL)


shared = gradcomp.torch.attach(call, on_failure="shrink")
shrink = shared._job.shrink if hasattr(shared, "_job") else None


def shrinking():
    at("any", "recovery")
    return shrink()


if shrink:
    shared._job.shrink = shrinking
model[2].register_full_backward_hook(lambda *_: at(n, "backward"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
n, raised = 0, []
while n < STEPS:
    try:
        with shared.step():
            optimizer.zero_grad()
            samples = torch.Generator().manual_seed(n)
            x = torch.randn(BATCH, 8, generator=samples)
            own = x[shared.rank::shared.nranks]
            at(n, "before")
            loss = (call(own) - own.sum(1, keepdim=True)).square().sum() * shared.nranks / BATCH
            loss.backward()
            at(n, "after")
    except gradcomp.PeersLost as lost:
        raised.append(f"{n}:{'+'.join(map(str, lost.ranks))}")
        continue
    at(n, "optimizer")
    optimizer.step()
    at(n, "between")
    n += 1
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
x = torch.randn(200, 8, generator=torch.Generator().manual_seed(99))
state = torch.cat([weights, *[b.reshape(-1).float() for b in model.buffers()]])
model.eval()
print("raised", *raised)
print("ranks", shared.rank, shared.nranks)
print("weights", hashlib.sha256(state.numpy().tobytes()).hexdigest())
print("loss", float((model(x) - x.sum(1, keepdim=True)).square().mean()))
if "late" in sys.argv:
    at(STEPS, "end")
