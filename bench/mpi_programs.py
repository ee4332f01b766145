"""MPI programs with gradcomp's library below them, beside the same without it: 64 MiB of floats by 8 bits, 4 nodes at
1 Gbit/s. Open MPI is given the better of its own choice and a ring."""

import json
import os

import peer_programs
from testbed import Failed, say

MIB = 1 << 20
SIZE = 64 * MIB
PRIMITIVES = ("all-gather", "reduce-scatter", "reduce-scatter-block", "all-reduce")
LIMIT = {"all-gather": 0.27, "reduce-scatter": 0.27, "reduce-scatter-block": 0.27}
SPEC = "block:bits=8"
# MPI: (library, what srun serves it by, environments).
MPIS = {"Open MPI": ("openmpi.so", "--mpi=pmix", [peer_programs.OPENMPI_NET, {**peer_programs.OPENMPI_NET, **peer_programs.OPENMPI_RING}]),
        "MPICH": ("mpich.so", "--mpi=pmi2", [{}])}


def _seconds(cluster, program, server, env, args, library=None):
    """{primitive: seconds}."""
    more = [f"--gradcomp={SPEC}", f"--export=ALL,LD_PRELOAD={library}"] if library else []
    text = cluster.srun(server, *more, program, "0.1" if args.quick else "2", *[f"{p}:{SIZE}:any" if library else f"{p}:{SIZE}" for p in PRIMITIVES], env=env, timeout=120)
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not library and not all(r["correct"] for r in rows):
        raise Failed(f"{program} was wrong")
    return {r["primitive"]: r["seconds"] for r in rows}


def figures(cluster, folder, args):
    programs = peer_programs.build(folder, cluster.env)
    cluster.rate("1gbit")
    try:
        for mpi, program in programs.items():
            name, server, environments = MPIS[mpi]
            library = os.path.join(args.prefix, "lib/gradcomp/pmpi", name)
            if not os.path.exists(library):
                say(f"bench: there is no {library}: {mpi} is left out")
                continue
            own, coded = [], []
            try:
                for _ in range(args.runs):
                    own.append(peer_programs.best([_seconds(cluster, program, server, env, args) for env in environments]))
                    coded.append(_seconds(cluster, program, server, environments[0], args, library))
            except Failed as e:
                say(f"bench: {mpi} is left out: {str(e).splitlines()[0]}")
                continue
            mine, theirs = peer_programs.median(coded), peer_programs.median(own)
            for p in PRIMITIVES:
                yield {"bench": f"a program of {mpi}, {p} of 64 MiB, 1 Gbit/s", "case": SPEC, "value": mine[p] * 1e3, "unit": "ms",
                       "peer": "without the library", "peer_value": theirs[p] * 1e3, "ratio": mine[p] / theirs[p], "limit": LIMIT.get(p)}
    finally:
        cluster.rate("off")
