#!/usr/bin/python3
"""A rank that catches an exception of a backward pass and begins another iteration: all ranks learn
it then, by name, and gradients of two iterations are never averaged together."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
for spec in ("none", "auto"):
    got = ranks(2, [os.path.join(SOURCE, "tests/python/caught.py")], timeout=60, GRADCOMP=spec)
    ok([s for s, _, _ in got] == [0, 0], f"{spec}: two ranks come to the end", errors(got))
    said = [[line for line in out.splitlines() if line[:1].isdigit()] for _, out, _ in got]
    # Rank 0 may not have had all of the second one when rank 1, which has, fails.
    done = [sum(line.endswith(" done") for line in lines) for lines in said]
    ok(said[1][:2] == ["0 done", "1 done"] and said[0][:1] == ["0 done"], f"{spec}: two iterations are as ever", said)
    ok(said[1][2:3] == ["2 ValueError of the program's own"], f"{spec}: rank 1 fails", said[1])
    ok(done[0] in (1, 2) and done[1] == 2, f"{spec}: and no rank steps after that", said)
    for r, line in ((0, said[0][done[0]:done[0] + 1]), (1, said[1][3:4])):
        ok(line and "rank 1 on " in line[0] and "was given again in step 2" in line[0], f"{spec}: rank {r} says which rank, and which step",
           said[r])
done_testing()
