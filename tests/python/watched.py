"""One rank of scenarios.t: what stats() and on_step() of each kind of attachment say. Prints `ok NAME` or `not NAME WHY`.
argv[1]: replicated, profiled, sharded, shrink or none."""

import json
import pickle
import sys
import threading
import warnings

import torch
import torch.distributed as dist
from rank import error_of, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradcomp.torch
import gradcomp.writers
from gradcomp._attachment import COUNTERS

warnings.simplefilter("ignore")
torch.set_num_threads(1)
gradcomp.torch.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
WIDTH = 6


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH))


def sample(step=0):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + RANK))


def backward(model, step=0):
    model(sample(step)).square().mean().backward()


def shape(name, attachment, parts, more=()):
    """stats() is as everywhere, and lives in what people do with counters."""
    stats = attachment.stats()
    say(type(stats) is gradcomp.torch.Stats and set(stats) == {*COUNTERS, *more}, f"{name}: stats() has the names of all", dict(stats))
    say(set(stats.parts) == set(parts), f"{name}: and its parts", stats.parts)
    say(all(stats[part] == stats.parts[part] for part in parts), f"{name}: which have their names beside", stats)
    again = pickle.loads(pickle.dumps(stats))
    say((again, again.parts) == (stats, stats.parts) and json.loads(json.dumps(stats)) == stats, f"{name}: they can be saved", again)
    say(isinstance(error_of(lambda: stats["wire"]), KeyError), f"{name}: and no other names")
    return stats


def watched(name, make, run, expected, **options):
    """run(model) on what make() gives, attached: the steps that a callback is told of."""
    model = make()
    attachment = gradcomp.torch.attach(model, **options)
    told, counted, threads = [], [], set()

    def callback(step, stats):
        told.append(step)
        counted.append(stats["steps"])
        threads.add(threading.get_ident())

    attachment.on_step(callback)
    run(model)
    say(told == expected and (told == counted or "delay" in options), f"{name}: told of {len(expected)} steps", f"{told} {counted}")
    say(threads <= {threading.get_ident()}, f"{name}: on the thread of backward()")
    if options.get("delay"):
        attachment.drain(torch.optim.SGD(model.parameters(), lr=0.1))
    return attachment


def steps(n):
    def run(model):
        for step in range(n):
            model.zero_grad()
            backward(model, step)
    return run


def accumulated(model):
    for step in range(2):
        with model.no_sync():
            backward(model, step)
        backward(model, 10 + step)


def joined(model):
    with model.join():
        steps(3)(model)


def averaged():
    """When a callback is called all gradients are the averages."""
    model = DDP(net(), bucket_cap_mb=1e-5)
    attachment = gradcomp.torch.attach(model)
    seen = []
    attachment.on_step(lambda step, stats: seen.append([p.grad.clone() for p in model.parameters()]))
    for step in range(3):
        model.zero_grad()
        backward(model, step)
        own = [p.grad for p in model.parameters()]
        every = [torch.empty(SIZE, *g.shape) for g in own]
        for g, e in zip(own, every):
            dist.all_gather(list(e), g.contiguous())
        say(all(torch.equal(a, b) for a, b in zip(seen[-1], own)) and all(torch.equal(e[0], e[-1]) for e in every),
            f"averaged: step {step} is over when it is told of", seen[-1])
    return attachment


def callbacks():
    model = DDP(net())
    attachment = gradcomp.torch.attach(model)
    order = []
    first = attachment.on_step(lambda step, stats: order.append(("first", step)))
    attachment.on_step(lambda step, stats: order.append(("second", step)))
    steps(1)(model)
    first.remove()
    first.remove()
    steps(1)(model)
    say(order == [("first", 1), ("second", 1), ("second", 2)], "callbacks: in their order, until they are removed", order)
    for wrong in (None, 5, "print"):
        e = error_of(attachment.on_step, wrong)
        say(isinstance(e, TypeError) and f"not a {type(wrong).__name__}" in str(e), f"callbacks: {wrong!r} is refused", e)

    def fails(step, stats):
        raise ValueError("of the program's own")

    failing = attachment.on_step(fails)
    e = error_of(steps(1), model)
    say("of the program's own" in str(e), "callbacks: what one raises comes out of backward()", e)
    failing.remove()
    before = len(order)
    say(error_of(steps(2), model) is None and len(order) == before + 2, "callbacks: and training goes on", order)
    attachment.detach()
    steps(1)(model)
    say(len(order) == before + 2 and attachment.stats()["steps"] == 5, "callbacks: none after detach(), and the counters stay",
        (order, attachment.stats()))


class Writer:
    def __init__(self):
        self.rows = []

    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))

    def log(self, values, commit):
        self.rows.append((values, commit))


