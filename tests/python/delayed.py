"""One rank of delay.t: runs the parts that its arguments name, as PART or PART:DELAY:MOMENTUM,
and prints lines "PART...WORD VALUE"."""

import copy
import hashlib
import inspect
import io
import pickle
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradcomp
import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()


def say(word, value):
    print(f"{part}.{word} {value}")


def digest(arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def error_of(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except gradcomp.Error as e:
        return str(e)
    return "none"


def simulated(delay):
    """Reducer(delay=) against what numpy makes of everybody's gradients."""
    group = gradcomp.torch.group()
    shapes, steps = [(7, 5), (1,), (300,)], 8
    reducer = gradcomp.Reducer(group, [(f"t{i}", s, "float32") for i, s in enumerate(shapes)], delay=delay,
                               compressor="none")
    own = [[[np.random.default_rng([step, r, i]).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)]
            for r in range(nranks)] for step in range(steps)]
    worst, weights = 0.0, [np.zeros(s, np.float32) for s in shapes]
    for t in range(steps):
        held = [g.copy() for g in own[t][rank]]
        for i in reversed(range(len(shapes))):
            reducer.ready(i, held[i].ctypes.data)
        reducer.wait_for(len(shapes) - 1)
        reducer.wait()
        for i, out in enumerate(held):
            want = own[t][rank][i].astype(np.float64)
            if t >= delay:
                before = [own[t - delay][r][i].astype(np.float64) for r in range(nranks)]
                want = want + np.mean(before, axis=0) - before[rank]
            worst = max(worst, np.abs(out - want).max())
            weights[i] -= np.float32(0.1) * out
    say("apart", digest(weights))
    corrections = [np.zeros(s, np.float32) for s in shapes]
    e = error_of(reducer.drain, corrections[1:])
    say("short", e)
    e = error_of(reducer.drain, [c.astype(np.float64) for c in corrections])
    say("type", e)
    reducer.drain(corrections, weights, 0.1)
    for i, w in enumerate(weights):
        want = -0.1 * sum(np.mean([own[t][r][i].astype(np.float64) for r in range(nranks)], axis=0) for t in range(steps))
        worst = max(worst, np.abs(w - want).max())
    say("worst", worst)
    say("digest", digest(weights))
    reducer.free()


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))


