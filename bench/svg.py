"""Line plots on two logarithmic axes, as SVG, and what other pictures are made of."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 320, 62, 14, 34, 46
COLOURS = ("#0b62a4", "#d1495b", "#3a7d44", "#e09f3e", "#6f4e7c", "#555555", "#17a2b8", "#a05d2c")
SYMBOLS = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}


def short(value):
    """1e-5 as 10u."""
    power = math.floor(round(math.log10(value), 6) / 3) * 3
    return f"{value / 10 ** power:g}{SYMBOLS.get(power, f'e{power}')}"


def binary(value):
    """65536 as 64Ki."""
    for power, symbol in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << power:
            return f"{value / (1 << power):g}{symbol}"
    return f"{value:g}"


class Axis:
    def __init__(self, values, begin, end):
        low, high = math.log10(min(values)), math.log10(max(values))
        margin = max(0.04 * (high - low), 0.02)
        self.low, self.high, self.begin, self.end = low - margin, high + margin, begin, end

    def place(self, value):
        return self.begin + (math.log10(value) - self.low) / (self.high - self.low) * (self.end - self.begin)

    def within(self, values):
        return [v for v in values if self.low <= math.log10(v) <= self.high]

    def ticks(self):
        steps = (1, 2, 5) if self.high - self.low < 2.2 else (1,)
        return self.within([m * 10.0 ** p for p in range(math.floor(self.low), math.ceil(self.high) + 1) for m in steps])


def text(x, y, words, size=11, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _own_legend(panel, colours, x, y):
    """The names of a panel's lines in its corner, on top of its grid."""
    names = [n for n, _ in panel["lines"]]
    out = [f'<rect x="{x + 4:.1f}" y="{y + 3:.1f}" width="{max(map(len, names)) * 5.1 + 34:.0f}" height="{14 * len(names) + 4}" '
           'fill="white" fill-opacity="0.85"/>']
    for i, name in enumerate(names):
        at = y + 12 + 14 * i
        if name in panel.get("marks", ()):
            out.append(_mark(x + 18, at, colours[name]))
        else:
            dashed = ' stroke-dasharray="5 4"' if name in panel.get("dashed", ()) else ""
            out.append(f'<path d="M{x + 8:.1f} {at:.1f}h20" stroke="{colours[name]}" stroke-width="1.8"{dashed}/>')
        out.append(text(x + 33, at + 3.5, name, 10, "start"))
    return out


def _mark(x, y, colour):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}" stroke="white" stroke-width="0.8"/>'


def _panel(panel, colours, x0, y0):
    points = [p for _, line in panel["lines"] for p in line]
    x = Axis([p[0] for p in points], x0 + LEFT, x0 + WIDTH - RIGHT)
    y = Axis([p[1] for p in points] + [max(p[1] for p in points) * panel.get("room", 1)], y0 + HEIGHT - BOTTOM, y0 + TOP)
    out = [text((x.begin + x.end) / 2, y0 + 20, panel["title"], 13),
           text((x.begin + x.end) / 2, y0 + HEIGHT - 10, panel["x"]),
           text(x0 + 14, (y.begin + y.end) / 2, panel["y"],
                 more=f' transform="rotate(-90 {x0 + 14} {(y.begin + y.end) / 2:.1f})"')]
    for v in x.within(panel["at"]) if "at" in panel else x.ticks():
        out.append(f'<path d="M{x.place(v):.1f} {y.begin}V{y.end}" stroke="#ddd"/>')
        out.append(text(x.place(v), y.begin + 15, (binary if "at" in panel else short)(v), 10))
    for v in y.ticks():
        out.append(f'<path d="M{x.begin} {y.place(v):.1f}H{x.end}" stroke="#ddd"/>')
        out.append(text(x.begin - 5, y.place(v) + 4, short(v), 10, "end"))
    out.append(f'<path d="M{x.begin} {y.end}V{y.begin}H{x.end}" fill="none" stroke="#333"/>')
    for name, line in panel["lines"]:
        at = [(x.place(p), y.place(q)) for p, q in sorted(line)]
        if name in panel.get("marks", ()):
            out += [_mark(p, q, colours[name]) for p, q in at]
            continue
        path = "M" + "L".join(f"{p:.1f} {q:.1f}" for p, q in at)
        dashed = ' stroke-dasharray="5 4"' if name in panel.get("dashed", ()) else ""
        out.append(f'<path d="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.8"{dashed}/>')
        if not panel.get("legend"):
            out += [f'<circle cx="{p:.1f}" cy="{q:.1f}" r="2.6" fill="{colours[name]}"/>' for p, q in at]
    return out + (_own_legend(panel, colours, x.begin, y.end) if panel.get("legend") else [])


def write(path, width, height, elements):
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>']
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(head + elements + ["</svg>", ""]))


def _colours(names, like=()):
    own = [n for n in names if n not in like]
    colours = {n: COLOURS[i % len(COLOURS)] for i, n in enumerate(own)}
    return colours | {n: colours[like[n]] for n in names if n in like}


def plot(path, title, panels, columns=3):
    """panels: dicts of title, x, y (captions), lines [(name, [(x, y)...])...], and
    perhaps `at` (where x is marked, in powers of two) and `dashed` (names of lines). A panel with `legend` has one
    of its own and lines without points, but for those that `marks` names, which are points alone; `like` says
    which line of the panel gives one its colour, and `room` by how much more y reaches up, for the legend."""
    panels = [dict(p, lines=[(n, line) for n, line in p["lines"] if line]) for p in panels]
    panels = [p for p in panels if p["lines"]]
    names = list(dict.fromkeys(n for p in panels if not p.get("legend") for n, _ in p["lines"]))
    colours = _colours(names)
    columns = max(1, min(columns, len(panels)))
    width, rows = columns * WIDTH, (len(panels) + columns - 1) // columns
    top = 60 if names else 30
    height = rows * HEIGHT + top
    out = [text(width / 2, 20, title, 15)]
    step = width / max(len(names), 1)
    for i, name in enumerate(names):
        out.append(f'<path d="M{i * step + 12:.1f} 42h22" stroke="{colours[name]}" stroke-width="3"/>')
        out.append(text(i * step + 40, 46, name, 12, "start"))
    for i, panel in enumerate(panels):
        out += _panel(panel, _colours([n for n, _ in panel["lines"]], panel.get("like", {})) if panel.get("legend") else colours, i % columns * WIDTH, top + i // columns * HEIGHT)
    write(path, width, height, out)
