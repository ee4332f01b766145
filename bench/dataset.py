"""Samples served from the memory of the nodes: later epochs beside the first, values
of the own node beside memcpy, in Python beside numpy, of others beside the link, and a step's added time."""

import json
import os
import time
from statistics import median

import staging
from testbed import SOURCE, Cluster, Failed


def _bench(cluster, folder, nodes, *options, source=None, env=None):
    """{case: row} of gradcomp bench io on so many nodes, a rank each."""
    result = os.path.join(folder, "io.json")
    command = 'exec gradcomp bench io ${GRADCOMP_DATA:+--source "$GRADCOMP_DATA"} --json "$0" "$@"'
    stage = [f"--gradcomp-stage={source}"] if source else []
    cluster.run("srun", f"-N{nodes}", "--time=10", "--kill-on-bad-exit=1", "--gradcomp=none", "--mpi=pmix", *stage,
                "sh", "-c", command, result, *options, timeout=600, env=env)
    with open(result, encoding="utf-8") as f:
        return {row["case"]: row for row in json.load(f)}


def _row(case, bench, said, limit=None, least=None):
    return {"bench": bench, "case": case, "value": said["value"], "unit": said["unit"], "peer": said["peer"],
            "peer_value": said["peer_value"], "ratio": said["value"] / said["peer_value"], "limit": limit, "least": least}


def _median(runs, case):
    """The run whose value is in the middle."""
    rows = sorted((r[case] for r in runs if case in r), key=lambda r: r["value"] / r.get("peer_value", 1))
    if not rows:
        raise Failed(f"gradcomp bench io has no row '{case}'")
    return rows[len(rows) // 2]


def _epochs(args, cluster, folder, nodes, total):
    """The first epoch with its staging, cold, against the second."""
    first, second, fetched = [], [], []
    source = f"{staging.URL}/tree?version=4"
    for _ in range(args.runs):
        staging.fresh(cluster)
        start = time.monotonic()
        cluster.run("srun", f"-N{nodes}", "--time=10", f"--gradcomp-stage={source}", "true", timeout=600)
        cold = time.monotonic() - start
        said = _bench(cluster, folder, nodes, "--steps", "1", "--memory", "4G", source=source)
        first.append(cold + said["epoch 1"]["value"])
        second.append(said["epoch 2"]["value"])
        if nodes > 1:
            said = _bench(cluster, folder, nodes, "--steps", "1", "--memory", "4G", source=source, env={"GRADCOMP_DATASET_RELOAD": "no"})
            fetched.append(said["epoch 2"]["value"])
    early = median(first)
    # What is fetched moves (n-1)/n of each node's share between nodes at least.
    for case, times, limit in (("from memory" if nodes == 1 else "from memory, or staged files read again", second, 0.1),
                               ("from the nodes' memory alone", fetched, None)):
        if times:
            late = median(times)
            yield {"bench": f"epoch 2 of {total / 1e9:.2f} GB on {nodes} nodes, 1 Gbit/s", "case": case, "value": late, "unit": "s",
                   "peer": "epoch 1 with staging over NFS", "peer_value": early, "ratio": late / early, "limit": limit}


def _batches(cluster):
    """{case: row} of values as Python has them; processor time, in one process."""
    said = cluster.run("srun", "-N1", "--time=10", "--gradcomp=none", "--mpi=pmix", "python3", os.path.join(SOURCE, "bench/batches.py"),
                       "--json", timeout=600)
    return {row["case"]: row for row in json.loads(said)}


def figures(args, folder):
    data, _, total = staging.dataset(folder, args.quick)
    with Cluster(args.name, args.prefix, share=[folder], nfs=data) as cluster:
        cluster.rate("1gbit")
        for nodes in (1, 4):
            yield from _epochs(args, cluster, folder, nodes, total)
        alone = [_bench(cluster, folder, 1) for _ in range(args.runs)]
        yield _row("values of the own node, copied out", "100 KiB values, 1 rank", _median(alone, "local values, a rank"),
                   least=0.7)
        python = [_batches(cluster) for _ in range(args.runs)]
        for case in python[0]:
            yield _row("values of the own node, in Python's batches", f"100 KiB values, 1 rank, {case}", _median(python, case), least=0.8)
        four = [_bench(cluster, folder, 4) for _ in range(args.runs)]
        yield _row("values of other nodes", "100 KiB values, 4 nodes, 1 Gbit/s", _median(four, "remote values, a rank"),
                   least=0.85)
        yield _row("8 values a step of 50 ms", "100 KiB values, 4 nodes, 1 Gbit/s", _median(four, "a step with its batch"),
                   limit=1.03)
