"""PyTorch's own tests of a backend, torch.testing._internal.distributed.distributed_test: prints `RESULT NAME ok|skip|fail WHY` for
each test. It decides by the backend's name what it tests, so that is gloo in any case.

    distributed_suite.py gloo|gradcomp [NAME...]       # all without names
    distributed_suite.py --list

With gradcomp all that makes a group of Gloo's makes one of gradcomp's, and Gloo cannot be reached. Ranks are forked; WORLD_SIZE says
how many, 3 as in PyTorch's own runs."""

import os
import sys
import tempfile
import unittest

WHO = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory(prefix="gradcomp-suite-")
os.environ.update(BACKEND="gloo", TEMP_DIR=FOLDER.name, INIT_METHOD=f"file://{FOLDER.name}/shared_init_file")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed import distributed_c10d as c10d  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


def in_place_of_gloo():
    from gradcomp import backend

    helper, asked = c10d._new_process_group_helper, {}

    def new_process_group_helper(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *rest, **named):
        asked.update(ranks=global_ranks_in_group, name=group_name)
        return helper(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *rest, **named)

    class Type(type):
        def __call__(cls, store, rank, size, timeout):
            made = backend.create(store, rank, size, timeout, asked["ranks"], asked["name"], "gloo")
            made.options = cls.Options()
            return made

        def __instancecheck__(cls, made):
            return isinstance(made, backend.ProcessGroup)

    class ProcessGroupGloo(metaclass=Type):
        class Options:
            pass

    c10d._new_process_group_helper = new_process_group_helper
    for module in (c10d, dist, torch._C._distributed_c10d):
        module.ProcessGroupGloo = ProcessGroupGloo


if WHO == "gradcomp":
    in_place_of_gloo()


class Suite(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Result(unittest.TestResult):
    def said(self, test, how, why=""):
        print("RESULT", test.id().rpartition(".")[2], how, " ".join(str(why).split())[-400:], flush=True)

    def addSuccess(self, test):
        self.said(test, "ok")

    def addSkip(self, test, reason):
        self.said(test, "skip", reason)

    def addError(self, test, err):
        self.said(test, "fail", f"{err[0].__name__}: {err[1]}")

    addFailure = addError


names = unittest.defaultTestLoader.getTestCaseNames(Suite)
if WHO == "--list":
    print(*names, sep="\n")
else:
    torch.set_num_threads(1)
    for name in sys.argv[2:] or names:
        Suite(name).run(Result())
FOLDER.cleanup()
