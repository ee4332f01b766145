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
# MPI: (library, primitives, environments). All four of MPICH may take minutes.
MPIS = {"Open MPI": ("openmpi.so", PRIMITIVES, [peer_programs.OPENMPI_NET, {**peer_programs.OPENMPI_NET, **peer_programs.OPENMPI_RING}]),
        "MPICH": ("mpich.so", PRIMITIVES[:2], [{}])}


def _start(cluster, mpi, library, command, env):
    """MPICH's under srun now and then never ends; so it is started by its own launcher."""
    if mpi == "Open MPI":
        more = [f"--gradcomp={SPEC}", f"--export=ALL,LD_PRELOAD={library}"] if library else []
        return cluster.srun("--mpi=pmix", *more, *command, env=env, timeout=120)
    more = ["-genv", "GRADCOMP", SPEC, "-genv", "LD_PRELOAD", library] if library else []
    return cluster.run("salloc", "-Q", f"-N{cluster.nodes}", f"-n{cluster.nodes}", "mpiexec.mpich", "-ppn", "1", "-n", str(cluster.nodes), "-genv", "UCX_NET_DEVICES",
                       "eth0", *more, *command, env=env, timeout=180)


def _seconds(cluster, program, mpi, env, args, library=None):
    """{primitive: seconds}."""
    cases = [f"{p}:{SIZE}:any" if library else f"{p}:{SIZE}" for p in MPIS[mpi][1]]
    text = _start(cluster, mpi, library, [program, "0.1" if args.quick else "2", *cases], env)
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not library and not all(r["correct"] for r in rows):
        raise Failed(f"{program} was wrong")
    return {r["primitive"]: r["seconds"] for r in rows}


def figures(cluster, folder, args):
    programs = peer_programs.build(folder, cluster.env)
    cluster.rate("1gbit")
    try:
        for mpi, program in programs.items():
            name, primitives, environments = MPIS[mpi]
            library = os.path.join(args.prefix, "lib/gradcomp/pmpi", name)
            if not os.path.exists(library):
                say(f"bench: there is no {library}: {mpi} is left out")
                continue
            own, coded = [], []
            try:
                for _ in range(args.runs):
                    own.append(peer_programs.best([_seconds(cluster, program, mpi, env, args) for env in environments]))
                    coded.append(_seconds(cluster, program, mpi, environments[0], args, library))
            except Failed as e:
                say(f"bench: {mpi} is left out: {str(e).splitlines()[0]}")
                continue
            mine, theirs = peer_programs.median(coded), peer_programs.median(own)
            for p in primitives:
                yield {"bench": f"a program of {mpi}, {p} of 64 MiB, 1 Gbit/s", "case": SPEC, "value": mine[p] * 1e3, "unit": "ms",
                       "peer": "without the library", "peer_value": theirs[p] * 1e3, "ratio": mine[p] / theirs[p], "limit": LIMIT.get(p)}
    finally:
        cluster.rate("off")
