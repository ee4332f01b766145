#!/usr/bin/python3
"""Ranks that were forked end as others do: the report and the last line are written, and a rank
that an exception ends is not waited for; nor does a rank leave what is still being freed."""

import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, environment, free_port, in_time, need_gloo, need_library, ok, pace  # noqa: E402

need_gloo()
need_library()
PROGRAM = os.path.join(SOURCE, "tests/python/forked.py")


# A reducer that goes on a thread of C++, while the interpreter ends.
LATE = """
import _thread, atexit, os, threading, time
ending, dropped, freed = threading.Event(), threading.Event(), []
atexit.register(lambda: print(len(freed)))  # the last
from gradcomp import _pytorch
def free():
    time.sleep(0.3)
    freed.append(1)
def drop():
    ending.wait()
    _pytorch.free(free, os.getpid())
    dropped.set()
_thread.start_new_thread(drop, ())
@atexit.register  # the first
def end():
    ending.set()
    dropped.wait()
"""


def launch(*argv, **more):
    env = environment(GRADCOMP="none", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **more)
    return subprocess.run([sys.executable, PROGRAM, *argv], env=env, capture_output=True, text=True, timeout=120 * pace(), check=False)


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "report.json")
    got = launch(GRADCOMP_REPORT=path)
    ok(got.stdout == "ended 0 0\n", "two forked ranks train", got.stdout, got.stderr)
    ok(got.stderr.count("3 steps") == 1, "the last line is written, once", got.stderr)
    report = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            report = json.load(f)
    ok([r["steps"] for r in report.get("reducers", [])] == [3], "and the report", report)

late = subprocess.run([sys.executable, "-c", LATE], env=environment(), capture_output=True, text=True, timeout=60 * pace(), check=False)
ok(late.stdout == "1\n", "what is freed while a program ends is free before the job is left", late)

start = time.monotonic()
got = launch("fail")
seconds = time.monotonic() - start
ok(got.stdout == "ended 1 1\n", "one raises: both end with a failure", got.stdout, got.stderr)
ok("rank 1 has had enough" in got.stderr, "the culprit says why", got.stderr)
ok(in_time(seconds, 30), f"and none waits for a time-out ({seconds:.1f} s)", got.stderr)
done_testing()
