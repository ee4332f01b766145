"""What it costs that a job may go on without a rank (gradcomp.on_failure=shrink): steps of the synthetic trainer, beside
those of a job that may not, in turns on the same link."""

from training import Trainer, middle

LINK = ("1gbit", "1 Gbit/s")
MODEL = ["--layers", "24", "--numbers", "65536", "--forward", "0.03", "--backward", "0.06"]
COMPRESSORS = ("none", "topk:density=0.01", "powersgd:rank=4")


def figures(cluster, folder, args):
    cluster.rate(LINK[0])
    try:
        trainer = Trainer(cluster, folder, MODEL)
        for compressor in COMPRESSORS:
            taken = {"abort": [], "shrink": []}
            for _ in range(2 * args.runs):
                for how, rows in taken.items():
                    rows += trainer.steps(compressor, args=["--warm", "10", "--steps", "100"],
                                          env={"GRADCOMP_ON_FAILURE": how})
            abort, shrink = (middle(taken[how], "step_s") for how in ("abort", "shrink"))
            yield {"bench": "a step of a job that may shrink", "case": f"{compressor}: 1.6 M parameters, {LINK[1]}",
                   "value": shrink * 1e3, "unit": "ms", "peer": "on_failure=abort", "peer_value": abort * 1e3,
                   "ratio": shrink / abort, "limit": 1.01}
    finally:
        cluster.rate("off")
