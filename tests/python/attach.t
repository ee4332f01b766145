#!/usr/bin/python3
"""What attach() takes: DDP, in torch.compile() too, and composable replicate(). What it refuses,
before the first backward pass and with what to do instead."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, need_gloo, need_library, ok, ranks  # noqa: E402

need_gloo()
need_library()
got = ranks(2, [os.path.join(SOURCE, "tests/python/attached.py")], timeout=180, GRADCOMP="none")
ok([s for s, _, _ in got] == [0, 0], "two ranks try everything", errors(got))
lines = [dict(line.split(" ", 1) for line in out.splitlines() if " " in line and not line.startswith("[Gloo]")) for _, out, _ in got]
ok(lines[0] == lines[1], "both ranks say the same", lines)
said = lines[0]
for name, kind, *texts in (
        ("early", "Error", "torch.distributed is not initialised", "init_process_group()"),
        ("bare", "TypeError", "not a Linear", "DistributedDataParallel(model)"),
        ("wrapper", "TypeError", "attach(model.inner)"),
        ("text", "TypeError", "not a str"),
        ("float64", "Error", "parameter 1.weight is float64", "float32, float16 or bfloat16"),
        ("complex", "Error", "parameter 1.weight is complex64"),
        ("sparse", "Error", "parameter 2.weight", "sparse=False"),
        ("hooked", "Error", "communication hook of somebody else's")):
    line = said.get(name, "")
    if line == "no":
        print(f"# {name}: not with this PyTorch")
        continue
    ok(line.startswith(kind + " ") and all(t in line for t in texts), f"{name}: refused, with what to do", line)
for name, text in (("number", "an int is no state"), ("bytes", "a dict with gradcomp is no state"),
                   ("model", "a dict with module.bias, module.weight is no state"), ("whole", "a dict with gradcomp, model is no state")):
    line = said.get("state_" + name, "")
    ok(line.startswith("refused: ") and text in line and "state_dict()" in line, f"a state that is a {name}: refused, with what to give", line)
for name in ("none", "empty", "right", "on_device"):
    ok(said.get("state_" + name) == "taken", f"a state that is {name} is taken", said)
ok("state_dict()" in said.get("saved_whole", ""), "what attach() returned in a checkpoint: refused, with what to save", said)
for name in ("NoneType", "DistributedDataParallel"):
    ok(name in said.get("drain_" + name, ""), f"drain() of a {name}: refused, and named", said)
ok(said.get("joined") == "equal", "ranks with fewer batches, in join(): weights are DDP's own", said.get("joined"))
for name in ("plain", "ignored"):
    ok(said.get(name) == "attached", f"{name}: attached", said)
for name in ("compiled", "replicated"):
    if said.get(name, "no") == "no":
        print(f"# {name}: not with this PyTorch")
    else:
        ok(said[name] == "equal after 3 steps", f"{name}: gradients are DDP's own average", said[name])
if "sharded" in said:
    ok(said["sharded"] == "attached" or "PyTorch 2.9" in said["sharded"], "sharded: attached, or refused by an old PyTorch", said)
done_testing()
