"""What tests/gpu/torch_rates.py and rivals.py share: sizes and times."""

import os
import re
import time

import torch


def shapes(folder, model):
    """Of the tensors in a model file (etc/models)."""
    with open(os.path.join(folder, model + ".model"), encoding="utf-8") as f:
        found = re.findall(r"^\d+ = \S+ ([\dx]+) ", f.read(), re.M)
    return [torch.Size(map(int, dims.split("x"))) for dims in found]


def timer(device):
    """A function of work and how often: seconds a call. On a GPU they are the device's."""
    def host(work, repeat):
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        return (time.perf_counter() - began) / repeat

    def cuda(work, repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeat):
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / repeat

    return cuda if device == "cuda" else host
