"""PyTorch's times for what tests/gpu/rates.c measures: lines "WHAT microseconds".

    torch_rates.py FOLDER-OF-MODELS [DEVICE [BITS]]

BITS: the largest size is 2^BITS (27)."""

import collections
import statistics
import sys

import torch

from measured import shapes, timer

MODELS = sys.argv[1]
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"
BITS = int(sys.argv[3]) if len(sys.argv) > 3 else 27
SIDE = 4096 if BITS >= 24 else 256
REPEAT, RUNS, LARGE = (20, 5, ("resnet50", "bert-base", "gpt2")) if DEVICE == "cuda" else (1, 1, ("resnet50",))


def say(what, work):
    """The median of a few runs, as over there."""
    time = timer(DEVICE)
    work()
    print(what, f"{1e6 * statistics.median(time(work, REPEAT) for _ in range(RUNS)):.1f}", flush=True)


def low_rank(x, q, local):
    """A step of PowerSGD on one rank, of several matrices of one shape: what is left, and the average."""
    q = torch.linalg.qr(q)[0]
    p = torch.linalg.qr(x @ q)[0]
    q = x.mT @ p
    return x - p @ local.mT, p @ q.mT


if DEVICE == "cuda" and not torch.cuda.is_available():
    sys.exit("this PyTorch has no CUDA, or finds no device")
with torch.no_grad():
    for bits in range(16, BITS + 1):
        numbers = torch.randn(1 << bits, device=DEVICE).abs()  # ours looks at magnitudes itself
        for name in ("topk", "mstopk"):
            say(f"{name} 1% of 2^{bits}", lambda x=numbers: torch.topk(x, x.numel() // 100, sorted=False))
    for rank in (1, 2, 4, 8, 16, 32, 64):
        a = torch.randn(SIDE, rank, device=DEVICE)
        say(f"orthonormalise {SIDE}x{rank}", lambda m=a: torch.linalg.qr(m))
        x, local = torch.randn(SIDE, SIDE, device=DEVICE), torch.randn(SIDE, rank, device=DEVICE)
        say(f"low-rank step {SIDE}x{SIDE} r={rank}", lambda m=(x, a, local): low_rank(*m))
    for model in LARGE:
        matrices = collections.Counter((s[0], s.numel() // s[0]) for s in shapes(MODELS, model)
                                       if len(s) > 1 and min(s[0], s.numel() // s[0]) > 1)
        groups = [tuple(torch.randn(count, a, b, device=DEVICE) for a, b in ((n, m), (m, min(4, n, m)), (m, min(4, n, m))))
                  for (n, m), count in matrices.items()]
        say(f"low-rank step of {model} r=4", lambda: [low_rank(*group) for group in groups])  # noqa: B023
