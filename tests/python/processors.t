#!/usr/bin/python3
"""Ranks of one job on processors that differ: what they average is the same to the bit, and so are weights that they are
promised to share."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, need_gloo, need_library, ok, ranks  # noqa: E402

need_gloo()
need_library()
got = ranks(2, [os.path.join(SOURCE, "tests/python/processors.py")], GRADCOMP="none")
if ok([s for s, _, _ in got] == [0, 0], "both ranks do everything", errors(got)):
    said = [dict(line.split(" ", 1) for line in out.splitlines() if " " in line and not line.startswith("[")) for _, out, _ in got]
    ok(set(said[0]) == set(said[1]) and len(said[0]) == 8, "and say the same", said)
    for word in said[0]:
        ok(said[0][word] == said[1].get(word), f"{word}: the same bits", [s.get(word) for s in said])
done_testing()
