"""PyTorch's times for what tests/gpu/rates.c measures, in the same lines."""
import sys

try:
    import torch
except ImportError:
    sys.exit("PyTorch is not installed: nothing to compare with")
if not torch.cuda.is_available():
    sys.exit("this PyTorch has no CUDA: nothing to compare with")


def microseconds(work, repeat=20):
    work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeat):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / repeat


def low_rank(x, q, local):
    q = torch.linalg.qr(q)[0]
    p = torch.linalg.qr(x @ q)[0]
    q = x.t() @ p
    return x - p @ local.t(), p @ q.t()


for bits in range(22, 28):
    x = torch.randn(1 << bits, device="cuda")
    k = (1 << bits) // 100

    def top():
        idx = torch.topk(x.abs(), k, sorted=False)[1]
        return x[idx]

    us = microseconds(top)
    print(f"topk 2^{bits} {us:.1f} us")
    print(f"mstopk 2^{bits} {us:.1f} us")
for rank in (1, 4, 16, 64):
    x = torch.randn(4096, 4096, device="cuda")
    q, local = torch.randn(4096, rank, device="cuda"), torch.randn(4096, rank, device="cuda")
    print(f"lowrank r={rank} {microseconds(lambda: low_rank(x, q, local)):.1f} us")
