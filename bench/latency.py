"""Links with a latency, where messages and rounds count and not bytes alone: rules that merge gradients, collectives,
merging sparse payloads in log P rounds, averages that come late, and one round of low rank against two.

Four nodes; the passes of a step take 60 ms. A rule's row has the fastest of them all as its peer, and what `gradcomp plan`
said of it, with the link as `gradcomp probe` has measured it."""

import json
import os

import peer_programs
from testbed import say
from training import Trainer, middle

LATENCIES = ("100us", "1ms", "10ms", "50ms")
RATES = (("1gbit", "1 Gbit/s"), ("100mbit", "100 Mbit/s"))
RULES = ("wfbp", "single", "fixed", "fixed:bytes=512K", "fixed:bytes=2M", "mgwfbp", "omgs", "auto")
MEASURED = ("mgwfbp", "omgs", "auto")
COLLECTIVES = ("ring", "rhd", "tree", "hier", "auto")
SIZES = (4096, 262144, 4194304)
TENSORS, ROWS, COLUMNS, FORWARD, BACKWARD = 24, 256, 256, 0.02, 0.04


def write_model(path):
    with open(path, "w", encoding="utf-8") as f:
        print("[model]\nname = even\n\n[tensors]", file=f)
        for i in range(TENSORS):
            print(f"{i} = layer{i}.weight {ROWS}x{COLUMNS} forward {FORWARD / TENSORS} backward {BACKWARD / TENSORS}", file=f)
    return path


def cells(args):
    for latency in LATENCIES[1:3] if args.quick else LATENCIES:
        for rate, link in RATES:
            yield latency, rate, f"{latency}, {link}"


def figures(cluster, folder, args):
    trainer = Trainer(cluster, folder, ["--model", write_model(os.path.join(folder, "even.model"))])
    for latency, rate, case in cells(args):
        cluster.latency(latency)
        cluster.rate(rate)
        try:
            yield from rules(cluster, trainer, folder, case, args.runs)
            yield from collectives(cluster, folder, case)
            yield from methods(trainer, case, args.runs)
        finally:
            cluster.rate("off")
            cluster.latency("0us")


def taken_in_turns(runs, ways):
    """{name: rows} of ways to take a step, {name: function}."""
    taken = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            taken[name] += way()
    return {name: middle(rows, "step_s") for name, rows in taken.items()}


def against_best(bench, case, seconds, said, limits):
    best = min(seconds, key=seconds.get)
    for name, s in seconds.items():
        yield {"bench": bench, "case": f"{name}: {case}", "value": s * 1e3, "unit": "ms", "peer": f"the fastest ({best})",
               "peer_value": seconds[best] * 1e3, "ratio": s / seconds[best], "limit": limits.get(name),
               "predicted_ms": said.get(name)}


def rules(cluster, trainer, folder, case, runs):
    machine = os.path.join(folder, "machine.ini")
    cluster.srun("--mpi=pmix", "gradcomp", "probe", "--output", machine, "--compressors", "none", "--collectives", "ring",
                 "--sleeping", "--seconds", "12")
    said = {}
    for rule in RULES:
        text = cluster.run("gradcomp", "plan", "--model", trainer.model[1], "--machine", machine, "--nodes",
                           str(cluster.nodes), "--json", "--all", "--compressors", "none", "--collectives", "ring",
                           "--schedules", rule)
        said[rule] = min(p["step_s"] for p in json.loads(text)["tables"][0]["plans"]) * 1e3
        say(f"latency: {case}: {rule}: {said[rule]:.1f} ms predicted")

    def way(rule):
        steps = ["--warm", "60" if rule in MEASURED else "3", "--steps", "8"]
        return lambda: trainer.steps("none", schedule=rule, args=steps, options=["--gradcomp-collective=ring"])
    seconds = taken_in_turns(runs, {r: way(r) for r in RULES})
    yield from against_best("merge rules with latency, a step", case, seconds, said, {r: 1.05 for r in MEASURED})


def collectives(cluster, folder, case):
    here = peer_programs.Ranks(cluster, folder, ["-N4"], 4, True, 1, {})
    by = {c: {} for c in COLLECTIVES}
    for spec in COLLECTIVES:
        for row in here.gradcomp_rows(spec, ["all-reduce"], SIZES):
            by[spec][row["bytes"]] = row["seconds"]
    for size in SIZES:
        yield from against_best("all-reduce with latency", f"{size >> 10} KiB, {case}", {c: by[c][size] for c in COLLECTIVES},
                                {}, {"auto": 1.05})


def methods(trainer, case, runs):
    def way(spec, *more):
        return lambda: trainer.steps(spec, schedule="mgwfbp", args=["--warm", "60", "--steps", "8", *more])
    for bench, ways in (("sparse payloads", {"topk:density=0.01": way("topk:density=0.01"), "gtopk": way("gtopk:density=0.01")}),
                        ("rounds of low rank", {"powersgd": way("powersgd:rank=4"), "acpsgd": way("acpsgd:rank=4")}),
                        ("late averages", {"at once": way("none"), "a step late": way("none", "--delay", "1"),
                                           "4 steps late": way("none", "--delay", "4")})):
        yield from against_best(f"{bench} with latency, a step", case, taken_in_turns(runs, ways), {}, {})
