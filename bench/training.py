"""bench/trainer on the cluster: training steps of known length, reduced as told."""

import json
import os
import shutil
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
        self.env = {"GRADCOMP_PLUGIN_PATH": os.path.join(prefix, "lib/gradcomp")}
        # It reads model files, which the installed library does not export.
        build = os.environ.get("GRADCOMP_BUILD", os.path.join(SOURCE, "build"))
        made = os.path.join(build, "bench/trainer")
        run(["make", "-s", "-C", build, made], dict(os.environ), 600)
        shutil.copy(made, self.program)

    def steps(self, compressor="none", schedule=None, nodes=None, args=(), options=(), timeout=300, env=None):
        """The rows of one run, one for each --repeat."""
        out = os.path.join(self.folder, "trainer.json")
        told = [f"--gradcomp={compressor}"] + ([f"--gradcomp-schedule={schedule}"] if schedule else []) + list(options)
        self.cluster.srun(f"-N{nodes or self.cluster.nodes}", *told, "--mpi=pmix", self.program, *self.model, *args,
                          "--json", out, timeout=timeout, env=dict(self.env, **(env or {})))
        with open(out, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        os.unlink(out)
        return rows


def middle(rows, key):
    return statistics.median(r[key] for r in rows)
