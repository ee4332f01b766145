#!/usr/bin/python3
"""A few steps of a timeline (GRADCOMP_TRACE) as a picture.

    bench/trace_plot.py TRACE.json PICTURE.svg [--steps A-B] [--ranks N] [--title TEXT]

A row for each thread of each rank: the application's, with a stroke for each gradient that
is ready and the time it waits; the compute thread's; the exchange thread's. Numbers are
buckets. The reducer is the first one of the job."""

import argparse
import json

import svg

WIDTH, LEFT, ROW, GAP = 1100, 112, 22, 12
KINDS = {"begin": "#9ecae1", "encode": "#0b62a4", "exchange": "#d1495b", "decode": "#3a7d44", "finish": "#a1d99b",
         "reduce_local": "#e09f3e", "local_begin": "#6f4e7c", "local_end": "#17a2b8", "allgather_local": "#a05d2c", "replan": "#555555",
         "wait": "#dddddd", "wait_for": "#dddddd"}
THREADS = ("application", "compute", "exchange")


def chosen(events, steps, ranks):
    """(slices and instants of the steps, names of ranks)"""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name" and e["pid"] < ranks}
    first, last = steps
    return [e for e in events if e["ph"] in "Xi" and e["pid"] in names and e["tid"] <= 4 and e["name"] != "step"
            and first <= e["args"]["step"] <= last], names


def picture(events, names, title):
    begin = min(e["ts"] for e in events)
    end = max(e["ts"] + e.get("dur", 0) for e in events)
    top = {rank: 60 + i * (len(THREADS) * ROW + GAP) for i, rank in enumerate(sorted(names))}
    bottom = max(top.values()) + len(THREADS) * ROW

    def place(ts):
        return LEFT + (ts - begin) / (end - begin) * (WIDTH - LEFT - 10)

    out = [svg.text(WIDTH / 2, 20, title, 15)]
    used = [k for k in KINDS if any(e["name"] == k for e in events) and k != "wait_for"]
    for i, kind in enumerate(used):
        out.append(f'<rect x="{LEFT + i * 96}" y="32" width="14" height="10" fill="{KINDS[kind]}"/>')
        out.append(svg.text(LEFT + i * 96 + 18, 41, kind, 11, "start"))
    every = next(t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1e9) if (end - begin) / 1e3 / t <= 20)
    for k in range(int((end - begin) / 1e3 / every) + 1):
        x = place(begin + k * every * 1e3)
        out.append(f'<path d="M{x:.1f} 52V{bottom}" stroke="#eee"/>')
        out.append(svg.text(x, bottom + 14, f"{k * every:g}", 10))
    out.append(svg.text(WIDTH / 2, bottom + 30, "milliseconds on the clock of rank 0"))
    for rank, y in top.items():
        for i, thread in enumerate(THREADS):
            out.append(svg.text(LEFT - 6, y + i * ROW + 14, f"{rank} {thread}", 10, "end"))
    for e in events:
        y = top[e["pid"]] + THREADS.index(e["cat"]) * ROW
        x = place(e["ts"])
        if e["ph"] == "i":
            out.append(f'<path d="M{x:.1f} {y + 1}v{ROW - 4}" stroke="#000" stroke-width="1.2"/>')
            continue
        wide = place(e["ts"] + e["dur"]) - x
        out.append(f'<rect x="{x:.1f}" y="{y + 3}" width="{max(wide, 0.4):.1f}" height="{ROW - 6}" fill="{KINDS[e["name"]]}"/>')
        if wide > 9 and "bucket" in e["args"]:
            out.append(svg.text(x + wide / 2, y + 14, str(e["args"]["bucket"]), 9, more=' fill="white"'))
    return bottom + 42, out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("svg")
    p.add_argument("--steps", default=None, help="the last two unless given")
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("--title", default="")
    o = p.parse_args()
    with open(o.trace, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    if o.steps:
        steps = [int(s) for s in o.steps.split("-")]
    else:
        last = max(e["args"]["step"] for e in events if e["name"] == "step")
        steps = [last - 1, last]
    events, names = chosen(events, (steps[0], steps[-1]), o.ranks)
    if not events:
        raise SystemExit(f"{o.trace}: nothing of steps {steps[0]} to {steps[-1]}")
    height, elements = picture(events, names, o.title)
    svg.write(o.svg, WIDTH, height, elements)


if __name__ == "__main__":
    main()
