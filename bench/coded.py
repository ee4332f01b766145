"""Compression on the way: coded collectives against plain ones and against coding at
every hop; two-level top-k and gTop-k by what the interfaces count."""

import math

import peer_programs
from wire import a_step, step_seconds

MIB = 1 << 20
SIZE = 64 * MIB
PRIMITIVES = ("reduce-scatter", "all-gather")
# (code, link, primitive): the most of the plain time that is promised.
AGAINST_NONE = {("block:bits=8", "1gbit", "all-gather"): 0.35, ("block:bits=8", "1gbit", "reduce-scatter"): 0.40,
                ("block:bits=4", "1gbit", "all-gather"): 0.20, ("block:bits=4", "1gbit", "reduce-scatter"): 0.25}
# Of the time with a code at every hop, where the wire does not hide the code.
AGAINST_HOP = {("block:bits=8", link, primitive): limit for link in ("2.5gbit", "off")
               for primitive, limit in (("all-gather", 0.70), ("reduce-scatter", 0.80))}
LINKS = (("1gbit", "1 Gbit/s"), ("2.5gbit", "2.5 Gbit/s"), ("off", "unshaped"))


def _row(link, primitive, spec, mine, peer, theirs, limit):
    return {"bench": f"coded {primitive} of 64 MiB, {link}", "case": spec, "value": mine * 1e3, "unit": "ms",
            "peer": peer, "peer_value": theirs * 1e3, "ratio": mine / theirs, "limit": limit}


def coded(cluster, folder, args):
    codes = ("block:bits=8",) if args.quick else ("block:bits=8", "block:bits=4")
    here = peer_programs.Ranks(cluster, folder, ["-N4"], 4, True, 0.6, {})
    names = PRIMITIVES + tuple("coded-" + p for p in PRIMITIVES)
    for rate, link in LINKS:
        cluster.rate(rate)
        samples, counts = [], {}
        try:
            for _ in range(args.runs):
                rows = here.gradcomp_rows("ring,ring:mode=hop", names, [SIZE], "--compressors", ",".join(codes))
                rows = {(r["collective"], r["primitive"], r["compressor"]): r for r in rows}
                samples.append({k: r["seconds"] for k, r in rows.items()})
                counts.update({k: r["blocks_coded"] for k, r in rows.items()})
        finally:
            cluster.rate("off")
        middle = peer_programs.median(samples)
        for spec in codes:
            for primitive in PRIMITIVES:
                mine, key = middle["ring", "coded-" + primitive, spec], (spec, rate, primitive)
                yield _row(link, primitive, spec, mine, "none", middle["ring", primitive, "-"], AGAINST_NONE.get(key))
                yield _row(link, primitive, spec, mine, "mode=hop", middle["ring:mode=hop", "coded-" + primitive, spec],
                           AGAINST_HOP.get(key))
    assisted, hop = (counts[c, "coded-all-gather", "block:bits=8"] for c in ("ring", "ring:mode=hop"))
    yield {"bench": "blocks coded by a rank, all-gather", "case": "block:bits=8", "value": assisted, "unit": "", "peer":
           "mode=hop", "peer_value": hop, "ratio": assisted / hop, "limit": 1 / 3 + 1e-6, "least": 1 / 3 - 1e-6}


NUMBERS, DENSITY = 4 * MIB, 0.01


def levels(cluster, folder):
    """hier against the flat all-gather, on 2 nodes of 2 ranks: at most 1/2 of the bytes into
    a node. (A ring brings more than every other node's payloads: some come around again.)"""
    spec, tensors, place = f"topk:density={DENSITY}", str(NUMBERS), ["-N2", "-n4", "--ntasks-per-node=2"]
    options = {c: place + [f"--gradcomp={spec}", f"--gradcomp-collective={c}"] for c in ("hier", "ring")}
    two, flat = (max(received for _, received in a_step(cluster, options[c], tensors)) for c in ("hier", "ring"))
    formula = 2 * 4 * round(DENSITY * NUMBERS)
    for peer, theirs, limit, least in (("2*density*d*(m-1) words", formula, 1.03, 0.97),
                                       ("flat all-gather", flat, 0.5 * 1.03, 0)):
        yield {"bench": "bytes a node receives a step, 2 nodes x 2 ranks", "case": f"{spec}, hier", "value": two / 1e6,
               "unit": "MB", "peer": peer, "peer_value": theirs / 1e6, "ratio": two / theirs, "limit": limit,
               "least": least}
    for rate, link in LINKS:
        cluster.rate(rate)
        try:
            two, flat = (step_seconds(cluster, options[c], tensors, folder) for c in ("hier", "ring"))
        finally:
            cluster.rate("off")
        yield {"bench": f"a step, 2 nodes x 2 ranks, {link}", "case": f"{spec}, hier", "value": two * 1e3, "unit": "ms",
               "peer": "flat all-gather", "peer_value": flat * 1e3, "ratio": two / flat, "limit": None}


def merged(cluster):
    """What the root of gTop-k's tree sends and receives."""
    spec, k = f"gtopk:density={DENSITY}", round(DENSITY * NUMBERS)
    formula = 2 * 8 * k * math.ceil(math.log2(cluster.nodes))
    options = [f"-N{cluster.nodes}", f"--gradcomp={spec}", "--gradcomp-collective=tree"]
    busiest = max(map(sum, a_step(cluster, options, str(NUMBERS))))
    yield {"bench": "bytes of the busiest node a step", "case": spec, "value": busiest / 1e6, "unit": "MB",
           "peer": "2*8k*ceil(log2 P)", "peer_value": formula / 1e6, "ratio": busiest / formula, "limit": 1.03,
           "least": 0.97}
