"""One rank of hook.t: attach(on_failure="shrink") of a model on a GPU, with a PyTorch for processors. The parameters and
buffers say that they are on a GPU when attach() looks. PyTorch's own work is the host's here, so the current stream is one
that the host waits for when something is to come before what is put on it. Gradients, and what is broadcast, arrive
on that stream late, in memory that is lent to the fake device.

    shrink.py ddp|module SPEC COLLECTIVE [bn]    SHRINK_KILL: as of tests/python/shrinking.py
    shrink.py refused                            what attach() says

Prints what is left of the training, and what the fakes have counted."""

import ctypes
import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

import fake_torch
import gradcomp.torch
from fake_torch import DEVICE, Stream, fake, lend, taken
from gradcomp import _shrink
from gradcomp.job import Group

STEPS, BATCH = 10, 12
torch.set_num_threads(1)
torch.manual_seed(1)
how = sys.argv[1]
me = int(os.environ["RANK"])
kills = [k.split(":") for k in os.environ.get("SHRINK_KILL", "").split(",") if k]


class Host(Stream):
    """What is put on it the host does itself, at once."""

    def wait_stream(self, other):
        super().wait_stream(other)
        self.synchronize()


class Parameter(nn.Parameter):
    device = property(lambda self: DEVICE)


class Buffer(torch.Tensor):
    device = property(lambda self: DEVICE)


def network():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, affine=False) if "bn" in sys.argv else nn.Tanh(), nn.Linear(16, 8),
                          nn.Linear(8, 1))
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    return model


def move(model, on_gpu):
    for p in model.parameters():
        p.__class__ = Parameter if on_gpu else nn.Parameter
    for module in model.modules():
        module._buffers = {n: b.as_subclass(Buffer if on_gpu else torch.Tensor) for n, b in module._buffers.items()}


def at(step, moment):
    if [str(me), str(step), moment] in kills:
        os.kill(os.getpid(), signal.SIGKILL)


def late(call):
    """Of a broadcast: the tensor arrives after it has been called."""
    def called(self, tensor):
        lend(tensor)
        fake_torch.comes_late(tensor, current)
        fake_torch.go_on(current)
        try:
            call(self, tensor.as_subclass(Buffer))
        finally:
            lend(tensor, False)

    return called


def hands_over_late(call):
    def called(self, i, own):
        lend(own)
        fake_torch.comes_late(own, current)
        try:
            call(self, i, own)
        finally:
            fake_torch.go_on(current)

    return called


def tell(what, model):
    try:
        _shrink.check(model, False, 0, False)
        print("taken", what)
    except gradcomp.Error as e:
        print("refused", what, e)


def refused():
    model = network()
    torch.__version__ = "2.9.1+cpu"
    for group, more in (("nccl", {}), ("cpu:gloo,cuda:nccl", {}), ("nccl", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
                        ("cpu:nccl,cuda:gloo", {}), ("nccl", {"TORCH_NCCL_ENABLE_MONITORING": "0"})):
        ddp = nn.parallel.DistributedDataParallel(model)
        distributed_c10d.get_backend_config = lambda _, said=group: said
        os.environ.update(more)
        move(model, True)
        tell(f"{group} {len(more)}", ddp)
        move(model, False)
    # Which knows neither of these names.
    torch.__version__ = "2.1.2"
    distributed_c10d.get_backend_config = lambda _: "cuda:nccl"
    for value in None, "0":
        os.environ.update({"NCCL_ASYNC_ERROR_HANDLING": value} if value else {})
        move(model, True)
        tell("before 2.2", ddp)
        move(model, False)
    del os.environ["NCCL_ASYNC_ERROR_HANDLING"]
    for name in "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING":
        del os.environ[name]
    move(model, True)
    for gpu in None, DEVICE:
        dist.group = type("group", (), {"WORLD": type("WORLD", (), {"bound_device_id": gpu})})
        tell("default", model)
    move(model, False)
    model[0].weight.__class__ = type("Second", (nn.Parameter,), {"device": torch.device("cuda", 1)})
    model[2].weight.__class__ = Parameter
    tell("two", model)


gradcomp.torch.init_process_group()
if how == "refused":
    refused()
    raise SystemExit
current = Host(DEVICE)
fake_torch.stand_in(current)
torch.Tensor.record_stream = lambda self, stream: None
Group.broadcast = late(Group.broadcast)
_shrink.Shrinking._hand_over = hands_over_late(_shrink.Shrinking._hand_over)
model = network()
if how == "ddp":
    call = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=True)
