#!/usr/bin/python3
"""A few steps of a timeline (GRADCOMP_TRACE) as a picture.

    bench/trace_plot.py TRACE.json PICTURE.svg [--steps A-B] [--ranks N] [--title TEXT]

A row for each thread of each rank: the application's, with a stroke for each gradient that
is ready and the time it waits; the compute thread's; the exchange thread's. Numbers are
buckets. The reducer is the first one of the job."""

import argparse
import json

import svg

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


def picture(path, events, names, title):
    begin = min(e["ts"] for e in events)
    span = max(e["ts"] + e.get("dur", 0) for e in events) - begin
    rows = [(rank, thread) for rank in sorted(names) for thread in THREADS]
    at = {row: i + i // len(THREADS) * 0.5 for i, row in enumerate(rows)}
    figure, axes = svg.pyplot.subplots(figsize=(11, 0.24 * len(rows) + 1.2), layout="constrained")
    for kind, colour in KINDS.items():
        slices = [e for e in events if e["ph"] == "X" and e["name"] == kind]
        axes.barh([at[e["pid"], e["cat"]] for e in slices], [e["dur"] / 1e3 for e in slices], left=[(e["ts"] - begin) / 1e3 for e in slices],
                  height=0.75, color=colour, label=kind if slices and kind != "wait_for" else None)
        for e in slices:
            if "bucket" in e["args"] and e["dur"] > 0.008 * span:
                axes.text((e["ts"] - begin + e["dur"] / 2) / 1e3, at[e["pid"], e["cat"]], str(e["args"]["bucket"]), color="white", size=7,
                          ha="center", va="center", clip_on=True)
    ready = [e for e in events if e["ph"] == "i"]
    axes.plot([(e["ts"] - begin) / 1e3 for e in ready], [at[e["pid"], e["cat"]] for e in ready], "|", color="black")
    axes.set_yticks(list(at.values()), [f"{rank} {thread}" for rank, thread in rows])
    axes.invert_yaxis()
    axes.set(title=title, xlabel="milliseconds on the clock of rank 0")
    axes.grid(axis="x")
    figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=len(KINDS), frameon=False, fontsize=7.5)
    svg.save(figure, path)


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
    picture(o.svg, events, names, o.title)


if __name__ == "__main__":
    main()
