"""One rank of bench/run --only fsdp, fsdp-loss, hsdp, zero: transformers that fully_shard() shards, a layer at a time. Its argument is a JSON
object of one function below and what it is to be told; SPECs are those of gradcomp.torch.attach(), and none of them: FSDP2's own
collectives over Gloo. `reshard_after_forward` among them is fully_shard()'s. Rank 0 prints one line, a JSON object."""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradcomp.torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../examples/pytorch"))
from fsdp import Transformer, sequences  # noqa: E402

WARM = 3  # steps


def sharded(width, layers, seed, replicas=1, **options):
    nranks = dist.get_world_size()
    shape = (nranks,) if replicas == 1 else (replicas, nranks // replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
    torch.manual_seed(seed)
    model = Transformer(width, layers)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def attached(model, specs):
    return gradcomp.torch.attach(model, **specs) if specs else None


def loss_of(model, x):
    return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def mean(value):
    """Over all ranks."""
    value = torch.as_tensor(value, dtype=torch.float64).clone()
    dist.all_reduce(value)
    return (value / dist.get_world_size()).tolist()


def node_sent():
    """Bytes that this node's interfaces have sent so far. What its ranks tell each other goes over lo."""
    with open("/proc/net/dev", encoding="ascii") as f:
        rows = [line.partition(":")[::2] for line in f if ":" in line]
    return sum(int(counters.split()[8]) for name, counters in rows if name.strip() != "lo")


class Timed:
    """A model of 25 million parameters, what its steps took, and what a node's interface sent meanwhile."""

    def __init__(self, specs, replicas):
        specs = dict(specs or {})
        options = {k: specs.pop(k) for k in ("reshard_after_forward",) if k in specs}
        self.model = sharded(512, 8, 0, replicas, **options)
        self.hook = attached(self.model, specs)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.took, self.sent, self.losses = [], [], []

    def step(self, x):
        dist.barrier()
        sent, began = node_sent(), time.monotonic()
        self.optimizer.zero_grad()
        loss = loss_of(self.model, x)
        loss.backward()
        self.optimizer.step()
        self.took.append(1e3 * (time.monotonic() - began))
        dist.barrier()
        self.sent.append(node_sent() - sent)
        self.losses.append(mean(loss.detach()))

    def result(self):
        shapes = [p.to_local().shape for p in self.model.parameters()]
        counted = [sum(s.numel() for s in shapes), sum(s.numel() for s in shapes if len(s) < 2),
                   sum(sum(s) for s in shapes if len(s) > 1)]
        node, *counted = mean([statistics.mean(self.sent[WARM:]), *counted])
        return {"step_ms": statistics.median(self.took[WARM:]), "first": self.losses[0], "last": self.losses[-1], "node_sent": node,
                **dict(zip(("numbers", "in_vectors", "sides"), counted))}


def timed(steps, ways, replicas=1):
    """For each of `ways`, which are SPECs and take a step in turn: the median time of a step, losses, the bytes of a node and step,
    and of which shapes a rank's shards are: numbers, numbers in vectors, rows and columns of matrices."""
    models = [Timed(specs, replicas) for specs in ways]
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(WARM + steps):
        x = sequences(1, generator)
        for model in models:
            model.step(x)
    return [model.result() for model in models]


def learned(width, layers, batch, steps, seeds, ways):
    """For each of `ways`, which are SPECs, and each of `seeds`: the loss of unseen sequences after so many steps of AdamW, computed with
    the exact weights."""
    rank = dist.get_rank()
    unseen = sequences(64, torch.Generator().manual_seed(10**6 + rank))
    losses = [[] for _ in ways]
    for seed in seeds:
        for specs, of in zip(ways, losses):
            model = sharded(width, layers, seed)
            hook = attached(model, specs)
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
            generator = torch.Generator().manual_seed(1000 * seed + rank)
            for _ in range(steps):
                optimizer.zero_grad()
                loss_of(model, sequences(batch, generator)).backward()
                optimizer.step()
            if hook:
                hook.detach()
            with torch.no_grad():
                of.append(mean(loss_of(model, unseen)))
    return losses


def main():
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    (what, told), = json.loads(sys.argv[1]).items()
    result = {"timed": timed, "learned": learned}[what](**told)
    if dist.get_rank() == 0:
        print(json.dumps({what: result}), flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
