"""Dense collectives of floats beside Open MPI, MPICH and Gloo, and beside the bound
that a plain TCP stream sets; bytes by the interface's counters."""

import json
import os
import statistics

import peer_programs
import svg

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB]
LARGE = 16 * MIB
OURS = "gradcomp"
# The part of the vector that the busiest link carries, on 4 ranks.
SHARE = {"all-reduce": 1.5, "reduce-scatter": 0.75, "all-gather": 0.75}


def size_text(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def row(link, case, mine, peer, theirs, limit):
    primitive, size = case
    return {"bench": f"{primitive}, {link}", "case": size_text(size), "value": mine * 1e3, "unit": "ms", "peer": peer,
            "peer_value": theirs * 1e3, "ratio": mine / theirs, "limit": limit, "link": link, "primitive": primitive,
            "bytes": size}


def in_order(seconds):
    return sorted(seconds, key=lambda c: (peer_programs.PRIMITIVES.index(c[0]), c[1]))


def unshaped(cluster, folder, args, layout, ranks, network, link):
    """Against the fastest peer of each size: not slower, 1.2 times faster at 16 MiB and more."""
    programs, spec = peer_programs.build(folder, cluster.env), peer_programs.collective(cluster.env)
    here = peer_programs.Ranks(cluster, folder, layout, ranks, network, 0.05 if args.quick else 0.3, programs)
    cases = [(p, n) for p in peer_programs.PRIMITIVES for n in SIZES]
    ours, theirs = [], {}
    choice = here.openmpi_choice(cases, args.quick) if "Open MPI" in programs else []
    mpich = "MPICH" in programs
    for _ in range(args.runs):
        ours.append(here.gradcomp(spec, SIZES))
        if choice:
            theirs.setdefault("Open MPI", []).append(peer_programs.best([here.openmpi(v, c) for v, c in choice]))
        theirs.setdefault("Gloo", []).append(here.gloo(cases))
        measured = here.mpich(cases) if mpich else None
        mpich = measured is not None
        if mpich:
            theirs.setdefault("MPICH", []).append(measured)
    mine, medians = peer_programs.median(ours), {p: peer_programs.median(s) for p, s in theirs.items()}
    for case in in_order(mine):
        there = {p: m[case] for p, m in medians.items() if case in m}
        for peer, seconds in there.items():
            first = seconds == min(there.values())
            yield row(link, case, mine[case], peer, seconds, (1 / 1.2 if case[1] >= LARGE else 1.0) if first else None)


def goodput(cluster):
    """Bytes a second of one TCP stream from node 2 to node 1."""
    stream = os.path.join(peer_programs.PEERS, "tcp_stream.py")
    with cluster.start(1, stream, "receive", "10777") as receiver:
        try:
            cluster.run_on(2, "sh", "-c", f"sleep 0.3; exec {stream} send n1 10777 2", timeout=30)
            out, _ = receiver.communicate(timeout=10)
        finally:
            receiver.kill()
    return json.loads(out)["goodput"]


def shaped(cluster, folder, args, rate, link, promised):
    """Against what a plain stream's goodput allows: within 5 % at 16 MiB and more."""
    programs, spec = peer_programs.build(folder, cluster.env), peer_programs.collective(cluster.env)
    here = peer_programs.Ranks(cluster, folder, ["-N4"], 4, True, 0.05, programs)
    sizes = SIZES[2:4] if args.quick else SIZES
    cases = [(p, n) for p in peer_programs.PRIMITIVES for n in sizes]
    ours, streams, theirs = [], [], {}
    cluster.rate(rate)
    try:
        for _ in range(args.runs):
            streams.append(goodput(cluster))
            ours.append(here.gradcomp(spec, sizes))
            theirs.setdefault("Gloo", []).append(here.gloo(cases))
            if "Open MPI" in programs:
                theirs.setdefault("Open MPI", []).append(
                    {**here.openmpi(peer_programs.OPENMPI[0], [c for c in cases if c[1] < MIB] or cases[:1]),
                     **here.openmpi(peer_programs.OPENMPI_RING, [c for c in cases if c[1] >= MIB])})
    finally:
        cluster.rate("off")
    mine, medians, stream = peer_programs.median(ours), {p: peer_programs.median(s) for p, s in theirs.items()}, statistics.median(streams)
    for case in in_order(mine):
        yield row(link, case, mine[case], "a TCP stream's bound", SHARE[case[0]] * case[1] / stream,
                  1.05 if promised and case[1] >= LARGE else None)
        for peer, m in medians.items():
            if case in m:
                yield row(link, case, mine[case], peer, m[case], None)


def wire(cluster, folder):
    """What a node's interface sends for one call: the difference between many calls and few."""
    here, size = peer_programs.Ranks(cluster, folder, ["-N4"], 4, True, 10, {}), 16 * MIB
    spec = peer_programs.collective(cluster.env)
    for primitive in peer_programs.PRIMITIVES:
        counted = []
        for iterations in (4, 12):
            before = cluster.sent()
            here.gradcomp_rows(spec, [primitive], [size], "--iters", str(iterations))
            counted.append(cluster.sent() - before)
        sent = (counted[1] - counted[0]) / 8 / cluster.nodes
        yield {"bench": "bytes a node on the interface", "case": f"{primitive}, {size_text(size)}", "value": sent / 1e6,
               "unit": "MB", "peer": "formula", "peer_value": SHARE[primitive] * size / 1e6,
               "ratio": sent / (SHARE[primitive] * size), "limit": 1.03, "least": 0.97}


def plot(path, rows):
    """A panel for each link and primitive, times over bytes."""
    rows = [r for r in rows if "link" in r]
    panels = []
    for link in dict.fromkeys(r["link"] for r in rows):
        for primitive in peer_programs.PRIMITIVES:
            lines = {OURS: {}}
            for r in rows:
                if (r["link"], r["primitive"]) == (link, primitive):
                    lines[OURS][r["bytes"]] = r["value"] / 1e3
                    lines.setdefault(r["peer"], {})[r["bytes"]] = r["peer_value"] / 1e3
            panels.append({"title": f"{primitive}, {link}", "x": "bytes", "y": "seconds", "at": SIZES,
                           "dashed": ["a TCP stream's bound"],
                           "lines": [(name, sorted(line.items())) for name, line in lines.items()]})
    if panels:
        svg.plot(path, "Dense collectives of floats, medians", panels)
