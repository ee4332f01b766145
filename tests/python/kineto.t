#!/usr/bin/python3
"""Traces of the PyTorch that is there, and of a current one, as models: gradients in the order in which PyTorch says that they
come, and the seconds that its events and known pauses tell."""

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, done_testing, environment, need_library, ok, other_torch, pace, skip_all  # noqa: E402

need_library()
ENGINE, GRADIENT = "autograd::engine::evaluate_function: ", "torch::autograd::AccumulateGrad"
with open(os.path.join(BUILD, "gradcomp_config.h"), encoding="utf-8") as config:
    if "HAVE_JANSSON" not in config.read():
        skip_all("built without jansson")


def model(folder, name):
    """What is said, and the rows (name, shape, seconds forward, seconds backward)."""
    saved = os.path.join(folder, name + ".model")
    done = subprocess.run([os.path.join(BUILD, "bin/gradcomp"), "plan", "--kineto", os.path.join(folder, name + ".json"), "--names",
                           os.path.join(folder, name + ".names"), "--save", saved], env=environment(), stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return done.stderr, [], ""
    with open(saved, encoding="utf-8") as f:
        text = f.read()
    return done.stderr, [(n, s, float(a), float(b)) for n, s, a, b in re.findall(r"^\d+ = (\S+) (\S+) forward (\S+) backward (\S+)$", text, re.M)], text


def arrivals(folder, name):
    """Medians over steps of the seconds from one gradient to the next, out of the trace itself."""
    with open(os.path.join(folder, name + ".json"), encoding="utf-8") as f:
        events = [e for e in json.load(f)["traceEvents"] if e.get("ph") == "X"]
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep#"))
    rows = []
    for begin, end in steps:
        inside = [e for e in events if begin <= e["ts"] < end]
        came = sorted(e["ts"] + e["dur"] for e in inside if e["name"] == GRADIENT and e["args"].get("Input type") != [""])
        at = [min(e["ts"] for e in inside if e["name"].startswith(ENGINE)), *came]
        rows.append([b - a for a, b in zip(at, at[1:])])
    return [statistics.median(column) * 1e-6 for column in zip(*rows)], len(steps)


def check(python):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        done = subprocess.run([python, "-B", os.path.join(SOURCE, "tests/python/profiled.py"), folder], env=environment(), stderr=subprocess.PIPE, text=True, check=False)
        if not ok(not done.returncode, f"models are profiled by {python}", done.stderr[-2000:]):
            return
        with open(os.path.join(folder, "all.json"), encoding="utf-8") as f:
            said = json.load(f)
        version = said["version"]
        if not said["kineto"]:
            print(f"# PyTorch {version} has no Kineto")
            return
        for name, came in said["models"].items():
            what = f"{version}, {name}"
            error, rows, text = model(folder, name)
            shapes = ["x".join(map(str, s)) or "scalar" for s in reversed(came)]
            ok([r[1] for r in rows] == shapes, f"{what}: the last gradient's parameter comes first", error, rows, shapes)
            between, steps = arrivals(folder, name)
            got = [r[3] for r in reversed(rows)]
            ok(steps == 3 and len(got) == len(between) and all(abs(a - b) < 2e-9 for a, b in zip(got, between)), f"{what}: gradients come when the events of {steps} steps say", got, between)
            ok(rows and all(r[2] >= 0 for r in rows) and sum(r[2] for r in rows) > 0 and all(re.search(f"^{k} = (?!0$)", text, re.M) for k in ("io", "update")),
               f"{what}: there are a forward pass, reading and updating", text)
            with open(os.path.join(folder, name + ".names"), encoding="utf-8") as f:
                names = dict(line.split() for line in f)
            ok(all(names.get(r[0]) == r[1] for r in rows) and len({r[0] for r in rows}) == len(rows), f"{what}: names are those of these shapes", rows)
        rows = model(folder, "paused")[1]
        parts = [(sum(r[2] for r in rows if r[0].startswith(f"layers.{i}.")), sum(r[3] for r in rows if r[0].startswith(f"layers.{i}."))) for i in range(3)]
        slack = 0.02 * pace()
        wanted = list(zip((*said["forward"], 0), (0, 0, 0)))
        # A pause behind a layer is over before its gradients come.
        for i, seconds in enumerate(said["backward"]):
            wanted[i] = (wanted[i][0], seconds)
        ok(all(w - 1e-4 <= p <= w + slack for part, want in zip(parts, wanted) for p, w in zip(part, want)), f"{version}: pauses count where they are", parts, wanted)
        os.remove(os.path.join(folder, "linear.names"))
        done = subprocess.run([os.path.join(BUILD, "bin/gradcomp"), "plan", "--kineto", os.path.join(folder, "linear.json"), "--save", os.path.join(folder, "m")],
                              env=environment(), check=False)
        with open(os.path.join(folder, "m"), encoding="utf-8") as f:
            ok(not done.returncode and re.findall(r"= (Linear_\d+\.\S+)", f.read()) == ["Linear_0.6x4", "Linear_0.6", "Linear_1.3x6", "Linear_1.3"],
               f"{version}: without names parameters are called by their module")


pythons = (importlib.util.find_spec("torch") and sys.executable, other_torch())
if not any(pythons):
    skip_all("no PyTorch")
for python in filter(None, pythons):
    check(python)
done_testing()
