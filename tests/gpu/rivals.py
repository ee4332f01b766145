#!/usr/bin/env python3
"""A step at one rank with gradcomp beside DDP's own, bf16_compress_hook and powerSGD_hook:
what compression costs where nothing is gained. Started by tests/gpu/run.

    rivals [DEVICE [STEPS]]

Models: the shapes of ResNet-50 alone, whose gradients are there at once, so that nothing
but the reduction takes time; ResNet-50 of torchvision, when that is installed, and an
encoder of BERT's size, as they train."""

import os
import statistics
import sys
import time

try:
    import torch
except ImportError as e:
    print(f"1..0 # SKIP no PyTorch for {sys.executable}: {e}")
    sys.exit(77)
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from measured import shapes

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
SMALL = DEVICE == "cpu"  # only to see that it runs
RUNS = 3
SPECS = ("none", "cast:type=bf16", "powersgd:rank=4,start_step=0", "acpsgd:rank=4,start_step=0", "topk:density=0.01",
         "mstopk:density=0.01", "block:bits=8", "onebit", "signsgd")
COLLECTIVE = "nccl" if DEVICE == "cuda" else "ring"
# In a bundle, else of the source.
MODELS = next(filter(os.path.isdir, (os.path.join(os.path.dirname(os.path.realpath(__file__)), folder)
                                     for folder in ("../python/gradcomp/share/gradcomp/models", "../../etc/models"))))


# ---- models: (name, module, a function of the DDP module that makes a loss) --------


class _Given(torch.autograd.Function):
    """A loss whose gradients were made before."""

    @staticmethod
    def forward(ctx, gradients, *parameters):
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx, _loss):
        return (None, *ctx.gradients)


class Shapes(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(s, device=DEVICE)) for s in sizes)
        self.given = [torch.randn(s, device=DEVICE) for s in sizes]

    def forward(self):
        return _Given.apply(self.given, *self.tensors)


def models():
    sizes = shapes(MODELS, "resnet50")
    yield "shapes of ResNet-50", Shapes(sizes[:20] if SMALL else sizes), lambda model: model()
    try:
        import torchvision
    except ImportError as e:
        print(f"# ResNet-50 does not train: {e}")
    else:
        batch = 1 if SMALL else 64
        x, y = torch.randn(batch, 3, 224, 224, device=DEVICE), torch.randint(0, 1000, (batch,), device=DEVICE)
        yield (f"ResNet-50, batch {batch}", torchvision.models.resnet50(weights=None).to(DEVICE),
               lambda model: nn.functional.cross_entropy(model(x), y))
    width, layers, words, batch = (64, 2, 16, 2) if SMALL else (768, 12, 512, 16)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True), layers).to(DEVICE)
    z = torch.randn(batch, words, width, device=DEVICE)
    yield f"encoder of {layers} x {width}, batch {batch} x {words}", encoder, lambda model: model(z).square().mean()


# ---- ways: what is put on a DDP model; what takes it off --------------------------


def hook(function, state=None):
    def put(model):
        model.register_comm_hook(state() if state else None, function)
        return lambda: None

    return put


def power_state():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)


def ours(spec):
    def put(model):
        import gradcomp.torch

        return gradcomp.torch.attach(model, spec, COLLECTIVE, seed=3).detach

    return put


OWN, BF16, POWER, NOTHING = "DDP's own", "bf16_compress_hook", "powerSGD_hook, rank 4", "a hook that does nothing"
WAYS = {OWN: lambda _model: lambda: None, NOTHING: hook(debugging_hooks.noop_hook), BF16: hook(default_hooks.bf16_compress_hook),
        POWER: hook(powerSGD_hook.powerSGD_hook, power_state), **{spec: ours(spec) for spec in SPECS}}

if DEVICE == "cpu":
    del WAYS[BF16]  # it asks for NCCL


# ---- measuring ---------------------------------------------------------------


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def step(model, loss):
    model.zero_grad(set_to_none=False)
    loss(model).backward()


def seconds(model, loss):
    """Of a step, and of all threads' CPU time in it. The host waits at the end of a run only."""
    whole, cpu = [], []
    for _ in range(RUNS):
        wait()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            step(model, loss)
        wait()
        whole.append((time.perf_counter() - began) / STEPS)
        cpu.append((time.process_time() - used) / STEPS)
    return statistics.median(whole), statistics.median(cpu)


def calls(model, loss, repeat=4):
    """Of CUDA in a step, by kind: launches, copies, and what the host waits in."""
    if DEVICE != "cuda":
        return {}
    wait()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                                torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(repeat):
                step(model, loss)
            wait()
    except RuntimeError as e:
        print(f"# calls are not counted: {e}")
        return {}
    found = dict.fromkeys(("launches", "copies", "host waits"), 0)
    for event in seen.key_averages():
        name = event.key
        if name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")):
            found["launches"] += event.count
        elif name.startswith(("cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset")):
            found["copies"] += event.count
        elif name.startswith("cu") and name.endswith("Synchronize"):
            found["host waits"] += event.count
    found["host waits"] -= 1  # that at the end
    return {kind: count / repeat for kind, count in found.items()}


def measure(name, module, loss):
    """Prints what is to be said of a model; {way: seconds}."""
    taken = {}
    for way, put in WAYS.items():
        try:
            model = DistributedDataParallel(module, gradient_as_bucket_view=True)
            take_off = put(model)
            for _ in range(5 if DEVICE == "cuda" else 2):  # DDP makes its buckets anew; compressors begin
                step(model, loss)
            taken[way], cpu = seconds(model, loss)
            # Those of a model's own operators would only be more.
            counted = calls(model, loss) if name.startswith("shapes") else {}
            take_off()
            del model
        except Exception as e:  # of one way: the others are measured
            print(f"not ok - {name}, {way}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
            continue
        beside = ""
        if way in SPECS and OWN in taken and not name.startswith("shapes"):
            beside = f"; {taken[way] / taken[OWN]:.3f} of DDP's own; goal <= 1.03"
        elif way != OWN and OWN in taken:
            beside = f"; {taken[way] / taken[OWN]:.3f} of DDP's own"
        print(f"figure: {name}, {way} = {1e3 * taken[way]:.3f} ms{beside}")
        print(f"figure: {name}, {way}, CPU time of a step = {1e3 * cpu:.3f} ms")
        for kind, count in counted.items():
            print(f"figure: {name}, {way}, {kind} in a step = {count:.1f} calls")
    return taken


def main():
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("1..0 # SKIP this PyTorch has no CUDA, or finds no device")
        sys.exit(77)
    os.environ["GRADCOMP"] = "none"
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False) if DEVICE == "cuda" else dist.HashStore()
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=store, rank=0, world_size=1)
    # As most train: a short step hides less of what a hook takes.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    wrong = 0
    for name, module, loss in models():
        taken = measure(name, module, loss)
        wrong += len(WAYS) - len(taken)
        mine = "powersgd:rank=4,start_step=0"
        if name.startswith("shapes") and not {mine, POWER, NOTHING} - set(taken):
            work, theirs = taken[mine] - taken[NOTHING], taken[POWER] - taken[NOTHING]
            if work > 0 and theirs > 0:
                print(f"figure: {name}, {mine} without what a hook that does nothing takes = {1e3 * work:.3f} ms; "
                      f"{work / theirs:.3f} of powerSGD_hook's; goal <= 0.5")
        del module
    print(f"{'not ok' if wrong else 'ok'} 1 - a step each way\n1..1")
    sys.stdout.flush()
    dist.destroy_process_group()
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
