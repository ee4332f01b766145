#!/usr/bin/python3
"""The figure of doc/admin/scale.md: what grows with the number of ranks, up to 100,000. Lines are the formulas of that
page; points are what the programs named there have measured, and wrote as JSON.

    bench/scale_plot.py FILE.json... --svg FILE

The files are those of bench/fence, build/bench/scaling, build/bench/scaling --kill and build/bench/rendezvous, in any
order; points whose file is missing are left out. On two cores the work of all ranks adds up, so points of times stand above lines that give
every rank a core."""

import argparse
import json
import math

import agreement
import svg

P = [round(10 ** (k / 8)) for k in range(3, 41)]           # 2 to 100,000
RATE = 125e6                                               # of a link of 1 Gbit/s, bytes a second
CHUNK = 8.96e-3                                            # of 1 MiB over it, s
RECORD = 200                                               # of an endpoint, bytes
READ = 26e-6                                               # of a record through PMIx, of a processor, s
TAKE = 10e-6                                               # of a record from a list, at most
CALL = 200e-6                                              # of a new connection at each end
PER_NODE = 8
SIMULATED = ((4, 11.0), (10, 29.0), (24, 70.9), (64, 99.5), (256, 130.8), (1000, 149.2))   # bench/staging_sim NODES 2000
RADIX, WINDOW = 16, 64                                     # io/transfer
ENTRIES, FANOUT, NODES = 400, 16, 65_536                   # rendezvous: bytes of a client, relays, clients at most


