"""One rank of hook.t: gradcomp.torch's branch for gradients on a GPU, with a PyTorch for processors. The
parameters say that they are on a GPU when attach() looks, streams are the fake CUDA's, and DDP's
buckets, which are host memory, are lent to the fake device while a step is under way. What backward
makes arrives on the stream of backward, late; a future comes when the stream it is completed on is done.

Prints the worst distance from the mean over ranks; with "dies" rank 1 goes in its third step. With "delayed" averages
come a step late, and are drained into weights; with "half" the last layer is in host memory."""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fake_torch
import gradcomp.torch
from fake_torch import DEVICE, Stream, lend, on, taken

torch.set_num_threads(1)
what, spec = sys.argv[1:3]


class Future(torch.futures.Future):
    """Its value is there when the stream it was set under has done what it had then. Who looks at it is the
    host, as no CPU has streams: so it is completed then."""

    def __init__(self, *, devices=None):
        super().__init__()
        assert devices == [DEVICE], devices

    @classmethod
    def __class_getitem__(cls, _value):
        return cls

    def set_result(self, value):
        s = getattr(on, "stream", None)

        def complete():
            if s is not None:
                s.synchronize()
                lend(value, False)
            super(Future, self).set_result(value)

        threading.Thread(target=complete).start()


class Parameter(torch.nn.Parameter):
    device = property(lambda self: DEVICE)


backward = Stream(DEVICE)


def late(attachment, bucket):
    """The gradients are not there yet: they come on the stream of backward."""
    buffer = bucket.buffer()
    lend(buffer)
    fake_torch.comes_late(buffer, backward)
    future = reduce(attachment, bucket)
    fake_torch.go_on(backward)
    return future


def take(bytes, device, stream):
    """None is given for "starves" after the first ones."""
    if what == "starves" and len(taken) > 3:
        raise RuntimeError("CUDA out of memory. Tried to allocate a lot")
    return fake_torch.take(bytes, device, stream)


gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.ReLU(), torch.nn.Linear(60, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))
ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.01)
reduce, gradcomp.torch.Replicated._reduce = gradcomp.torch.Replicated._reduce, late
fake_torch.stand_in(backward, take)
for p in model.parameters():
    p.__class__ = Parameter
if what == "half":
    for p in list(model.parameters())[-2:]:
        p.__class__ = torch.nn.Parameter
    try:
        gradcomp.torch.attach(ddp, spec)
    except gradcomp.Error as e:
        print("refused", e)
    raise SystemExit
attachment = gradcomp.torch.attach(ddp, spec, delay=int(what == "delayed"))
torch.futures.Future = Future  # now that DDP has looked at the hook's types
for p in model.parameters():
    p.__class__ = torch.nn.Parameter


class OnGpu(torch.Tensor):
    device = property(lambda self: DEVICE)


def drain(corrections):
    """The reducer's, of tensors that say they are on a GPU and are lent to it."""
    tensors = [c.as_subclass(OnGpu) for c in corrections]
    for t in tensors:
        lend(t)
    drains(tensors)
    attachment._stream.synchronize()
    for t in tensors:
        lend(t, False)


def train_late():
    """SGD whose averages come a step late: drained, the weights are those of SGD."""
    rate, weights = 0.01, [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(5):
        # A gradient that does not depend on the weights, so that being late changes nothing but when.
        inputs = [torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + r)) for r in range(nranks)]
        ddp.zero_grad()
        sum((p * inputs[rank].mean()).sum() for p in model.parameters()).add(0 * ddp(inputs[rank]).sum()).backward()
        optimizer.step()
        for w in weights:
            w -= rate * sum(x.mean() for x in inputs) / nranks
    attachment.drain(optimizer)
    print("worst", max((p - w).abs().max().item() for p, w in zip(model.parameters(), weights)))
    print("weights", hash(tuple(v for p in model.parameters() for v in p.flatten().tolist())))


drains, attachment._reducer.drain = attachment._reducer.drain, drain
if what == "delayed":
    train_late()
    attachment.detach()
    print("left", len(taken))
    raise SystemExit
worst = 0.0
for step in range(5):
    if what == "dies" and step == 2 and rank == 1:
        os._exit(3)
    inputs = [torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + r)) for r in range(nranks)]
    ddp.zero_grad()
    ddp(inputs[rank]).sum().backward()
    means = [torch.autograd.grad(model(x).sum(), list(model.parameters())) for x in inputs]
    for i, p in enumerate(model.parameters()):
        mean = sum(g[i] for g in means) / nranks
        off = ((p.grad - mean).abs().max() / mean.abs().max()).item()
        worst = max(worst, off) if off == off else float("inf")
print("worst", worst)
print("steps", attachment.stats()["steps"])
if what == "resumes":
    attachment.load_state_dict(attachment.state_dict())
print("blocks", len(taken))
attachment.detach()
print("left", len(taken))
