#!/usr/bin/env python3
"""gradcomp.torch on gradients in GPU memory: DistributedDataParallel on ranks that share
the device. Started by tests/gpu/run; GRADCOMP_TEST_DEVICE=cpu tries it in host memory."""

import hashlib
import os
import sys
import time

from tap import done_testing, errors, in_time, ok, ranks, skip_all

DEVICE = os.environ.get("GRADCOMP_TEST_DEVICE", "cuda")
COLLECTIVE = "nccl" if DEVICE == "cuda" else "ring"
# What tap.environment() would take from a build folder.
BUNDLE = {k: os.environ.get(k) for k in ("PYTHONPATH", "GRADCOMP_LIBRARY", "GRADCOMP_PLUGIN_PATH", "GRADCOMP_CONF",
                                         "GRADCOMP_TEST_DEVICE")}
SPECS = ("cast:type=bf16", "topk:density=0.05", "mstopk:density=0.05", "dgc:density=0.05", "threshold:t=0.01",
         "powersgd:rank=2,start_step=0", "acpsgd:rank=2,start_step=0", "lqsgd:rank=2,start_step=0", "qsgd", "onebit", "signsgd",
         "block:bits=8", "blocktopk:density=0.05,block=32", "lqsgd:rank=2,start_step=0,levels=log", "demo:k=8",
         "dion:rank=2,start_step=0")
STEPS = 6


# ---- one rank ----------------------------------------------------------------


def rank_main(mode, *specs):
    os.environ["NCCL_HOSTID"] = "gradcomp-test-" + os.environ["RANK"]  # else NCCL refuses two ranks on one device
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import gradcomp.torch

    torch.set_num_threads(1)
    # PyTorch's own collectives are Gloo's: nothing of what is compared comes over NCCL.
    gradcomp.torch.init_process_group("nccl" if mode == "alone" and DEVICE == "cuda" else "gloo")
    rank = dist.get_rank()
    kind = torch.float16 if mode == "half" else torch.float32

    def network():
        torch.manual_seed(1)
        layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)]
        return nn.Sequential(*layers).to(DEVICE, kind)

    def ddp():
        return DistributedDataParallel(network(), bucket_cap_mb=0.01, gradient_as_bucket_view=True)

    def step(model, number):
        generator = torch.Generator().manual_seed(1000 * rank + number)
        x = torch.randn(8, 20, generator=generator).to(DEVICE, kind)
        y = torch.randint(0, 3, (8,), generator=generator).to(DEVICE)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        gradients = [p.grad.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        return gradients

    def digest(model):
        return hashlib.sha256(b"".join(p.detach().float().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()

    def train(spec):
        """Prints what is to be known of STEPS steps, and of taking up a state half-way."""
        model, plain, worst, change = ddp(), ddp(), 0.0, 0.0
        attachment = gradcomp.torch.attach(model, spec, COLLECTIVE, seed=3)
        stream = torch.cuda.Stream() if mode == "stream" and DEVICE == "cuda" else None
        for n in range(STEPS):
            if n == STEPS // 2:
                saved = attachment.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
            if mode == "die" and (rank, n) == (1, 3):
                raise ValueError("rank 1 has had enough")
            # DDP's own average of the same weights' gradients.
            if mode != "die":
                plain.load_state_dict(model.state_dict())
                want = step(plain, n)
            if stream is None:
                got = step(model, n)
            else:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    got = step(model, n)
                torch.cuda.current_stream().wait_stream(stream)
            if mode == "die":
                continue
            worst = max([worst] + [(a - b).abs().max().item() for a, b in zip(got, want)])
            change += sum(g.float().abs().sum().item() for g in got)
        print(spec, "worst", worst)
        print(spec, "change", change)
        print(spec, "digest", digest(model))
        attachment.detach()
        again = ddp()
        again.load_state_dict(saved[1])
        attachment = gradcomp.torch.attach(again, spec, COLLECTIVE, seed=3)
        attachment.load_state_dict(saved[0])
        for n in range(STEPS // 2, STEPS):
            step(again, n)
        print(spec, "resumed", digest(again) == digest(model), flush=True)
        attachment.detach()

    for spec in specs:
        train(spec)


# ---- all of them -------------------------------------------------------------


def said(result, words):
    """What each rank printed after them; None where it did not."""
    lines = [dict(line.rsplit(" ", 1) for line in out.splitlines() if " " in line) for _, out, _ in result]
    return [line.get(words) for line in lines]


def train(count, mode, *specs, **more):
    return ranks(count, [os.path.abspath(__file__), mode, *specs], timeout=100, GRADCOMP="none", **{**BUNDLE, **more})


def alike(got, spec, name):
    """Whether the ranks came to the end of it, with the same bits."""
    bits = said(got, spec + " digest")
    return ok(None not in bits and len(set(bits)) == 1, f"{name}: all ranks hold the same bits", bits, errors(got))


def main():
    try:
        import torch
    except ImportError as e:
        skip_all(f"no PyTorch for {sys.executable}: {e}")
    if DEVICE == "cuda" and not torch.cuda.is_available():
        skip_all("this PyTorch has no CUDA, or finds no device")

    # A host has no streams, and does not multiply in float16 with every PyTorch.
    for count, mode in ((1, "alone"), (3, "plain"), (2, "stream"), (2, "half"))[:4 if DEVICE == "cuda" else 2]:
        got = train(count, mode, "none")
        name = f"none, {mode}, {count} rank(s)"
        ok([s for s, _, _ in got] == [0] * count, f"{name}: they train", errors(got))
        if alike(got, "none", name):
            ok(max(map(float, said(got, "none worst"))) < (1e-2 if mode == "half" else 1e-6), f"{name}: DDP's own average",
               said(got, "none worst"))
    got = train(2, "plain", *SPECS, GRADCOMP_LOG="info")
    ok([s for s, _, _ in got] == [0, 0], "two ranks train with one compressor after the other", errors(got))
    for spec in SPECS:
        if alike(got, spec, spec):
            ok(min(map(float, said(got, spec + " change"))) > 0.1, f"{spec}: gradients come back", said(got, spec + " change"))
            ok(said(got, spec + " resumed") == ["True"] * 2, f"{spec}: a saved state continues to the bit")
    for line in got[0][2].splitlines():
        if "memory" in line:
            print("#", line)

    began = time.monotonic()
    got = train(2, "die", "none")
    seconds = time.monotonic() - began
    ok(all(s not in (0, None) for s, _, _ in got), "one rank raises: all end with a failure", errors(got))
    ok("rank 1 has had enough" in got[1][2] and "rank 1" in got[0][2], "the other names the culprit", errors(got))
    ok(in_time(seconds, 45), f"and does not wait for a time-out ({seconds:.1f} s)")
    done_testing()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(*sys.argv[1:])
    else:
        main()
