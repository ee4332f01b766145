#!/usr/bin/env python3
"""gradcomp.torch on sharded models in GPU memory: fully_shard() on two ranks that share the device, against the same
model in host memory. Started by tests/gpu/run; GRADCOMP_TEST_DEVICE=cpu tries it in host memory."""

import os
import sys
import time

from tap import done_testing, errors, in_time, ok, ranks, skip_all

DEVICE = os.environ.get("GRADCOMP_TEST_DEVICE", "cuda")
# What tap.environment() would take from a build folder.
BUNDLE = {k: os.environ.get(k) for k in ("PYTHONPATH", "GRADCOMP_LIBRARY", "GRADCOMP_PLUGIN_PATH", "GRADCOMP_CONF",
                                         "GRADCOMP_TEST_DEVICE")}
WAYS = {"none": {"reduce_scatter": "none", "all_gather": "none"},
        "8 bits": {"reduce_scatter": "block:bits=8", "all_gather": "block:bits=8"},
        "4 bits, residual": {"reduce_scatter": "block:bits=4", "all_gather": "block:bits=8", "residual": True}}
STEPS = 6


def rank_main(mode):
    os.environ["NCCL_HOSTID"] = "gradcomp-test-" + os.environ["RANK"]  # else NCCL refuses two ranks on one device
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import gradcomp.torch

    torch.set_num_threads(1)
    gradcomp.torch.init_process_group("gloo")
    rank, nranks = dist.get_rank(), dist.get_world_size()
    if DEVICE == "cuda":
        torch.cuda.set_device(0)

    def sharded(device):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 513), nn.ReLU(), nn.Linear(513, 10)).to(device)
        mesh = init_device_mesh(device, (nranks,))
        for i in (0, 2, 4):
            fully_shard(model[i], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def train(device, options):
        model = sharded(device)
        # One order of sums on two ranks, as NCCL's.
        attachment = gradcomp.torch.attach(model, collective="direct" if device == "cpu" else None, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            if mode == "die" and (rank, step) == (1, 3):
                raise ValueError("rank 1 has had enough")
            x = torch.randn(16, 256, generator=torch.Generator().manual_seed(100 * step + rank)).to(device)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        weights = [p.to_local().detach().cpu() for p in model.parameters()]
        calls = sum(part["reduce_scatters"] + part["all_gathers"] for part in attachment.stats().parts.values())
        attachment.detach()
        return weights, calls

    if mode == "die":
        train(DEVICE, WAYS["8 bits"])
        return
    for name, options in WAYS.items():
        (want, _), (have, calls) = train("cpu", options), train(DEVICE, options)
        largest = max(w.abs().max() for w in want)
        print(name, "off", max((a - b).abs().max() / largest for a, b in zip(want, have)).item())
        print(name, "calls", calls, flush=True)


def main():
    try:
        import torch
    except ImportError as e:
        skip_all(f"no PyTorch for {sys.executable}: {e}")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        skip_all(f"fully_shard() takes collectives from a program since PyTorch 2.9, and this is {torch.__version__}")
    if DEVICE == "cuda" and not torch.cuda.is_available():
        skip_all("this PyTorch has no CUDA, or finds no device")

    def run(mode):
        return ranks(2, [os.path.abspath(__file__), mode], timeout=100, GRADCOMP="block:bits=8", **BUNDLE)

    got = run("train")
    if ok([s for s, _, _ in got] == [0, 0], "two ranks train with one code after the other", errors(got)):
        lines = [dict(line.rsplit(" ", 1) for line in out.splitlines() if " " in line) for _, out, _ in got]
        for name in WAYS:
            off = max(float(line[name + " off"]) for line in lines)
            # The device multiplies in another order, and a code may then round the other way.
            ok(off < (1e-4 if name == "none" else 0.02), f"{name}: the weights are those of the host, {off:.2g} of the largest off")
            ok(all(int(line[name + " calls"]) >= 3 * STEPS * 2 for line in lines), f"{name}: shards went by gradcomp", lines)
    began = time.monotonic()
    got = run("die")
    seconds = time.monotonic() - began
    ok(got[1][0] not in (0, None) and got[0][0] not in (0, None) and "rank 1" in got[0][2],
       "one rank raises: the other names the culprit", errors(got))
    ok(in_time(seconds, 60), f"and does not wait for a time-out ({seconds:.1f} s)")
    done_testing()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(*sys.argv[1:])
    else:
        main()
