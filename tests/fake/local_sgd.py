"""One rank of hook.t: gradcomp.torch.DiLoCo and LocalSGD of a model on a GPU, with a PyTorch for processors. The
parameters say that they are on a GPU. PyTorch's own work is the host's here, so its current stream is one that the
host waits for when something is to come before what is put on it. What goes to a reducer or a collective
arrives on that stream late, in memory that is lent to the fake device meanwhile.

    local_sgd.py same SPEC [OPTION=NUMBER ...]     the weights are those of the same in host memory
    local_sgd.py dies SPEC                         rank 1 dies before its second exchange"""

import os
import sys

import torch
import torch.distributed as dist

import fake_torch
import gradcomp.torch
from fake_torch import DEVICE, Stream, lend, taken
from gradcomp import local_sgd
from gradcomp.job import Group

torch.set_num_threads(1)
what, spec = sys.argv[1:3]
options = {name: int(value) for name, value in (o.split("=") for o in sys.argv[3:])}


class Host(Stream):
    """What is put on it the host does itself, at once."""

    def wait_stream(self, other):
        super().wait_stream(other)
        self.synchronize()


class Parameter(torch.nn.Parameter):
    device = property(lambda self: DEVICE)


class Buffer(torch.Tensor):
    device = property(lambda self: DEVICE)


current = Host(DEVICE)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
calls = []


def late(tensor):
    lend(tensor)
    fake_torch.comes_late(tensor, current)


def exchanges_late():
    """Of reducers: what start() gets comes after it has returned."""
    start, wait = local_sgd._Coded.start, local_sgd._Coded.wait

    def started(self, flat, parts):
        assert self._gpu == DEVICE
        late(flat)
        start(self, flat, parts)
        fake_torch.go_on(current)
        self.lent = flat

    def waited(self):
        wait(self)
        if getattr(self, "lent", None) is not None:
            lend(self.lent, False)
            self.lent = None

    local_sgd._Coded.start, local_sgd._Coded.wait = started, waited
    local_sgd._Coded.room = lambda self, numel: torch.empty(numel)


def collectives_late(name):
    call = getattr(Group, name)

    def called(self, tensor):
        calls.append(name)
        late(tensor)
        fake_torch.go_on(current)
        call(self, tensor.as_subclass(Buffer))
        lend(tensor, False)

    setattr(Group, name, called)


def network():
    torch.manual_seed(1 + rank)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Linear(30, 10))


def train(on_gpu):
    model = network()
    if on_gpu:
        for p in model.parameters():
            p.__class__ = Parameter
        for module in model.modules():
            module._buffers = {n: b.as_subclass(Buffer) for n, b in module._buffers.items()}
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    load = outer.load_state_dict

    def loaded(state):  # copies to the parameters' device
        kinds = [p.__class__ for p in model.parameters()]
        for p in model.parameters():
            p.__class__ = torch.nn.Parameter
        load(state)
        for p, kind in zip(model.parameters(), kinds):
            p.__class__ = kind

    outer.load_state_dict = loaded
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    more = {"compressor": spec, "collective": None if on_gpu else "direct"}
    sync = (gradcomp.torch.DiLoCo(model, outer, every=3, **options, **more) if options else
            gradcomp.torch.LocalSGD(model, 3, **more))
    for step in range(10):
        if what == "dies" and step == 5 and rank == 1:
            os._exit(3)
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))
        inner.zero_grad()
        model(x).square().mean().backward()
        inner.step()
        sync.step()
        if step == 6:
            sync.load_state_dict(sync.state_dict())
    sync.finish()
    sent = sync.stats()["exchanges"]
    if on_gpu:
        print("blocks", len(taken))
    sync.detach()
    return [t.detach().clone().as_subclass(torch.Tensor) for t in [*model.parameters(), *model.buffers()]], sent


def through_host(self):
    caller = sys._getframe(1)
    # A saved state is in host memory as a rule, wherever its model is.
    if caller.f_globals["__name__"].startswith("gradcomp") and caller.f_code.co_name != "as_bytes":
        raise AssertionError("numbers of a GPU go through host memory")
    return to_host(self)


want, _ = train(False) if what == "same" else ([], 0)
fake_torch.stand_in(current)
exchanges_late()
for name in ("allreduce", "broadcast"):
    collectives_late(name)
to_host, torch.Tensor.cpu = torch.Tensor.cpu, through_host
have, sent = train(True)
print("off", max((a.float() - b.float()).abs().max().item() for a, b in zip(want, have)))
print("digest", hash(tuple(v for t in have for v in t.flatten().tolist())))
print("sent", sent)
print("calls", ",".join(sorted(calls)))
print("left", len(taken))
