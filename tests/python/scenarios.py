"""One rank of scenarios.t: what a user of DistributedDataParallel does with a model, each done with DDP's own reduction and with
gradcomp's under `none`. Prints `equal NAME STEPS`, `no NAME WHY` where this PyTorch has it not, or `other NAME WHY`."""

import copy
import io
import os
import pickle
import random
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import gradcomp.torch

warnings.simplefilter("ignore")
torch.set_num_threads(1)
gradcomp.torch.init_process_group()
RANK = dist.get_rank()
WIDTH = 6
STEPS = 3
scenarios = []
attached = []  # attachments of the scenario that runs


class Missing(Exception):
    """This PyTorch has not what a scenario is about."""


def scenario(function):
    scenarios.append(function)
    return function


def attach(model):
    attached.append(gradcomp.torch.attach(model, compressor="none"))
    return model


def own(model):
    return model


def net(*more, width=WIDTH):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width), *more)


def sample(step, *shape, rank=RANK):
    return torch.randn(shape or (4, WIDTH), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(out):
    return out.float().square().mean()


def ended(model, *more):
    """What training has made: parameters, their last gradients, buffers."""
    return ([p.detach().clone() for p in model.parameters()], [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            [b.clone() for b in model.buffers()], *more)


def train(model, steps=STEPS, first=0, shape=(), optimizer=None, forward=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of((forward or model)(sample(step, *shape))).backward()
        optimizer.step()
    return ended(model)


# What is looked at.


@scenario
def deepcopy(wrap):
    model = wrap(DDP(net()))
    before = train(model)
    return before, train(copy.deepcopy(model), first=3), train(copy.deepcopy(model.module), first=3), train(model, first=3)


@scenario
def pickled(wrap):
    model = wrap(DDP(net()))
    train(model)
    return train(pickle.loads(pickle.dumps(model)), first=3), train(pickle.loads(pickle.dumps(model.module)), first=3)


@scenario
def saved_whole(wrap):
    model = wrap(DDP(net()))
    train(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, **({} if torch.__version__ < "2" else {"weights_only": False}))
    return train(loaded, first=3), sorted(vars(loaded)), b"gradcomp" in file.getvalue()


@scenario
def state_dicts(wrap):
    model = wrap(DDP(net(nn.BatchNorm1d(WIDTH))))
    train(model)
    state = copy.deepcopy(model.state_dict())
    train(model, first=3)
    said = str(model.load_state_dict(state))
    return list(state), list(state.values()), said, train(model, first=3)


@scenario
def averaged(wrap):
    model = wrap(DDP(net()))
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        train(model, 1, step, optimizer=optimizer)
        average.update_parameters(model)
    return list(average.state_dict()), ended(average.module), train(model, first=3)


@scenario
def shown(wrap):
    model = wrap(DDP(net()))
    train(model)
    return repr(model), str(model.module), sorted(n for n, _ in model.named_modules()), [n for n, _ in model.named_parameters()]


@scenario
def logged(wrap):
    """What DDP says of itself, but for times and the name of the hook."""
    model = wrap(DDP(net()))
    train(model)
    said = model._get_ddp_logging_data()
    hook = said.get("comm_hook") or "gradcomp"
    return {k: v for k, v in said.items() if "time" not in k and "comm_hook" not in k}, hook, len(getattr(model, "_comm_hooks", []))


@scenario
def hooks_of_the_program(wrap):
    """Tools print the names of all hooks, and a program's own run as ever."""
    model = wrap(DDP(net()))
    seen = []
    model.register_forward_pre_hook(lambda m, given: seen.append("before"))
    model.register_forward_hook(lambda m, given, out: seen.append("after"))
    model.module[0].weight.register_hook(lambda g: 2 * g)
    for hooks in (model._forward_pre_hooks, model._forward_hooks, model._backward_hooks):
        for hook in hooks.values():
            seen.append(bool(hook.__name__ and hook.__qualname__ and hook.__module__))
    seen = [s for s in seen if s is not True]
    return train(model), seen, sorted(vars(model))


@scenario
def random_numbers(wrap):
    """Nothing draws what the program would have drawn."""
    model = net(nn.Dropout(0.5))
    random.seed(1)
    model = wrap(DDP(model))
    return train(model), torch.get_rng_state(), random.random()


@scenario
def device_and_type(wrap):
    """What walks over a model."""
    model = wrap(DDP(net()))
    visited = []
    model.apply(lambda m: visited.append(type(m).__name__))
    model.requires_grad_(True).to("cpu").float().train()
    return visited, train(model), model.eval().training, sum(p.numel() for p in model.parameters())


# How it is run.


@scenario
def compiled(wrap):
    if not hasattr(torch, "compile"):
        raise Missing
    try:
        model = torch.compile(wrap(DDP(net())), backend="eager")
        return train(model, 4)
    except RuntimeError as e:
        if "not supported on" in str(e) or "not yet supported" in str(e):
            raise Missing from None
        raise
    finally:
        torch._dynamo.reset()


@scenario
def compiled_in_place(wrap):
    """The module's own compile(), and DDP around what is compiled."""
    if not hasattr(nn.Module, "compile"):
        raise Missing
    try:
        inner = net()
        inner.compile(backend="eager")
        outer = wrap(DDP(net()))
        outer.compile(backend="eager")
        return train(wrap(DDP(inner)), 4), train(outer, 4)
    finally:
        torch._dynamo.reset()


@scenario
def functional(wrap):
    """Other parameters in the place of the model's, and passes around DDP."""
    if not hasattr(torch, "func"):
        raise Missing
    model = wrap(DDP(net()))
    train(model)
    with torch.no_grad():
        other = {n: p + 1 for n, p in model.named_parameters()}
        out = torch.func.functional_call(model, other, (sample(3),))
    model.zero_grad()
    loss_of(model.module(sample(4))).backward()
    return out, ended(model), train(model, first=5)


@scenario
def joined(wrap):
    """Ranks with fewer batches, in DDP's join()."""
    model = wrap(DDP(net()))
    with model.join():
        return train(model, 2 + 3 * RANK)[0]


@scenario
def joined_with_others(wrap):
    """Join() over a model and an optimizer that communicates."""
    model = wrap(DDP(net()))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        return train(model, 2 + 3 * RANK, optimizer=optimizer)[0]


@scenario
def accumulated(wrap):
    """no_sync(): two backward passes that are not exchanged, and one that is."""
    model = wrap(DDP(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            for part in range(2):
                loss_of(model(sample(10 * step + part))).backward()
        loss_of(model(sample(10 * step + 2))).backward()
        optimizer.step()
    return ended(model)


@scenario
def static_graph(wrap):
    return train(wrap(DDP(net(), static_graph=True)), 4)


@scenario
def unused(wrap):
    """Another branch each step, and each rank."""
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.step = net(), net(), RANK

        def forward(self, x):
            self.step += 1
            return (self.a if self.step % 3 else self.b)(x)

    return train(wrap(DDP(Branches(), find_unused_parameters=True)), 5)


@scenario
def checkpointed(wrap):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return checkpoint(self.net, checkpoint(self.net, x, use_reentrant=False), use_reentrant=False)

    return train(wrap(DDP(Checkpointed())))


@scenario
def checkpointed_reentrant(wrap):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = net(), net()

        def forward(self, x):
            x = self.first(x)
            return checkpoint(self.second, checkpoint(self.second, x, use_reentrant=True), use_reentrant=True)

    return train(wrap(DDP(Checkpointed(), static_graph=True)), 4)


@scenario
def autocast(wrap):
    model = wrap(DDP(net()))

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    return train(model, forward=forward)


@scenario
def bfloat16(wrap):
    model = wrap(DDP(net().bfloat16()))
    return train(model, forward=lambda x: model(x.bfloat16()))


@scenario
def mixed_types(wrap):
    """Parameters of two types, which DDP puts into buckets of their own."""
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = net(), net().bfloat16()

        def forward(self, x):
            return self.b(self.a(x).bfloat16())

    return train(wrap(DDP(Mixed())))


@scenario
def clipped(wrap):
    """Loss scaling by hand and clipping between backward and step."""
    model = wrap(DDP(net()))
    optimizer, norms = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(model(sample(step))) * 1024).backward()
        for p in model.parameters():
            p.grad.mul_(1 / 1024)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01).clone())
        optimizer.step()
    return ended(model, norms)


@scenario
def channels_last(wrap):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
    model = wrap(DDP(model))
    got = train(model, shape=(2, 3, 5, 5), forward=lambda x: model(x.to(memory_format=torch.channels_last)))
    return got, [p.stride() for p in model.parameters()], [p.grad.stride() for p in model.parameters()]


@scenario
def two_forwards(wrap):
    """Two passes before one backward, and a pass without gradients between."""
    model = wrap(DDP(net(), broadcast_buffers=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        first, second = model(sample(step)), model(sample(step + 50))
        with torch.no_grad():
            model(sample(step + 70))
        (loss_of(first) + loss_of(second)).backward()
        optimizer.step()
    return ended(model)


@scenario
def several_models(wrap):
    """Two that train against each other, as GANs do."""
    a, b = wrap(DDP(net())), wrap(DDP(net()))
    of_a, of_b = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (a, b))
    for step in range(STEPS):
        of_a.zero_grad()
        of_b.zero_grad()
        loss_of(b(a(sample(step)).detach()) - 1).backward()
        of_b.step()
        of_a.zero_grad()
        of_b.zero_grad()
        loss_of(b(a(sample(step)))).backward()
        of_a.step()
    return ended(a), ended(b)


@scenario
def small_buckets(wrap):
    """A bucket for each parameter; DDP makes them anew after the first step."""
    return [train(wrap(DDP(net(), bucket_cap_mb=1e-5, gradient_as_bucket_view=view)), 4) for view in (False, True)]


@scenario
def zeroed(wrap):
    """Gradients that stay where they are, from step to step."""
    model = wrap(DDP(net(), gradient_as_bucket_view=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        model.zero_grad(set_to_none=False)
        loss_of(model(sample(step))).backward()
        optimizer.step()
    return ended(model)


@scenario
def frozen(wrap):
    """A part that is not trained, and one that stops to be."""
    model = net()
    model[0].weight.requires_grad_(False)
    model = wrap(DDP(model, find_unused_parameters=True))
    before = train(model)
    model.module[2].bias.requires_grad_(False)
    return before, train(model, first=3)


@scenario
def tied(wrap):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.table, self.out = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, 5, bias=False)
            self.out.weight = self.table.weight

        def forward(self, x):
            return self.out(self.table(x.abs().mul(10).long() % 5))

    return train(wrap(DDP(Tied())))


@scenario
def buffers(wrap):
    """Rank 0's running means go to all."""
    return train(wrap(DDP(net(nn.BatchNorm1d(WIDTH)))))


@scenario
def evaluated(wrap):
    model = wrap(DDP(net(nn.Dropout(0.5), nn.BatchNorm1d(WIDTH))))
    found = []
    for step in range(STEPS):
        torch.manual_seed(step)
        train(model.train(), 1, step)
        with torch.inference_mode():
            found.append(model.eval()(sample(step)).clone())
    return ended(model, found)


@scenario
def closure(wrap):
    """An optimizer that runs the model several times a step."""
    model = wrap(DDP(net()))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for step in range(STEPS):
        def again(x=sample(step, rank=0)):
            optimizer.zero_grad()
            loss = loss_of(model(x))
            loss.backward()
            return loss
        optimizer.step(again)
    return ended(model)


@scenario
def sharded_optimizer(wrap):
    model = wrap(DDP(net(), gradient_as_bucket_view=True))
    return train(model, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1))


@scenario
def in_backward(wrap):
    """What a program does when a gradient has been averaged: a hook behind accumulation."""
    model, seen = net(), []
    if not hasattr(model[0].weight, "register_post_accumulate_grad_hook"):
        raise Missing
    model = wrap(DDP(model))
    for n, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, n=n: seen.append(n))
    return train(model), sorted(seen)


@scenario
def given_keywords(wrap):
    """Inputs and outputs that are no tensors."""
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, *, scale, more=None):
            return {"out": (self.net(x) * scale, more)}

    model = wrap(DDP(Named()))
    return train(model, forward=lambda x: model(x, scale=2.0, more=["kept"])["out"][0])


@scenario
def without_a_step(wrap):
    """A model that is made, and never trained."""
    model = wrap(DDP(net()))
    return model(sample(0)), ended(model)


# Some have no step of their own reduction by design.
QUIET = {"without_a_step"}


def difference(a, b, where=""):
    """Why two results are not the same; None where they are."""
    if torch.is_tensor(a) and torch.is_tensor(b):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{where}: {a.dtype} {list(a.shape)} for {b.dtype} {list(b.shape)}"
        return None if torch.equal(a, b) else f"{where}: off by {(a.double() - b.double()).abs().max().item():g}"
    if type(a) is not type(b):
        return f"{where}: {a!r} for {b!r}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: {list(a)} for {list(b)}"
        return next((d for k in a if (d := difference(a[k], b[k], f"{where}[{k}]")) is not None), None)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {a} for {b}"
        return next((d for i, (x, y) in enumerate(zip(a, b)) if (d := difference(x, y, f"{where}[{i}]")) is not None), None)
    return None if a == b else f"{where}: {a!r} for {b!r}"


for function in scenarios:
    name = function.__name__
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    try:
        theirs = function(own)
        ours = function(attach)
        why = difference(ours, theirs)
    except Missing:
        print("no", name, torch.__version__)
        continue
    except Exception as e:
        if os.environ.get("RAISE"):
            raise
        if "Invalid scalar type" in str(e):  # Gloo of an old PyTorch has no bfloat16
            print("no", name, torch.__version__)
            continue
        why = f"{type(e).__name__}: {e}"
    steps = int(sum(a.stats()["steps"] for a in attached))
    if why is None and (steps > 0) == (name in QUIET):
        why = f"{steps} steps were reduced by gradcomp"
    while attached:
        attached.pop().detach()
    print("other" if why else "equal", name, " ".join(str(why or steps).split()), flush=True)
dist.barrier()
