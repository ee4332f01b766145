#!/usr/bin/python3
"""The backend under policies: losses of sharded and replicated models beside Gloo's, bytes, every kind of call, bad input, a rank that
dies; and a program for Gloo that nobody has changed."""

import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, current_torch, done_testing, errors, forked_ranks, need_library, ok, things  # noqa: E402

need_library()
PYTHON = current_torch()
RANKS = os.path.join(SOURCE, "tests/python/policy_ranks.py")


def check(nranks, what, killed=()):
    """Every rank says the same things, all of them good."""
    with tempfile.TemporaryDirectory() as folder:
        got = forked_ranks(nranks, [RANKS, what, folder], timeout=120, python=PYTHON)
    things(got, f"{what} on {nranks} ranks", [None if r in killed else 0 for r in range(nranks)])


check(2, "models+calls+bad")
check(4, "mesh")
check(3, "dead", killed=(2,))

PROGRAM = os.path.join(SOURCE, "tests/python/unmodified.py")
LOADED = f"""
import runpy
from gradcomp.autoload import load
load()
runpy.run_path({PROGRAM!r}, run_name="__main__")
"""
got = forked_ranks(2, ["-c", LOADED], timeout=120, python=PYTHON, GRADCOMP_AUTO_ATTACH="backend", GRADCOMP="all_reduce.1K/block:bits=8")
said = "".join(err for _, _, err in got)
ok(all(status == 0 for status, _, _ in got), "auto_attach=backend: a program for Gloo ends", errors(got))
ok("coder 'default_pg all_reduce' block:bits=8 on 2 ranks" in said and "attached" not in said, "... and goes through the backend", errors(got))
got = forked_ranks(2, ["-c", LOADED], timeout=120, python=PYTHON, GRADCOMP_AUTO_ATTACH=None, GRADCOMP="dp/block:bits=8")
said = "".join(err for _, _, err in got)
ok(said.count("this one is Gloo's: take") == 1 and "attached" not in said, "a policy without it: one line says what to do", errors(got))
done_testing()
