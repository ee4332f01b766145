"""Draws the step time of a plan against the number of nodes, or the rate of the link.

    gradcomp plan --model FILE --machine FILE --nodes 4..1024 --json | python3 -m gradcomp.plot --output plan.svg
    gradcomp plan --model FILE --machine FILE --links 1G..400G --json | python3 -m gradcomp.plot --output links.svg

The format of the picture follows from the name: .svg, .png or .pdf. Needs matplotlib."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

LINES = 8  # more cannot be told apart


def shown(spec: str, specs: Sequence[str]) -> str:
    """The SPEC without the parameters that tell it from no other one: its name, if that is enough."""
    name = spec.split(":")[0]
    return name if sum(s.split(":")[0] == name for s in specs) == 1 else spec


def best_steps(table: Any) -> dict[str, float]:
    """The seconds of a step with each compressor's best plan. Plans come fastest first."""
    steps: dict[str, float] = {}
    for row in table["plans"]:
        steps.setdefault(row["compressor"], row["step_s"])
    return steps


def places_of(plan: Any) -> tuple[str, list[Any], list[str]]:
    """(what tables differ in, its value in each, the text of that)"""
    tables = plan["tables"]
    if len({t["nodes"] for t in tables}) == 1 < len(tables):
        rates = [t["link"]["bits_per_s"] for t in tables]
        return "bit/s of the link", rates, [f"{r / 1e9:g}G" if r >= 1e9 else f"{r / 1e6:g}M" for r in rates]
    nodes = [t["nodes"] for t in tables]
    return "nodes", nodes, [f"{n:,}" for n in nodes]


def lines_of(plan: Any) -> list[Any]:
    """[(compressor, whether it is dense, places, seconds)]: the dense ones, then those that come
    nearest to the best in some place."""
    tables = [(place, best_steps(t)) for place, t in zip(places_of(plan)[1], plan["tables"]) if t["plans"]]
    found = []
    for compressor in dict.fromkeys(c for _, steps in tables for c in steps):
        points = [(place, steps[compressor]) for place, steps in tables if compressor in steps]
        distance = min(steps[compressor] / min(steps.values()) for _, steps in tables if compressor in steps)
        dense = compressor in (plan["dense"], plan["half"])
        found.append((not dense, distance, compressor, points))
    found.sort(key=lambda line: line[:2])
    return [(compressor, not other, *zip(*points)) for other, _, compressor, points in found[:LINES]]


def draw(plan: Any, path: str) -> None:
    """Writes the picture."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("gradcomp.plot: needs matplotlib (python3-matplotlib, or pip install matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    lines = lines_of(plan)
    if not lines:
        sys.exit("gradcomp.plot: the plan predicts nothing")
    figure, axes = pyplot.subplots(figsize=(6.4, 4.8), layout="constrained")
    for compressor, dense, at, seconds in lines:
        axes.plot(at, [1e3 * s for s in seconds], "--" if dense else "-",
                  label=shown(compressor, [line[0] for line in lines]))
    what, places, texts = places_of(plan)
    axes.set(xscale="log", yscale="log", xlabel=what, ylabel="milliseconds a step",
             title=f"{plan['model']['name']} on {plan['machine']['name']}, "
                   f"{plan['tables'][0]['ranks_per_node']} ranks a node")
    turned = len(places) > 10
    axes.set_xticks(places, texts, rotation=45 if turned else 0)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.LogFormatter())
    axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))
    axes.grid(color="#ddd")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24 if turned else -0.12), ncols=2, frameon=False)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as e:
        sys.exit(f"gradcomp.plot: {path}: {e}")


def main() -> None:
    """The command."""
    p = argparse.ArgumentParser(prog="python3 -m gradcomp.plot", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plan", nargs="?", help="what gradcomp plan --json wrote; standard input if there is none")
    p.add_argument("--output", required=True, metavar="FILE", help="the picture")
    options = p.parse_args()
    try:
        with open(options.plan) if options.plan else sys.stdin as f:
            plan = json.load(f)
            draw(plan, options.output)
    except (OSError, ValueError, KeyError) as e:
        sys.exit(f"gradcomp.plot: {options.plan or 'standard input'} is no plan of gradcomp plan --json: {e}")


if __name__ == "__main__":
    main()
