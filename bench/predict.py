"""What gradcomp plan says a step takes against what it takes: for each link and number of
nodes the machine is probed, then a handful of compressors predicted and run.

The trainer sleeps through its passes, as a program whose GPU computes: four nodes share the
bed's cores, and passes that computed would take as long as they happened to. So the probe is
told that compressing has the cores for itself (--sleeping).

Then with passes that compute, on as many nodes as there are cores: the probe measures what
passes lose beside compressing and beside exchanges, and so does a job that is recorded."""

import json
import os
import statistics

from testbed import say
from training import LINKS, Trainer, middle

COMPRESSORS = ("none", "cast:type=fp16", "powersgd:rank=4", "topk:density=0.01", "block:bits=8", "qsgd")
NODES = (2, 3, 4)
# 24 tensors of 1 MiB; passes of 60 ms.
TENSORS, ROWS, COLUMNS, FORWARD, BACKWARD = 24, 512, 512, 0.02, 0.04
STEPS = ["--warm", "5", "--steps", "12"]
SCHEDULE = "fixed:bytes=4M"


def write_model(path):
    with open(path, "w", encoding="utf-8") as f:
        print("[model]\nname = even\n\n[tensors]", file=f)
        for i in range(TENSORS):
            print(f"{i} = layer{i}.weight {ROWS}x{COLUMNS} forward {FORWARD / TENSORS} backward {BACKWARD / TENSORS}", file=f)


def predicted(cluster, model, machine, nodes):
    """{compressor as it was written: row} by gradcomp plan."""
    text = cluster.run("gradcomp", "plan", "--model", model, "--machine", machine, "--nodes", str(nodes), "--json",
                       "--all", "--compressors", ",".join(COMPRESSORS), "--collectives", "ring", "--schedules", SCHEDULE)
    plans = json.loads(text)["tables"][0]["plans"]
    rows = {}
    for spec in COMPRESSORS:
        name, _, wanted = spec.partition(":")
        for row in plans:
            has, _, values = row["compressor"].partition(":")
            if has == name and set(filter(None, wanted.split(","))) <= set(values.split(",")):
                rows[spec] = row
    return rows


def figures(cluster, folder, args):
    model = os.path.join(folder, "even.model")
    machine = os.path.join(folder, "machine.ini")
    write_model(model)
    trainer = Trainer(cluster, folder, ["--model", model])
    errors, links = [], LINKS[:1] + LINKS[3:] if args.quick else LINKS
    for rate, link in links:
        cluster.rate(rate)
        try:
            for nodes in (4,) if args.quick else NODES:
                rows = list(compared(cluster, trainer, model, machine, nodes, link, args.runs))
                errors += [abs(r["ratio"] - 1) for r in rows if r["bench"] == "predicted step"]
                yield from rows
        finally:
            cluster.rate("off")
    median = statistics.median(errors)
    yield {"bench": "predicted step", "case": f"median error of {len(errors)}", "value": median * 100, "unit": "%",
           "peer": "promised", "peer_value": 10.0, "ratio": median / 0.1, "limit": 1.0}


