"""One rank of half.t: gradients of argv[1:] types through the job's compressor and collective.
Prints bytes sent a step and the worst distance from the mean in float64, in units of the type's rounding."""

import sys

import torch
import torch.distributed as dist

import gradcomp
import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
group = gradcomp.torch.group()
SHAPES = ((300, 100), (5000,), (0,), (50, 21))


def gradient(r, t, dtype):
    torch.manual_seed(100 * r + t)
    return torch.randn(SHAPES[t]).to(dtype)


for kind in sys.argv[1:]:
    names = kind.split("+") * len(SHAPES)
    dtypes = [getattr(torch, names[t]) for t in range(len(SHAPES))]
    reducer = gradcomp.Reducer(group, [(str(t), s, d) for t, (s, d) in enumerate(zip(SHAPES, dtypes))])
    steps = 3
    worst = 0.0
    for step in range(steps):
        mine = [gradient(rank + 10 * step, t, d) for t, d in enumerate(dtypes)]
        for t, g in enumerate(mine):
            reducer.ready(t, g.data_ptr())
        reducer.wait()
        for t, (g, d) in enumerate(zip(mine, dtypes)):
            terms = [gradient(r + 10 * step, t, d).double() for r in range(nranks)]
            room = sum(x.abs() for x in terms) / nranks * torch.finfo(d).eps + 1e-6
            if g.numel():
                worst = max(worst, ((g.double() - sum(terms) / nranks).abs() / room).max().item())
    stats = reducer.stats()
    print(f"{kind} bytes {stats['wire_bytes'] / steps} dense {stats['dense_bytes'] / steps} worst {worst}")
    reducer.free()
