#!/usr/bin/python3
"""Sharded models of programs that know nothing of gradcomp: attached at their first forward pass, or they
train as without and one line says why. In the first run PyTorch loads gradcomp as it is imported; the others are forked of a
process that has imported it, and do then what PyTorch does."""

import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, current_torch, done_testing, errors, forked_ranks, need_library, ok, ranks  # noqa: E402

need_library()
PYTHON = current_torch()
PACKAGE = os.path.join(BUILD, "lib/gradcomp/python")
PROGRAM = os.path.join(SOURCE, "tests/python/unmodified_sharded.py")
LOADED = f"""
import runpy, sys
from gradcomp.autoload import load
load()
runpy.run_path({PROGRAM!r}, run_name="__main__")
"""
CODER = re.compile(r"gradcomp: coder '(\w+)' (\S+) on 2 ranks: ")


def run(name, *kinds, nranks=2, imports=False, **more):
    """(the digests of all ranks by kind of model, gradcomp's lines but those of coders, "CODER SPEC" of these)"""
    more = {"PYTHONPATH": PACKAGE, "GRADCOMP_AUTO_ATTACH": None, **more}
    start, argv = (ranks, [PROGRAM]) if imports else (forked_ranks, ["-c", LOADED])
    got = start(nranks, [*argv, *kinds], timeout=120, python=PYTHON, **more)
    ok(not any(s for s, _, _ in got), f"{name}: all ranks end", errors(got))
    digests = {k: tuple(m.group(1) for m in (re.search(rf"^{k} (\w+)$", out, re.M) for _, out, _ in got) if m) for k in kinds}
    lines = [line for _, _, err in got for line in err.splitlines() if line.startswith("gradcomp: ")]
    return digests, [line for line in lines if not CODER.search(line)], sorted(" ".join(m.groups()) for m in map(CODER.search, lines) if m)


dense, lines, coders = run("auto-attach=no", "fsdp2", "fsdp1", "inner", GRADCOMP="block:bits=8", GRADCOMP_AUTO_ATTACH="no")
ok(not lines and not coders and all(len(d) == 2 for d in dense.values()), "as if gradcomp were not there", lines, dense)
ours, lines, coders = run("block", "fsdp2", "fsdp1", "own", "attach", imports=True, GRADCOMP="block:bits=8")
ok(len(lines) == 3, "a line for each model that does not attach itself", lines)
ok(len(coders) == 4 and {"reduce_scatter block:bits=8", "reduce_scatter none"} <= set(coders),
   "and lines count what the four coders sent that ended first, of five", coders)
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
ours, lines, coders = run("replicas", "hsdp", nranks=4, GRADCOMP="powersgd:rank=2,start_step=0")
ok(any("attached FSDPSequential, sharded (reduce_scatter, all_gather, all_reduce): powersgd:rank=2" in line for line in lines)
   and coders == ["all_gather none", "reduce_scatter none"], "replicas are attached, their shards' collectives exact", lines, coders)
theirs, _, _ = run("tensor-parallel, without", "tensor", nranks=4, GRADCOMP="none", GRADCOMP_AUTO_ATTACH="no")
for spec, same in (("none", True), ("block:bits=8", False)):
    got, lines, coders = run(f"tensor-parallel, {spec}", "tensor", nranks=4, GRADCOMP=spec)
    ok(any(f"attached FSDPSequential, sharded (reduce_scatter, all_gather): {spec}" in line for line in lines)
       and coders == [f"all_gather {spec}", f"reduce_scatter {spec}"], "tensor-parallel: attached by all ranks", lines, coders)
    ok(len(got["tensor"]) == 4 and (got == theirs) == same, f"tensor-parallel: weights are {'' if same else 'not '}those of FSDP itself", got, theirs)
ok(len(ours["hsdp"]) == 4 and ours["hsdp"][:2] == ours["hsdp"][2:], "and are equal to the bit", ours)
done_testing()
