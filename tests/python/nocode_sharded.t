#!/usr/bin/python3
"""Sharded models of programs that know nothing of gradcomp: attached at their first forward pass, or they
train as without and one line says why."""

import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, done_testing, errors, need_library, ok, ranks, skip_all  # noqa: E402

need_library()
found = subprocess.run([os.path.join(SOURCE, "tests/python/current-torch")], capture_output=True, text=True, check=False)
if found.returncode:
    skip_all(found.stderr.strip().replace("\n", " ") or "no current PyTorch")
PACKAGE = os.path.join(BUILD, "lib/gradcomp/python")
CODER = re.compile(r"gradcomp: coder '(\w+)' block:bits=8 on 2 ranks: ")


def run(name, *kinds, **more):
    """(the digests of both ranks by kind of model, gradcomp's lines but the job's last, the coders in those)"""
    more = {"PYTHONPATH": PACKAGE, "GRADCOMP_AUTO_ATTACH": None, **more}
    got = ranks(2, [os.path.join(SOURCE, "tests/python/unmodified_sharded.py"), *kinds], timeout=120, python=found.stdout.strip(),
                **more)
    ok([s for s, _, _ in got] == [0, 0], f"{name}: both ranks end", errors(got))
    digests = {k: tuple(m.group(1) for m in (re.search(rf"^{k} (\w+)$", out, re.M) for _, out, _ in got) if m) for k in kinds}
    lines = [line for _, _, err in got for line in err.splitlines() if line.startswith("gradcomp: ")]
    return digests, [line for line in lines if not CODER.search(line)], CODER.findall("\n".join(lines))


dense, lines, coders = run("auto-attach=no", "fsdp2", "fsdp1", "inner", GRADCOMP="block:bits=8", GRADCOMP_AUTO_ATTACH="no")
ok(not lines and not coders and all(len(d) == 2 for d in dense.values()), "as if gradcomp were not there", lines, dense)
ours, lines, coders = run("block", "fsdp2", "fsdp1", "own", "attach", GRADCOMP="block:bits=8")
ok(len(lines) == 3, "a line for each model that does not attach itself", lines)
ok(sorted(coders) == ["all_gather", "reduce_scatter", "reduce_scatter"], "and the last lines count what they sent", coders)
for line, text in zip(lines, ("attached FSDPSequential, sharded (reduce_scatter, all_gather): block:bits=8",
                              "attached FullyShardedDataParallel(Sequential), sharded (reduce_scatter): block:bits=8",
                              "FSDPSequential trains as without gradcomp: rank 0: it has a communication hook of its own (Own)")):
    ok(text.partition(": rank")[0] in line and text.rpartition(": ")[2] in line, text, line)
for kind in ("fsdp2", "fsdp1"):
    ok(len(ours[kind]) == 2 and not set(ours[kind]) & set(dense[kind]), f"{kind}: what ranks send each other is coded", ours, dense)
for kind in ("own", "attach"):
    ok(ours[kind] == dense["fsdp2"], f"{kind}: as the program has it", ours, dense)
ours, lines, _ = run("a compressor that is no code", "fsdp2", "fsdp1", GRADCOMP="powersgd")
ok(len(lines) == 2 and all("trains as without gradcomp: " in line and "powersgd" in line for line in lines), "a line for each model",
   lines)
ok(ours == {k: dense[k] for k in ours}, "and they train as without", ours, dense)
ours, lines, _ = run("parts that are sharded each", "inner", GRADCOMP="none")
ok(ours["inner"] == dense["inner"] and len([line for line in lines if "attached FSDPLinear, sharded" in line]) == 3, "each is attached",
   lines)
done_testing()
