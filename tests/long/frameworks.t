#!/usr/bin/python3
# time limit: 3600 s
"""Programs with frameworks that stand on torch.distributed, over Gloo and over the backend: the same losses with policy none, to the bit on
two ranks and but for rounding on four; near ones, and fewer bytes, with 8 bits. On two ranks with none they name the backend; else they are
for Gloo, under auto_attach=backend. arguments: some of the programs alone."""

import ast
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))
from tap import BUILD, SOURCE, current, done_testing, errors, forked_ranks, need_library, ok, ranks, skip_all  # noqa: E402

need_library()
PYTHON, why = current("frameworks", 1200)
if why:
    skip_all(why)
PROGRAM = os.path.join(SOURCE, "tests/long/frameworks.py")
LOADED = f"""
import runpy
from gradcomp.autoload import load
load()
runpy.run_path({PROGRAM!r}, run_name="__main__")
"""
# What takes long to import.
MODULES = ("lightning.pytorch", "transformers.trainer", "transformers.models.llama.modeling_llama", "accelerate", "peft", "deepspeed",
           "torch_geometric.nn.kge", "fairscale.nn.moe")
CPU_IS_DDP = "DistributedDataParallel"
# What each is; the class that the framework makes of the model; what a code of 8 bits leaves of its bytes, None: there is nothing to compress.
PROGRAMS = {
    "lightning_ddp": ("Lightning, DDPStrategy", "Regression", 0.27),
    "lightning_fsdp2": ("Lightning, ModelParallelStrategy with fully_shard()", "Regression", 0.27),
    "trainer_ddp": ("Transformers' Trainer, Llama", CPU_IS_DDP, 0.27),
    "trainer_fsdp": ("Transformers' Trainer with fsdp=True, which is DDP on a CPU", CPU_IS_DDP, 0.27),
    "accelerate": ("Accelerate's prepare(), Llama", CPU_IS_DDP, 0.27),
    "lora_trainer": ("peft's LoRA in Transformers' Trainer", CPU_IS_DDP, 0.27),
    "lora_fsdp2": ("peft's LoRA with fully_shard()", "FSDPPeftModel", 0.27),
    "zero1": ("DeepSpeed, ZeRO stage 1, Llama", "DeepSpeedEngine", 0.27),
    "zero3": ("DeepSpeed, ZeRO stage 3, Llama", "DeepSpeedEngine", 0.27),
    "experts_deepspeed": ("DeepSpeed's MoE, four experts on two ranks", "DeepSpeedEngine", 0.27),
    "experts_fairscale": ("FairScale's MOELayer, an expert on each rank", "Sequential", 0.27),
    "sparse": ("PyTorch Geometric's TransE with sparse gradients, DDP", CPU_IS_DDP, None),
}
# What frameworks refuse on a CPU, in their words: the first with Gloo, too.
REFUSED = {"lightning_fsdp": "The strategy `fsdp` requires a GPU accelerator, but received `accelerator='cpu'`.",
           "accelerate_named": "Your assigned backend gradcomp is not available, please use gloo"}
VERSIONS = ("torch", "lightning", "transformers", "accelerate", "peft", "deepspeed", "fairscale", "torch-geometric")


def run(name, nranks, policy=None, by_name=False):
    """(The losses of all ranks, what the lines say that begin with other words); None when a rank fails."""
    more = {"GRADCOMP": policy, "GRADCOMP_AUTO_ATTACH": "no" if by_name or not policy else "backend",
            "PYTHONPATH": os.path.join(BUILD, "lib/gradcomp/python"), "LOCAL_WORLD_SIZE": str(nranks), "HF_HUB_OFFLINE": "1",
            "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": os.path.join(BUILD, "tests/extensions")}
    if by_name:  # as every program is started
        got = ranks(nranks, [PROGRAM, name, "gradcomp"], timeout=400, python=PYTHON, **more)
    else:  # as soon as all is imported
        got = forked_ranks(nranks, ["-c", LOADED, name, "gloo"], timeout=400, python=PYTHON, modules=MODULES, **more)
    if not ok([status for status, _, _ in got] == [0] * nranks, f"{name}, {policy or 'Gloo'}: {nranks} ranks end", errors(got)):
        return None
    said = [dict((line.split(" ", 1) for line in out.splitlines() if re.match("losses |model |backend |refused ", line))) for _, out, _ in got]
    rows = [ast.literal_eval(line[4:]) for _, out, _ in got for line in out.splitlines() if line.startswith("row ")]
    return [[float.fromhex(x) for x in s.get("losses", "").split()] for s in said], said[0], rows


def apart(a, b):
    """The largest difference, as a part of the loss."""
    return max(abs(x - y) / abs(y) for ours, theirs in zip(a, b) for x, y in zip(ours, theirs))


def mean(losses):
    return [sum(step) / len(step) for step in zip(*losses)]


def tried(name):
    what, made, share = PROGRAMS[name]
    theirs, ours = run(name, 2), run(name, 2, "any/none", by_name=True)
    coded, four, ours_of_four = run(name, 2, "dp/block:bits=8"), run(name, 4), run(name, 4, "any/none")
    if not all((theirs, ours, coded, four, ours_of_four)):
        return
    ok(theirs[1]["backend"] == four[1]["backend"] == "gloo" and ours[1]["backend"] == coded[1]["backend"] == ours_of_four[1]["backend"] == "gradcomp",
       f"{name}: the group of all ranks is of the backend", theirs[1], ours[1], coded[1], four[1], ours_of_four[1])
    ok(theirs[1]["model"] == ours[1]["model"] == made, f"{name}: {what}", ours[1])
    ok(len(theirs[0][0]) > 1 and ours[0] == theirs[0], f"{name}: two ranks have Gloo's losses to the bit", ours[0], theirs[0])
    far = apart(ours_of_four[0], four[0])
    ok(len(four[0][3]) > 1 and far < 1e-5, f"{name}: and four have them but for rounding", far, ours_of_four[0], four[0])
    rows = [row for row in coded[2] if row["entry"] is not None]
    bytes_ = sum(row["wire_bytes"] for row in rows) / sum(row["dense_bytes"] for row in rows) if rows else None
    ok(bytes_ is None if share is None else bytes_ is not None and bytes_ <= share, f"{name}: 8 bits send {bytes_}", *coded[2])
    last = apart([mean(coded[0])], [mean(theirs[0])])
    ok(mean(theirs[0])[-1] < 0.97 * mean(theirs[0])[0], f"{name}: the model learns", theirs[0])
    ok(last < 0.05 if share else last == 0, f"{name}: with 8 bits losses are near", last, coded[0], theirs[0])
    print(f"# {name}: {what}: four ranks apart by {far:.1e}; 8 bits: {f'{bytes_:.3f} of' if bytes_ else 'all'} the bytes, losses apart by {last:.1e}",
          flush=True)


for name in sys.argv[1:] or PROGRAMS:
    tried(name)
for name, sentence in REFUSED.items():
    got = run(name, 2, "any/none", by_name=True)
    ok(got and sentence in got[1].get("refused", ""), f"{name}: refused by the framework", got)
got = run("lightning_fsdp", 2)
ok(got and REFUSED["lightning_fsdp"] in got[1].get("refused", ""), "lightning_fsdp: with Gloo, too", got)
versions = f"import importlib.metadata as m; print('# versions:', ', '.join(f'{{p}} {{m.version(p)}}' for p in {VERSIONS!r}))"
print(subprocess.run([PYTHON, "-c", versions], capture_output=True, text=True, check=True).stdout, end="")
done_testing()
