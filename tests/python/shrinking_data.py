"""One rank of shrink.t with a dataset. Every sample that is trained on takes 1 from the weight of its number, so the weights
say how often each was, in steps that are done. SHRINK_KILL is RANK:EPOCH:STEP:MOMENT of a rank that began."""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

import gradcomp.torch
from gradcomp.data import Dataset, Sampler

COUNT, EPOCHS, BATCH, workers = 203, 3, 4, int(sys.argv[1])
torch.set_num_threads(1)
me = int(os.environ["RANK"])
kills = [k.split(":") for k in os.environ.get("SHRINK_KILL", "").split(",") if k]


def at(moment):
    if [str(me), str(epoch), str(step), moment] in kills:
        os.kill(os.getpid(), signal.SIGKILL)


gradcomp.torch.init_process_group()
model = nn.Module()
model.weight = nn.Parameter(torch.zeros(COUNT))
shared = gradcomp.torch.attach(model, on_failure="shrink")
ds = Dataset([torch.tensor(i) for i in range(COUNT)], memory="1M")
sampler = Sampler(ds, drop_last=True)
loader = DataLoader(ds, batch_size=BATCH, sampler=sampler, num_workers=workers)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
epoch = lost = 0
before = ds.epoch(0)
while epoch < EPOCHS:
    sampler.set_epoch(epoch)
    step = 0
    try:
        for batch in loader:
            at("before")
            with shared.step():
                optimizer.zero_grad()
                (model.weight[batch].sum() * shared.nranks).backward()
                at("after")
            optimizer.step()
            sampler.done(len(batch))
            step += 1
            at("between")
    except gradcomp.PeersLost:
        lost += 1
        continue
    epoch += 1
times = (-model.weight.detach()).tolist()
print("times", *sorted(set(times)))
print("missing", int(EPOCHS * COUNT - sum(times)))
print("lost", lost)
print("ranks", ds.rank, ds.nranks)
try:
    next(before)
except gradcomp.Error as e:
    print("ended", e)
values = iter(ds.batches(3, 2, start=ds.position(COUNT - 9)))
print("rest", sum(len(v) for v in values))
