"""One rank of torch.t: trains a small network in the way that argv[1] names and
prints a digest of its parameters, and of the gradients' worst distance from
those of DDP's own all-reduce."""

import contextlib
import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

mode = sys.argv[1]
torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank = dist.get_rank()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(20, 40), nn.Linear(40, 40), nn.Linear(40, 3)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def network():
    torch.manual_seed(1)
    net = Network()
    if mode != "unused":
        del net.unused
    return net


def ddp(net):
    # Small buckets: about four, and another layout after the first step.
    return DistributedDataParallel(net, bucket_cap_mb=0.004, gradient_as_bucket_view=mode != "copied",
                                   find_unused_parameters=mode == "unused", static_graph=mode == "static")


def step(model, optimizer, number):
    generator = torch.Generator().manual_seed(1000 * rank + number)
    optimizer.zero_grad()
    for part in range(3):
        last = part == 2 or mode != "accumulate"
        with contextlib.nullcontext() if last else model.no_sync():
            x = torch.randn(8, 20, generator=generator)
            y = torch.randint(0, 3, (8,), generator=generator)
            nn.functional.cross_entropy(model(x), y).backward()
        if last:
            break
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimizer.step()
    return gradients


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def digest(model):
    h = hashlib.sha256()
    for p in model.parameters():
        h.update(p.detach().numpy().tobytes())
    return h.hexdigest()


model = ddp(network())
attachment = gradcomp.torch.attach(model, seed=3)
optimizer = sgd(model)

if mode == "die":
    for n in range(50):
        if (rank, n) == (1, 3):
            raise ValueError("rank 1 has had enough")
        step(model, optimizer, n)
if mode == "resume":
    for n in range(3):
        step(model, optimizer, n)
    saved = {"model": {k: v.clone() for k, v in model.state_dict().items()}, "reducer": attachment.state_dict()}
    for n in range(3, 6):
        step(model, optimizer, n)
    straight = digest(model)
    # What another three steps of training left behind must not matter.
    model.load_state_dict(saved["model"])
    attachment.load_state_dict(saved["reducer"])
    for n in range(3, 6):
        step(model, optimizer, n)
    print("resumed", straight == digest(model))
else:
    reference = ddp(network())
    reference_optimizer = sgd(reference)
    worst = 0.0
    for n in range(6):
        ours = step(model, optimizer, n)
        theirs = step(reference, reference_optimizer, n)
        worst = max([worst] + [(a - b).abs().max().item() for a, b in zip(ours, theirs)])
    print("worst", worst)
print("digest", digest(model))
print("steps", attachment.stats().get("steps"))
