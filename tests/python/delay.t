#!/usr/bin/python3
"""Delayed averages from Python on three ranks: the formula by numpy, DDP models against
gradients of a copy, drained weights to the bit; work shared by gradcomp.Parallel, and an optimizer's step."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok, things  # noqa: E402

need_gloo()
need_library()
PROGRAM = os.path.join(SOURCE, "tests/python/delayed.py")




def run(nranks, *parts):
    """Of each part, what each rank printed by word; None when it failed."""
    got = ranks(nranks, [PROGRAM, *parts], GRADCOMP="none")
    if not ok([s for s, _, _ in got] == [0] * nranks, f"{nranks} ranks: {', '.join(parts)}", errors(got)):
        return dict.fromkeys(parts)
    said = [dict(line.split(" ", 1) for line in out.splitlines() if "." in line.split(" ")[0]) for _, out, _ in got]
    return {p: [{k[len(p) + 1:]: v for k, v in one.items() if k.startswith(p + ".")} for one in said] for p in parts}


def same(got, word):
    return len({r[word] for r in got}) == 1


parts = run(3, "simulated:0", "simulated:1", "simulated:3", "trained:2:0.0", "trained:1:0.9", "layout:2", "converted", "copied", "parallel", "errors")
for part, got in parts.items():
    if got is None:
        continue
    if part.startswith("simulated"):
        late = part != "simulated:0"
        ok(max(float(r["worst"]) for r in got) < 2e-6, f"{part}: gradients, and drained weights, are numpy's", got)
        ok(same(got, "apart") == (not late), f"{part}: weights are apart without a drain", got)
        ok(same(got, "digest"), f"{part}: drained they are the same to the bit", got)
        ok("2 corrections for 3 tensors" in got[0]["short"] and "t0" in got[0]["type"],
           f"{part}: buffers that do not fit are named", got)
    if part.startswith("trained"):
        ok(max(float(r["worst"]) for r in got) < 1e-6, f"{part}: gradients are own ones and late corrections", got)
        ok(not same(got, "apart"), f"{part}: before the drain the ranks' weights are apart", got)
        ok(all("call drain(optimizer) first" in r["refused"] for r in got), f"{part}: state_dict() says what to do", got)
        ok(same(got, "digest") and same(got, "moments"), f"{part}: drained, weights and momentum are the same bits", got)
        ok(all(r["resumed"] == "True" for r in got), f"{part}: what is in flight is saved, and continues to the bit", got)

got = parts["layout:2"]
if got is not None:
    ok(all(float(r["worst"]) == 0 for r in got), "channels_last: the weights are those of the usual order, to the bit", got)
    ok(max(float(r["convolved"]) for r in got) < 1e-6, "... and those of a convolution where nothing is chosen", got)

got = parts["converted"]
if got is not None:
    orders = [r["order2"] for r in got]
    ok({r["order1"] for r in got} == {"None"} and orders == ["{'square': (0, 2, 3, 1), 'conv.weight': (0, 2, 3, 1)}"] * 3,
       "a state says how parameters lie where that is not the usual way", got)
    ok(all(r[f"own{i}{kind}"] == "none" for r in got for i in (1, 2) for kind in (0, 1)), "and is loaded where they lie so", got)
    here = "here it lies in the order (0, 2, 3, 1) of its dimensions: convert the model"
    ok(all("parameter conv.weight lies in memory in the usual order" in r[f"other{kind}"] and here in r[f"other{kind}"]
           for r in got for kind in (0, 1)), "refused where they lie otherwise", got)
    ok(all(here in got[1][f"one{kind}"] and "rank 1 on" in got[0][f"one{kind}"] for kind in (0, 1)), "... on one rank, by all", got)
    ok(all("has another order in memory than when the model was attached" in r["later"] for r in got),
       "a model that is converted once attached is refused, too", got)

got = parts["copied"]
if got is not None:
    ok(all(float(r[how]) < 1e-6 for r in got for how in ("deepcopy", "pickle", "load", "average", "again")),
       "copies of an attached model, and what is saved of it, train as without gradcomp", got)
    ok(all(r["traces"] == "0" for r in got), "... and load where there is none", got)
    ok(all((r["steps"], r["on"]) == ("1", "2") for r in got), "... and the model itself trains on", got)

got = parts["parallel"]
if got is not None:
    ok(all(r["right"] == "True" for r in got), "Parallel: pieces are complete on all ranks", got)
    ok(same(got, "reason") and "shared: " in got[0]["reason"], "all ranks know why", got[0]["reason"])
    ok(sum(int(r["calls"]) for r in got) < 3 * 3 * 12, "not all did all", got)
    ok(any(r.get("raised") == "this piece cannot be done" for r in got), "an exception comes out of apply()", got)

got = parts["errors"]
if got is not None:
    ok("a delay of -1 steps" in got[0]["negative"], "a negative delay", got)
    ok("a delay of 1000 steps: must be 0..64" in got[0]["large"], "one too long", got)
    ok("rank 1 on" in got[0]["differ"] and "a delay of 1 steps" in got[0]["differ"], "different ones on ranks", got)

got = ranks(3, [os.path.join(SOURCE, "tests/python/optimizers.py")], GRADCOMP="none")
things(got, "ParallelOptimizer", [0, 0, 0])

got = run(4, "subgroups:1")["subgroups:1"]
if got is not None:
    digests = [r["digest"] for r in got]
    ok(digests[0] == digests[1] != digests[2] == digests[3], "DDP on two process groups: weights of each their own", digests)
done_testing()
