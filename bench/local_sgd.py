"""One rank of bench/run --only local-sgd: the text model of learn.py, trained with AdamW in every rank, for a given number of
steps. Its argument is a JSON object {every, fragments, delay, spec, seed, steps}; every 0 is DDP.

Rank 0 prints one line {loss, bytes, dense_bytes}: the test loss, and what a rank gave to its links in a step, and would have
given as uncompressed gradients of every step."""

import json
import sys

import torch
import torch.distributed as dist
from learn import Text
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch


def distribute(model, every, fragments, delay, spec, seed):
    """The model, what is called after a step, and what ends it."""
    if not every:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        attached = gradcomp.torch.attach(model, compressor=spec, seed=seed)
        return model, lambda: None, lambda: None, attached.stats
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    sync = gradcomp.torch.DiLoCo(model, outer, every, fragments=fragments, delay=delay, compressor=spec, seed=seed)
    return model, sync.step, sync.finish, sync.stats


def learn(task, steps, seed, **how):
    torch.manual_seed(seed)
    network = task.network()
    numbers = sum(p.numel() for p in network.parameters())
    model, after, finish, stats = distribute(network, seed=seed, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, 3 * (1 - s / steps)))
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    for _ in range(steps):
        x, y = task.sample(generator, task.batch)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
        after()
    finish()
    sent = stats()["wire_bytes"]
    with torch.no_grad():
        loss = cross_entropy(network(task.test[0]), task.test[1]).item()
    nranks = dist.get_world_size()
    return {"loss": loss, "bytes": sent / steps, "dense_bytes": 2 * (nranks - 1) / nranks * 4 * numbers}


def main():
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    result = learn(Text(), **json.loads(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
