#!/usr/bin/python3
"""Models that name one thing twice, made at random: what gradcomp averages is what PyTorch averages, before and after
detach(). Two seeds, others every day; in check-long eight."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, current_torch, done_testing, errors, forked_ranks as ranks, in_part, need_library, ok  # noqa: E402

need_library()
PYTHON = current_torch()
SEEDS = [str(seed) for seed in range(1, 9) if in_part(seed, 4)]


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


check("replicated", ["ddp"], 2)
check("sharded", ["fsdp2", "hsdp"], 4)
done_testing()
