"""All that PyTorch sends goes through gradcomp: a model whose layers are sharded among some ranks and replicated among others, a
message around a ring, and objects. PyTorch 2.6 or newer.

    torchrun --nproc-per-node=4 backend.py
    gradcomp run -n 4 python3 backend.py
    srun --mpi=pmix -N4 python3 backend.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradcomp.torch


def main() -> None:
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group("gradcomp")
    rank, nranks = dist.get_rank(), dist.get_world_size()

    # Two ranks have a replica each where there are four, and share its layers.
    shards = 2 if nranks % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (nranks // shards, shards), mesh_dim_names=("replicas", "shards"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        batch = torch.randn(64, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    # A message to the next rank, while one comes from the last.
    came = torch.empty(1)
    sent = dist.isend(torch.tensor([float(rank)]), (rank + 1) % nranks) if nranks > 1 else None
    if sent is not None:
        dist.recv(came, (rank - 1) % nranks)
        sent.wait()
    each: list[dict[str, object] | None] = [None] * nranks
    dist.all_gather_object(each, {"rank": rank, "loss": round(loss.item(), 2), "from": int(came.item()) if sent else rank})
    if rank == 0:
        for line in each:
            print(line)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
