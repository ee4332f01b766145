"""Merge plans against each other on a synthetic trainer whose layer times are known, and
what they hide of what could be hidden.

24 tensors of a network whose passes take 60 ms, in two shapes: all alike, and as deep
networks have them: many small tensors beside few large ones."""

import os
import statistics

from training import LINKS, Trainer, middle

OTHERS = ("wfbp", "single", "fixed")
SHAPES = {"24 equal tensors": ["--layers", "24", "--numbers", "65536", "--forward", "0.02", "--backward", "0.04"],
          "resnet-like": None}
STEPS = ["--warm", "60", "--steps", "40"]


def resnet_like(folder):
    """53 layers of ResNet-50's sizes divided by 8, a weight and two vectors each; times as
    the square root of their numbers."""
    path = os.path.join(folder, "resnet-like.model")
    sizes, wide = [], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for _ in range(blocks):
            inner = 64 << stage
            sizes += [inner * wide // 8, inner * inner * 9 // 8, inner * inner * 4 // 8]
            wide = inner * 4
    total = sum(s ** 0.5 for s in sizes)
    with open(path, "w", encoding="utf-8") as f:
        print("[model]\nname = resnet-like\n\n[tensors]", file=f)
        for i, s in enumerate(sizes):
            share = s ** 0.5 / total
            print(f"{3 * i} = layer{i}.weight {s // 64}x64 forward {0.02 * share:.9f} backward {0.04 * share:.9f}", file=f)
            for k, name in ((1, "scale"), (2, "shift")):
                print(f"{3 * i + k} = layer{i}.{name} {64 << (i // 16)} forward 0 backward 0", file=f)
    return ["--model", path]


def figures(cluster, folder, args):
    for shape, model in SHAPES.items():
        trainer = Trainer(cluster, folder, model or resnet_like(folder))
        for rate, link in LINKS:
            cluster.rate(rate)
            try:
                yield from _compared(trainer, f"{shape}, {link}", args.runs)
            finally:
                cluster.rate("off")


def _compared(trainer, case, runs):
    # Taken in turns, so that a busy minute of the machine is everybody's.
    taken = {s: [] for s in OTHERS + ("mgwfbp", "auto")}
    for _ in range(runs):
        for schedule, rows in taken.items():
            rows += trainer.steps(schedule=schedule, args=STEPS)
    seconds = {s: middle(rows, "step_s") for s, rows in taken.items()}
    best = min(OTHERS, key=seconds.get)
    for schedule in ("mgwfbp", "auto"):
        yield {"bench": "merge plans, a step", "case": f"{schedule}: {case}", "value": seconds[schedule] * 1e3,
               "unit": "ms", "peer": f"best of three ({best})", "peer_value": seconds[best] * 1e3,
               "ratio": seconds[schedule] / seconds[best], "limit": 1.0}
    hidden, could = hidden_share(taken)
    if could > 1e-3:
        yield {"bench": "hidden of what could be", "case": f"mgwfbp: {case}", "value": hidden * 1e3, "unit": "ms",
               "peer": "could be", "peer_value": could * 1e3, "ratio": hidden / could, "limit": None, "least": 0.8}


def hidden_share(taken):
    """Seconds of communication that mgwfbp hides of those that any plan could: with one
    message nothing is hidden, and what can be is at most the backward pass but for its last
    layer, and all of the communication but for that layer's."""
    single = statistics.median(r["step_s"] - r["compute_s"] for r in taken["single"])
    merged = statistics.median(r["step_s"] - r["compute_s"] for r in taken["mgwfbp"])
    backward = statistics.median(r["compute_s"] for r in taken["single"]) * 2 / 3
    return single - merged, min(single, backward) * 23 / 24
