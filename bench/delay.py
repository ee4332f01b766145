"""Averages that are applied late: a step of the synthetic trainer at 200 Mbit/s, where most of it is
communication, with delays of 0, 1 and 4 steps.

A delay hides an exchange behind one step's computing and no more: the link carries as many
bytes. So each row is compared with the longer of the two, computing and exchanging."""

from training import Trainer, middle

RATE, LINK = "200mbit", "200 Mbit/s"
DELAYS = (0, 1, 4)
PASSES = ["--layers", "24", "--forward", "0.02", "--backward", "0.04"]
NUMBERS = {"0.4 M parameters": 16384, "0.2 M parameters": 8192}


def figures(cluster, folder, args):
    cluster.rate(RATE)
    try:
        for size, numbers in NUMBERS.items():
            trainer = Trainer(cluster, folder, [*PASSES, "--numbers", str(numbers)])
            taken = {d: [] for d in DELAYS}
            for _ in range(args.runs):
                for delay, rows in taken.items():
                    rows += trainer.steps(args=["--delay", str(delay), "--warm", "10", "--steps", "40"])
            computing, sent = middle(taken[0], "compute_s"), middle(taken[0], "sent_bytes")
            bound = max(computing, sent * 8 / 200e6)
            for delay, rows in taken.items():
                seconds = middle(rows, "step_s")
                yield {"bench": "a step with late averages", "case": f"delay {delay}: {size}, {LINK}", "value": seconds * 1e3,
                       "unit": "ms", "peer": "computing" if bound == computing else "carrying its bytes",
                       "peer_value": bound * 1e3, "ratio": seconds / bound, "limit": None}
    finally:
        cluster.rate("off")
