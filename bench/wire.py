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


def _steps(cluster, spec, iterations):
    """Bytes all nodes have sent during a run."""
    before = cluster.sent()
    cluster.srun(f"--gradcomp={spec}", "--mpi=pmix", "gradcomp", "bench", "reduce", "--tensors", TENSORS, "--iters",
                 str(iterations), timeout=240)
    return cluster.sent() - before


def compressors(cluster):
    """Start and end of a run cancel out between a short and a long one."""
    for spec, formula in FORMULAS:
        short, long = 2, 8
        sent = (_steps(cluster, spec, long) - _steps(cluster, spec, short)) / (long - short) / cluster.nodes
        yield {"bench": "bytes a node and step on the interface", "case": spec, "value": sent / 1e6, "unit": "MB",
               "peer": "formula", "peer_value": formula / 1e6, "ratio": sent / formula, "limit": 1.03, "least": 0.97}


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
