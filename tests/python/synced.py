"""One rank of local_sgd.t: runs the parts that its arguments name, and prints lines "PART.WORD VALUE"."""

import copy
import hashlib
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradcomp
import gradcomp.torch
from gradcomp.torch import DiLoCo, LocalSGD

torch.set_num_threads(1)


def say(word, value):
    print(f"{part}.{word} {value}", flush=True)


def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                                   for t in tensors)).hexdigest()


def tried(word, make, *arguments, **named):
    try:
        make(*arguments, **named).detach()
        say(word, "made")
    except (gradcomp.Error, TypeError) as e:
        say(word, f"{type(e).__name__}: {e}")


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))


def batch(number):
    """Of three classes that can be learnt; other samples on every rank and in every step."""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    x = torch.randn(8, 20, generator=generator)
    return x, x[:, :3].argmax(1)


def train(model, optimizer, number):
    x, y = batch(number)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def inner(model, momentum=0.0):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def nesterov(model):
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def everybody(model):
    """All parameters as one array, for every rank."""
    own = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
    said = [torch.empty_like(own) for _ in range(nranks)]
    dist.all_gather(said, own)
    return np.stack([t.numpy() for t in said])


def every_step(momentum):
    """H=1 against DDP, from weights that are rank 0's."""
    model, other = network(1 + rank), DistributedDataParallel(network(1))
    sync = LocalSGD(model, every=1)
    a, b = inner(model, momentum), inner(other, momentum)
    for number in range(10):
        train(model, a, number)
        sync.step()
        train(other, b, number)
    say("worst", max((p - q).abs().max().item() for p, q in zip(model.parameters(), other.parameters())))
    say("digest", digest(model.parameters()))
    sync.detach()


def few_bits():
    """H=1 with weights, gradients and a rate of few bits, in which nothing is rounded: DDP's, to the bit."""
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-8, 8, p.shape) / 4)
    other = DistributedDataParallel(copy.deepcopy(model))
    sync = LocalSGD(model, every=1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.125) for m in (model, other)]
    for number in range(4):
        x = torch.randint(-4, 4, (1, 8), generator=torch.Generator().manual_seed(100 * rank + number)).float()
        for m, optimizer in zip((model, other), optimizers):
            optimizer.zero_grad()
            m(x).sum().backward()
            optimizer.step()
        sync.step()
    say("same", digest(model.parameters()) == digest(other.parameters()))
    say("digest", digest(model.parameters()))
    sync.detach()


def simulated():
    """DiLoCo with an outer Nesterov momentum against the algorithm in doubles."""
    every, rate, momentum = 4, 0.7, 0.9
    model = network()
    sync = DiLoCo(model, nesterov(model), every=every)
    optimizer = inner(model)
    shared = everybody(model)[0]
    velocity, worst = None, 0.0
    for number in range(5 * every):
        train(model, optimizer, number)
        before = everybody(model)
        synced = sync.step()
        if synced != ((number + 1) % every == 0):
            raise AssertionError(number)
        if synced:
            gradient = (shared - before).mean(0)
            velocity = gradient if velocity is None else momentum * velocity + gradient
            shared = shared - rate * (gradient + momentum * velocity)
            after = everybody(model)
            worst = max(worst, np.abs(after - shared).max())
            if (after != after[0]).any():
                raise AssertionError("weights differ")
    say("worst", worst)
    say("digest", digest(model.parameters()))
    sync.detach()


def streamed():
    """Fragments and a delay, against the algorithm in doubles."""
    every, fragments, delay, mix, rate, momentum = 6, 3, 2, 0.25, 0.5, 0.9
    model = network()
    sync = DiLoCo(model, torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum), every=every, fragments=fragments,
                  delay=delay, mix=mix)
    optimizer = inner(model)
    # The layers have 840, 1640 and 123 numbers, and are dealt by size.
    parts = [slice(840, 2480), slice(0, 840), slice(2480, 2603)]
    shared, velocity, sent, worst = everybody(model)[0], np.zeros(2603), {}, 0.0
    for number in range(1, 4 * every):
        train(model, optimizer, number)
        own = everybody(model)
        for i, s in enumerate(parts):
            if number % every == i * every // fragments:
                sent[number, i] = (shared[s] - own[:, s]).mean(0)
            if (number - delay, i) in sent:
                gradient = sent[number - delay, i]
                velocity[s] = momentum * velocity[s] + gradient
                shared[s] -= rate * velocity[s]
                own[:, s] = mix * own[:, s] + (1 - mix) * shared[s]
        sync.step()
        worst = max(worst, np.abs(everybody(model) - own).max())
    say("worst", worst)
    say("exchanges", sync.stats()["exchanges"])
    say("apart", digest(model.parameters()))
    sync.finish()
    say("digest", digest(model.parameters()))
    sync.detach()


