#!/usr/bin/python3
"""Models that come and go leave no thread, descriptor or megabyte behind: after detach(), and
when nothing refers to them any more."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
PROGRAM = os.path.join(SOURCE, "tests/python/detach.py")
MODELS = 100


def run(*argv):
    """What each rank printed, by its first word; None when one failed."""
    # Models that are not attached here are PyTorch's alone.
    got = ranks(2, [PROGRAM, *argv], timeout=120, GRADCOMP="topk:density=0.1", GRADCOMP_AUTO_ATTACH="no")
    if not ok([s for s, _, _ in got] == [0, 0], f"two ranks: {argv[0]}", errors(got)):
        return None
    return [dict(line.split(" ", 1) for line in out.splitlines() if " " in line) for _, out, _ in got]


# What PyTorch itself keeps of models is not gradcomp's.
bare = run("bare", str(MODELS))
for how in ("detached", "collected"):
    said = run(how, str(MODELS))
    if bare is None or said is None:
        continue
    for r in (0, 1):
        grown = {}
        for name, of in (("bare", bare[r]), (how, said[r])):
            grown[name] = [int(b) - int(a) for a, b in zip(of["before"].split(), of["after"].split())]
        more = [a - b for a, b in zip(grown[how], grown["bare"])]
        ok(grown[how][0] <= 0 and more[0] <= 0, f"{how}, rank {r}: no thread more", grown)
        ok(grown[how][1] <= 0 and more[1] <= 0, f"{how}, rank {r}: no descriptor more", grown)
        ok(more[2] < 1024, f"{how}, rank {r}: no megabyte more ({more[2]} KB)", grown)

said = run("ends", "0")
if said is not None:
    for one in said:
        ok(one["counted"] == "1", "counters are those of before detach()", one)
        ok(one["own"] == "True 1", "after detach() DDP reduces by itself", one)
        ok("has been detached" in one.get("gone", ""), "what needs the reducer says that it is gone", one)
        ok(one["again"] == "1", "the model can be attached again", one)
        ok("attached already" in one.get("twice", ""), "twice is refused", one)
        ok("drain(optimizer) first" in one.get("owed", ""), "detach() does not lose late averages", one)
done_testing()
