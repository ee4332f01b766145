"""--gradcomp=auto against every fixed choice, over the first 200 steps of a job: its
measuring and its trials are counted.

Never more than 2 % slower than dense fp16 where the network is fast, within 5 % of the best
fixed choice where it is slow."""

from training import LINKS, Trainer, middle

FIXED = ("none", "cast:type=fp16", "powersgd:rank=4", "topk:density=0.01", "block:bits=8")
MODEL = ["--layers", "24", "--numbers", "65536", "--forward", "0.02", "--backward", "0.04"]
STEPS = ["--warm", "0", "--steps", "200"]


def figures(cluster, folder, args):
    trainer = Trainer(cluster, folder, MODEL)
    for rate, link in LINKS:
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
        yield _row(link, seconds, "cast:type=fp16", 1.02 if fast else None)
        yield _row(link, seconds, best, None if fast else 1.05)
        for spec in FIXED[1:]:
            yield {"bench": "the first 200 steps, 1.6 M numbers", "case": f"{spec}, {link}", "value": seconds[spec] * 1e3,
                   "unit": "ms a step", "peer": "none", "peer_value": seconds["none"] * 1e3,
                   "ratio": seconds[spec] / seconds["none"], "limit": None}


def _row(link, seconds, peer, limit):
    return {"bench": "the first 200 steps, 1.6 M numbers", "case": f"auto, {link}", "value": seconds["auto"] * 1e3,
            "unit": "ms a step", "peer": peer, "peer_value": seconds[peer] * 1e3, "ratio": seconds["auto"] / seconds[peer],
            "limit": limit}
