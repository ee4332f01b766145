"""One rank of structures.t: a sharded model whose codes keep what they lose, in a checkpoint of torch.distributed.checkpoint that other
numbers of ranks go on from. argv: the folder to load from ("-": begin), the one to save to. Prints `owed MAX APART` (of what is owed: the
largest, and how far from what was saved), `applied APART` (of what a step without gradients has given and still owes, from what
was owed) and `refused TEXT`."""

import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradcomp.torch

warnings.simplefilter("ignore")
torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
source, target = sys.argv[1:3]
mesh = init_device_mesh("cpu", (nranks,))


def network(**options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 10), nn.Linear(10, 5))
    model[0].bias.requires_grad_(False)
    fully_shard([model[0], model[2]], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, gradcomp.torch.attach(model, reduce_scatter="block:bits=4", all_gather="none", **options)


def whole(state):
    return {name: t.full_tensor() for name, t in state["owed"].items()}


def apart(a, b):
    return max((a[n] - b[n]).abs().max().item() for n in b)


def largest(a):
    return max(t.abs().max().item() for t in a.values())


def backward(scale=1.0):
    model.zero_grad()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    (scale * model(x).square().mean()).backward()


model, hook = network(residual=True)
state = {"model": model.state_dict(), "gradcomp": hook.state_dict(shared=True)}
if source != "-":
    dcp.load(state, checkpoint_id=os.path.join(source, "checkpoint"))
    model.load_state_dict(state["model"])
    hook.load_state_dict(state["gradcomp"])
    saved, now = torch.load(os.path.join(source, "owed.pt")), whole(hook.state_dict(shared=True))
    print("owed", largest(saved), apart(saved, now) / largest(saved), len(now), flush=True)
    # What is owed comes with the next gradients, which are zero.
    backward(0.0)
    left = whole(hook.state_dict(shared=True))
    given = {n: p.grad.full_tensor() + left[n] for n, p in model.named_parameters() if n in left}
    print("applied", apart(saved, given) / largest(saved), largest({n: p.grad.full_tensor() for n, p in model.named_parameters() if n in left}), flush=True)
else:
    print("begins", largest(whole(state["gradcomp"])), flush=True)
for _ in range(3):
    backward()
state = {"model": model.state_dict(), "gradcomp": hook.state_dict(shared=True)}
dcp.save(state, checkpoint_id=os.path.join(target, "checkpoint"))
owed = whole(state["gradcomp"])
if rank == 0:
    torch.save(owed, os.path.join(target, "owed.pt"))
for name, wrong in (("others", {"owed": {"weight": torch.zeros(1)}}), ("rows", {"owed": {n: t.full_tensor() for n, t in state["gradcomp"]["owed"].items()}})):
    try:
        hook.load_state_dict(wrong)
        print("refused", name, "taken")
    except gradcomp.Error as e:
        print("refused", name, e, flush=True)
hook.detach()
plain, own = network()
print("without", own.state_dict(shared=True), flush=True)
try:
    own.load_state_dict(state["gradcomp"])
    print("refused residual taken")
except gradcomp.Error as e:
    print("refused residual", e, flush=True)
dist.barrier()
