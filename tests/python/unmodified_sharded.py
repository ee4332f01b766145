"""One rank of nocode_sharded.t: a program that knows nothing of gradcomp and shards its models. argv are
the kinds of model that it trains, one after another; prints the digest of what each came to."""

import hashlib
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

warnings.simplefilter("ignore")
torch.set_num_threads(1)
os.environ.setdefault("USE_LIBUV", "0")
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))


class Own:
    """A reduce-scatter of the program's."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        return dist.reduce_scatter_tensor(output=output_tensor, input=input_tensor, group=group, op=op, async_op=async_op)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 97), nn.ReLU(), nn.Linear(97, 10))


def made(kind):
    model = network()
    if kind == "fsdp1":
        model[0] = FullyShardedDataParallel(model[0], device_id=torch.device("cpu"))
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    if kind == "tensor":
        both = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, both["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for i in (0, 2):  # what is not tensor-parallel is on the ranks of one dimension
            fully_shard(model[i], mesh=both["data"])
        return fully_shard(model, mesh=both["data"])
    on = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")) if kind == "hsdp" else mesh
    for i in (0, 2, 4) if kind == "inner" else (0, 2):
        fully_shard(model[i], mesh=on)
    if kind != "inner":
        fully_shard(model, mesh=on)
    if kind == "own":
        model.set_custom_reduce_scatter(Own())
    if kind == "attach":
        import gradcomp.torch

        gradcomp.torch.attach(model, reduce_scatter="none", all_gather="none")
    return model


for kind in sys.argv[1:]:
    model = made(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.zeros(1, 32))
    for step in range(3):
        torch.manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
    h = hashlib.sha256()
    for p in model.parameters():
        h.update((p.to_local() if hasattr(p, "to_local") else p).detach().numpy().tobytes())
    print(kind, h.hexdigest()[:16], flush=True)
dist.barrier()
dist.destroy_process_group()
