"""--gradcomp=auto against every fixed choice, over the first 200 steps of a job: its
measuring and its trials are counted.

Never more than 2 % slower than dense fp16 where the network is fast, within 5 % of the best
fixed choice where it is slow. Two models: tensors that are all alike, and matrices beside long
vectors, which low rank sends whole."""

import os

from training import LINKS, Trainer, middle

FIXED = ("none", "cast:type=fp16", "powersgd:rank=4", "topk:density=0.01", "block:bits=8")
ALIKE = ["--layers", "24", "--numbers", "65536", "--forward", "0.02", "--backward", "0.04"]
STEPS = ["--warm", "0", "--steps", "200"]


def with_vectors(folder):
    """Eight matrices and four vectors of 1 MB each."""
    path = os.path.join(folder, "with-vectors.model")
    shapes = ["512x512", "512x512", "262144"] * 4
    with open(path, "w", encoding="utf-8") as f:
        print("[model]\nname = with-vectors\n\n[tensors]", file=f)
        for i, shape in enumerate(shapes):
            print(f"{i} = t{i} {shape} forward {0.02 / len(shapes):.9f} backward {0.04 / len(shapes):.9f}", file=f)
    return ["--model", path]


def figures(cluster, folder, args):
    yield from _model(cluster, folder, args, "1.6 M numbers", ALIKE, LINKS)
    yield from _model(cluster, folder, args, "8 matrices, 4 vectors", with_vectors(folder), LINKS[:2])


def _model(cluster, folder, args, name, model, links):
    trainer = Trainer(cluster, folder, model)
    for rate, link in links:
        cluster.rate(rate)
        taken = {s: [] for s in FIXED + ("auto",)}
        try:
            for _ in range(args.runs):
                for spec, rows in taken.items():
                    rows += trainer.steps(spec, args=STEPS, timeout=900)
        finally:
            cluster.rate("off")
        seconds = {s: middle(rows, "mean_s") for s, rows in taken.items()}
        best = min(FIXED, key=seconds.get)
        fast = rate == "off"
        yield _row(name, link, seconds, "cast:type=fp16", 1.02 if fast else None)
        yield _row(name, link, seconds, best, None if fast else 1.05)
        for spec in FIXED[1:]:
            yield {"bench": f"the first 200 steps, {name}", "case": f"{spec}, {link}", "value": seconds[spec] * 1e3,
                   "unit": "ms a step", "peer": "none", "peer_value": seconds["none"] * 1e3,
                   "ratio": seconds[spec] / seconds["none"], "limit": None}


def _row(name, link, seconds, peer, limit):
    return {"bench": f"the first 200 steps, {name}", "case": f"auto, {link}", "value": seconds["auto"] * 1e3,
            "unit": "ms a step", "peer": peer, "peer_value": seconds[peer] * 1e3, "ratio": seconds["auto"] / seconds[peer],
            "limit": limit}
