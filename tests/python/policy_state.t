#!/usr/bin/python3
"""What the backend keeps under policies, in checkpoints: a job that goes on to the bit from each rank's own state, three ranks that take over
what two owe, groups and calls that come later, states that are refused."""

import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, current_torch, done_testing, forked_ranks, need_library, things  # noqa: E402

need_library()
PYTHON = current_torch()
RANKS = os.path.join(SOURCE, "tests/python/policy_ranks.py")

with tempfile.TemporaryDirectory() as folder:
    got = forked_ranks(3, [RANKS, "saving+loading", folder], timeout=120, python=PYTHON)
things(got, "saving on 2 ranks, loading on 3", [0] * 3)
done_testing()
