#!/usr/bin/python3
"""A rank dies while the others are in a collective of PyTorch's, which does not say which rank is gone: gradcomp does, as they end."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, need_gloo, need_library, ok, ranks  # noqa: E402

need_gloo()
need_library()
got = ranks(3, [os.path.join(SOURCE, "tests/python/dying.py"), "ddp"], GRADCOMP="none")
ok([s for s, _, _ in got] == [1, -9, 1] and all("RuntimeError: " in got[r][2] for r in (0, 2)), "Gloo ends the others", errors(got))
ok(all(sum(line.startswith("gradcomp: rank 1 on ") for line in got[r][2].splitlines()) == 1 for r in (0, 2)), "and each names the rank",
   errors(got))
got = ranks(2, [os.path.join(SOURCE, "tests/python/dying.py"), "own"], GRADCOMP="none")
ok(all(s for s, _, _ in got) and all("gradcomp: " not in err for _, _, err in got), "an error of the program's own is left alone",
   errors(got))
done_testing()
