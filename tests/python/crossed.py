"""One rank of structures.t: fully_shard() given lists of modules, and the same modules as single ones, under codes that argv[2:] name
and in the ways of argv[1]. Prints lines `WAY SPEC list VALUE`, how far weights are from those of single modules, and
`WAY none stock VALUE`, how far under `none` from FSDP's own."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
WIDTH, STEPS = 8, 3
flat = init_device_mesh("cpu", (nranks,))
nodes = init_device_mesh("cpu", (2, nranks // 2), mesh_dim_names=("replicate", "shard"))
both = init_device_mesh("cpu", (nranks // 2, 2), mesh_dim_names=("dp", "tp"))
WAYS = {
    "plain": {"mesh": flat},
    "replicas": {"mesh": nodes},
    "checkpointed": {"mesh": flat},
    "16bits": {"mesh": flat, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
    "offloaded": {"mesh": flat, "offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "tensors": {"mesh": both["dp"]},
    "replicas16": {"mesh": nodes, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32), "reshard_after_forward": False},
}


def network(way, listed):
    """Two blocks of two layers, each sharded as a list of its layers or as itself, and a layer that goes with the whole."""
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH))
    if way == "tensors":
        for block in blocks:
            parallelize_module(block, both["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if way == "checkpointed":
        model = nn.Sequential(*map(checkpoint_wrapper, blocks), model[2])
    options = WAYS[way]
    for block in blocks:
        fully_shard([block[0], block[2]] if listed else block, **options)
    return fully_shard(model, **options)


def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


def train(way, listed, spec=None):
    """This rank's shards after some steps; spec None: without gradcomp."""
    model = network(way, listed)
    between = "topk:density=0.3" if spec == "fp8" else spec  # of replicas: any compressor
    hook = spec and gradcomp.torch.attach(model, reduce_scatter=spec, all_gather=spec,
                                          **({"compressor": between} if way.startswith("replicas") else {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        # Ranks that share a layer's tensors have the same batch.
        batch = rank // 2 if way == "tensors" else rank
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + batch))
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()
    shards = [local(p.detach()).clone() for p in model.parameters()]
    if hook:
        steps = hook.stats()["steps"]
        hook.detach()
        if steps != STEPS:
            raise AssertionError(f"{way} {spec}: {steps} steps of {STEPS} were counted")
    return shards


def apart(a, b):
    return max(((x - y).abs().max().item() for x, y in zip(a, b) if x.numel()), default=0.0)


for way in sys.argv[1].split(","):
    for spec in sys.argv[2:]:
        single = train(way, False, spec)
        print(way, spec, "list", apart(train(way, True, spec), single), flush=True)
        if spec == "none":
            print(way, spec, "stock", apart(train(way, True), single), flush=True)
        else:
            print(way, spec, "codes", apart(train(way, False, "none"), single), flush=True)
