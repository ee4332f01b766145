"""PyTorch's own tests of distributed training, as the wheel brings them: argv has the names of those that run. BACKEND, WORLD_SIZE
and TEMP_DIR are in the environment, as PyTorch's test runner has them."""

import unittest

from torch.multiprocessing import get_context
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class Peer(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(get_context("fork").Process)  # what has been imported need not be again


if __name__ == "__main__":
    unittest.main(verbosity=2)
