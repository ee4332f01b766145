"""One rank of processors.t: ranks of one job on processors that differ, as far as PyTorch can be told to do with less than this
one has. Prints lines `WORD DIGEST...`."""

import hashlib
import os

KINDS = (("default", "SSE41", "Nehalem"), ("avx2", "AVX2", "Haswell"))
names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE")
os.environ.update(zip(names, KINDS[int(os.environ["RANK"]) % len(KINDS)]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import gradcomp.torch  # noqa: E402

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank = dist.get_rank()


def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(80, 50), nn.GELU(), nn.Linear(50, 2))


def backward(model, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x, y = torch.randn(8, 3, 6, 6, generator=generator), torch.randint(0, 2, (8,), generator=generator)
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()


def averages():
    for spec in ("none", "powersgd:rank=2,start_step=0", "topk:density=0.1", "qsgd", "block"):
        model = nn.parallel.DistributedDataParallel(network())
        attachment = gradcomp.torch.attach(model, compressor=spec)
        optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        for step in range(4):
            backward(model, step)
            found.append(digest([p.grad for p in model.parameters()]))
            optimizer.step()
        print(f"averages:{spec.partition(':')[0]}", *found)
        attachment.detach()


def drained():
    model = nn.parallel.DistributedDataParallel(network())
    attachment = gradcomp.torch.attach(model, compressor="none", delay=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        backward(model, step)
        optimizer.step()
    attachment.drain(optimizer)
    print("drained", digest(model.parameters()))
    attachment.detach()


def synchronised():
    model = network()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    sync, found = gradcomp.torch.DiLoCo(model, outer, every=2, compressor="block"), []
    for step in range(12):
        backward(model, step)
        inner.step()
        if sync.step():
            found.append(digest(model.parameters()))
    print("diloco", *found)
    sync.finish()
    print("finished", digest(model.parameters()))
    sync.detach()


averages()
drained()
synchronised()
