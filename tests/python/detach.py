"""One rank of detach.t: models that come and go. argv[1] says how they go, argv[2] how many do;
prints what the process holds after a few of them and after all."""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

how, count = sys.argv[1], int(sys.argv[2])  # models
torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank = dist.get_rank()


def held():
    """Threads, descriptors and resident KB of this process."""
    with open("/proc/self/statm", encoding="ascii") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident


def network():
    torch.manual_seed(1)
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(50, 100), torch.nn.Linear(100, 3)))


def step(model, number):
    torch.manual_seed(1000 * rank + number)
    model.zero_grad()
    model(torch.randn(8, 50)).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def one():
    """A model from its attach() to its end. Its own reference is the last."""
    model = network()
    attachment = None if how == "bare" else gradcomp.torch.attach(model)
    step(model, 0)
    if how == "detached":
        attachment.detach()


def ends():
    """What detach() leaves behind is DDP's own; and the model can be attached again."""
    model, reference = network(), network()
    attachment = gradcomp.torch.attach(model)
    step(model, 0)
    attachment.detach()
    attachment.detach()
    print("counted", attachment.stats()["steps"])
    print("own", all(torch.equal(a, b) for a, b in zip(step(model, 1), step(reference, 1))), attachment.stats()["steps"])
    try:
        attachment.state_dict()
    except gradcomp.Error as e:
        print("gone", e)
    again = gradcomp.torch.attach(model)
    step(model, 2)
    print("again", again.stats()["steps"])
    try:
        gradcomp.torch.attach(model)
    except gradcomp.Error as e:
        print("twice", e)
    late = gradcomp.torch.attach(reference, delay=1)
    step(reference, 2)
    try:
        late.detach()
    except gradcomp.Error as e:
        print("owed", e)
    late.drain(torch.optim.SGD(reference.parameters(), lr=0.1))
    late.detach()


if how == "ends":
    ends()
else:
    for n in range(count):
        one()
        gc.collect()
        if n == 0:
            # PyTorch's own 300 000 objects are not looked through for every model.
            gc.freeze()
        if n == 9:
            before = held()
    # The last model may still be in the hands of the thread that told of its last gradient.
    until = time.monotonic() + 30
    while held()[:2] > before[:2] and time.monotonic() < until:
        time.sleep(0.01)
        gc.collect()
    print("before", *before)
    print("after", *held())
