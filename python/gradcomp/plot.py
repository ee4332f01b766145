"""Draws the step time of a plan against the number of nodes.

    gradcomp plan --model FILE --machine FILE --nodes 4..1024 --json | python3 -m gradcomp.plot --output plan.svg

The format of the picture follows from the name: .svg, .png or .pdf. Needs matplotlib."""

import argparse
import json
import sys

LINES = 8  # more cannot be told apart


def shown(spec, specs):
    """The SPEC without the parameters that tell it from no other one: its name, if that is enough."""
    name = spec.split(":")[0]
    return name if sum(s.split(":")[0] == name for s in specs) == 1 else spec


def best_steps(table):
    """The seconds of a step with each compressor's best plan. Plans come fastest first."""
    steps = {}
    for row in table["plans"]:
        steps.setdefault(row["compressor"], row["step_s"])
    return steps


def lines_of(plan):
    """[(compressor, whether it is dense, nodes, seconds)]: the dense ones, then those that come
    nearest to the best on some number of nodes."""
    tables = [(t["nodes"], best_steps(t)) for t in plan["tables"] if t["plans"]]
    found = []
    for compressor in dict.fromkeys(c for _, steps in tables for c in steps):
        points = [(nodes, steps[compressor]) for nodes, steps in tables if compressor in steps]
        distance = min(steps[compressor] / min(steps.values()) for _, steps in tables if compressor in steps)
        dense = compressor in (plan["dense"], plan["half"])
        found.append((not dense, distance, compressor, points))
    found.sort(key=lambda line: line[:2])
    return [(compressor, not other, *zip(*points)) for other, _, compressor, points in found[:LINES]]


def draw(plan, path):
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
    for compressor, dense, nodes, seconds in lines:
        axes.plot(nodes, [1e3 * s for s in seconds], "--" if dense else "-",
                  label=shown(compressor, [line[0] for line in lines]))
    nodes = [t["nodes"] for t in plan["tables"]]
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="milliseconds a step",
             title=f"{plan['model']['name']} on {plan['machine']['name']}, "
                   f"{plan['tables'][0]['ranks_per_node']} ranks a node")
    turned = len(nodes) > 10
    axes.set_xticks(nodes, [f"{n:,}" for n in nodes], rotation=45 if turned else 0)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.LogFormatter())
    axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))
    axes.grid(color="#ddd")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24 if turned else -0.12), ncols=2, frameon=False)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as e:
        sys.exit(f"gradcomp.plot: {path}: {e}")


def main():
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
