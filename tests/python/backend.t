#!/usr/bin/python3
"""The backend "gradcomp" of torch.distributed: each call beside Gloo's or what it must give, groups, models, bad input, and a
rank that dies in each kind of call; a third of these calls a day."""

import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, current_torch, done_testing, forked_ranks, in_part, need_library, things  # noqa: E402

need_library()
PYTHON = current_torch()
RANKS = os.path.join(SOURCE, "tests/python/backend_ranks.py")


def check(nranks, *what, killed=()):
    """Every rank says the same things, all of them good."""
    got = forked_ranks(nranks, [RANKS, *what], timeout=120, python=PYTHON)
    things(got, f"{' '.join(what[:2])} on {nranks} ranks", [None if r in killed else 0 for r in range(nranks)])


with tempfile.TemporaryDirectory() as folder:
    for n in (2, 3):
        check(n, "reductions")
    for n in (2, 4):
        check(n, "movements")
        check(n, "messages")
        check(n, "asynchronous")
        os.mkdir(os.path.join(folder, str(n)))
        check(n, "groups", "50", os.path.join(folder, str(n)))
    check(2, "models")
    check(3, "bad")
for i, call in enumerate(("all_reduce", "reduce", "broadcast", "all_gather", "barrier", "gather", "scatter", "reduce_scatter", "all_to_all",
                          "recv", "recv from any", "send", "a work", "a future")):
    if in_part(i, 3):
        check(3, "dead", call, killed=(2,))
done_testing()
