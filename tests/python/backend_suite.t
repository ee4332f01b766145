#!/usr/bin/python3
# time limit: 7200 s
"""PyTorch's own tests of Gloo with gradcomp in Gloo's place: each that passes with Gloo passes. A part of them, another one every day; all in
check-long. What does not pass is tried with Gloo."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, current_torch, done_testing, environment, in_part, need_library, ok, skip_all  # noqa: E402

need_library()
PYTHON = current_torch()
SUITE = os.path.join(SOURCE, "tests/python/distributed_suite.py")
# What passes with Gloo and not here, by design, with the reason.
EXCEPTIONS = {"test_ddp_logging_data_cpu": "DDP's log has the name of what carries its calls, which is gradcomp. Of a group that says gloo PyTorch's C++ "
                                           "takes a part of Gloo's own."}


def run(*arguments):
    return subprocess.run([PYTHON, SUITE, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout


def results(who, names):
    """{name: (ok, skip or fail, why)}"""
    return {r[1]: (r[2], " ".join(r[3:])) for r in (line.split() for line in run(who, *names).splitlines()) if r[:1] == ["RESULT"]}


names = run("--list").split()
if not names:
    skip_all("this PyTorch does not bring its tests of a backend, or misses what they import")
names = [name for i, name in enumerate(names) if in_part(i, 8)]
ours = results("gradcomp", names)
theirs = results("gloo", [n for n in names if ours.get(n, ("fail",))[0] != "ok"])
for name in names:
    how, why = ours.get(name, ("fail", "it has said nothing"))
    if how != "ok" and theirs[name][0] == how == "skip":
        continue
    if name in EXCEPTIONS:
        print(f"# {name}: {how}; {EXCEPTIONS[name]}")
    else:
        ok(how == "ok" or theirs[name][0] == "fail", f"{name}{'' if how == 'ok' else ', which fails with Gloo, too'}", f"{how}: {why}", f"with Gloo: {theirs.get(name)}")
print(f"# {len(names)} tests: {sum(how == 'ok' for how, _ in ours.values())} pass, {sum(how == 'skip' for how, _ in ours.values())} are left out, as with Gloo")
done_testing()
