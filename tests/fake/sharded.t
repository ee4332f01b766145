#!/usr/bin/python3
"""Sharded models on a GPU, by a fake device and a fake NCCL: see sharded.py."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests/python"))
from tap import BUILD, current_torch, done_testing, errors, forked_ranks as ranks, need_library, ok  # noqa: E402

need_library()
PYTHON = current_torch()
PROGRAM = os.path.join(SOURCE, "tests/fake/sharded.py")

lib = os.path.join(BUILD, "tests/fake/lib")
made = subprocess.run([os.path.join(SOURCE, "tests/fake/compile"), lib], capture_output=True, text=True,
                      env=dict(os.environ, GRADCOMP_SRC=SOURCE, GRADCOMP_BUILD=BUILD))
ok(made.returncode == 0, "the device's code compiles against the fake", made.stderr)


def run(nranks, *arguments):
    got = ranks(nranks, [PROGRAM, *arguments], timeout=120, python=PYTHON, GRADCOMP="block:bits=8", LD_LIBRARY_PATH=lib,
                GRADCOMP_PLUGIN_PATH=f"{lib}/gradcomp:{BUILD}/lib/gradcomp")
    return got, [dict(line.split(" ", 1) for line in out.splitlines() if " " in line) for _, out, _ in got]


for kind, nranks, within, parts, *options in (
        ("fsdp2", 2, 0, "all_gather reduce_scatter"),
        ("fsdp2", 2, 0, "all_gather reduce_scatter", "reduce_scatter=block:bits=4", "residual=yes"),
        ("bf16", 2, 0, "all_gather reduce_scatter"),
        ("fsdp1", 2, 0, "reduce_scatter"),
        ("hsdp", 4, 1e-5, "all_gather all_reduce reduce_scatter", "compressor=none"),
        ("hsdp", 4, 1e-5, "all_gather all_reduce reduce_scatter", "compressor=topk:density=1")):
    got, said = run(nranks, "same", kind, *options)
    name = " ".join((kind, *options))
    if ok([s for s, _, _ in got] == [0] * nranks, f"{name}: {nranks} ranks train", errors(got)):
        ok(all(float(s["off"]) <= within for s in said), f"{name}: the weights are those of coders in host memory", said)
        ok(all(s["parts"] == parts for s in said), f"{name}: {parts} by gradcomp", said)
        ok(all(int(s["blocks"]) > 1 and s["left"] == "0" for s in said), f"{name}: memory is PyTorch's, and goes back to it", said)
for kind, nranks in ("fsdp2", 2), ("hsdp", 4):
    got, _ = run(nranks, "dies", kind)
    ok(got[1][0] == 3 and all(s not in (0, None) and "rank 1 on" in err for r, (s, _, err) in enumerate(got) if r != 1),
       f"{kind}: a rank that dies is named by the others", errors(got))
got, said = run(2, "refused")
for name, *texts in (("mixed", "is used on c", "and others are on c", "one CUDA device"), ("other", "is used on meta"),
                     ("code", "in host memory alone", "block"), ("collective", "takes no CUDA memory", "nccl")):
    ok(all(all(t in s[name] for t in texts) for s in said), f"{name}: refused, with what to do", said, errors(got))
done_testing()
