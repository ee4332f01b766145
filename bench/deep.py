"""PowerSGD at rank 4 against PyTorch's own hook, on a network of 29 million parameters:
examples/pytorch/digits.py with eight hidden layers of 2048, 4 nodes at 1 Gbit/s. PyTorch's
hook gets its single bucket; with several it aborts on Gloo."""

import json
import os
import statistics

from testbed import SOURCE

ROWS = (("powersgd:rank=4", "gradcomp"), (None, "torch-powersgd"), (None, "none"), ("none", "gradcomp"))


def figures(cluster, folder, args):
    cluster.rate("1gbit")
    taken = {row: [] for row in ROWS}
    try:
        for _ in range(args.runs):
            for (spec, hook), seconds in taken.items():
                seconds.append(_train(cluster, folder, spec, hook))
    finally:
        cluster.rate("off")
    ms = {row: statistics.median(seconds) for row, seconds in taken.items()}
    mine = ms["powersgd:rank=4", "gradcomp"]
    for peer, row, limit in (("torch-powersgd", (None, "torch-powersgd"), 1 / 1.5), ("torch-gloo", (None, "none"), None),
                             ("none", ("none", "gradcomp"), None)):
        yield {"bench": "29 M parameters, a step at 1 Gbit/s", "case": "powersgd:rank=4", "value": mine, "unit": "ms",
               "peer": peer, "peer_value": ms[row], "ratio": mine / ms[row], "limit": limit}


def _train(cluster, folder, spec, hook):
    result = os.path.join(folder, "deep.json")
    cluster.srun(*([f"--gradcomp={spec}"] if spec else []), "--mpi=pmix", "python3",
                 os.path.join(SOURCE, "examples/pytorch/digits.py"), "--hook", hook, "--width", "2048", "--layers", "8",
                 "--steps", "40", "--warm-up", "15", "--lr", "0.01", "--json", result, timeout=600)
    with open(result, encoding="utf-8") as f:
        step = json.load(f)["step_ms"]
    os.unlink(result)
    return step
