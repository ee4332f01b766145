"""What PyTorch programs do with gradcomp beside DDP, on four nodes at 1 Gbit/s.

local SGD: the text model of bench/accuracy with AdamW inside, DiLoCo with H = 50 and block:bits=4 against DDP, which
averages the gradients of every step: bytes a rank and step, and the test loss after as many steps of as many samples.

FSDP2: the time of a step of a sharded transformer of 25 million parameters, with gradients and weights under a code, against
FSDP2's own collectives over Gloo. Needs a current PyTorch (tests/python/current-torch); without one these rows are left out."""

import json
import os
import statistics
import subprocess
import sys

from testbed import SOURCE, Failed

STEPS = 1000
DDP = "DDP, none"
RUNS = {DDP: {"every": 0, "spec": "none"}, "H=50, none": {"every": 50, "spec": "none"},
        "H=50, block:bits=4": {"every": 50, "spec": "block:bits=4"},
        "H=50, block:bits=4, 4 fragments, delay 5": {"every": 50, "spec": "block:bits=4", "fragments": 4, "delay": 5}}
# What is sent is that part of DDP's, but for the scales of blocks: 4 bytes for 256 numbers.
PARTS = {"H=50, none": 50, "H=50, block:bits=4": 400, "H=50, block:bits=4, 4 fragments, delay 5": 400}
DENSE, BOTH = "FSDP2 over Gloo", "block:bits=8 both ways"
# SPECs of reduce-scatter and all-gather, and what of the dense step it may take.
SHARDED = {DENSE: (None, None, None), BOTH: ("block:bits=8", "block:bits=8", 0.45),
           "block:bits=4 gradients, 8 weights": ("block:bits=4", "block:bits=8", 0.40)}


def figures(cluster, _folder, args):
    cluster.rate("1gbit")
    try:
        yield from local_sgd(cluster, args)
        yield from sharded(cluster, args)
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


def sharded(cluster, args):
    found = subprocess.run([os.path.join(SOURCE, "tests/python/current-torch"), "600"], stdout=subprocess.PIPE, text=True, check=False)
    python = found.stdout.strip()
    if found.returncode:
        print("frameworks: no rows for FSDP2", file=sys.stderr)
        return
    taken = {case: [] for case in SHARDED}
    for _ in range(args.runs):
        for case, (reduce_scatter, all_gather, _) in SHARDED.items():
            told = json.dumps({"reduce_scatter": reduce_scatter, "all_gather": all_gather, "steps": 5 if args.quick else 15})
            out = cluster.srun(f"--gradcomp={'none' if reduce_scatter else 'off'}", "--mpi=pmix", "--gradcomp-auto-attach=no", python,
                               os.path.join(SOURCE, "bench/fsdp.py"), told, timeout=600)
            taken[case].append(json.loads(next(line for line in out.splitlines() if line.startswith("{"))))
    first = {case: rows[0]["first"] for case, rows in taken.items()}
    if abs(first[DENSE] - first[BOTH]) > 0.05 * first[DENSE]:
        raise Failed(f"the first loss of FSDP2 is {first[DENSE]:.4f}, and {first[BOTH]:.4f} under a code: not the same model")
    ms, last = ({case: statistics.median(r[key] for r in rows) for case, rows in taken.items()} for key in ("step_ms", "last"))
    for case, (_, _, limit) in SHARDED.items():
        if limit:
            yield {"bench": "FSDP2, a step", "case": case, "value": ms[case], "unit": "ms", "peer": DENSE, "peer_value": ms[DENSE],
                   "ratio": ms[case] / ms[DENSE], "limit": limit}
            yield {"bench": "FSDP2, loss at the end", "case": case, "value": last[case], "unit": "", "peer": DENSE,
                   "peer_value": last[DENSE], "ratio": last[case] / last[DENSE], "limit": None}
