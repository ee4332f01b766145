"""One rank of nocode.t: a program that knows nothing of gradcomp. argv says what it does
beside training a DistributedDataParallel; what it prints is of every rank."""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

modes = sys.argv[1:]
torch.set_num_threads(1)
os.environ.setdefault("USE_LIBUV", "0")
dist.init_process_group("gloo")
rank = dist.get_rank()


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(50, 100), torch.nn.ReLU(), torch.nn.Linear(100, 3))


def gradients(model):
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


model = DistributedDataParallel(network(), gradient_as_bucket_view="view" in modes)
if "hook" in modes:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
if "attach" in modes:
    import gradcomp.torch

    own = gradcomp.torch.attach(model, compressor="none")
called = torch.compile(model, backend="eager") if "compile" in modes else model
with torch.no_grad():
    if rank == 0:  # ranks need not be together here
        model(torch.zeros(1, 50))
if "die" in modes and rank == 1:
    raise SystemExit("rank 1 has had enough")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
reference = network()  # the average as it is
worst = 0.0
for step in range(4):
    if "late" in modes and step == 2:
        import gradcomp.torch

        own = gradcomp.torch.attach(model, compressor="none")
    torch.manual_seed(1000 * rank + step)
    x = torch.randn(8, 50)
    reference.load_state_dict(model.module.state_dict())
    reference.zero_grad()
    reference(x).square().mean().backward()
    mean = gradients(reference)
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    optimizer.zero_grad()
    called(x).square().mean().backward()
    worst = max(worst, (gradients(model) - mean).abs().max().item())
    optimizer.step()
print("worst", worst)
print("digest", hashlib.sha256(gradients(model).numpy().tobytes()).hexdigest())
print("ours", "gradcomp" in sys.modules, "gradcomp.torch" in sys.modules)
if "own" in globals():
    print("steps", own.stats()["steps"])
if "hook" in modes:
    # The group waits for its thread with the interpreter's lock held, which the thread needs to drop the future of a
    # hook in Python: with PyTorch 2.6 that may take for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
# With the last reference to the group its threads end. One that drops the future of a hook in Python while the
# interpreter ends would take the process with it ("terminate called without an active exception").
del called, model, optimizer
dist.destroy_process_group()
