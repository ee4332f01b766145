#!/usr/bin/python3
"""What a user of DistributedDataParallel does with a model, each thing with DDP's own reduction and attached under `none`: on
two ranks the two are the same to the bit. With this Python's PyTorch, and a current one where there is one."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks, need_gloo, need_library, ok, other_torch  # noqa: E402

need_gloo()
need_library()
for python in dict.fromkeys((sys.executable, other_torch() or sys.executable)):
    got = forked_ranks(2, [os.path.join(SOURCE, "tests/python/scenarios.py"), *sys.argv[1:]], timeout=180, python=python, GRADCOMP="none")
    said = [[line.split(" ", 2) for line in out.splitlines() if line.split(" ")[0] in ("equal", "other", "no")] for _, out, _ in got]
    ok([s for s, _, _ in got] == [0, 0] and len(said[0]) == len(said[1]) > 0, f"{python}: two ranks do everything", errors(got))
    for word, name, why in said[0]:
        if word == "no":
            print(f"# {name}: not with PyTorch {why}")
            continue
        others = [f"rank {r}: {w} {why}" for r, lines in enumerate(said) for w, n, why in lines if n == name and w != "equal"]
        ok(not others, f"{name}: as without gradcomp", *others)
done_testing()
