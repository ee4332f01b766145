#!/usr/bin/python3
"""What bench/scaling measured, as a plot, a Markdown table and an extrapolation.

    bench/scaling_plot.py FILE.json [--svg FILE]

Only what belongs to one rank is extrapolated: its CPU time for a call of every
primitive, its memory and its descriptors. Each is fitted to a + b x, x being the number
of ranks or its logarithm, whichever leaves less (in relative terms); memory to the
number of ranks, since every rank has a list of all."""

import argparse
import json
import math

import svg

FAR = (1000, 10000, 100000)
LAWS = (("P", float), ("log2 P", math.log2))


def own_cpu(rows):
    """Rows with `call_s`: CPU seconds of a rank for joining, or for one of the two rounds
    of all primitives."""
    for r in rows:
        r["call_s"] = r["cpu_s"] / r["ranks"] / (1 if r["what"] == "join" else 2)
    return rows


def fit(points, laws):
    """(law, a, b): the better of two straight lines, by squares of relative errors."""
    best = None
    for name, law in laws:
        xs, ys = [law(p) for p, _ in points], [y for _, y in points]
        w = [1 / y ** 2 for y in ys]
        mx, my = (sum(wi * v for wi, v in zip(w, vs)) / sum(w) for vs in (xs, ys))
        spread = sum(wi * (x - mx) ** 2 for wi, x in zip(w, xs))
        b = sum(wi * (x - mx) * (y - my) for wi, x, y in zip(w, xs, ys)) / spread
        a = my - b * mx
        off = sum(wi * (a + b * x - y) ** 2 for wi, x, y in zip(w, xs, ys))
        if best is None or off < best[0]:
            best = (off, name, law, a, b)
    return best[1:]


def extrapolated(points, laws):
    """The law's name, and the values at FAR; "-" for fewer than three points."""
    points = [(p, y) for p, y in points if y > 0]
    if len(points) < 3:
        return ["-"] * (1 + len(FAR))
    name, law, a, b = fit(points, laws)
    return [name] + [a + b * law(p) for p in FAR]


def shown(value, scale, digits=3):
    if not isinstance(value, float):
        return str(value)
    rounded = float(f"{value * scale:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def table(rows, key, scale, caption, which=lambda _: True, laws=LAWS):
    counts = sorted({r["ranks"] for r in rows})
    lines = [f"| {caption} | " + " | ".join(map(str, counts)) + " | grows as | " + " | ".join(f"{p:,}" for p in FAR) + " |",
             "|---" * (len(counts) + 2 + len(FAR)) + "|"]
    for what in dict.fromkeys(r["what"] for r in rows if key in r and which(r["what"])):
        points = [(r["ranks"], float(r[key])) for r in rows if r["what"] == what]
        there = dict(points)
        cells = [shown(there[p], scale) if p in there else "-" for p in counts]
        law, *far = extrapolated(points, laws)
        lines.append(f"| {what} | " + " | ".join(cells + [law] + [shown(v, scale, 2) for v in far]) + " |")
    return "\n".join(lines) + "\n"


def plot(path, rows):
    def lines(key, which=lambda _: True):
        return [(what, [(r["ranks"], r[key]) for r in rows if r["what"] == what and r.get(key, 0) > 0])
                for what in dict.fromkeys(r["what"] for r in rows) if which(what)]

    def plain(what):
        return "coded" not in what and what != "join"
    svg.plot(path, "A job on one machine of two cores, over loopback TCP",
             [{"title": "joining", "x": "ranks", "y": "seconds", "lines": lines("first_s", lambda w: w == "join")},
              {"title": "all primitives, first time (connects)", "x": "ranks", "y": "seconds",
               "lines": lines("first_s", plain)},
              {"title": "all primitives, again", "x": "ranks", "y": "seconds", "lines": lines("again_s", plain)},
              {"title": "CPU of a rank, for each round", "x": "ranks", "y": "seconds", "lines": lines("call_s", plain)},
              {"title": "memory of a rank (mean)", "x": "ranks", "y": "bytes", "lines": lines("mean_bytes", lambda w: "coded" not in w)},
              {"title": "descriptors of a rank (most)", "x": "ranks", "y": "", "lines": lines("descriptors", lambda w: "coded" not in w)}])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("file")
    p.add_argument("--svg")
    args = p.parse_args()
    with open(args.file, encoding="utf-8") as f:
        rows = own_cpu(json.load(f))
    print(table(rows, "call_s", 1e3, "CPU of a rank, ms"))
    print(table(rows, "mean_bytes", 1e-6, "memory of a rank, MB", lambda w: "coded" not in w, LAWS[:1]))
    print(table(rows, "descriptors", 1, "descriptors of a rank", lambda w: "coded" not in w))
    if args.svg:
        plot(args.svg, rows)


if __name__ == "__main__":
    main()
