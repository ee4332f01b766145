"""What PyTorch programs do with gradcomp beside DDP, on four nodes at 1 Gbit/s.

local-sgd  The text model of bench/accuracy with AdamW inside, DiLoCo with H = 50 and block:bits=4 against DDP, which averages the
           gradients of every step: bytes a rank and step, and the test loss after as many steps of as many samples.
fsdp       The time of a step of a sharded transformer of 25 million parameters, with gradients and weights under a code, against
           FSDP2's own collectives over Gloo.
fsdp-hops  That step at 1 and 2.5 Gbit/s where blocks are coded at the sender and forwarded in code (ring:mode=assisted), where they
           are coded at every hop as by compression between two ranks (mode=hop), and without a code; bytes a node, and the loss.
fsdp-loss  The loss of a small one after 300 steps, over seeds. Links are not shaped.
hsdp       The first one on two nodes of two ranks, sharded within the nodes: a step, and bytes between them.
zero       The first one on two nodes of two ranks, sharded over all four: codes over a ring, over two levels, and with backward's gathers
           within the nodes.
optimizer  The step of an optimizer over 30 million numbers, shared by ParallelOptimizer, against the optimizer as it is and PyTorch's
           ZeroRedundancyOptimizer: four ranks on a node, and on four nodes.
no-code    What an import of PyTorch and the first step of a program that knows nothing of gradcomp take longer. Links are not shaped.

Sharded models need a current PyTorch (tests/python/current); without one these rows are left out, as are those of no-code
with it."""

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from testbed import SOURCE, Failed, run

STEPS = 1000
DDP = "DDP, none"
RUNS = {DDP: {"every": 0, "spec": "none"}, "H=50, none": {"every": 50, "spec": "none"},
        "H=50, block:bits=4": {"every": 50, "spec": "block:bits=4"},
        "H=50, block:bits=4, 4 fragments, delay 5": {"every": 50, "spec": "block:bits=4", "fragments": 4, "delay": 5}}
# What is sent is that part of DDP's, but for the scales of blocks: 4 bytes for 256 numbers.
PARTS = {"H=50, none": 50, "H=50, block:bits=4": 400, "H=50, block:bits=4, 4 fragments, delay 5": 400}
DENSE, EXACT = "FSDP2 over Gloo", "none both ways"
BOTH, FEWER = "block:bits=8 both ways", "block:bits=4 gradients, 8 weights"
CODES = {DENSE: None, EXACT: {"reduce_scatter": "none", "all_gather": "none"},
         BOTH: {"reduce_scatter": "block:bits=8", "all_gather": "block:bits=8"},
         FEWER: {"reduce_scatter": "block:bits=4", "all_gather": "block:bits=8"}}
SHARES = {BOTH: 0.45, FEWER: 0.40}  # of the dense step, at most
SEEDS = 5
REPLICAS = "HSDP over Gloo"
POWERSGD, TOPK = "powersgd:rank=4,start_step=0", "topk:density=0.01"
WITHIN = f"{POWERSGD}; block:bits=8 within a node"
AVERAGED = {REPLICAS: None, POWERSGD: {"compressor": POWERSGD}, TOPK: {"compressor": TOPK},
            WITHIN: {"compressor": POWERSGD, "reduce_scatter": "block:bits=8", "all_gather": "block:bits=8"}}


RING, LEVELS = f"{FEWER}, ring", f"{FEWER}, hier"
NODES = f"{LEVELS}, backward gathers in a node"
ZERO = {DENSE: None, RING: {**CODES[FEWER], "collective": "ring"}, LEVELS: {**CODES[FEWER], "collective": "hier"},
        NODES: {**CODES[FEWER], "collective": "hier", "reshard_after_forward": 2}}
TWO_BY_TWO = ("-N2", "-n4", "--ntasks-per-node=2", "--nodelist=n1,n2")


ASSISTED, HOP = "block:bits=8, ring:mode=assisted", "block:bits=8, ring:mode=hop"
HOPS = {EXACT: {**CODES[EXACT], "collective": "ring"}, ASSISTED: {**CODES[BOTH], "collective": "ring:mode=assisted"},
        HOP: {**CODES[BOTH], "collective": "ring:mode=hop"}}