def writers():
    model, writer, run = DDP(net()), Writer(), Writer()
    attachment = gradcomp.torch.attach(model, compressor="topk:density=0.1")
    attachment.on_step(gradcomp.writers.TensorBoard(writer, every=2))
    attachment.on_step(gradcomp.writers.WandB(run, prefix="net/"))
    steps(4)(model)
    stats = attachment.stats()
    values = {name: value for name, value, step in writer.rows if step == 4}
    say([step for name, _, step in writer.rows if name == "gradcomp/wire_mb"] == [2, 4], "writers: every other step", writer.rows)
    say(abs(values["gradcomp/dense_mb"] * 1e6 - stats["dense_bytes"] / 4) < 1e-6 and 0 < values["gradcomp/ratio"] < 1,
        "writers: the bytes of a step", values)
    say(0 < values["gradcomp/error"] < 1 and values["gradcomp/nonfinite_steps"] == 0, "writers: and what stays behind", values)
    say(set(values) == {f"gradcomp/{n}" for n in ("wire_mb", "dense_mb", "ratio", "encode_ms", "exchange_ms", "decode_ms", "exposed_ms",
                                                  "error", "nonfinite_steps")}, "writers: the names that are documented", values)
    say(len(run.rows) == 4 and all("net/ratio" in v and commit is False for v, commit in run.rows), "writers: of Weights & Biases, each step",
        run.rows)
    for make, wrong, text in ((gradcomp.writers.TensorBoard, None, "add_scalar()"), (gradcomp.writers.WandB, 5, "log()")):
        e = error_of(make, wrong)
        say(isinstance(e, TypeError) and text in str(e), f"writers: {make.__name__}({wrong}) is refused", e)
    for every in (0, -1, 1.5):
        e = error_of(gradcomp.writers.TensorBoard, writer, every=every)
        say(isinstance(e, (TypeError, gradcomp.Error)) and "every=" in str(e), f"writers: every={every} is refused", e)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("# no tensorboard here", flush=True)
    else:
        import glob
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            with SummaryWriter(folder) as real:
                handle = attachment.on_step(gradcomp.writers.TensorBoard(real))
                steps(1)(model)
                handle.remove()
            (name,) = glob.glob(folder + "/*")
            say(b"gradcomp/wire_mb" in open(name, "rb").read(), "writers: a SummaryWriter takes them")
    attachment.detach()


def replicated():
    shape("replicated", watched("plain", lambda: DDP(net()), steps(4), [1, 2, 3, 4]), ["all_reduce"])
    watched("buckets", lambda: DDP(net(), bucket_cap_mb=1e-5), steps(3), [1, 2, 3])
    watched("static", lambda: DDP(net(), static_graph=True), steps(3), [1, 2, 3])
    watched("unused", lambda: DDP(net(), find_unused_parameters=True), steps(3), [1, 2, 3])
    watched("accumulated", lambda: DDP(net()), accumulated, [1, 2])
    watched("joined", lambda: DDP(net()), joined, [1, 2, 3])
    watched("delayed", lambda: DDP(net()), steps(3), [1, 2, 3], delay=1)
    averaged()
    callbacks()
    writers()
    sync = gradcomp.torch.LocalSGD(net(), every=2)
    told = []
    sync.on_step(lambda step, stats: told.append((step, stats["exchanges"])))
    for _ in range(4):
        sync.step()
    say(told == [(1, 0), (2, 1), (3, 1), (4, 2)], "local SGD: told of each step", told)
    shape("local SGD", sync, ["all_reduce"], ["exchanges"])


