#!/usr/bin/python3
"""examples/pytorch/hybrid.py: tensor, pipeline and data parallelism at once over the backend. Losses of eight ranks are those of one
process; a policy for dp compresses the groups of dp and no others; a plan is carried out; what cannot be shared is refused."""

import json
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, current_torch, done_testing, environment, errors, forked_ranks, in_part, need_library, ok  # noqa: E402

need_library()
PYTHON = current_torch()
EXAMPLES = os.path.join(SOURCE, "examples/pytorch")
SMALL = ["--steps", "3", "--width", "64", "--layers", "2"]
EIGHT_BITS = "dp/block:bits=8+any/none"
MACHINE = """[machine]
name = lab
nodes = 1
ranks_per_node = 2
memory = 1e-14
reduce = 1e-14
beside_application = 1
beside_exchange = 1

[node]
message = 0
byte = 1e-14

[compressor 1]
spec = none
encode = 0 0
decode = 0 0
"""
MODEL = """[model]
name = even
batch = 8

[tensors]
0 = in 64x1024 forward 0 backward 0
1 = w1 1024x1024 forward 1e-3 backward 2e-3
2 = w2 1024x1024 forward 1e-3 backward 2e-3
3 = out 1024x64 forward 0 backward 0

[layers]
0 = embeddings tensors 0-0 output 8 kept 8 8 reduces 1
1 = layer1 tensors 1-1 output 8 kept 8 16 reduces 2
2 = layer2 tensors 2-2 output 8 kept 8 16 reduces 2
3 = head tensors 3-3 output 8 kept 8 8 reduces 1
"""
REFUSALS = f"""
import json, sys
sys.path.insert(0, {EXAMPLES!r})
import hybrid
for argv in json.loads(sys.argv[1]):
    sys.argv = ["hybrid.py", *argv]
    try:
        hybrid.settle(hybrid.parse(), 8)
        print("nothing")
    except (ValueError, OSError) as e:
        print(e)
"""


def started(nranks, argv, policy):
    return forked_ranks(nranks, argv, timeout=120, python=PYTHON, modules=("torch.distributed.pipelining",), GRADCOMP=policy)


def train(name, nranks, policy, limit, degrees, *more):
    """What each group of rank 0 has sent: (group, operation, MB as it is, MB sent, entry). `degrees`: of dp, pp and tp."""
    got = started(nranks, [os.path.join(EXAMPLES, "hybrid.py"), *SMALL, *more, "--check", str(limit)], policy)
    said = got[0][1]
    shape = "dp {} x pp {} x tp {}: loss".format(*degrees)
    ok([status for status, _, _ in got] == [0] * nranks and shape in said and f"within {limit:g}" in said, f"{name}: losses of one process, to {limit:g} of them",
       said, errors(got))
    rows = [line.split(None, 5) for line in said.splitlines() if line.startswith(("mesh_", "default_pg"))]
    return [(group, operation, float(dense), float(sent), entry) for group, operation, _, dense, sent, entry in rows]


def refused():
    with tempfile.NamedTemporaryFile("w", suffix=".plan") as plan:
        plan.write("--parallelism.tensor_parallel_degree=2\n")
        plan.flush()
        asked = [(["--dp", "3"], "--dp 3 x --pp 2 x --tp 2 are 12 ranks, and 8 have been started"),
                 (["--layers", "3"], "--layers 3 cannot be divided evenly among --pp 2 stages"),
                 (["--heads", "1"], "--heads 1 cannot be divided evenly among --tp 2 ranks"),
                 (["--width", "130"], "--width 130 cannot be divided evenly among --heads 4 heads"),
                 (["--batch", "12"], "--batch 12 cannot be divided evenly among --dp 2 x --microbatches 4 micro-batches"),
                 (["--microbatches", "1"], "--microbatches 1 are fewer than --pp 2 stages"),
                 (["--dp", "0"], "--dp is 0; it must be 1 at least"),
                 (["--plan", "/nowhere/plan"], "No such file or directory: '/nowhere/plan'"),
                 (["--plan", plan.name], f"{plan.name} is no plan that gradcomp plan --parallel --emit torchtitan has written: it lacks ")]
        got = started(1, ["-c", REFUSALS, json.dumps([argv for argv, _ in asked])], "off")
    lines = got[0][1].splitlines()
    wrong = [(argv, said) for (argv, why), said in zip(asked, lines) if why not in said]
    ok(len(lines) == len(asked) and not wrong, f"what cannot be shared is refused: {len(asked)} things", wrong, errors(got))
    got = started(2, [os.path.join(EXAMPLES, "hybrid.py")], "off")
    ok([status for status, _, _ in got] == [1, 1] and "".join(err for _, _, err in got) == "hybrid.py: --dp 2 x --pp 2 x --tp 2 are 8 ranks, and 2 "
       "have been started: start as many, or give other degrees\n", "... by one rank, and all end", errors(got))


def planned():
    with tempfile.TemporaryDirectory() as folder:
        names = {name: os.path.join(folder, name) for name in ("machine", "model", "plan")}
        for name, text in (("machine", MACHINE), ("model", MODEL)):
            with open(names[name], "w", encoding="ascii") as f:
                f.write(text)
        with open(names["plan"], "w", encoding="ascii") as f:
            # One sample a micro-batch: it is layers or matrices that are shared.
            made = subprocess.run([os.path.join(BUILD, "bin/gradcomp"), "plan", "--parallel", "--model", names["model"], "--machine", names["machine"],
                                   "--memory", "1G", "--compressors", "none", "--microbatches", "4", "--batch", "4", "--emit", "torchtitan"],
                                  stdout=f, stderr=subprocess.PIPE, text=True, env=environment(), check=False)
        ok(made.returncode == 0, "a plan for two ranks", made.stderr)
        with open(names["plan"], encoding="ascii") as f:
            text = f.read()
        degrees = [int(re.search(f"{name}_degree=([0-9]+)", text).group(1)) for name in ("data_parallel_replicate", "pipeline_parallel", "tensor_parallel")]
        ok(sorted(degrees) == [1, 1, 2] and degrees[0] == 1, "... that shares layers or matrices", text)
        train("... which is carried out", 2, "any/none", 1e-5, degrees, "--plan", names["plan"])


if in_part(0, 2):
    rows = train("2 x 2 x 2", 8, "any/none", 1e-5, (2, 2, 2), "--microbatches", "2", "--batch", "8")
    ok({row[0] for row in rows} >= {"mesh_dp", "mesh_pp", "mesh_tp"} and {row[4] for row in rows} == {"as it is"}, "... all groups send, as it is", rows)
if in_part(1, 2):
    rows = train("2 x 2 x 2 with 8 bits in dp", 8, EIGHT_BITS, 1e-3, (2, 2, 2), "--microbatches", "2", "--batch", "8")
    coded = [row for row in rows if row[4] != "as it is"]
    ok({row[:2] for row in coded} == {("mesh_dp", "all_gather"), ("mesh_dp", "reduce_scatter")}, "... the groups of dp are compressed, no others", rows)
    ok(coded and all(sent <= 0.27 * dense for _, _, dense, sent, _ in coded), "... to at most 0.27 of the bytes", rows)
    ok({row[0] for row in rows if row[4] == "as it is"} >= {"mesh_pp", "mesh_tp"}, "... those of pp and tp send as it is", rows)
    planned()
refused()
done_testing()
