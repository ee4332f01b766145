#!/usr/bin/python3
"""Models that name one thing twice, made at random: what gradcomp averages is what PyTorch averages, before and after
detach(). Two seeds, others every day; in check-long eight. And lists of modules that are sharded
together, in one way a day, or what a sharded model owes, on other numbers of ranks; both in check-long."""

import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, current_torch, done_testing, errors, forked_ranks as ranks, in_part, need_library, ok  # noqa: E402

need_library()
PYTHON = current_torch()
SEEDS = [str(seed) for seed in range(1, 9) if in_part(seed, 8)]


def check(name, kinds, nranks):
    got = ranks(nranks, [os.path.join(SOURCE, "tests/python/structures.py"), name, *SEEDS], timeout=120, python=PYTHON, GRADCOMP="none")
    if not ok([s for s, _, _ in got] == [0] * nranks, f"{name}: {nranks} ranks do everything", errors(got)):
        return
    said = [line.split() for _, out, _ in got for line in out.splitlines() if line.split()[1:2] in [[k] for k in kinds]]
    for kind in kinds:
        for word, right, what in (("attached", lambda v: float(v) < 1e-6, "weights are PyTorch's own"),
                                  ("detached", lambda v: float(v) < 1e-6, "and without it again"),
                                  ("again", lambda v: float(v) < 1e-6, "and attached again"),
                                  ("scatters", lambda v: v == "True", "each group is reduced once a step"),
                                  ("twice", lambda v: v == "True", "a part, or a wrapper, is attached already")):
            values = [(seed, v) for seed, k, w, v in said if (k, w) == (kind, word)]
            if values or kind != "ddp":
                ok(len({seed for seed, _ in values}) == len(SEEDS) and all(right(v) for _, v in values), f"{kind}: {what}", values)


def crossed():
    """Lists of modules that share a communication, against single ones, in all ways of FSDP's; one way each day."""
    ways = [w for i, w in enumerate(("plain", "replicas", "checkpointed", "16bits", "offloaded", "tensors", "replicas16")) if in_part(i, 7)]
    specs = ["none", "block:bits=8", "fp8"]
    got = ranks(4, [os.path.join(SOURCE, "tests/python/crossed.py"), ",".join(ways), *specs], timeout=120, python=PYTHON, GRADCOMP="none")
    if not ok([s for s, _, _ in got] == [0] * 4, f"{', '.join(ways)}: four ranks do everything", errors(got)):
        return
    said = [line.split() for _, out, _ in got for line in out.splitlines() if line.split()[:1] and line.split()[0] in ways]
    for way in ways:
        for word, of, right, what in (("list", specs, lambda v: v == 0, "a list of modules is as a single one, to the bit"),
                                      ("stock", specs[:1], lambda v: v < 1e-6, "and under none as FSDP's own"),
                                      ("codes", specs[1:], lambda v: v > 0, "and codes are codes")):
            values = [(spec, float(v)) for w, spec, found, v in said if (w, found) == (way, word)]
            ok(sorted(spec for spec, _ in values) == sorted(4 * of) and (all if word != "codes" else any)(right(v) for _, v in values),
               f"{way}: {what}", values)


def resharded():
    """4 ranks, then 2, then 7, each from the checkpoint of the ones before."""
    with tempfile.TemporaryDirectory() as folder:
        before = "-"
        for nranks in (4, 2, 7):
            after = os.path.join(folder, str(nranks))
            os.mkdir(after)
            got = ranks(nranks, [os.path.join(SOURCE, "tests/python/resharded.py"), before, after], timeout=120, python=PYTHON, GRADCOMP="none")
            if not ok([s for s, _, _ in got] == [0] * nranks, f"{nranks} ranks go on from a sharded checkpoint", errors(got)):
                return
            said = [line.split(" ", 2) for line in got[0][1].splitlines()]
            numbers = {line.split()[0]: [float(n) for n in line.split()[1:]] for line in got[0][1].splitlines()
                       if line.startswith(("owed ", "applied ", "begins "))}
            if before == "-":
                ok(numbers["begins"] == [0], "nothing is owed at first", said)
            else:
                # All trained parameters: two of the list, and the last layer's.
                ok(numbers["owed"][0] > 0 and numbers["owed"][1] <= 1e-6 and numbers["owed"][2] == 5, f"... on {nranks}: what is owed, to 1e-6", said)
                ok(numbers["applied"][0] <= 1e-6 and numbers["applied"][1] > 0, f"... on {nranks}: comes with the next gradients", said)
            refused = {words[1]: words[2] for words in said if words[0] == "refused"}
            ok(all(text in refused.get(name, "") for name, text in (("others", "a dict with weight for the parameters"),
                                                                   ("rows", "is owed here, and its shard is"),
                                                                   ("residual", "with residual=True"))),
               f"... on {nranks}: what is no such state is refused", said)
            ok("without {'owed': {}}" in got[0][1], f"... on {nranks}: nothing is owed where nothing is kept", got[0][1])
            before = after


check("replicated", ["ddp"], 2)
check("sharded", ["fsdp2", "hsdp"], 4)
if in_part(0, 2):
    resharded()
if in_part(1, 2):
    crossed()
done_testing()
