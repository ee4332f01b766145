"""One rank of bench/run --only frameworks: a transformer of 25 million parameters, sharded with fully_shard(), a layer at a
time. Its argument is a JSON object {reduce_scatter, all_gather, steps}; SPECs, or null for both: FSDP2's own over Gloo.

Rank 0 prints one line {step_ms, first, last, sent}: the median time of a step, losses, and what gradcomp sent a rank and step."""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradcomp.torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../examples/pytorch"))
from fsdp import Transformer, sequences  # noqa: E402

WIDTH, LAYERS, SEQUENCES, WARM = 512, 8, 1, 3


def train(reduce_scatter, all_gather, steps):
    rank, nranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Transformer(WIDTH, LAYERS)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    hook = gradcomp.torch.attach(model, reduce_scatter=reduce_scatter, all_gather=all_gather) if reduce_scatter else None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    took, losses = [], []
    for _ in range(WARM + steps):
        x = sequences(SEQUENCES, generator)
        dist.barrier()
        began = time.monotonic()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        took.append(time.monotonic() - began)
        mean = loss.detach() / nranks
        dist.all_reduce(mean)
        losses.append(mean.item())
    sent = sum(part["wire_bytes"] for part in hook.stats().values()) / len(took) if hook else None
    return {"step_ms": 1e3 * statistics.median(took[WARM:]), "first": losses[0], "last": losses[-1], "sent": sent}


def main():
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    result = train(**json.loads(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
