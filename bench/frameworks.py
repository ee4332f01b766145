"""What PyTorch programs do with gradcomp beside DDP, on four nodes at 1 Gbit/s.

local SGD: the text model of bench/accuracy with AdamW inside, DiLoCo with H = 50 and block:bits=4 against DDP, which
averages the gradients of every step: bytes a rank and step, and the test loss after as many steps of as many samples."""

import json
import os
import statistics

from testbed import SOURCE

STEPS = 1000
DDP = "DDP, none"
RUNS = {DDP: {"every": 0, "spec": "none"}, "H=50, none": {"every": 50, "spec": "none"},
        "H=50, block:bits=4": {"every": 50, "spec": "block:bits=4"},
        "H=50, block:bits=4, 4 fragments, delay 5": {"every": 50, "spec": "block:bits=4", "fragments": 4, "delay": 5}}
# What is sent is that part of DDP's, but for the scales of blocks: 4 bytes for 256 numbers.
PARTS = {"H=50, none": 50, "H=50, block:bits=4": 400, "H=50, block:bits=4, 4 fragments, delay 5": 400}


def figures(cluster, _folder, args):
    cluster.rate("1gbit")
    try:
        yield from local_sgd(cluster, args)
    finally:
        cluster.rate("off")


def local_sgd(cluster, args):
    taken = {case: [] for case in RUNS}
    for seed in range(args.runs):
        for case, how in RUNS.items():
            told = {"fragments": 1, "delay": 0, "steps": STEPS // (10 if args.quick else 1), "seed": seed, **how}
            out = cluster.srun(f"--gradcomp={how['spec']}", "--mpi=pmix", "python3", os.path.join(SOURCE, "bench/local_sgd.py"),
                               json.dumps(told), timeout=900)
            taken[case].append(json.loads(next(line for line in out.splitlines() if line.startswith("{"))))
    sent, loss = ({case: statistics.median(r[key] for r in rows) for case, rows in taken.items()} for key in ("bytes", "loss"))
    for case, part in PARTS.items():
        yield {"bench": "local SGD, sent a rank and step", "case": case, "value": sent[case] / 1e3, "unit": "kB",
               "peer": f"DDP's / {part}", "peer_value": sent[DDP] / part / 1e3, "ratio": sent[case] * part / sent[DDP],
               "least": 0.95, "limit": 1.05}
    for case in PARTS:
        yield {"bench": "local SGD, test loss", "case": case, "value": loss[case], "unit": "", "peer": DDP,
               "peer_value": loss[DDP], "ratio": loss[case] / loss[DDP], "limit": None}