def hops(n):
    """Of a chunk at most: digits of the largest offset, as bcast_tree_init()."""
    def digits(d):
        total = 0
        while d:
            total, d = total + d % RADIX, d // RADIX
        return total
    # The most of all numbers below n: a prefix of n - 1 with a digit one less, then the largest digits.
    d, scale, best = n - 1, 1, digits(n - 1)
    while scale <= d:
        if d // scale:
            best = max(best, digits((d // scale - 1) * scale + scale - 1))
        scale *= RADIX
    return best


def over(values, f):
    return [(p, f(p)) for p in values]


def join(rows):
    def fence(p):
        return p * READ + p * RECORD / RATE

    def own(p):
        nodes = math.ceil(p / PER_NODE)
        return math.ceil(math.log2(max(nodes, 2))) * 2 * CALL + p * RECORD / RATE + p * TAKE
    measured = [(r["ranks"], r["fence_s"] + r["read_s"]) for r in rows if r["what"] == "fence"]
    joined = [(r["ranks"], r["first_s"]) for r in rows if r["what"] == "join"]
    return {"title": "all ranks have all addresses", "x": "ranks", "y": "seconds", "legend": True, "room": 100,
            "lines": [("PMIx: reading 26 us a record, a core a rank", over(P, fence)),
                      ("an exchange of our own, a core a rank", over(P, own)),
                      ("measured: PMIx fence, 4 nodes on 2 cores", measured),
                      ("measured: join through a store in memory, 2 cores", joined)],
            "marks": ("measured: PMIx fence, 4 nodes on 2 cores", "measured: join through a store in memory, 2 cores"),
            "like": {"measured: PMIx fence, 4 nodes on 2 cores": "PMIx: reading 26 us a record, a core a rank"}}


def staging(_rows):
    nodes = [WINDOW] + [p for p in P if WINDOW < p < NODES] + [NODES]
    simulated = [(n, CHUNK * chunks) for n, chunks in SIMULATED]
    return {"title": "stagers: a chunk of 1 MiB is everywhere", "x": "nodes", "y": "seconds, 1 Gbit/s", "legend": True,
            "lines": [("tree, from 64 nodes on", over(nodes, lambda n: CHUNK * (WINDOW + 2 * hops(n)))),
                      ("round one ring, for comparison", over(P, lambda n: CHUNK * 2 * n)),
                      ("simulated (bench/staging_sim)", simulated)],
            "dashed": ("round one ring, for comparison",), "marks": ("simulated (bench/staging_sim)",)}


def rendezvous(rows):
    nodes = [p for p in P if p <= NODES] + [NODES]
    measured = [(r["ranks"], r["sent_bytes"]) for r in rows if r["what"] == "rendezvous"]
    return {"title": "rendezvous: what srun's node sends", "x": "nodes", "y": "bytes", "legend": True,
            "lines": [("to 16, which pass it on", over(nodes, lambda p: ENTRIES * p * min(p, FANOUT))),
                      ("to each node, for comparison", over(nodes, lambda p: ENTRIES * p * p)),
                      ("measured, clients on 2 cores", measured)],
            "dashed": ("to each node, for comparison",), "marks": ("measured, clients on 2 cores",),
            "like": {"measured, clients on 2 cores": "to 16, which pass it on"}}


def death(rows):
    o = argparse.Namespace(call=CALL, rtt=100e-6, hop=100e-6, rate=RATE)

    def agreed(p, count, what, how):
        return agreement.agreement(o, agreement.lose(p, count, what, how, 0))[0]
    large = [p for p in P if p >= 32]
    killed = [(r["ranks"], r["last_s"]) for r in rows if r["what"] == "killed"]
    return {"title": "a killed rank", "x": "ranks", "y": "seconds", "legend": True, "room": 100,
            "lines": [("named by all: 2 log2 P hops of 150 us", over(P, lambda p: 2 * math.log2(p) * 150e-6)),
                      ("who is left is agreed (bench/agreement.py)",
                       over(large, lambda p: agreed(p, 1, "any", agreement.REFUSES))),
                      ("the same, first rank's node silent",
                       over(large, lambda p: agreed(p, PER_NODE, "rack", agreement.SILENT))),
                      ("measured: named by all, 2 cores", killed)],
            "dashed": ("who is left is agreed (bench/agreement.py)", "the same, first rank's node silent"),
            "marks": ("measured: named by all, 2 cores",),
            "like": {"measured: named by all, 2 cores": "named by all: 2 log2 P hops of 150 us"}}


def memory(rows):
    def of(what):
        return [(r["ranks"], r["mean_bytes"]) for r in rows if r["what"] == what]
    least = min((y for _, y in of("join")), default=180e3)
    return {"title": "private memory of a rank", "x": "ranks", "y": "bytes", "legend": True,
            "lines": [("while joining: + 340 B a rank", over(P, lambda p: least + 340 * p)),
                      ("afterwards: + 125 B a rank", over(P, lambda p: least + 125 * p)),
                      ("measured: after joining", of("join")),
                      ("measured: after rhd", of("rhd")),
                      ("measured: after direct", of("direct"))],
            "marks": ("measured: after joining", "measured: after rhd", "measured: after direct"),
            "like": {"measured: after joining": "afterwards: + 125 B a rank"}}


def connections(rows):
    def of(what):
        return [(r["ranks"], r["sockets"]) for r in rows if r["what"] == what]
    return {"title": "sockets of a rank, at most", "x": "ranks", "y": "", "legend": True, "room": 10,
            "lines": [("direct: P - 1, and 4", over(P, lambda p: p + 3)),
                      ("rhd, auto, tree: 2 ceil(log2 P), and 6", over(P, lambda p: 2 * math.ceil(math.log2(p)) + 6)),
                      ("control tree and listener: 4", over(P, lambda p: 4)),
                      ("measured: after direct", of("direct")),
                      ("measured: after rhd", of("rhd")),
                      ("measured: after joining", of("join"))],
            "marks": ("measured: after direct", "measured: after rhd", "measured: after joining"),
            "like": {"measured: after direct": "direct: P - 1, and 4", "measured: after rhd": "rhd, auto, tree: 2 ceil(log2 P), and 6",
                     "measured: after joining": "control tree and listener: 4"}}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("files", nargs="*")
    p.add_argument("--svg", required=True)
    args = p.parse_args()
    rows = []
    for name in args.files:
        with open(name, encoding="utf-8") as f:
            rows += json.load(f)
    svg.plot(args.svg, "What grows with the number of ranks: formulas (lines) and what was measured on two cores (points)",
             [make(rows) for make in (join, staging, rendezvous, death, memory, connections)])


if __name__ == "__main__":
    main()