@contextlib.contextmanager
def shaped(cluster, rate="1gbit"):
    cluster.rate(rate)
    try:
        yield
    finally:
        cluster.rate("off")


def rank_0(out):
    """The JSON object among what a step printed."""
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


def medians(taken, *keys):
    return tuple({case: statistics.median(r[key] for r in rows) for case, rows in taken.items()} for key in keys)


def current_torch():
    """Its python; None, and stderr says why, where there is none."""
    found = subprocess.run([os.path.join(SOURCE, "tests/python/current"), "torch", "600"], stdout=subprocess.PIPE, text=True, check=False)
    return None if found.returncode else found.stdout.strip()


def local_sgd(cluster, args):
    taken = {case: [] for case in RUNS}
    with shaped(cluster):
        for seed in range(args.runs):
            for case, how in RUNS.items():
                told = {"fragments": 1, "delay": 0, "steps": STEPS // (10 if args.quick else 1), "seed": seed, **how}
                out = cluster.srun(f"--gradcomp={how['spec']}", "--mpi=pmix", "python3", os.path.join(SOURCE, "bench/local_sgd.py"),
                                   json.dumps(told), timeout=900)
                taken[case].append(rank_0(out))
    sent, loss = medians(taken, "bytes", "loss")
    for case, part in PARTS.items():
        yield {"bench": "local SGD, sent a rank and step", "case": case, "value": sent[case] / 1e3, "unit": "kB",
               "peer": f"DDP's / {part}", "peer_value": sent[DDP] / part / 1e3, "ratio": sent[case] * part / sent[DDP],
               "least": 0.95, "limit": 1.05}
    for case in PARTS:
        yield {"bench": "local SGD, test loss", "case": case, "value": loss[case], "unit": "", "peer": DDP,
               "peer_value": loss[DDP], "ratio": loss[case] / loss[DDP], "limit": None}


def sharding(cluster, python, what, *options, **told):
    """What bench/fsdp.py answers."""
    out = cluster.srun(*options, "--gradcomp=none", "--mpi=pmix", "--gradcomp-auto-attach=no", python,
                       os.path.join(SOURCE, "bench/fsdp.py"), json.dumps({what: told}), timeout=600)
    return rank_0(out)[what]


def timed(cluster, args, cases, *options, **told):
    """{case: answers}, of models that take a step in turn; the first case is the peer, and all begin alike."""
    python = current_torch()
    if python is None:
        return None
    taken = {case: [] for case in cases}
    for _ in range(args.runs):
        answers = sharding(cluster, python, "timed", *options, ways=list(cases.values()), steps=5 if args.quick else 15, **told)
        for rows, answer in zip(taken.values(), answers):
            rows.append(answer)
    first = [rows[0]["first"] for rows in taken.values()]
    if max(first) - min(first) > 0.05 * first[0]:
        raise Failed(f"the first losses of {', '.join(cases)} are {first}: not the same model")
    return taken


def fsdp(cluster, args):
    with shaped(cluster):
        taken = timed(cluster, args, CODES)
    if taken is None:
        return
    ms, last = medians(taken, "step_ms", "last")
    for case in CODES:
        if case == DENSE:
            continue
        yield {"bench": "FSDP2, a step", "case": case, "value": ms[case], "unit": "ms", "peer": DENSE, "peer_value": ms[DENSE],
               "ratio": ms[case] / ms[DENSE], "limit": SHARES.get(case)}
        yield {"bench": "FSDP2, loss at the end", "case": case, "value": last[case], "unit": "", "peer": DENSE,
               "peer_value": last[DENSE], "ratio": last[case] / last[DENSE], "limit": None}


def fsdp_hops(cluster, args):
    for rate in ("1gbit", "2.5gbit"):
        with shaped(cluster, rate):
            taken = timed(cluster, args, HOPS)
        if taken is None:
            return
        for key, what, unit, scale in (("step_ms", "a step", "ms", 1), ("node_sent", "bytes a node and step on the interface", "MB", 1e-6),
                                       ("last", "loss at the end", "", 1)):
            (found,) = medians(taken, key)
            for case, peer in ((ASSISTED, HOP), (ASSISTED, EXACT), (HOP, EXACT)):
                yield {"bench": f"FSDP2 at {rate[:-4]} Gbit/s, {what}", "case": case, "value": found[case] * scale, "unit": unit,
                       "peer": peer, "peer_value": found[peer] * scale, "ratio": found[case] / found[peer], "limit": None}


def fsdp_loss(cluster, args):
    python = current_torch()
    if python is None:
        return
    steps, seeds = (30, 2) if args.quick else (300, SEEDS)
    cases = (DENSE, *SHARES)
    losses = dict(zip(cases, sharding(cluster, python, "learned", width=64, layers=2, batch=8, steps=steps,
                                      seeds=list(range(seeds)), ways=[CODES[case] for case in cases])))
    dense, noise = statistics.mean(losses[DENSE]), statistics.stdev(losses[DENSE])
    for case in SHARES:
        mean = statistics.mean(losses[case])
        yield {"bench": f"FSDP2, loss after {steps} steps", "case": f"{case}, {seeds} seeds", "value": mean, "unit": "",
               "peer": DENSE, "peer_value": dense, "ratio": mean / dense, "limit": None}
        yield {"bench": f"FSDP2, loss after {steps} steps, away from dense", "case": f"{case}, {seeds} seeds",
               "value": abs(mean - dense), "unit": "", "peer": "2 standard deviations of dense", "peer_value": 2 * noise,
               "ratio": abs(mean - dense) / (2 * noise), "limit": 1.0}


def between(spec, of):
    """Bytes that a rank sends to the one replica there is; its shards have numbers, some in vectors, and sides of matrices."""
    return 8 * 0.01 * of["numbers"] if spec == TOPK else 4 * (4 * of["sides"] + of["in_vectors"])


def hsdp(cluster, args):
    with shaped(cluster):
        taken = timed(cluster, args, AVERAGED, *TWO_BY_TWO, replicas=2)
    if taken is None:
        return
    ms, sent = medians(taken, "step_ms", "node_sent")
    for case, rows in taken.items():
        if case == REPLICAS:
            continue
        yield {"bench": "HSDP 2x2, a step", "case": case, "value": ms[case], "unit": "ms", "peer": REPLICAS, "peer_value": ms[REPLICAS],
               "ratio": ms[case] / ms[REPLICAS], "limit": 0.5}
        promised = 2 * between(case, rows[0])  # of two ranks
        yield {"bench": "HSDP 2x2, bytes a node and step on the interface", "case": case, "value": sent[case] / 1e6, "unit": "MB",
               "peer": "formula", "peer_value": promised / 1e6, "ratio": sent[case] / promised, "least": 0.97, "limit": 1.03}


def zero(cluster, args):
    with shaped(cluster):
        taken = timed(cluster, args, ZERO, *TWO_BY_TWO)
    if taken is None:
        return
    ms, sent, last = medians(taken, "step_ms", "node_sent", "last")
    for case in ZERO:
        if case == DENSE:
            continue
        peer = DENSE if case == RING else RING
        for what, of, unit, per in (("a step", ms, "ms", 1), ("bytes a node and step on the interface", sent, "MB", 1e6),
                                    ("loss at the end", last, "", 1)):
            yield {"bench": f"FSDP2 2x2, {what}", "case": case, "value": of[case] / per, "unit": unit, "peer": peer,
                   "peer_value": of[peer] / per, "ratio": of[case] / of[peer], "limit": None}


IMPORTS, FIRST_STEPS = 8, 5


def optimizer(cluster, args):
    layers = 6 if args.quick else 30
    with shaped(cluster):
        for name, where, options in [(n, *layout) for n in ("AdamW", "LAMB") for layout in (("a node", ("-N1", "-n4", "--nodelist=n1")), ("4 nodes", ()))]:
            taken = {"": []}
            for _ in range(args.runs):
                told = {"optimizer": name, "layers": layers, "width": 1000, "steps": 5 if args.quick else 10}
                taken[""].append(rank_0(cluster.srun(*options, "--gradcomp=none", "--mpi=pmix", "python3",
                                                     os.path.join(SOURCE, "bench/optimizers.py"), json.dumps(told), timeout=600)))
            ms = {how: medians(taken, how)[0][""] for how in ("stock", "shared", "zero")}
            for how, peer, limit in (("stock", f"torch.optim.{name}" if name == "AdamW" else name, 1.05), ("zero", "ZeroRedundancyOptimizer", 1.0)):
                yield {"bench": f"optimizer's step, {where}", "case": name, "value": ms["shared"], "unit": "ms", "peer": peer,
                       "peer_value": ms[how], "ratio": ms["shared"] / ms[how], "limit": limit}


def no_code(cluster, args):
    pythons = {"Debian's PyTorch": "/usr/bin/python3", "a current PyTorch": current_torch()}
    for name, python in pythons.items():
        if python is None:
            continue
        yield from imports(cluster, name, python, 3 if args.quick else IMPORTS)
        yield from first_steps(cluster, name, python, 2 if args.quick else FIRST_STEPS)


def compared(bench, case, taken, allowed):
    """Rows of wall and of processor time, [(wall, processor)] in ms; at most `allowed` ms more than without."""
    for i, clock in enumerate(("wall time", "processor time")):
        plain, ours = (statistics.median(t[i] for t in taken[with_it]) for with_it in (False, True))
        yield {"bench": bench, "case": f"{case}, {clock}", "value": ours, "unit": "ms", "peer": "without", "peer_value": plain,
               "ratio": ours / plain, "limit": (plain + allowed) / plain}


# What an import of torch calls, in processor time of its thread.
LOAD = """import time, torch
began = time.thread_time()
from gradcomp.autoload import load
load()
print(1e3 * (time.thread_time() - began))"""


def imports(cluster, name, python, runs):
    """python -c 'import torch', from its start to its end, as a task of srun --gradcomp=SPEC would run it; and what is added to it by
    itself, the start of Python and what PyTorch calls, which differ less from run to run."""
    taken = {code: {False: [], True: []} for code in ("import torch", "pass")}
    loads, paths = [], cluster.env["PYTHONPATH"]
    environments = {False: dict(cluster.env, PYTHONPATH=""), True: dict(cluster.env, PYTHONPATH=paths, GRADCOMP="none")}
    for number in range(runs + 1):
        for code, of in taken.items():
            for with_it in (False, True) if number % 2 else (True, False):
                env = environments[with_it]
                before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
                subprocess.run([python, "-c", code], env=env, check=True, timeout=120)
                wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
                if number:  # the first reads files that no one has read before
                    of[with_it].append((1e3 * wall, 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)))
        env = dict(environments[True], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        loads.append(float(run([python, "-c", LOAD], env, 120)))
    yield from compared("import of torch, --gradcomp=none", name, taken["import torch"], 10)
    plain, ours = (statistics.median(t[1] for t in taken["pass"][with_it]) for with_it in (False, True))
    added = ours - plain + statistics.median(loads)
    yield {"bench": "import of torch, --gradcomp=none", "case": f"{name}, processor time of what is added", "value": added, "unit": "ms",
           "peer": "promised", "peer_value": 10.0, "ratio": added / 10, "limit": 1.0}


def first_steps(cluster, name, python, runs):
    """... and a step of DDP on two nodes."""
    taken = {False: [], True: []}
    for number in range(runs):
        for with_it in taken:
            env = {"MASTER_ADDR": "n1", "MASTER_PORT": str(29400 + number), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "eth0",
                   "PYTHONPATH": ""}
            out = cluster.srun("-N2", "--nodelist=n1,n2", f"--gradcomp={'none' if with_it else 'off'}", "--mpi=pmix", "sh", "-c",
                               'RANK=$SLURM_PROCID exec "$0" "$1"', python, os.path.join(SOURCE, "bench/unmodified.py"), env=env)
            taken[with_it].append(rank_0(out)["first"])
    yield from compared("first step of DDP, --gradcomp=none", name, taken, 50)
