#!/usr/bin/python3
"""A process group's ranks attach a model, and nobody else is asked: the others have only to join
the job. Where they do not, it is said at once what to do."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
PROGRAM = os.path.join(SOURCE, "tests/python/subgroup.py")

got = ranks(3, [PROGRAM, "join"], GRADCOMP="none", GRADCOMP_TRANSPORT_WAIT_TIMEOUT="20")
ok([s for s, _, _ in got] == [0, 0, 0], "two of three ranks attach, the third joins", errors(got))
ok(got[1][1] == got[2][1] and got[1][1].endswith("steps 2\n"), "and hold the same gradients", got)

got = ranks(3, [PROGRAM, "absent"], GRADCOMP="none", GRADCOMP_TRANSPORT_TIMEOUT="4")
notice = "attaching to 2 of 3 ranks; all 3 join the job first: those that attach no model call gradcomp.torch.join()"
ok([err.count(notice) for _, _, err in got] == [0, 1, 0], "one that does not: said at once, by one rank", errors(got))
ok(all("refused" in out and "rank 0 did not join" in out and "gradcomp.torch.join() on them" in out for _, out, _ in got[1:]),
   "and the error names the rank and the remedy", got)
done_testing()
