#!/usr/bin/python3
"""The frameworks above PyTorch: the examples for Lightning and Accelerate train on four ranks, compressed
and plain, save one state, and go on with two ranks from it. Hugging Face's Trainer needs no change."""

import importlib.util
import os
import re
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, need_gloo, need_library, ok, ranks, skip_all  # noqa: E402

FRAMEWORKS = [name for name in ("lightning", "accelerate") if importlib.util.find_spec(name)]
TRAINER = importlib.util.find_spec("transformers")
if not FRAMEWORKS and not TRAINER:
    skip_all(f"neither lightning nor accelerate nor transformers for {sys.executable}")
need_gloo()
need_library()


def saved_state(framework, path):
    """What gradcomp put in a checkpoint."""
    import torch

    if framework == "accelerate":
        return torch.load(os.path.join(path, "custom_checkpoint_0.pkl"), weights_only=False)
    return torch.load(path, weights_only=False)["callbacks"]["GradComp"]


def train(what, framework, nranks, *options, **env):
    """(loss, kB a step) that rank 0 printed."""
    more = ("--devices", str(nranks), "--nodes", "1") if framework == "lightning" else ()
    got = ranks(nranks, [os.path.join(SOURCE, f"examples/pytorch/{framework}_ddp.py"), *options, *more], timeout=200, **env)
    if not ok([s for s, _, _ in got] == [0] * nranks, f"{framework}: {what}", errors(got)):
        done_testing()
    found = re.search(r"step (\d+): loss ([\d.]+), ([\d.]+) kB", got[0][1])
    ok(found, "... and says what came of it", got[0][1])
    return float(found[2]), float(found[3])


for framework in FRAMEWORKS:
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        plain, nothing = train("four ranks, not asked for", framework, 4, "--steps", "60", "--save", os.path.join(folder, "plain"))
        ok(nothing == 0, "... sends nothing through gradcomp", nothing)
        loss, sent = train("four ranks", framework, 4, "--steps", "60", "--save", saved, GRADCOMP="topk:density=0.05")
        full = 4 * (32 * 128 + 128 + 128 * 128 + 128 + 128 * 8 + 8) * 1.5 / 1e3
        ok(0 < sent < full / 2, f"... {sent} kB a step, where numbers as they are take {full:.1f}")
        ok(loss < 1.5 * plain + 0.02, f"... the loss is {loss}, and {plain} without")
        ok(saved_state(framework, saved)["gradcomp"].numel() > 4 * 21000, "... its checkpoint has what ranks owe")
        steps = "120" if framework == "lightning" else "60"  # it counts on from the checkpoint
        again, _ = train("two ranks go on from it", framework, 2, "--steps", steps, "--save", os.path.join(folder, "again"),
                         "--resume", saved, GRADCOMP="topk:density=0.05")
        ok(again < loss, f"... from {loss} to {again}")
if TRAINER:
    with tempfile.TemporaryDirectory() as folder:
        got = ranks(2, [os.path.join(SOURCE, "tests/python/hugging_face.py"), folder], timeout=200, GRADCOMP="topk:density=0.05",
                    GRADCOMP_AUTO_ATTACH="yes")
    ok([s for s, _, _ in got] == [0, 0], "Hugging Face's Trainer: two ranks", errors(got))
    ok("gradcomp: attached DistributedDataParallel(Student)" in got[0][2] and "40 steps" in got[0][2],
       "... are attached by themselves, for all steps", got[0][2])
done_testing()
