"""Line plots on two logarithmic axes, by matplotlib (python3-matplotlib)."""

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # pylint: disable=wrong-import-position

matplotlib.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "gradcomp", "axes.axisbelow": True, "grid.color": "#ddd"})


def binary(value, _position=None):
    """65536 as 64Ki."""
    for power, symbol in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << power:
            return f"{value / (1 << power):g}{symbol}"
    return f"{value:g}"


def save(figure, path):
    """Without the date, so that the same figures give the same file."""
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None, bbox_inches="tight")
    pyplot.close(figure)


def _panel(axes, panel, colours):
    own = panel.get("legend")
    for name, line in panel["lines"]:
        marks = name in panel.get("marks", ())
        axes.plot(*zip(*sorted(line)), label=name, color=colours[name],
                  linestyle="none" if marks else "--" if name in panel.get("dashed", ()) else "-",
                  marker="o" if marks or not own else None, markersize=4 if marks else 3)
    axes.set(xscale="log", yscale="log", title=panel["title"], xlabel=panel["x"], ylabel=panel["y"])
    axes.set_ylim(top=axes.get_ylim()[1] * panel.get("room", 1))
    if "at" in panel:
        axes.set_xticks(panel["at"])
        axes.xaxis.set_major_formatter(binary)
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.grid()
    if own:
        axes.legend(loc="upper left", fontsize=7.5, framealpha=0.85, edgecolor="none")


def plot(path, title, panels, columns=3):
    """panels: dicts of title, x, y (captions), lines [(name, [(x, y)...])...], and
    perhaps `at` (where x is marked, in powers of two) and `dashed` (names of lines). A panel with `legend` has one
    of its own and lines without points, but for those that `marks` names, which are points alone; `like` says
    which line of the panel gives one its colour, and `room` by how much more y reaches up, for the legend."""
    panels = [dict(p, lines=[(n, line) for n, line in p["lines"] if line]) for p in panels]
    panels = [p for p in panels if p["lines"]]
    shared = list(dict.fromkeys(n for p in panels if not p.get("legend") for n, _ in p["lines"]))
    columns = max(1, min(columns, len(panels)))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4.4 * columns, 3.4 * rows + 0.6), squeeze=False, layout="constrained")
    figure.suptitle(title)
    for at in axes.flat[len(panels):]:
        at.remove()
    for at, panel in zip(axes.flat, panels):
        like = panel.get("like", {})
        names = shared if not panel.get("legend") else [n for n, _ in panel["lines"] if n not in like]
        colours = {n: f"C{i % 10}" for i, n in enumerate(names)}
        _panel(at, panel, colours | {n: colours[other] for n, other in like.items() if other in colours})
    lines = {n: line for at in axes.flat[:len(panels)] for line, n in zip(*at.get_legend_handles_labels()) if n in shared}
    if lines:
        figure.legend(lines.values(), lines, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=min(len(lines), 6), frameon=False)
    save(figure, path)