def bytes_sent():
    """What 4-bit blocks of 256 put on the links, against all gradients of all steps as floats."""
    torch.manual_seed(1)
    model, every = nn.Linear(1023, 512), 10
    sync = DiLoCo(model, nesterov(model), every=every, compressor="block:bits=4")
    for _ in range(3 * every):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1e-3 * torch.randn(p.shape))
        sync.step()
    stats = sync.stats()
    say("wire", stats["wire_bytes"])
    say("steps", stats["steps"])
    say("ratio", 2 * (nranks - 1) / nranks * 4 * 1024 * 512 * stats["steps"] / stats["wire_bytes"])
    say("digest", digest(model.parameters()))
    sync.detach()


def resumed(spec, fragments, delay):
    """A state from between a sending and its arrival, taken up by a model of other weights."""
    def begin(seed):
        model = network(seed)
        sync = DiLoCo(model, nesterov(model), every=6, fragments=fragments, delay=delay, compressor=spec)
        return model, sync, inner(model, 0.9)

    def go(run, numbers):
        for number in numbers:
            train(run[0], run[2], number)
            run[1].step()

    first = begin(1)
    go(first, range(1, 14))
    kept = copy.deepcopy([part.state_dict() for part in first])
    name = f"{os.environ['TMPDIR']}/kept.{rank}"
    torch.save(kept, name)
    go(first, range(14, 30))
    second = begin(2)
    go(second, range(4))
    for taking, state in zip(second, torch.load(name)):
        taking.load_state_dict(state)
    go(second, range(14, 30))
    say("same", digest(first[0].parameters()) == digest(second[0].parameters()))
    say("in_flight", sum(f["sent"] is not None for f in kept[1]["fragments"]))
    second[1].finish()
    say("digest", digest(second[0].parameters()))
    try:
        second[1].load_state_dict({**kept[1], "settings": {**kept[1]["settings"], "every": 7}})
    except gradcomp.Error as e:
        say("other", e)
    try:
        second[1].load_state_dict(second[0].state_dict() if rank else 5)
    except gradcomp.Error as e:
        say("none", e)
    try:
        second[1].load_state_dict({})
    except gradcomp.Error as e:
        say("empty", e)
    for run in (first, second):
        run[1].detach()


def begun_together():
    """Some steps, and a state for any number of ranks."""
    model = network()
    sync = DiLoCo(model, nesterov(model), every=5, fragments=2, delay=1, compressor="topk:density=0.05")
    optimizer = inner(model)
    for number in range(1, 24):
        train(model, optimizer, number)
        sync.step()
    try:
        sync.state_dict(shared=True)
    except gradcomp.Error as e:
        say("refused", e)
    sync.finish()
    state = {"model": model.state_dict(), "sync": sync.state_dict(shared=True)}
    if rank == 0:
        torch.save(state, f"{os.environ['TMPDIR']}/together")
    say("digest", digest(model.parameters()))
    sync.detach()


def continued():
    """... taken up."""
    state = torch.load(f"{os.environ['TMPDIR']}/together")
    model = network(2)
    sync = DiLoCo(model, nesterov(model), every=5, fragments=2, delay=1, compressor="topk:density=0.05")
    sync.load_state_dict(state["sync"])
    model.load_state_dict(state["model"])
    say("begun", digest(model.parameters()))
    sync.step()
    say("steps", sync.stats()["steps"])
    if rank == 1:
        state["sync"]["steps"] += 1
    try:
        sync.load_state_dict(state["sync"])
    except gradcomp.Error as e:
        say("differ", e)
    sync.detach()


