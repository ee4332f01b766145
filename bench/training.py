"""bench/trainer on the cluster: training steps of known length, reduced as told."""

import json
import os
import statistics

from testbed import SOURCE, run

# (tc's rate, for people). Above 2.5 Gbit/s two cores are the limit, not the link.
LINKS = (("200mbit", "200 Mbit/s"), ("1gbit", "1 Gbit/s"), ("2.5gbit", "2.5 Gbit/s"), ("off", "unshaped"))


class Trainer:
    """`model`: arguments for trainer that say what it trains."""

    def __init__(self, cluster, folder, model):
        self.cluster, self.folder, self.model = cluster, folder, list(model)
        self.program = os.path.join(folder, "trainer")
        prefix = os.path.dirname(os.path.dirname(run(["sh", "-c", "command -v gradcomp"], cluster.env, 10).strip()))
        lib = os.path.join(prefix, "lib")
        run(["cc", "-O2", "-o", self.program, os.path.join(SOURCE, "bench/trainer.c"), "-I" + os.path.join(prefix, "include"),
             "-L" + lib, "-Wl,-rpath," + lib, "-lgradcomp", "-lm"], cluster.env, 60)

    def steps(self, compressor="none", schedule=None, nodes=None, args=(), options=(), timeout=300, env=None):
        """The rows of one run, one for each --repeat."""
        out = os.path.join(self.folder, "trainer.json")
        told = [f"--gradcomp={compressor}"] + ([f"--gradcomp-schedule={schedule}"] if schedule else []) + list(options)
        self.cluster.srun(f"-N{nodes or self.cluster.nodes}", *told, "--mpi=pmix", self.program, *self.model, *args,
                          "--json", out, timeout=timeout, env=env)
        with open(out, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        os.unlink(out)
        return rows


def middle(rows, key):
    return statistics.median(r[key] for r in rows)