def batch(number):
    generator = torch.Generator().manual_seed(1000 * rank + number)
    return torch.randn(8, 20, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def gradients(module, number):
    x, y = batch(number)
    module.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    return [p.grad.clone() for p in module.parameters()]


def everybody(tensors):
    """Their mean over ranks, by Gloo."""
    flat = torch.cat([t.double().reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    return [m.reshape(t.shape) for t, m in zip(tensors, (flat / nranks).split([t.numel() for t in tensors]))]


def trained(delay, momentum):
    """attach(delay=) against gradients of a copy of the model, and drain()."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.004, gradient_as_bucket_view=True)
    attachment = gradcomp.torch.attach(model, compressor="none", delay=delay)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    owed, worst = [], 0.0
    for number in range(9):
        own = gradients(copy.deepcopy(model.module), number)
        mean = everybody(own)
        got = gradients(model, number)
        optimizer.step()
        late = owed.pop(0) if len(owed) == delay else [0] * len(own)
        owed.append([m - g for m, g in zip(mean, own)])
        if not delay:
            late = owed.pop()
        worst = max([worst] + [(a - g - c).abs().max().item() for a, g, c in zip(got, own, late)])
    say("worst", worst)
    say("apart", digest([p.detach().numpy() for p in model.parameters()]))
    say("refused", error_of(attachment.state_dict))
    attachment.drain(optimizer)
    say("digest", digest([p.detach().numpy() for p in model.parameters()]))
    say("moments", digest([optimizer.state[p]["momentum_buffer"].numpy() for p in model.parameters() if momentum]))
    say("saved", sorted(attachment.state_dict()))
    # Drained, then in flight again: a state taken up continues to the bit.
    for number in range(9, 12):
        gradients(model, number)
        optimizer.step()
    kept = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                          "reducer": attachment.state_dict(in_flight=True)})
    for number in range(12, 15):
        gradients(model, number)
        optimizer.step()
    straight = digest([p.detach().numpy() for p in model.parameters()])
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    attachment.load_state_dict(kept["reducer"])
    for number in range(12, 15):
        gradients(model, number)
        optimizer.step()
    say("resumed", straight == digest([p.detach().numpy() for p in model.parameters()]))
    say("steps", attachment.stats()["steps"] > 0)


FORMATS = (torch.contiguous_format, torch.channels_last)


class Given(nn.Module):
    """Parameters whose gradients are what the input says, number by number and without rounding, however they lie."""

    def __init__(self, memory_format):
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.fc = nn.Conv2d(3, 5, 3), nn.Linear(80, 2)
        self.square = nn.Parameter(torch.randn(3, 3, 3, 3))  # of one shape, whatever the order
        self.to(memory_format=memory_format)

    def forward(self, gradients):
        return sum((p * g).sum() for p, g in zip(self.parameters(), gradients))


def given(model, step):
    """A step whose gradients are the same whatever the layout, to the bit."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    model.zero_grad()
    model([torch.randn(p.shape, generator=generator) for p in model.module.parameters()]).backward()


def layout(delay):
    """A model in channels_last is the same model: so are its weights after drain(), with what compression held back."""
    ended = []
    for memory_format in FORMATS:
        model = DistributedDataParallel(Given(memory_format), gradient_as_bucket_view=True)
        attachment = gradcomp.torch.attach(model, compressor="topk:density=0.3", delay=delay)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            given(model, step)
            optimizer.step()
        attachment.drain(optimizer)
        ended.append([p.detach().clone() for p in model.parameters()])
        attachment.detach()
    say("worst", max((a - b).abs().max().item() for a, b in zip(*ended)))
    # A convolution has other kernels for it, which round otherwise: the same but for that, where nothing is chosen.
    ended = []
    for memory_format in FORMATS:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(80, 2)).to(memory_format=memory_format)
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        attachment = gradcomp.torch.attach(model, compressor="none", delay=delay)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(5):
            generator = torch.Generator().manual_seed(1000 * rank + number)
            x, y = torch.randn(8, 3, 6, 6, generator=generator), torch.randint(0, 2, (8,), generator=generator)
            model.zero_grad()
            nn.functional.cross_entropy(model(x.contiguous(memory_format=memory_format)), y).backward()
            optimizer.step()
        attachment.drain(optimizer)
        ended.append([p.detach().clone() for p in model.parameters()])
        attachment.detach()
    say("convolved", max((a - b).abs().max().item() for a, b in zip(*ended)))


def converted():
    """States belong to the order in which parameters lie; of a model that is converted once attached."""
    def attached(memory_format, compressor="topk:density=0.3"):
        model = DistributedDataParallel(Given(memory_format))
        return model, gradcomp.torch.attach(model, compressor=compressor)

    states = []
    for memory_format in FORMATS:
        model, attachment = attached(memory_format)
        for step in range(2):
            given(model, step)
        states.append([attachment.state_dict(), attachment.state_dict(shared=True)])
        say(f"order{len(states)}", states[-1][0].get("order"))
        for kind in (0, 1):  # its own kind, by a round through a file
            kept = io.BytesIO()
            torch.save(states[-1][kind], kept)
            kept.seek(0)
            say(f"own{len(states)}{kind}", error_of(attachment.load_state_dict, torch.load(kept)))
        # Of one that lies otherwise on one rank only: refused by all, and training goes on.
        for kind in (0, 1) if len(states) > 1 else ():
            say(f"other{kind}", error_of(attachment.load_state_dict, states[0][kind]))
            say(f"one{kind}", error_of(attachment.load_state_dict, states[int(rank != 1)][kind]))
        given(model, 2)
        if memory_format is FORMATS[0]:
            model.to(memory_format=FORMATS[1])
            say("later", error_of(given, model, 3))
        attachment.detach()
    say("steps", attachment.stats()["steps"])


def copied():
    """What programs do with the whole object, once it has trained: copies train as DDP does, and know nothing of gradcomp."""
    model = DistributedDataParallel(network())
    attachment = gradcomp.torch.attach(model, compressor="topk:density=0.1")
    gradients(model, 0)
    kept = io.BytesIO()
    torch.save(model, kept)
    say("traces", kept.getvalue().count(b"gradcomp"))
    kept.seek(0)
    loads = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    for name, other in (("deepcopy", copy.deepcopy(model)), ("pickle", pickle.loads(pickle.dumps(model))),
                        ("load", torch.load(kept, **loads)), ("average", average.module), ("again", copy.deepcopy(copy.deepcopy(model)))):
        own = gradients(copy.deepcopy(model.module), 1)
        say(name, max((a - b).abs().max().item() for a, b in zip(gradients(other, 1), everybody(own))))
    say("steps", attachment.stats()["steps"])
    gradients(model, 1)
    say("on", attachment.stats()["steps"])
    attachment.detach()


def subgroups(delay):
    """DDP on process groups: pairs of ranks train models of their own."""
    pairs = [dist.new_group([2 * k, 2 * k + 1]) for k in range(nranks // 2)]
    torch.manual_seed(1)
    model = DistributedDataParallel(network(), process_group=pairs[rank // 2])
    attachment = gradcomp.torch.attach(model, compressor="none", delay=delay)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(5):
        gradients(model, number)
        optimizer.step()
    attachment.drain(optimizer)
    say("digest", digest([p.detach().numpy() for p in model.parameters()]))


def parallel():
    """Pieces in numpy and torch, filled by whoever; an exception in one."""
    group = gradcomp.torch.group()
    pieces = [np.zeros(1000, np.float32), torch.zeros(3, 5, dtype=torch.float64), np.zeros(0, np.float32)]
    shared, calls = gradcomp.Parallel(group, pieces), 0

    def work(i):
        nonlocal calls
        calls += 1
        pieces[i] += i + 1.5

    for _ in range(12):
        shared.apply(work)
    say("right", bool((pieces[0] == 18).all() and (pieces[1] == 30).all()))
    say("reason", shared.reason)
    say("calls", calls)

    def broken(_index):
        raise ValueError("this piece cannot be done")

    try:
        shared.apply(broken)
    except ValueError as e:
        say("raised", e)
    shared.free()


def errors():
    group = gradcomp.torch.group()
    one = [("w", (4,), "float32")]
    say("negative", error_of(gradcomp.Reducer, group, one, delay=-1))
    say("large", error_of(gradcomp.Reducer, group, one, delay=1000))
    say("differ", error_of(gradcomp.Reducer, group, one, delay=rank))


for part in sys.argv[1:]:
    name, *numbers = part.split(":")
    parts = {"simulated": simulated, "trained": trained, "layout": layout, "converted": converted, "copied": copied, "subgroups": subgroups, "parallel": parallel, "errors": errors}
    parts[name](*[float(n) if "." in n else int(n) for n in numbers])