def learnt(spec, fragments, delay):
    """The loss before and after 120 steps, and on all ranks alike."""
    model = network()
    sync = DiLoCo(model, nesterov(model), every=10, fragments=fragments, delay=delay, compressor=spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def loss():
        x, y = batch(10**6)
        with torch.no_grad():
            mean = nn.functional.cross_entropy(model(x), y)
        dist.all_reduce(mean)
        return mean.item() / nranks

    before = loss()
    for number in range(1, 124):
        train(model, optimizer, number)
        sync.step()
    sync.finish()
    say("digest", digest(model.parameters()))
    say("loss", f"{before:.3f} {loss():.3f}")
    sync.detach()


def others():
    """16-bit weights, a frozen layer, BatchNorm, an integer and a bool in the model, sparse gradients."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    model.register_buffer("flag", torch.tensor([rank == 0] * 3))
    sync = LocalSGD(model, every=2)
    say("begun", digest([*model.parameters(), *model.buffers()]))
    optimizer = inner(model)
    for number in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        sync.step()
    seen = model[1].running_mean.clone()
    dist.all_reduce(seen)
    sync.finish()
    say("digest", digest([*model.parameters(), *model.buffers()]))
    say("mean", (model[1].running_mean - seen / nranks).abs().max().item() < 1e-6)
    sync.detach()
    model = nn.Linear(4, 4).to(torch.bfloat16)
    sync = LocalSGD(model, every=2, compressor="cast")
    for number in range(4):
        with torch.no_grad():
            model.weight.add_(0.125 * rank)
        sync.step()
    say("half", digest(model.parameters()))
    sync.detach()
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    sync = LocalSGD(model, every=2)
    optimizer = inner(model)
    for number in range(4):
        optimizer.zero_grad()
        model(torch.tensor([rank, 5])).square().mean().backward()
        optimizer.step()
        sync.step()
    say("sparse", digest(model.parameters()))
    sync.detach()


def refused():
    model = network()
    outer = nesterov(model)
    tried("every", LocalSGD, model, every=0)
    tried("half", LocalSGD, model, every=2.5)
    tried("differ", LocalSGD, model, every=2 + rank % 2)
    tried("one", LocalSGD, model, every=rank)
    tried("fragments", LocalSGD, model, every=5, fragments=4)
    tried("delay", DiLoCo, model, outer, every=5, delay=5)
    tried("mix", DiLoCo, model, outer, every=5, delay=1, mix=1.5)
    tried("unmixed", DiLoCo, model, outer, every=5, mix=0.5)
    tried("double", LocalSGD, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), every=5)
    tried("frozen", LocalSGD, nn.Linear(2, 2).requires_grad_(False), every=5)
    tried("ddp", LocalSGD, DistributedDataParallel(model), every=5)
    tried("text", LocalSGD, "model", every=5)
    tried("none", DiLoCo, model, None, every=5)
    tried("part", DiLoCo, model, nesterov(model[0]), every=5)
    tried("foreign", DiLoCo, model, nesterov(nn.ModuleList([model, nn.Linear(2, 2)])), every=5)
    tried("rates", DiLoCo, model, torch.optim.SGD(model.parameters(), lr=0.5 + rank), every=5)
    tried("shapes", LocalSGD, nn.Linear(2, 2 + (rank == 2)), every=5)
    tried("spec", LocalSGD, model, every=5, compressor="no-such-thing")
    tried("specs", LocalSGD, model, every=5, compressor="cast" if rank == 1 else "none")
    tried("after", LocalSGD, model, every=5)
    sync = LocalSGD(model, every=5)
    sync.detach()
    sync.detach()
    try:
        sync.step()
    except gradcomp.Error as e:
        say("detached", e)


def plain():
    """Steps after the last synchronisation."""
    global sync  # to the end of the program
    model = network(1 + rank)
    sync = DiLoCo(model, nesterov(model), every=5, fragments=2, delay=1)
    optimizer = inner(model)
    for number in range(23):
        train(model, optimizer, number)
        sync.step()
    say("stats", sync.stats())
    if "unfinished" not in sys.argv:
        sync.finish()
    say("digest", digest(model.parameters()))


def unfinished():
    plain()


def die():
    model = network()
    sync = LocalSGD(model, every=3, fragments=2, delay=1)
    optimizer = inner(model)
    for number in range(30):
        if rank == 1 and number == 10:
            raise RuntimeError("rank 1 has had enough")
        train(model, optimizer, number)
        sync.step()


if sys.argv[1] == "early":
    part, rank, nranks = "early", 0, 1
    tried("early", LocalSGD, network(), every=5)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
for part in sys.argv[1:]:
    name, *values = part.split("/")
    parts = {"every_step": every_step, "few_bits": few_bits, "simulated": simulated, "streamed": streamed,
             "bytes_sent": bytes_sent, "resumed": resumed, "begun_together": begun_together, "continued": continued,
             "learnt": learnt, "others": others, "refused": refused, "plain": plain, "unfinished": unfinished, "die": die, "early": int}
    parts[name](*[v if ":" in v or v.isalpha() else float(v) if "." in v else int(v) for v in values])
