#!/usr/bin/python3
"""gradcomp.data with attach(on_failure="shrink"): ranks are killed, and every sample is trained on once an epoch all the same, in
steps that are done, with DataLoader's workers and without."""

import os
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, done_testing, environment, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
for workers, kill in (0, "2:1:11:after,0:2:3:before"), (2, "3:1:3:between"):
    dead = {int(k.split(":")[0]) for k in kill.split(",")}
    left = [r for r in range(4) if r not in dead]
    got = ranks(4, [os.path.join(SOURCE, "tests/python/shrinking_data.py"), str(workers)], timeout=90, GRADCOMP="none", SHRINK_KILL=kill)
    said = [dict(line.split(" ", 1) for line in got[r][1].splitlines()) for r in left]
    what = f"{workers} workers, killed {kill}"
    if not ok([got[r][0] for r in left] == [0] * len(left), f"{what}: those that live end well", errors(got)):
        continue
    ok(all(s["lost"] != "0" for s in said), f"{what}: and have missed the others", said)
    # What is left over at the end of each of three epochs is less than one of each rank.
    ok(len({(s["times"], s["missing"]) for s in said}) == 1 and set(said[0]["times"].split()) <= {"1.0", "2.0", "3.0"}
       and 0 <= int(said[0]["missing"]) <= 3 * 3, f"{what}: each sample is trained on once an epoch", said)
    ok([s["ranks"] for s in said] == [f"{r} {len(left)}" for r in range(len(left))] and sum(int(s["rest"]) for s in said) == 9,
       f"{what}: which are divided among those", said)
    ok(all("of which" in s["ended"] for s in said), f"{what}: an iterator of before says so", said)

command = [os.path.join(BUILD, "bin/gradcomp"), "run", "-n", "3", "--gradcomp=topk:density=0.1", sys.executable,
           os.path.join(SOURCE, "examples/pytorch/shrink_dataset.py"), "2", "1"]
with subprocess.Popen(command, env=environment(GRADCOMP_ON_FAILURE="shrink", EXAMPLE_PAUSE="0.01"), stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE, text=True) as p:
    said, victim = "", ""
    for line in p.stdout:
        said += line
        victim = (re.findall(r"rank 1 of 3 is process (\d+)", line) or [victim])[0]
        if victim and "epoch 0: loss" in line:
            os.kill(int(victim), signal.SIGKILL)
    err = p.stderr.read()
ok(p.returncode == 0 and len(re.findall(r"rank \d of 2 ends after \d+ steps", said)) == 2
   and len(set(re.findall(r"weights (\S+\.\d{6})", said))) == 1, "the example goes on without a rank", said, err)
done_testing()
