"""gradcomp's collectives and its peers' on the same ranks: Open MPI, MPICH and
PyTorch's Gloo, each checked before it is timed.

A case is (primitive, bytes of the whole vector); what every program returns is
{case: seconds}."""

import json
import os
import shutil
import statistics

from testbed import SOURCE, Failed, run, say

PEERS = os.path.join(SOURCE, "bench/peers")
PRIMITIVES = ("all-reduce", "reduce-scatter", "all-gather")
FOREVER = 300

# Open MPI is given its best of these: its own choice, doubling, ring, and pairwise or
# segmented ways; with and without giving up the CPU while it waits.
_WAYS = ({}, {"allreduce": 3, "reduce_scatter": 2, "reduce_scatter_block": 2, "allgather": 3},
         {"allreduce": 4, "reduce_scatter": 3, "reduce_scatter_block": 3, "allgather": 4},
         {"allreduce": 5, "reduce_scatter": 1, "reduce_scatter_block": 4, "allgather": 5})
OPENMPI = [{"OMPI_MCA_mpi_yield_when_idle": idle,
            **({"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"} if way else {}),
            **{f"OMPI_MCA_coll_tuned_{name}_algorithm": str(number) for name, number in way.items()}}
           for idle in ("0", "1") for way in _WAYS]
OPENMPI_RING = OPENMPI[6]
# Between namespaces it must be told to leave loopback alone.
OPENMPI_NET = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "eth0"}


def build(folder, env):
    """{peer: program} for every MPI that can be compiled with."""
    programs = {}
    for peer, compiler in (("Open MPI", "mpicc.openmpi"), ("MPICH", "mpicc.mpich")):
        if shutil.which(compiler, path=env["PATH"]) is None:
            say(f"bench: no {compiler}: {peer} is left out")
            continue
        programs[peer] = os.path.join(folder, compiler)
        run([compiler, "-O2", "-o", programs[peer], os.path.join(PEERS, "mpi_collectives.c")], env, 60)
    return programs


def installed(name, env):
    return f"\n  {name} " in run(["gradcomp", "list"], env, 30)


def collective(env):
    """The one that a user who wants speed names."""
    return "auto" if installed("auto", env) else "ring"


def _rows(text):
    return json.loads(text) if text.lstrip().startswith("[") else [json.loads(r) for r in text.splitlines() if r]


def _seconds(rows, ranks):
    out = {}
    for r in rows:
        if not r["correct"] or r["ranks"] != ranks:
            raise Failed(f"{r['primitive']} of {r['bytes']} bytes on {r['ranks']} ranks was wrong")
        # Both kinds of reduce-scatter are one; the faster counts.
        case = (r["primitive"].removesuffix("-block"), r["bytes"])
        out[case] = min(r["seconds"], out.get(case, r["seconds"]))
    return out


def best(samples):
    """The smallest of each case."""
    return {case: min(s[case] for s in samples if case in s) for case in {c for s in samples for c in s}}


def median(samples):
    return {case: statistics.median(s[case] for s in samples if case in s) for case in {c for s in samples for c in s}}


class Ranks:
    """`layout` are srun's options that place `ranks` ranks; `seconds` is about what a
    case may take."""

    def __init__(self, cluster, folder, layout, ranks, network, seconds, programs):
        self.cluster, self.folder, self.layout, self.ranks = cluster, folder, layout, ranks
        self.network, self.seconds, self.programs = network, seconds, programs

    def srun(self, *argv, env=None, timeout=FOREVER):
        return self.cluster.run("srun", *self.layout, "--time=6", "--kill-on-bad-exit=1", *argv, timeout=timeout,
                                env=env)

    def gradcomp_rows(self, collectives, primitives, sizes, *more):
        result = os.path.join(self.folder, "collectives.json")
        self.srun("--gradcomp=none", "--mpi=pmix", "gradcomp", "bench", "collectives", "--collectives", collectives,
                  "--primitives", ",".join(primitives), "--bytes", ",".join(map(str, sizes)), "--seconds",
                  str(self.seconds), "--json", result, *more)
        with open(result, encoding="utf-8") as f:
            return _rows(f.read())

    def gradcomp(self, spec, sizes):
        return _seconds(self.gradcomp_rows(spec, PRIMITIVES, sizes), self.ranks)

    def gloo(self, cases):
        """It has no reduce-scatter."""
        return _seconds(_rows(self.srun("--mpi=none", "python3", os.path.join(PEERS, "gloo_collectives.py"),
                                        str(self.seconds), *[f"{p}:{n}" for p, n in cases if p != "reduce-scatter"])),
                        self.ranks)

    def _mpi(self, peer, server, cases, env, timeout=FOREVER, seconds=None):
        both = [(p, n) for c, n in cases for p in ((c, c + "-block") if c == "reduce-scatter" else (c,))]
        return _seconds(_rows(self.srun(server, self.programs[peer], str(seconds or self.seconds),
                                        *[f"{p}:{n}" for p, n in both], env=env, timeout=timeout)), self.ranks)

    def openmpi(self, variant, cases, seconds=None, timeout=FOREVER):
        return self._mpi("Open MPI", "--mpi=pmix", cases, {**(OPENMPI_NET if self.network else {}), **variant},
                         timeout, seconds)

    def openmpi_choice(self, cases, quick):
        """[(variant, the cases that it is fastest in)], after a short trial of all; one that
        takes a minute over that is none of the fastest."""
        tried = []
        for variant in OPENMPI[::3] if quick else OPENMPI:
            try:
                tried.append((variant, self.openmpi(variant, cases, self.seconds / 8, 60)))
            except Failed as e:
                say(f"bench: a way of Open MPI is left out: {str(e).splitlines()[0][:200]}")
        winner = {c: min(range(len(tried)), key=lambda i, c=c: tried[i][1][c]) for c in cases} if tried else {}
        return [(tried[i][0], [c for c in cases if winner[c] == i]) for i in sorted(set(winner.values()))]

    def mpich(self, cases):
        """It spins while it waits, and Debian's under pmi2 now and then never ends."""
        try:
            return self._mpi("MPICH", "--mpi=pmi2", cases, {}, timeout=60)
        except Failed as e:
            say(f"bench: MPICH is left out: {str(e).splitlines()[0]}")
            return None
