#!/usr/bin/python3
"""PyTorch's own tests of DistributedDataParallel, with models that gradcomp attaches as in any program: what the wheel ships in
torch.testing._internal.distributed."""

import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, current_torch, done_testing, environment, need_library, ok, output_of  # noqa: E402

need_library()
PYTHON = current_torch()
PEER = os.path.join(SOURCE, "tests/python/peer")
TESTS = ["test_DistributedDataParallelCPU", "test_DistributedDataParallelCPU_grad_is_view"]

with tempfile.TemporaryDirectory() as folder:
    env = environment(GRADCOMP="none", GRADCOMP_AUTO_ATTACH=None, BACKEND="gloo", WORLD_SIZE="2", TEMP_DIR=folder,
                      PYTHONPATH=f"{BUILD}/lib/gradcomp/python:{PEER}")
    p = subprocess.Popen([PYTHON, os.path.join(PEER, "ddp.py"), *(f"Peer.{t}" for t in TESTS)], env=env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = output_of(p, 120)
    finally:
        p.kill()
        p.wait()
ok(p.returncode == 0 and "\nOK" in said and "skipped" not in said, f"{len(TESTS)} tests of PyTorch's pass", said[-4000:])
ok(said.count("gradcomp: attached DistributedDataParallel(Net)") == len(TESTS), "... with models that are attached", said[-4000:])
done_testing()
