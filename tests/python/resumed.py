"""One rank of checkpoint.t: `save FOLDER` trains and writes checkpoints of both kinds, `load FOLDER` goes on from
the shared one on as many ranks as there are now, with each compressor in turn. The batch of a step is the same however many ranks share it, so
that what differs is what compression makes of another number of ranks. Prints what it found as JSON."""

import copy
import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

try:
    import torch.distributed.checkpoint as dcp

    dcp = dcp if hasattr(dcp, "save") else None
except ImportError:
    dcp = None

mode, folder, specs = sys.argv[1], sys.argv[2], sys.argv[3:]
STEPS, BATCH, SEEDS = 30, 84, 3
torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()

# Ten patterns of 8 x 8 in noise.
generator = torch.Generator().manual_seed(1797)
patterns = torch.randn(10, 64, generator=generator)
labels = torch.randint(0, 10, (1500,), generator=generator)
images = patterns[labels] + 2 * torch.randn(1500, 64, generator=generator)


def begin(spec):
    global model, hook, optimizer
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), bucket_cap_mb=0.01,
                                    gradient_as_bucket_view=True)
    hook = gradcomp.torch.attach(model, compressor=spec, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def step(seed, number):
    chosen = torch.randint(0, 1000, (BATCH,), generator=torch.Generator().manual_seed(1000 * seed + number))
    chosen = chosen[rank::ranks]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
    optimizer.step()


def loss():
    with torch.no_grad():
        return nn.functional.cross_entropy(model.module(images[1000:]), labels[1000:]).item()


def curve(seed, first, steps=STEPS):
    """The loss of every fifth step."""
    losses = []
    for n in range(first, first + steps):
        step(seed, n)
        if n % 5 == 4:
            losses.append(loss())
    return losses


def digest():
    h = hashlib.sha256()
    for p in model.parameters():
        h.update(p.detach().numpy().tobytes())
    return h.hexdigest()


def everything(**states):
    return copy.deepcopy({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), **states})


def take_up(saved, state):
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))  # it may work on what it is given
    if state is not None:
        hook.load_state_dict(state)


def from_there(saved):
    """On from the shared state, with other batches each time."""
    curves = []
    for seed in range(1, 1 + SEEDS):
        take_up(saved, saved["gradcomp"])
        curves.append(curve(seed, STEPS))
    return curves


def error_of(function, *arguments):
    try:
        function(*arguments)
    except gradcomp.Error as e:
        return str(e)
    return None


def owed(state):
    """The mean over ranks of what is held back: in the shared state, behind its head."""
    return state["gradcomp"].numpy().tobytes()[320:320 + 4 * sum(p.numel() for p in model.parameters())]


def save(where):
    found = {"start": curve(0, 0)}
    saved = everything(gradcomp=hook.state_dict(shared=True), own=hook.state_dict())
    found["shared"] = hashlib.sha256(saved["gradcomp"]["gradcomp"].numpy().tobytes()).hexdigest()
    if rank == 0:
        torch.save({k: v for k, v in saved.items() if k != "own"}, where + "shared.pt")
    torch.save(saved["own"], where + f"rank{rank}.pt")
    if dcp:
        dcp.save({"shared": saved["gradcomp"], "own": {str(rank): saved["own"]}}, checkpoint_id=where + "dcp")
    curve(0, STEPS, 10)
    straight = digest()
    take_up(saved, saved["own"])
    curve(0, STEPS, 10)
    found["resumed"] = straight == digest()
    if dcp:
        take_up(saved, None)
        own = {"own": {str(rank): hook.state_dict()}}
        dcp.load(own, checkpoint_id=where + "dcp")
        hook.load_state_dict(own["own"][str(rank)])
        curve(0, STEPS, 10)
        found["dcp own"] = straight == digest()
    return saved, found


def load(where):
    saved = torch.load(where + "shared.pt")
    found = {"own": error_of(hook.load_state_dict, torch.load(where + "rank0.pt"))}
    broken = copy.deepcopy(saved["gradcomp"])
    broken["gradcomp"][1000] ^= rank == 1
    found["broken"] = error_of(hook.load_state_dict, broken)
    if dcp:
        step(0, 0)
        shared = {"shared": hook.state_dict(shared=True)}
        dcp.load(shared, checkpoint_id=where + "dcp")
        hook.load_state_dict(shared["shared"])
        found["dcp shared"] = owed(hook.state_dict(shared=True)) == owed(saved["gradcomp"])
    return saved, found


everything_found = []
for number, each in enumerate(specs):
    begin(each)
    checkpoint, result = (save if mode == "save" else load)(os.path.join(folder, f"{number}."))
    result["curves"] = from_there(checkpoint)
    result["digest"] = digest()
    everything_found.append(result)
    hook.detach()
print(json.dumps(everything_found))