else:
    call = model
    torch.manual_seed(me)
    nn.init.normal_(model[0].weight)  # rank 0's count
move(model, True)
shared = gradcomp.torch.attach(call, sys.argv[2], sys.argv[3], on_failure="shrink")
for p in model.parameters():
    p.__class__ = nn.Parameter
began = [p.detach().clone() for p in model.parameters()]
shrink, within = shared._job.shrink, []


def shrinking():
    at("any", "recovery")
    within.append(on_device)
    return shrink()


class On:
    """torch.cuda.device"""

    def __init__(self, device):
        assert device == DEVICE

    def __enter__(self):
        global on_device
        on_device = True

    def __exit__(self, *_):
        global on_device
        on_device = False


on_device = False
torch.cuda.device = On
shared._job.shrink = shrinking
model[2].register_full_backward_hook(lambda *_: at(n, "backward"))


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def samples(n):
    return torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(n))


def owed():
    """The arrays by tensor are the last of a saved state."""
    size = sum(4 * p.numel() for p in model.parameters())
    return shared.state_dict()["gradcomp"][-size:] if "topk" in sys.argv[2] else torch.zeros(0)


optimizer = optimizer_of(model)
n, raised, launches, touched = 0, [], set(), 0
while n < STEPS:
    before, buffers = owed(), [b.clone() for b in model.buffers()]
    count = fake.fake_cuda_launches()
    try:
        with shared.step():
            optimizer.zero_grad()
            own = samples(n)[shared.rank::shared.nranks]
            at(n, "before")
            loss = (call(own) - own.sum(1, keepdim=True)).square().sum() * shared.nranks / BATCH
            loss.backward()
            at(n, "after")
    except gradcomp.PeersLost as lost:
        raised.append(f"{n}:{'+'.join(map(str, lost.ranks))}")
        touched += not torch.equal(before, owed()) or any(p.grad is not None for p in model.parameters())
        # All have those of rank 0, since the step began.
        touched += shared.rank == 0 and 0 not in lost.ranks and not all(map(torch.equal, buffers, model.buffers()))
        continue
    if n > 1:
        launches.add(fake.fake_cuda_launches() - count)
    optimizer.step()
    n += 1
nccl = ctypes.CDLL(os.path.join(os.environ["LD_LIBRARY_PATH"], "libnccl.so.2"))  # not PyTorch's, by its path
print("raised", *raised)
print("ranks", shared.rank, shared.nranks)
print("touched", touched)
print("launches", len(launches))
print("device", all(within))
state = torch.cat([t.detach().reshape(-1) for t in model.parameters()])
print("weights", hashlib.sha256(state.numpy().tobytes()).hexdigest())
print("communicators", nccl.fake_nccl_met(), nccl.fake_nccl_aborted(), nccl.fake_nccl_live())
print("blocks", len(taken))
shared.detach()
print("left", len(taken))
if "bn" not in sys.argv:
    alone = network()
    for p, b in zip(alone.parameters(), began):
        p.data.copy_(b)
    optimizer = optimizer_of(alone)
    for n in range(STEPS):
        optimizer.zero_grad()
        ((alone(samples(n)) - samples(n).sum(1, keepdim=True)).square().sum() / BATCH).backward()
        alone.unused.grad = torch.zeros(3)
        optimizer.step()
    print("off", torch.cat([(a - b).abs().flatten() for a, b in zip(model.parameters(), alone.parameters())]).max().item())
