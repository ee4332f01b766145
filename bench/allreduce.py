"""All-reduce of floats: gradcomp's `none` over `ring` beside Gloo, Open MPI and
MPICH on the same links in the same run, and beside the ring's bound."""

import json
import os
import shutil
import statistics

from testbed import SOURCE, Failed, run, say

PEERS = os.path.join(SOURCE, "bench/peers")
MIB = 1 << 20

# Open MPI is given its best of these; algorithm 3 is recursive doubling, 4 ring,
# 5 segmented ring. Between namespaces it must be told to leave loopback alone.
OPENMPI = [{"OMPI_MCA_mpi_yield_when_idle": y, **algorithm}
           for y in ("0", "1")
           for algorithm in [{}] + [{"OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
                                     "OMPI_MCA_coll_tuned_allreduce_algorithm": a} for a in ("3", "4", "5")]]
OPENMPI_NET = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "eth0"}


def build_peers(folder, env):
    """{peer: program} for every MPI that can be compiled with."""
    programs = {}
    for peer, compiler in (("Open MPI", "mpicc.openmpi"), ("MPICH", "mpicc.mpich")):
        if shutil.which(compiler, path=env["PATH"]) is None:
            say(f"bench: no {compiler}: {peer} is left out")
            continue
        programs[peer] = os.path.join(folder, compiler)
        run([compiler, "-O2", "-o", programs[peer], os.path.join(PEERS, "mpi_allreduce.c")], env, 60)
    return programs


def _seconds(text, ranks):
    """{bytes: seconds} from a peer's or our own rows, checked."""
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(r) for r in text.splitlines() if r]
    for r in rows:
        if not r["correct"] or r["ranks"] != ranks:
            raise Failed(f"an all-reduce of {r['bytes']} bytes on {r['ranks']} ranks was wrong")
    return {r["bytes"]: r["seconds"] for r in rows}


def _best(samples):
    """The smallest of each size."""
    return {size: min(s[size] for s in samples) for size in samples[0]}


def _median(samples):
    return {size: statistics.median(s[size] for s in samples) for size in samples[0]}


class Measurement:
    """`layout` are srun's options that place four ranks."""

    def __init__(self, cluster, folder, layout, network):
        self.cluster, self.folder, self.layout, self.network = cluster, folder, layout, network

    def _srun(self, *argv, env=None, timeout=240):
        return self.cluster.run("srun", *self.layout, "--time=5", "--kill-on-bad-exit=1", *argv, timeout=timeout,
                                env=env)

    def gradcomp(self, iterations, sizes):
        result = os.path.join(self.folder, "allreduce.json")
        self._srun("--gradcomp=none", "--mpi=pmix", "gradcomp", "bench", "allreduce", "--iters", str(iterations),
                   "--bytes", ",".join(map(str, sizes)), "--json", result)
        with open(result, encoding="utf-8") as f:
            return _seconds(f.read(), 4)

    def gloo(self, iterations, sizes):
        return _seconds(self._srun("--mpi=none", "python3", os.path.join(PEERS, "gloo_allreduce.py"), str(iterations),
                                   *map(str, sizes)), 4)

    def openmpi(self, program, iterations, sizes, variants):
        return [_seconds(self._srun("--mpi=pmix", program, str(iterations), *map(str, sizes),
                                    env={**(OPENMPI_NET if self.network else {}), **v}), 4) for v in variants]

    def mpich(self, program, iterations, sizes):
        """Debian's MPICH under pmi2 now and then never leaves MPI_Finalize: tried
        three times, and left out of this run when none of them ends."""
        for attempt in range(1, 4):
            try:
                return _seconds(self._srun("--mpi=pmi2", program, str(iterations), *map(str, sizes), timeout=45), 4)
            except Failed as e:
                say(f"bench: MPICH, attempt {attempt} of 3: {str(e).splitlines()[0]}")
        return None


def goodput(cluster):
    """Bytes a second of one TCP stream from node 2 to node 1."""
    stream = os.path.join(PEERS, "tcp_stream.py")
    with cluster.start(1, stream, "receive", "10777") as receiver:
        try:
            cluster.run_on(2, "sh", "-c", f"sleep 0.3; exec {stream} send n1 10777 3", timeout=30)
            out, _ = receiver.communicate(timeout=10)
        finally:
            receiver.kill()
    return json.loads(out)["goodput"]


def shaped(cluster, folder, runs):
    """64 MiB at 1 Gbit/s against 2(P-1)/P*S over a plain stream's goodput."""
    size, here = 64 * MIB, Measurement(cluster, folder, ["-N4"], True)
    ours, gloo, bound = [], [], []
    cluster.rate("1gbit")
    for _ in range(runs):
        bound.append(1.5 * size / goodput(cluster))
        ours.append(here.gradcomp(5, [size])[size])
        gloo.append(here.gloo(5, [size])[size])
    cluster.rate("off")
    mine = statistics.median(ours) * 1e3
    for peer, seconds, target in (("ring's bound over a plain TCP stream", bound, 1.08), ("Gloo", gloo, None)):
        theirs = statistics.median(seconds) * 1e3
        yield {"bench": "all-reduce, 4 nodes, 1 Gbit/s", "case": "64 MiB", "value": mine, "unit": "ms", "peer": peer,
               "peer_value": theirs, "ratio": mine / theirs, "limit": target}


def unshaped(cluster, folder, runs, layout, network, title):
    """Four sizes against the faster of the two MPIs."""
    sizes = [1024, MIB, 16 * MIB, 64 * MIB]
    here, programs = Measurement(cluster, folder, layout, network), build_peers(folder, cluster.env)
    ours, theirs, variants = [], {p: [] for p in programs}, []
    if "Open MPI" in programs:
        # A short trial of all; what wins at some size is then measured.
        tried = here.openmpi(programs["Open MPI"], 3, sizes, OPENMPI)
        best = _best(tried)
        variants = [v for v, t in zip(OPENMPI, tried) if any(t[s] == best[s] for s in sizes)]
    for _ in range(runs):
        ours.append(here.gradcomp(10, sizes))
        if variants:
            theirs["Open MPI"].append(_best(here.openmpi(programs["Open MPI"], 10, sizes, variants)))
        if "MPICH" in programs:
            theirs["MPICH"] += filter(None, [here.mpich(programs["MPICH"], 5, sizes)])
    mine, medians = _median(ours), {p: _median(s) for p, s in theirs.items() if s}
    for size in sizes:
        fastest = min((m[size] for m in medians.values()), default=None)
        for peer, m in medians.items():
            limit = (1.5 if size == 1024 else 1.0) if m[size] == fastest else None
            yield {"bench": title, "case": f"{size // MIB} MiB" if size >= MIB else "1 KiB", "value": mine[size] * 1e3,
                   "unit": "ms", "peer": peer, "peer_value": m[size] * 1e3, "ratio": mine[size] / m[size],
                   "limit": limit}
