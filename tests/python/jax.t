#!/usr/bin/python3
"""gradcomp.jax: the example on two ranks and in one process with the batch of both; means, trees, states and bad input on three ranks,
of which one dies."""

import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, current, done_testing, environment, in_part, need_library, ok, ranks, skip_all, things  # noqa: E402

need_library()
if not in_part(1, 2):
    skip_all("it runs every other day")
PYTHON, why = current("jax")
if PYTHON is None:
    skip_all(why)
RUN, EXAMPLE = os.path.join(BUILD, "bin/gradcomp"), os.path.join(SOURCE, "examples/jax/spirals.py")


def loss(nranks, *options, **more):
    """What the example ends with."""
    command = [PYTHON, EXAMPLE, *options]
    got = subprocess.run([RUN, "run", "-n", str(nranks), *command] if nranks > 1 else command, env=environment(**more), capture_output=True,
                         text=True, timeout=300, check=False)
    said = re.search(r"loss ([0-9.]+)", got.stdout)
    name = f"the example on {nranks} ranks, {options[0]} {options[1]} {more.get('GRADCOMP', '')}"
    if not ok(got.returncode == 0 and said, name, got.stdout, got.stderr[-2000:]):
        done_testing()
    return float(said[1])


with tempfile.TemporaryDirectory() as folder:
    two, one = loss(2, "--steps", "200"), loss(1, "--steps", "200", "--batch", "128")
    ok(abs(two - one) < 1e-4, f"two ranks end where one process with the batch of both does: {two} and {one}")
    saved = os.path.join(folder, "saved")
    two = loss(2, "--steps", "600", "--save", saved, GRADCOMP="topk:density=0.1")
    one = loss(1, "--steps", "100", "--resume", saved, GRADCOMP="topk:density=0.1")
    ok(two < 0.02 and one < 0.02, f"topk converges, to {two}, and from its checkpoint on one rank to {one}")

with tempfile.TemporaryDirectory() as folder:
    got = ranks(3, [os.path.join(SOURCE, "tests/python/jax_ranks.py"), folder], timeout=120, python=PYTHON)
things(got, "three ranks", [0, 0, -9])
done_testing()
