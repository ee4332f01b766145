"""One rank of sharded.t: attach() of sharded models on a GPU, with a PyTorch for processors. FSDP's groups say that
they are on a GPU when attach() looks. FSDP's own work is the host's here, so the current stream is one that the host
waits for when something is to come before what is put on it. What FSDP has made arrives on that stream late, in
memory that is lent to the fake device until the call has been waited for.

    sharded.py same KIND [OPTION=VALUE ...]     the weights after some steps are those of coders and reducers in host memory
    sharded.py dies KIND                        rank 1 dies in its third backward pass
    sharded.py refused                          what attach() says"""

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

import fake_torch
import gradcomp.coder
import gradcomp.torch
from fake_torch import DEVICE, Stream, lend, taken
from gradcomp import _fsdp

torch.set_num_threads(1)
what, kind = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
options = dict(o.split("=", 1) for o in sys.argv[3:])


class Host(Stream):
    """A stream of FSDP's: what is put on it the host does itself, at once."""

    def wait_stream(self, other):
        super().wait_stream(other)
        self.synchronize()


recorded = set()  # addresses of tensors whose memory is kept until a stream is done with it
fsdps = Host(DEVICE)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
on_gpu = False
memory_of = gradcomp.coder._memory
gradcomp.coder._memory = lambda buf, cuda=False: memory_of(buf)
torch.Tensor.record_stream = lambda self, stream: recorded.add(self.data_ptr())
fake_torch.stand_in(fsdps)


def late(start, is_lent_whole):
    """A coder's call, whose input comes late."""
    def call(self, parts, out, **more):
        if not on_gpu:
            return start(self, parts, out, **more)
        lent = [out] if is_lent_whole else [parts, out]
        for tensor in lent:
            lend(tensor)
        fake_torch.comes_late(parts, fsdps)
        started = start(self, parts, out, **more)
        assert {parts.data_ptr(), out.data_ptr()} <= recorded
        fake_torch.go_on(fsdps)
        wait = started.wait

        def waited():
            wait()
            for tensor in lent:
                lend(tensor, False)

        started.wait = waited
        return started

    return call


def late_gradient(shard):
    gradient = gradient_of(shard)
    if on_gpu:
        given.append(gradient)
        lend(gradient)
        fake_torch.comes_late(gradient, fsdps)
        fake_torch.go_on(fsdps)
    return gradient


def finish(backward):
    finish_of(backward)
    while given:
        lend(given.pop(), False)


given, coders = [], _fsdp._coders
_fsdp._Shards.reduce_scatter = late(_fsdp._Shards.reduce_scatter, False)
_fsdp._Shards.all_gather = late(_fsdp._Shards.all_gather, True)
gradient_of, _fsdp._gradient = _fsdp._gradient, late_gradient
finish_of, _fsdp._Backward._finish = _fsdp._Backward._finish, finish

mesh = (init_device_mesh("cpu", (2, nranks // 2), mesh_dim_names=("replicate", "shard")) if kind == "hsdp"
        else init_device_mesh("cpu", (nranks,)))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 97), nn.ReLU(), nn.Linear(97, 10))


def sharded():
    model = network()
    if kind == "fsdp1":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)} if kind == "bf16" else {}
    for i in (0, 2, 4):
        fully_shard(model[i], mesh=mesh, **policy)
    return fully_shard(model, mesh=mesh, **policy)


def attached(model, devices=(DEVICE,), **more):
    """With groups that say they are on these devices."""
    if kind == "fsdp1":  # PyTorch itself looks at its device
        _fsdp._coders = lambda parts, group_for, groups, device, *rest: coders(parts, group_for, groups, DEVICE, *rest)
        return gradcomp.torch.attach(model, **more)
    groups = [group for _, group in _fsdp._groups(model)]
    for i, group in enumerate(groups):
        group.device = devices[min(i, len(devices) - 1)]
    try:
        return gradcomp.torch.attach(model, **more)
    finally:
        for group in groups:
            group.device = torch.device("cpu")


def train(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        if what == "dies" and step == 2 and rank == 1:
            os._exit(3)
        loss.backward()
        optimizer.step()
    return [(p.to_local() if hasattr(p, "to_local") else p).detach().clone() for p in model.parameters()]


if what == "refused":
    for name, devices, more in (("mixed", (DEVICE, torch.device("cpu")), {}), ("other", (torch.device("meta"),), {}),
                                ("code", (DEVICE,), {"reduce_scatter": "lossless"}),
                                ("collective", (DEVICE,), {"collective": "ring"})):
        try:
            attached(sharded(), devices, **more)
            print(name, "attached")
        except gradcomp.Error as e:
            print(name, e)
    raise SystemExit

host = {"fsdp2": "direct", "bf16": "direct", "fsdp1": "direct"}  # whose sums have one order on two ranks
other = sharded()
there = gradcomp.torch.attach(other, collective=host.get(kind), **options)
want = train(other) if what == "same" else []
there.detach()

model = sharded()
attachment = attached(model, **options)
on_gpu = True
have = train(model)
print("off", max((a - b).abs().max().item() for a, b in zip(want, have)))
print("parts", " ".join(sorted(attachment.stats().parts)))
print("blocks", len(taken))
state = attachment.state_dict()
attachment.load_state_dict(state)
train(model, 1)
attachment.detach()
print("left", len(taken))