def profiled():
    """What PyTorch's profiler shows, of threads that it does not know too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.profiler import profile

    from gradcomp import _profile

    def count(events, name):
        found = [e for e in events if e.name == "gradcomp:" + name]
        say(all(e.time_range.elapsed_us() > 0 for e in found), f"profiled: {name} takes time", found)
        return len(found)

    models = [DDP(net(), bucket_cap_mb=1e-5) for _ in range(2)]
    hooks = [gradcomp.torch.attach(m, compressor="topk:density=0.5") for m in models]
    steps(1)(models[0])
    say(not _profile._watching and not _profile._forks, "profiled: nothing is followed without a profiler")
    for turn in range(2):
        with profile(record_shapes=True) as profiler:
            steps(2)(models[0])
        events = profiler.events()
        buckets = hooks[0].stats()["buckets"]
        for stage in ("encode", "exchange", "decode"):
            n = count(events, stage)
            say(n >= 2 * buckets, f"profiled: turn {turn}: {stage} of each bucket", f"{n} of {buckets} buckets")
        whole = [e.input_shapes for e in events if e.name == "gradcomp:all_reduce"]
        numbers = sum(shape[0][0] for shape in whole)
        say(count(events, "all_reduce") >= 2 and numbers == 2 * sum(p.numel() for p in models[0].parameters()),
            f"profiled: turn {turn}: DDP's buckets, with their sizes", whole)
    steps(1)(models[0])
    say(not (_profile._watching or _profile._following or _profile._words or _profile._stages or _profile._until or _profile._forks),
        "profiled: nothing is left of it", vars(_profile))
    for n in (1, 2, 2, 1):
        steps(n)(models[1])
    say(all(torch.equal(a.grad, b.grad) for a, b in zip(models[0].parameters(), models[1].parameters())), "profiled: the numbers are the same")
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net(), mesh=init_device_mesh("cpu", (SIZE,)))
    hook = gradcomp.torch.attach(model)
    steps(1)(model)
    before = hook.stats()
    with profile() as profiler:
        steps(2)(model)
    events, after = profiler.events(), hook.stats()
    for name in ("reduce_scatter", "all_gather"):
        calls = after.parts[name][name + "s"] - before.parts[name][name + "s"]
        say(count(events, name) == calls > 0, f"profiled: each {name} of a sharded model", f"{calls} calls")
    replicas = fully_shard(net(), mesh=init_device_mesh("cpu", (SIZE, 1), mesh_dim_names=("replicate", "shard")))
    gradcomp.torch.attach(replicas)
    with profile() as profiler:
        steps(2)(replicas)
    say(count(profiler.events(), "exchange") >= 2, "profiled: averages between replicas")
    steps(1)(replicas)


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

    flat, nodes = init_device_mesh("cpu", (SIZE,)), init_device_mesh("cpu", (SIZE, 1), mesh_dim_names=("replicate", "shard"))

    def shard(mesh=flat, **options):
        model = net()
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    both = ["all_gather", "reduce_scatter"]
    stats = shape("sharded", watched("fully_shard", shard, steps(3), [1, 2, 3]), both)
    say(all(stats[n] == sum(p[n] for p in stats.parts.values()) for n in ("wire_bytes", "dense_bytes", "exchange_s")) and stats["wire_bytes"] > 0,
        "sharded: sums of their parts", stats)
    say(stats.parts["reduce_scatter"]["reduce_scatters"] == 6, "sharded: a part has what its coder counts", stats.parts)
    watched("16 bits", lambda: shard(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)), steps(3), [1, 2, 3])
    watched("offloaded", lambda: shard(offload_policy=CPUOffloadPolicy(pin_memory=False)), steps(3), [1, 2, 3])
    stats = shape("replicas", watched("replicas", lambda: shard(nodes), steps(3), [1, 2, 3]), ["all_reduce"])
    say(stats["buckets"] == stats.parts["all_reduce"]["buckets"] > 0, "replicas: what only they have", stats)

    def parts(model):
        for _ in range(2):
            model.set_requires_gradient_sync(False)
            backward(model)
            model.set_requires_gradient_sync(True)
            backward(model)

    watched("accumulated", shard, parts, [1, 2])
    shape("FSDP1", watched("FSDP1", lambda: FullyShardedDataParallel(net(), device_id=torch.device("cpu")), steps(3), [1, 2, 3]),
          ["reduce_scatter"])


def shrink():
    model = DDP(net())
    shared = gradcomp.torch.attach(model, on_failure="shrink")
    told = []
    shared.on_step(lambda step, stats: told.append(step))
    for step in range(3):
        with shared.step():
            with shared.no_sync():
                backward(model)
            backward(model, step)
    say(told == [1, 2, 3], "shrink: told of each step()", told)
    say(isinstance(shared, gradcomp.torch.Attachment) and (shared.rank, shared.nranks, shared.epoch) == (RANK, SIZE, 0), "shrink: an attachment")
    shape("shrink", shared, ["all_reduce"])
    shared.detach()


def none():
    """Without gradcomp nothing is counted, and all is there."""
    model = DDP(net())
    for name, attachment in (("none", gradcomp.torch.attach(model)), ("alone", gradcomp.torch.attach(model, on_failure="shrink"))):
        told = []
        attachment.on_step(lambda step, stats: told.append(step))
        steps(2)(model)
        stats = shape(name, attachment, [])
        say(told == [] and not any(stats.values()), f"{name}: nothing has been done", stats)
        say(isinstance(attachment, gradcomp.torch.Attachment) and attachment.state_dict() == {} == attachment.shared.state_dict(),
            f"{name}: an attachment with an empty state")
        attachment.drain(torch.optim.SGD(model.parameters(), lr=0.1))
        attachment.load_state_dict({})
        attachment.detach()
    with attachment.step() as shared, shared.no_sync():
        backward(model)
    say((attachment.rank, attachment.nranks, attachment.epoch) == (RANK, SIZE, 0), "alone: ranks are PyTorch's", vars(attachment))
    sync = gradcomp.torch.LocalSGD(net(), every=2)
    sync.step()
    shape("local SGD without", sync, [], ["exchanges"])


{"replicated": replicated, "profiled": profiled, "sharded": sharded, "shrink": shrink, "none": none}[sys.argv[1]]()