def compared(cluster, trainer, model, machine, nodes, link, runs):
    cluster.srun(f"-N{nodes}", "--mpi=pmix", "gradcomp", "probe", "--output", machine, "--compressors",
                 ",".join(c for c in COMPRESSORS), "--collectives", "ring", "--sleeping", "--seconds", "12")
    rows = predicted(cluster, model, machine, nodes)
    taken = {c: [] for c in rows}
    for _ in range(runs):
        for spec, got in taken.items():
            got += trainer.steps(spec, schedule=SCHEDULE, nodes=nodes, args=STEPS)
    measured = {c: middle(got, "step_s") for c, got in taken.items()}
    for spec, row in rows.items():
        say(f"predict: {link}, {nodes} nodes, {spec}: encode {row['encode_s'] * 1e3:.1f} exchange "
            f"{row['exchange_s'] * 1e3:.1f} decode {row['decode_s'] * 1e3:.1f} exposed {row['exposed_s'] * 1e3:.1f} ms, "
            f"measured exposed {middle(taken[spec], 'exposed_s') * 1e3:.1f} ms")
        yield {"bench": "predicted step", "case": f"{spec}: {link}, {nodes} nodes", "value": row["step_s"] * 1e3,
               "unit": "ms", "peer": "measured", "peer_value": measured[spec] * 1e3,
               "ratio": row["step_s"] / measured[spec], "limit": None}
    best, advised = min(measured, key=measured.get), min(rows, key=lambda c: rows[c]["step_s"])
    yield {"bench": "the plan's winner", "case": f"{advised}: {link}, {nodes} nodes", "value": measured[advised] * 1e3,
           "unit": "ms", "peer": f"the fastest ({best})", "peer_value": measured[best] * 1e3,
           "ratio": measured[advised] / measured[best], "limit": 1.05}


def without_losses(machine):
    """The machine as it was known before what passes lose was measured."""
    path = machine + ".without"
    with open(machine, encoding="utf-8") as old, open(path, "w", encoding="utf-8") as new:
        new.writelines(line for line in old if not line.startswith("slowed_by_"))
    return path


def computing(cluster, folder, args):
    """Passes that compute: predicted with what they lose, from a recorded job, and as if they lost nothing."""
    model, machine, recorded = (os.path.join(folder, name) for name in ("even.model", "computing.ini", "recorded.model"))
    write_model(model)
    trainer, off, nodes = Trainer(cluster, folder, ["--model", model, "--work"]), {}, min(2, os.cpu_count() or 1)
    for rate, link in LINKS[1:2] if args.quick else LINKS[1:]:
        cluster.rate(rate)
        try:
            cluster.srun(f"-N{nodes}", "--mpi=pmix", "gradcomp", "probe", "--output", machine, "--compressors",
                         ",".join(COMPRESSORS), "--collectives", "ring", "--seconds", "12")
            taken = {c: [] for c in COMPRESSORS}
            for _ in range(args.runs):
                for spec, got in taken.items():
                    got += trainer.steps(spec, schedule=SCHEDULE, nodes=nodes, args=STEPS)
            trainer.steps("none", schedule=SCHEDULE, nodes=nodes, args=["--warm", "5", "--steps", "80"],
                          options=[f"--gradcomp-record={recorded}"])
            ways = {"what passes lose, by probe": predicted(cluster, model, machine, nodes),
                    "what they lose, by a recorded job": predicted(cluster, recorded, machine, nodes),
                    "as if they lost nothing": predicted(cluster, model, without_losses(machine), nodes)}
        finally:
            cluster.rate("off")
        with open(machine, encoding="utf-8") as m, open(recorded, encoding="utf-8") as r:
            keys = ("slow", "beside", "exchanging", "compressing")
            say("predict: " + ", ".join(x.strip() for x in [*m, *r] if x.startswith(keys)))
        for spec, got in taken.items():
            measured = middle(got, "step_s")
            say(f"predict: {link}, {spec}: passes alone {middle(got, 'compute_s') * 1e3:.1f} ms")
            for way, rows in ways.items():
                off.setdefault(way, []).append(rows[spec]["step_s"] / measured - 1)
                yield {"bench": "computing passes", "case": f"{spec}: {link}, {nodes} nodes, {way}",
                       "value": rows[spec]["step_s"] * 1e3, "unit": "ms", "peer": "measured", "peer_value": measured * 1e3,
                       "ratio": rows[spec]["step_s"] / measured, "limit": None}
    for way, some in off.items():
        middle_error = statistics.median(abs(x) for x in some)
        yield {"bench": "computing passes", "case": f"median error of {len(some)}, {way}", "value": 100 * middle_error,
               "unit": "%", "peer": "the mean of predicted over measured, less 1", "peer_value": 100 * statistics.mean(some),
               "ratio": middle_error / 0.1, "limit": None}
