#!/usr/bin/python3
"""What a user of an attached model does and sees. What is done with a DistributedDataParallel, with DDP's own reduction and attached
under `none`: on two ranks the two are the same to the bit. Counters of one shape for every kind of model, callbacks after steps
and their writers, the profiler's events, and what the package says, which goes through logging. With a current
PyTorch where there is one, and this Python's every other day."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, environment, errors, forked_ranks, in_part, need_gloo, need_library, ok, other_torch, things  # noqa: E402

need_gloo()
need_library()


def scenarios(python):
    got = forked_ranks(2, [os.path.join(SOURCE, "tests/python/scenarios.py"), *sys.argv[1:]], timeout=180, python=python, GRADCOMP="none")
    said = [[line.split(" ", 2) for line in out.splitlines() if line.split(" ")[0] in ("equal", "other", "no")] for _, out, _ in got]
    ok([s for s, _, _ in got] == [0, 0] and len(said[0]) == len(said[1]) > 0, f"{python}: two ranks do everything", errors(got))
    for word, name, why in said[0]:
        if word == "no":
            print(f"# {name}: not with PyTorch {why}")
            continue
        others = [f"rank {r}: {w} {why}" for r, lines in enumerate(said) for w, n, why in lines if n == name and w != "equal"]
        ok(not others, f"{name}: as without gradcomp", *others)


def watched(what, python=sys.executable, **more):
    """Every rank says the same things, all of them good."""
    got = forked_ranks(2, [os.path.join(SOURCE, "tests/python/watched.py"), what], timeout=120, python=python, **more)
    things(got, f"{what} by {python}", [0, 0])
    return got


def said(code):
    """(stdout, stderr) of a Python that has told and warned of something, in these circumstances."""
    text = f"import logging\n{code}\nfrom gradcomp import _log\n_log.tell('all is 100% well')\n_log.warn(ValueError('not so'))\n"
    got = subprocess.run([sys.executable, "-c", text], env=environment(), capture_output=True, text=True, check=False)
    return got.stdout, got.stderr


current = other_torch()
for python in dict.fromkeys((sys.executable, current or sys.executable)):
    if python != current and current and not in_part(0, 2):
        continue
    scenarios(python)
    watched("replicated", python, GRADCOMP="none")
if current:
    watched("profiled", current, GRADCOMP="none")
    watched("sharded", current, GRADCOMP="none")
watched("shrink", GRADCOMP="none", GRADCOMP_ON_FAILURE="shrink")
got = watched("none")
ok([err.count("gradcomp: not requested (no --gradcomp): DDP reduces the gradients itself") for _, _, err in got] == [1, 0],
   "without gradcomp rank 0 says so, once", errors(got))
BOTH = "gradcomp: all is 100% well\ngradcomp: not so\n"
for name, code, right in (
        ("a program that says nothing of logging", "", ("", BOTH)),
        ("a level", "logging.getLogger('gradcomp').setLevel(logging.WARNING)", ("", "gradcomp: not so\n")),
        ("basicConfig()", "logging.basicConfig(format='%(name)s %(levelname)s %(message)s')",
         ("", "gradcomp INFO all is 100% well\ngradcomp WARNING not so\n")),
        ("a handler of its own", "import sys; logging.getLogger('gradcomp').addHandler(logging.StreamHandler(sys.stdout))",
         ("all is 100% well\nnot so\n", "")),
        ("no handler for this", "logging.getLogger('gradcomp').addHandler(logging.NullHandler())", ("", "")),
        ("a root that it does not reach", "logging.basicConfig(); logging.getLogger('gradcomp').propagate = False", ("", BOTH)),
        ("another logger's handler", "logging.getLogger('other').addHandler(logging.StreamHandler())", ("", BOTH)),
        ("stderr that changes", "import sys; sys.stderr = sys.stdout", (BOTH, ""))):
    got = said(code)
    ok(got == right, f"logging: {name}", got)
done_testing()
