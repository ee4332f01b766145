#!/usr/bin/env python3
"""What doc/admin/scale.md shows of many ranks, as Markdown: steps that gradcomp plan predicts up to 100,000
ranks from a machine file, and a job of so many real ranks on this machine: how long they take to join,
what each of them holds, and how soon all of them name one that was killed.

    bench/scale.py [--build DIR] [--ranks 512] [--predict-only]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NODES = (10, 100, 1000, 10000, 100000)
COMPRESSORS = ("none", "cast:type=fp16", "block:bits=8", "powersgd:rank=4", "topk:density=0.01")
COLLECTIVES = "ring,rhd,tree"


def predicted(build, model, machine, compute):
    out = subprocess.run([f"{build}/bin/gradcomp", "plan", "--model", model, "--machine", machine, "--compute", str(compute),
                          "--nodes", ",".join(map(str, NODES)), "--compressors", ",".join(COMPRESSORS),
                          "--collectives", COLLECTIVES, "--schedules", "auto", "--all", "--json"],
                         check=True, stdout=subprocess.PIPE, env=dict(os.environ, GRADCOMP_PLUGIN_PATH=f"{build}/lib/gradcomp"))
    best = {}
    for table in json.loads(out.stdout)["tables"]:
        for row in table["plans"]:
            key = row["compressor"].split(":")[0], table["nodes"]
            if key not in best or row["step_s"] < best[key][0]:
                best[key] = row["step_s"], row["collective"].split(":")[0]
    return best


def text(seconds):
    return f"{seconds * 1e3:,.0f} ms" if seconds < 10 else f"{seconds:,.0f} s"


def measured(build, ranks):
    with tempfile.TemporaryDirectory() as folder:
        def run(name, *options):
            path = os.path.join(folder, name)
            subprocess.run([f"{build}/bench/scaling", "--json", path, *options, str(ranks)], check=True, stdout=subprocess.DEVNULL)
            with open(path, encoding="utf-8") as f:
                return json.load(f)
        return run("calls", "--collectives", "rhd,ring,tree"), run("killed", "--kill")


def main():
    ask = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    ask.add_argument("--build", default=os.path.join(HERE, "build"))
    ask.add_argument("--ranks", type=int, default=512)
    ask.add_argument("--predict-only", action="store_true")
    args = ask.parse_args()
    best = predicted(args.build, f"{HERE}/etc/models/resnet50.model", f"{HERE}/examples/gigabit.machine", 0.4)
    print("| ResNet-50, one rank a node | " + " | ".join(f"{n:,}" for n in NODES) + " |")
    print("|" + "---|" * (1 + len(NODES)))
    for spec in COMPRESSORS:
        cells = (best[spec.split(":")[0], n] for n in NODES)
        print(f"| `{spec}` | " + " | ".join(f"{text(s)}, {over}" for s, over in cells) + " |")
    if args.predict_only:
        return 0
    rows, killed = measured(args.build, args.ranks)
    print(f"\n| {args.ranks} ranks | s, first | s, again | memory of a rank, MB | most | connections of a rank, most |\n" + "|---" * 6 + "|")
    for r in rows:
        again = f"{r['again_s']:.2f} " if r["again_s"] else ""
        print(f"| {r['what']} | {r['first_s']:.2f} | {again}| {r['mean_bytes'] / 1e6:.2f} | "
              f"{r['most_bytes'] / 1e6:.2f} | {r['sockets']} |")
    k = killed[0]
    print(f"\nOne rank killed: {k['named']} of {k['ranks'] - 1} others name it, half of them after {k['half_s']:.3f} s, "
          f"the last after {k['last_s']:.3f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
