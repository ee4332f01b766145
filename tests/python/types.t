#!/usr/bin/python3
"""mypy --strict, as pyproject.toml has it, over the package and the examples, with the types of a current PyTorch; and what it
says of programs that use attach() rightly and wrongly. GRADCOMP_TEST_MYPY names a mypy; else it is the one on the path."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, current_torch, done_testing, ok, skip_all  # noqa: E402

MYPY = os.environ.get("GRADCOMP_TEST_MYPY") or shutil.which("mypy")
if not MYPY:
    skip_all("no mypy: pip install mypy, or name one in GRADCOMP_TEST_MYPY")
PYTHON = current_torch()
PROGRAM = '''
import torch
import gradcomp.torch
import gradcomp.writers

def program(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    hook = gradcomp.torch.attach(model, compressor="topk")
    sent: float = hook.stats()["wire_bytes"]
    part: dict[str, float] = hook.stats().parts["all_reduce"]
    hook.on_step(lambda step, stats: print(step + 1, stats["steps"], stats.parts))
    hook.on_step(gradcomp.writers.TensorBoard(None, every=2)).remove()
    hook.drain(optimizer)
    state: dict[str, object] = hook.shared.state_dict()
    shared = gradcomp.torch.attach(model, on_failure="shrink")
    with shared.step(), shared.no_sync():
        rank: int = shared.rank
    print(sent, part, state, rank)
    hook.step()  # wrong
    gradcomp.torch.attach(model, on_failure="shrug")  # wrong
    gradcomp.torch.attach(model, seed="1")  # wrong
    gradcomp.torch.attach(1)  # wrong
    hook.on_step(5)  # wrong
    hook.stats().parts["all_reduce"] = 5  # wrong
    gradcomp.Job().world.allreduce(torch.zeros(1), op=5)  # wrong
'''


def mypy(*what):
    """Its findings, as (file, line, text)."""
    got = subprocess.run([MYPY, "--config-file", os.path.join(SOURCE, "pyproject.toml"), "--python-executable", PYTHON, "--cache-dir",
                          os.path.join(BUILD, "tests/mypy"), *what], cwd=SOURCE, capture_output=True, text=True, check=False)
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", got.stdout, re.MULTILINE)
    return found if found or not got.returncode else [("", 0, got.stdout + got.stderr)]


found = mypy()
ok(not found, "the package and its examples are clean", *found[:20])
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(PROGRAM)
    found = mypy("--strict", path)
lines = PROGRAM.splitlines()
wrong = {i for i, line in enumerate(lines, 1) if line.endswith("# wrong")}
ok({int(line) for _, line, _ in found} == wrong, "a program that uses attach() is told what is wrong, and nothing else",
   *found, wrong)
done_testing()
