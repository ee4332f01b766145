#!/usr/bin/python3
"""torchrun below a task of srun: its workers inherit the PMIx of a server that knows one task,
and take torchrun's store. Workers that were started again are a job of their own."""

import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, environment, need_gloo, need_library, ok, pace, skip_all  # noqa: E402

need_gloo()
need_library()
import torch.distributed as dist  # noqa: E402

WORKER = os.path.join(SOURCE, "tests/python/elastic.py")
PMIX = {"PMIX_NAMESPACE": "slurm.pmix.1.0", "PMIX_RANK": "0", "PMIX_SERVER_URI41": "none.0;tcp4://127.0.0.1:9"}
LINE = r"life (\d): rank (\d) of (\d) is (\d) of (\d), (\d) steps, digest (\w+)"


def torchrun(*argv, **more):
    # 1.13's default for what goes to files does not work on Python 3.11: stdout does.
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--redirects",
                   "1", "--tee", "1", "--log_dir", logs]
        environ = environment(GRADCOMP="none", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", **more)
        with subprocess.Popen(command + list(argv), env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
            try:
                out, err = p.communicate(timeout=180 * pace())
            except subprocess.TimeoutExpired:
                p.terminate()  # so that it ends its workers
                out, err = p.communicate()
            return subprocess.CompletedProcess(command, p.returncode, out, err)


try:
    # From PyTorch 2.4 on torchrun asks for libuv, and cannot be told not to.
    dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
except RuntimeError as e:
    if "libuv" in str(e):
        skip_all("this PyTorch was built without the libuv that its torchrun asks for")

got = torchrun(WORKER, **PMIX)
lines = re.findall(LINE, got.stdout)
ok(got.returncode == 0 and sorted(r for _, r, *_ in lines) == ["0", "1"], "workers of a task with PMIx train",
   got.stdout, got.stderr[-3000:])
ok(lines and all((rank, size) == (own, n) for _, rank, size, own, n, *_ in lines), "the job has torchrun's ranks", got.stdout)
ok(len({digest for *_, digest in lines}) == 1, "with one result", got.stdout)

got = torchrun("--max_restarts", "1", WORKER, "fail", **PMIX)
lines = re.findall(LINE, got.stdout)
ok(got.returncode == 0 and sorted((life, r) for life, r, *_ in lines) == [("1", "0"), ("1", "1")],
   "a worker fails: the second life trains", got.stdout, got.stderr[-3000:])
ok({steps for *_, steps, _ in lines} == {"4"}, "in a job of its own, from its first step", got.stdout)
done_testing()
