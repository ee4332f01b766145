"""One rank of structures.t: models that name one thing twice, made at random from argv[1:] as seeds: modules that are sharded
as a list, modules that run twice, tied weights, a wrapper of torch.compile(). Each is trained beside one that gradcomp does not
touch; prints lines `SEED KIND WORD VALUE`."""

import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
WIDTH = 12


def network(seed):
    """Layers, some of which stand in several places, and runs of neighbours. Tied weights are within a run."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    layers, runs = [], []
    while len(runs) < 4:
        run = [nn.LayerNorm(WIDTH) if draw.random() < 0.3 else nn.Linear(WIDTH, WIDTH) for _ in range(draw.choice((1, 1, 2, 3)))]
        linear = [m for m in run if isinstance(m, nn.Linear)]
        if len(linear) > 1 and draw.random() < 0.5:
            linear[1].weight = linear[0].weight
        if len(run) == 1 and draw.random() < 0.4:
            layers += run  # twice in a row
        runs.append(run)
        layers += run
    return nn.Sequential(*layers), runs, draw


def sharded(seed, mesh):
    from torch.distributed.fsdp import fully_shard

    model, runs, draw = network(seed)
    for run in runs:
        if draw.random() < 0.8:  # else with the outermost module
            fully_shard(run if len(run) > 1 else run[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def replicated(seed):
    """Some names of tied weights, and what the outermost module has of its own, are ignored by name."""
    model, runs, draw = network(seed)
    model.register_parameter("scale", nn.Parameter(torch.ones(WIDTH)))
    names = [n for n, _ in model.named_parameters(remove_duplicate=False)] if hasattr(torch.nn.Module, "compile") else [
        n for n, _ in model.named_parameters()]
    ignored = [n for n in names if draw.random() < 0.3] + ["scale"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    model.register_forward_hook(lambda m, _, out: out * m.scale)
    return DistributedDataParallel(model)


def train(model, first, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()


def local(parameters):
    return [p.to_local() if hasattr(p, "to_local") else p for p in parameters]


def apart(a, b):
    return max(((x - y).abs().max().item() for x, y in zip(local(a.parameters()), local(b.parameters())) if x.numel()), default=0.0)


def refused(model):
    try:
        gradcomp.torch.attach(model)
    except gradcomp.Error as e:
        return "attached already" in str(e)
    return False


def run(seed, kind, make):
    own, model = make(seed), make(seed)
    for attempt in ("attached", "again"):
        hook = gradcomp.torch.attach(torch.compile(model) if seed == 1 else model, compressor="none")
        if attempt == "attached" and kind != "ddp":
            parts = [model, next(m for m in model.modules() if m is not model and hasattr(m, "_get_fsdp_state"))]
            print(seed, kind, "twice", all(refused(p) for p in [*parts, *[torch.compile(model)] * (seed == 1)]))
        for m in (own, model):
            train(m, 0, 3)
        print(seed, kind, attempt, apart(own, model))
        if kind != "ddp":
            groups = {id(g) for m in model.modules() if hasattr(m, "_get_fsdp_state")
                      for g in [m._get_fsdp_state()._fsdp_param_group] if g is not None}
            stats = hook.stats()
            print(seed, kind, "scatters", stats["reduce_scatter"]["reduce_scatters"] == 3 * len(groups))
        hook.detach()
        for m in (own, model):
            train(m, 3, 2)
        print(seed, kind, "detached", apart(own, model))


kinds = {"ddp": replicated}
if sys.argv[1] == "sharded":
    from torch.distributed.device_mesh import init_device_mesh

    flat = init_device_mesh("cpu", (nranks,))
    nodes = init_device_mesh("cpu", (2, nranks // 2), mesh_dim_names=("replicate", "shard"))
    kinds = {"fsdp2": lambda seed: sharded(seed, flat), "hsdp": lambda seed: sharded(seed, nodes)}
for seed in map(int, sys.argv[2:]):
    for kind, make in kinds.items():
        run(seed, kind, make)
