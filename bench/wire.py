"""Bytes on the interface a node and step against the formulas of each
compressor, and the memory the library adds to a rank."""

import json
import os

P = 4
RING = 2 * (P - 1) / P
MATRICES, SIDE, VECTOR = 6, 1536, 65536
TENSORS = ",".join([f"{SIDE}x{SIDE}"] * MATRICES + [str(VECTOR)])
D = MATRICES * SIDE * SIDE + VECTOR

# What one of four ranks sends a step, in bytes.
FORMULAS = [("none", RING * 4 * D),
            ("cast:type=bf16", RING * 2 * D),
            ("cast:type=fp16", RING * 2 * D),
            ("topk:density=0.01", (P - 1) * 8 * round(0.01 * D)),
            ("powersgd:rank=4,start_step=0", RING * 4 * (4 * MATRICES * 2 * SIDE + VECTOR)),
            ("powersgd:rank=16,start_step=0", RING * 4 * (16 * MATRICES * 2 * SIDE + VECTOR))]


def _counted(cluster, options, tensors, iterations):
    """[(sent, received)] of every node during a run."""
    before = cluster.counted()
    cluster.run("srun", *options, "--time=4", "--kill-on-bad-exit=1", "--mpi=pmix", "gradcomp", "bench", "reduce",
                "--tensors", tensors, "--iters", str(iterations), timeout=240)
    return [(s - s0, r - r0) for (s, r), (s0, r0) in zip(cluster.counted(), before)]


def a_step(cluster, options, tensors):
    """[(sent, received)] bytes of every node a step of a reducer. Start and end of a
    run cancel out between a short and a long one."""
    short, long = 2, 8
    few, many = _counted(cluster, options, tensors, short), _counted(cluster, options, tensors, long)
    return [tuple((m - f) / (long - short) for f, m in zip(*pair)) for pair in zip(few, many)]


def compressors(cluster):
    for spec, formula in FORMULAS:
        sent = sum(s for s, _ in a_step(cluster, [f"-N{cluster.nodes}", f"--gradcomp={spec}"], TENSORS)) / cluster.nodes
        yield {"bench": "bytes a node and step on the interface", "case": spec, "value": sent / 1e6, "unit": "MB",
               "peer": "formula", "peer_value": formula / 1e6, "ratio": sent / formula, "limit": 1.03, "least": 0.97}


def step_seconds(cluster, options, tensors, folder):
    result = os.path.join(folder, "steps.json")
    cluster.run("srun", *options, "--time=4", "--kill-on-bad-exit=1", "--mpi=pmix", "gradcomp", "bench", "reduce",
                "--tensors", tensors, "--iters", "9", "--json", result, timeout=240)
    with open(result, encoding="utf-8") as f:
        return json.load(f)[0]["seconds"]


def memory(cluster, folder):
    """Growth of a rank's resident memory, with tensors too small to count."""
    result = os.path.join(folder, "memory.json")
    for layout, case in ((["-N4"], "4 nodes"), (["-N1", "-n4"], "4 ranks on one node")):
        cluster.run("srun", *layout, "--time=2", "--gradcomp=none", "--mpi=pmix", "gradcomp", "bench", "reduce",
                    "--tensors", "16", "--iters", "50", "--json", result, timeout=60)
        with open(result, encoding="utf-8") as f:
            grown = json.load(f)[0]["resident_bytes"] / 1e6
        yield {"bench": "memory the library adds to a rank", "case": case, "value": grown, "unit": "MB",
               "peer": "limit", "peer_value": 10.0, "ratio": grown / 10, "limit": 1.0}
