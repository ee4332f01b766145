"""What operators, schedule and transport each contribute to a step with PowerSGD, and what adding factors up gains over gathering them.

Each of the three is ours, PyTorch's or none. A row has the step in which all three are ours as its peer. PyTorch's operators are those
of its hook, which brings DDP's one bucket with it, so that schedule is never ours with them; and our operators run within a reducer, so that
their transport is always ours. The hook over our transport is left out: its step does not end there. So transport is compared without
compression. PyTorch's schedule is DDP's: buckets of 25 MiB. No schedule is one message after the last gradient.

Then the factors of that model, in a ring among 2 to 16 nodes: summed, which takes 2 (N-1) messages and 2 (N-1)/N of their bytes, or
gathered, which takes N-1 and N-1 times the bytes. Both are measured and predicted, with a message and a byte as `gradcomp probe` finds
them. What the sum over gathered factors takes is not in it."""

import configparser
import json
import os

import peer_programs
from frameworks import current_torch, medians, rank_0, shaped
from testbed import SOURCE, Cluster, say

RANK, WIDTH, LAYERS = 4, 1024, 8
OURS, TORCHS, NONE = "gradcomp's", "PyTorch's", "none"
POWERSGD, DDP = f"powersgd:rank={RANK}", "fixed:bytes=25M"
ALL = (OURS, OURS, OURS)
# (operators, schedule, transport): the hook, the SPEC and the schedule of the job, the backend.
WAYS = {ALL: ("gradcomp", POWERSGD, "mgwfbp", "gloo"),
        (NONE, OURS, OURS): ("gradcomp", "none", "mgwfbp", "gloo"),
        (OURS, TORCHS, OURS): ("gradcomp", POWERSGD, DDP, "gloo"),
        (OURS, NONE, OURS): ("gradcomp", POWERSGD, "single", "gloo"),
        (NONE, TORCHS, OURS): ("none", "none", None, "gradcomp"),
        (TORCHS, TORCHS, TORCHS): ("powersgd", "none", None, "gloo"),
        (NONE, TORCHS, TORCHS): ("none", "none", None, "gloo")}
NODES = (2, 4, 8, 16)
RANKS = (1, 4, 32, 128)


def figures(args, folder):
    with Cluster(args.name, args.prefix, share=[folder]) as cluster, shaped(cluster):
        yield from parts(cluster, args)
    nodes = NODES[:2] if args.quick else NODES
    with Cluster(args.name, args.prefix, nodes=max(nodes), share=[folder]) as cluster, shaped(cluster):
        for n in nodes:
            yield from summed_or_gathered(cluster, folder, n, RANKS[1:2] if args.quick else RANKS, 3 if args.quick else 12)


def parts(cluster, args):
    """The backend is for a current PyTorch; without one Debian's does the other rows."""
    python = current_torch()
    ways = {way: how for way, how in WAYS.items() if python or how[3] != "gradcomp"}
    taken = {way: [] for way in ways}
    for _ in range(args.runs):
        for way, how in ways.items():
            taken[way].append(step(cluster, python or "python3", 10 if args.quick else 40, *how))
            say("ablation: operators {}, schedule {}, transport {}: {:.1f} ms".format(*way, taken[way][-1]["step_ms"]))
    (ms,) = medians(taken, "step_ms")
    for way in ways:
        yield {"bench": "what each part contributes, a step at 1 Gbit/s",
               "case": "operators {}, schedule {}, transport {}".format(*way), "value": ms[way], "unit": "ms",
               "peer": "all gradcomp's", "peer_value": ms[ALL], "ratio": ms[way] / ms[ALL], "limit": None}


def step(cluster, python, steps, hook, spec, schedule, backend):
    told = {"backend": backend, "hook": hook, "rank": RANK, "width": WIDTH, "layers": LAYERS, "steps": steps}
    options = [f"--gradcomp={spec}", "--gradcomp-auto-attach=no"] + ([f"--gradcomp-schedule={schedule}"] if schedule else [])
    out = cluster.srun(*options, "--mpi=pmix", python, os.path.join(SOURCE, "bench/ablation_rank.py"), json.dumps(told), timeout=600)
    return rank_0(out)


def link(cluster, folder, nodes, seconds):
    """What a message takes, and a byte, in seconds."""
    machine = os.path.join(folder, "machine.ini")
    cluster.srun(f"-N{nodes}", "--mpi=pmix", "gradcomp", "probe", "--output", machine, "--compressors", "none", "--collectives",
                 "ring", "--sleeping", "--seconds", str(seconds))
    found = configparser.ConfigParser()
    found.read(machine)
    return found.getfloat("network", "message"), found.getfloat("network", "byte")


def summed_or_gathered(cluster, folder, nodes, ranks, seconds):
    message, byte = link(cluster, folder, nodes, seconds)
    say(f"ablation: {nodes} nodes: {1e6 * message:.0f} us a message, {1e9 * byte:.2f} ns a byte")
    here = peer_programs.Ranks(cluster, folder, [f"-N{nodes}", f"-n{nodes}"], nodes, True, 1, {})
    for r in ranks:
        factors = 4 * r * 2 * WIDTH * LAYERS  # bytes of a rank's P and Q
        calls = {"summed": ("all-reduce", factors, 2 * (nodes - 1) * (message + factors / nodes * byte)),
                 "gathered": ("all-gather", factors * nodes, (nodes - 1) * (message + factors * byte))}
        took = {}
        for way, (primitive, size, said) in calls.items():
            (row,) = here.gradcomp_rows("ring", [primitive], [size])
            took[way] = row["seconds"]
            yield {"bench": "factors in a ring at 1 Gbit/s, predicted", "case": f"{way}: rank {r}, {nodes} nodes", "value": said * 1e3,
                   "unit": "ms", "peer": "measured", "peer_value": took[way] * 1e3, "ratio": said / took[way], "limit": None}
        yield {"bench": "factors in a ring at 1 Gbit/s", "case": f"summed: rank {r}, {nodes} nodes", "value": took["summed"] * 1e3,
               "unit": "ms", "peer": "gathered", "peer_value": took["gathered"] * 1e3, "ratio": took["summed"] / took["gathered"],
               "limit": None}
