#!/usr/bin/python3
"""gradcomp plan --kineto: traces that are made here, whose seconds are known, those of tests/golden/kineto, which
PyTorch has written, and files that are none. tests/python/kineto.t has traces of the PyTorch that is there."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
SOURCE = os.environ.get("GRADCOMP_SRC", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(SOURCE, "tests/python"))
from tap import BUILD, done_testing, ok, skip_all  # noqa: E402

GRADCOMP = os.path.join(BUILD, "bin/gradcomp")
GOLDEN = os.path.join(SOURCE, "tests/golden/kineto")
MACHINE = os.path.join(SOURCE, "examples/gigabit.machine")
ENGINE = "autograd::engine::evaluate_function: "
GRADIENT = "torch::autograd::AccumulateGrad"
os.environ.update(GRADCOMP_PLUGIN_PATH=os.path.join(BUILD, "lib/gradcomp"), GRADCOMP_MODELS=os.path.join(SOURCE, "etc/models"))
for name in ("GRADCOMP", "GRADCOMP_CONF"):
    os.environ.pop(name, None)
with open(os.path.join(BUILD, "gradcomp_config.h"), encoding="utf-8") as config:
    if "HAVE_JANSSON" not in config.read():
        skip_all("built without jansson")
folder = tempfile.TemporaryDirectory(prefix="gradcomp-test-", dir="/var/tmp")
TRACE, SAVED, NAMES = (os.path.join(folder.name, n) for n in ("trace.json", "saved.model", "names"))


def event(name, start, end, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": end - start,
            "args": {k.replace("_", " "): v for k, v in args.items()}}


class Step:
    """Two linear layers with a relu between them, as PyTorch numbers their operators, in microseconds."""

    def __init__(self, at, number, scale=1, backward_tid=1):
        self.at, self.number, self.scale, self.tid, self.events = at, number, scale, backward_tid, []

    def add(self, name, start, end, **more):
        self.events.append(event(name, self.at + self.scale * start, self.at + self.scale * end, **more))

    def forward(self, name, start, end, number):
        self.add(name, start, end, Sequence_number=self.number + number, Fwd_thread_id=0, Input_Dims=[[2, 5]])

    def node(self, name, start, end, number):
        self.add(ENGINE + name, start, end, tid=self.tid)
        self.add(name, start, end, tid=self.tid, Sequence_number=self.number + number, Fwd_thread_id=1)

    def gradient(self, start, end, dims):
        self.add(ENGINE + GRADIENT, start, end + 1, tid=self.tid)
        self.add(GRADIENT, start, end, tid=self.tid, Input_Dims=[dims], Input_type=["float"])

    def kernel(self, correlation, launched, start, end, name="gemm"):
        self.add("cudaLaunchKernel", launched, launched + 1, cat="cuda_runtime", correlation=correlation + self.number * 100)
        self.add(name, start, end, cat="kernel", tid=99, correlation=correlation + self.number * 100)

    def passes(self):
        self.add("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10, cat="user_annotation")
        for name, start, end, number in (("aten::linear", 20, 50, 0), ("aten::t", 21, 22, 0), ("aten::addmm", 25, 45, 1),
                                         ("aten::relu", 50, 55, 2), ("aten::linear", 60, 90, 3), ("aten::t", 61, 62, 3),
                                         ("aten::addmm", 65, 85, 4), ("aten::mse_loss", 90, 95, 5)):
            self.forward(name, start, end, number)
        self.node("MseLossBackward0", 100, 105, 5)
        self.node("AddmmBackward0", 105, 120, 4)
        self.gradient(120, 121, [3])
        self.node("TBackward0", 122, 123, 3)
        self.gradient(123, 125, [3, 4])
        self.node("ReluBackward0", 126, 130, 2)
        self.node("AddmmBackward0", 130, 150, 1)
        self.gradient(150, 152, [4])
        self.node("TBackward0", 153, 153.5, 0)
        self.gradient(153.5, 155, [4, 5])
        self.add("Optimizer.step#SGD.step", 160, 170, cat="user_annotation")
        return self

    def modules(self):
        for module, start, end in (("Sequential_0", 18, 92), ("Linear_0", 19, 51), ("Linear_1", 59, 91)):
            self.add("nn.Module: " + module, start, end, cat="python_function")
        return self

    def kernels(self):
        for i, (launched, start, end) in enumerate(((30, 200, 300), (52, 300, 310), (70, 310, 410), (92, 410, 420), (102, 420, 430),
                                                    (110, 430, 530), (127, 530, 540), (140, 540, 640), (162, 640, 660))):
            self.kernel(i, launched, start, end)
        self.kernel(50, 121, 430, 900, "ncclDevKernel_AllReduce")
        return self


def write(events, path=TRACE, **top):
    whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a ] in \" text"}], "displayTimeUnit": "ms", **top, "traceEvents": events,
             "traceName": "trace.json"}
    with open(path, "w", encoding="utf-8") as f:
        json.dump({k: v for k, v in whole.items() if v is not None}, f)
    return path


def plan(*arguments):
    return subprocess.run([GRADCOMP, "plan", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", check=False)


def model(path=TRACE, *more):
    """What is said, and of the model that is saved the tensors (name, shape, forward, backward) and other keys, in microseconds."""
    done = plan("--kineto", path, "--save", SAVED, *more)
    if done.returncode:
        return done.stderr, [], {}
    with open(SAVED, encoding="utf-8") as f:
        text = f.read()
    os.unlink(SAVED)
    rows = re.findall(r"^\d+ = (\S+) (\S+) forward (\S+) backward (\S+)$", text, re.M)
    return (done.stderr, [(n, s, float(a) * 1e6, float(b) * 1e6) for n, s, a, b in rows],
            {k: float(v) * 1e6 for k, v in re.findall(r"^(io|update) = (\S+)$", text, re.M)})


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-6 for x, y in zip(a, b))


def has(what, got, shapes, forward, backward, io=10, update=10):
    said, rows, keys = got
    ok([r[1] for r in rows] == shapes, f"{what}: the parameters, the last gradient's first", said, rows)
    ok(near([r[2] for r in rows], forward) and near([r[3] for r in rows], backward), f"{what}: what each takes in both passes", rows)
    ok(keys and near([keys["io"], keys["update"]], [io, update]), f"{what}: reading and updating", keys)


def refused(what, text, *arguments, status=1):
    done = plan(*(arguments or ("--kineto", TRACE, "--save", SAVED)))
    ok(done.returncode == status and text in done.stderr and not done.stdout and not os.path.exists(SAVED), f"{what}: refused",
       done.returncode, done.stderr, done.stdout)


# ---- seconds

SHAPES, FORWARD, BACKWARD = ["4x5", "4", "3x4", "3"], [5, 36, 4, 35], [3, 27, 4, 21]
one = Step(1000, 0).passes().events
write(one)
has("a step", model(), SHAPES, FORWARD, BACKWARD)
ok([r[0] for r in model()[1]] == ["0.4x5", "1.4", "2.3x4", "3.3"], "without names parameters are called by place and shape")
shuffled = one[:]
random.Random(5).shuffle(shuffled)
write(shuffled)
has("its events in any order", model(), SHAPES, FORWARD, BACKWARD)
write([e for at, scale in ((1000, 1), (2000, 5), (3000, 1)) for e in Step(at, at, scale).passes().events])
has("three steps: the medians", model(), SHAPES, FORWARD, BACKWARD)
write(Step(1000, 0, backward_tid=2).passes().events)
has("a backward pass on a thread of its own", model(), SHAPES, FORWARD, BACKWARD)
# Work is over when the kernels are; those that wait for other ranks do not count.
write([e for at in (1000, 2000) for e in Step(at, at, backward_tid=2).passes().kernels().events])
has("a device", model(), SHAPES, [5, 285, 0, 110], [0, 110, 0, 110], update=20)
write(Step(1000, 0).passes().modules().events)
ok([r[0] for r in model()[1]] == ["Linear_0.4x5", "Linear_0.4", "Linear_1.3x4", "Linear_1.3"], "parameters are called by the module, where it is there")
with open(NAMES, "w", encoding="utf-8") as f:
    f.write("unused 9x9\n0.weight 4x5\n\n0.bias 4\n2.weight 3x4\n2.bias 3\nscale scalar\n")
ok([r[0] for r in model(TRACE, "--names", NAMES)[1]] == ["0.weight", "0.bias", "2.weight", "2.bias"], "or as a list says")
ok(abs(sum(r[2] + r[3] for r in model(TRACE, "--compute", "1")[1]) - 1e6) < 1, "--compute scales what they take")
done = plan("--kineto", TRACE, "--machine", MACHINE, "--compressors", "none", "--collectives", "ring")
ok(not done.returncode and "trace.json: 39 parameters in 4 tensors" in done.stdout, "a plan of it", done.stderr, done.stdout)

# ---- what else programs do

# A pass whose first half is not there, as where profiling begins in the middle, and a validation at the end.
half = [e for e in Step(1000, 0).passes().events if e["ts"] >= 1123]
tail = [e for e in Step(9000, 50).passes().events if e["ts"] < 9095]
write(half + Step(2000, 10).passes().events + tail)
got = model()
has("the middle of a step, and a pass without a backward one", got, SHAPES, FORWARD, BACKWARD)
ok("1 of 2 backward passes count" in got[0], "which is said", got[0])
# A pass that has one more, and two models in turn, of which the larger one counts.
more = Step(1000, 0).passes()
more.gradient(156, 157, [7])
write(more.events + [e for at in (2000, 3000) for e in Step(at, at).passes().events])
got = model()
has("a pass unlike the others", got, SHAPES, FORWARD, BACKWARD)
ok("2 of 3 backward passes count" in got[0], "which is said, too", got[0])
few = [e for at in (1000, 3000, 5000) for e in Step(at, at).passes().events if e["ts"] < at + 122 or e["ts"] >= at + 160]
write(few + [e for at in (2000, 4000, 6000) for e in Step(at, at).passes().events])
has("two models in turn", model(), SHAPES, FORWARD, BACKWARD)
# Operators that run again inside a node, whose numbers are new: the node's own number counts.
step = Step(1000, 0).passes()
again = [e for e in step.events if e["ts"] < 1130 or e["ts"] >= 1160]
step.events = []
step.node("CheckpointFunctionBackward", 130, 158, 0)
step.forward("aten::addmm", 131, 135, 7)
step.add(ENGINE + "AddmmBackward0", 136, 150)
step.add("AddmmBackward0", 136, 150, Sequence_number=7, Fwd_thread_id=1)
step.gradient(150, 152, [4])
step.gradient(154, 155, [4, 5])
write(again + step.events)
has("a checkpoint", model(), SHAPES, [1, 40, 4, 35], BACKWARD)
# The loss depends on fewer parameters: a gradient that is none.
none = event(GRADIENT, 1156, 1157, Input_Dims=[[]], Input_type=[""])
write([*one, none])
has("a gradient that is not there", model(), SHAPES, FORWARD, BACKWARD)
write([*one, event(ENGINE + GRADIENT, 1157, 1160), event(GRADIENT, 1157, 1159, Input_Dims=[[]], Input_type=["float"])])
ok([r[1] for r in model()[1]] == ["scalar", *SHAPES], "a scalar", model())
write([{**e, "cat": {"cpu_op": "Operator"}.get(e["cat"], e["cat"])} for e in one])
has("categories of PyTorch before 1.12", model(), SHAPES, FORWARD, BACKWARD)

# ---- what PyTorch has written

for name in sorted(os.listdir(GOLDEN)):
    said, rows, keys = model(os.path.join(GOLDEN, name))
    ok([r[1] for r in rows] == ["6x4", "6", "3x6", "3"], f"{name}: the parameters", said, rows)
    ok(all(r[2] >= 0 and r[3] > 0 for r in rows) and sum(r[2] for r in rows) > 0 and keys.get("update", 0) > 0, f"{name}: their seconds", rows, keys)

# ---- files that are none

with open(TRACE, "wb") as f:
    f.write(gzip.compress(json.dumps({"schemaVersion": 1}).encode()))
refused("a compressed file", "unpack it first, with gunzip")
for what, text, version in (("another version", "its schemaVersion is '2'", 2), ("a version that is text", "its schemaVersion is 'x'", "x"),
                            ("no version", "no schemaVersion", None)):
    write(one, schemaVersion=version)
    refused(what, text)
for what, text, content in (("no events", "no traceEvents", '{"schemaVersion": 1}'), ("events that are none", "no traceEvents", '{"schemaVersion": 1, "traceEvents": 3}'),
                            ("an empty file", "begins with '{'", ""), ("a list", "built without Kineto", "[]"), ("no JSON", "this is no JSON", '{"schemaVersion" 1}'),
                            ("an event that is none", "this is no event", '{"schemaVersion": 1, "traceEvents": [[1]]}'),
                            ("an event that is no JSON", "byte ", '{"schemaVersion": 1, "traceEvents": [{"ph" "X"}]}'),
                            ("a word for an event", "byte ", '{"schemaVersion": 1, "traceEvents": [nothing]}'),
                            ("an event of a MiB", "more than a MiB", '{"schemaVersion": 1, "traceEvents": [{"name": "%s"}]}' % ("x" * (1 << 20))),
                            ("an event that is too deep", "byte ", '{"schemaVersion": 1, "traceEvents": [{"args": %s}]}' % ("[" * 5000)),
                            ("a nest without an end", "cut short", '{"schemaVersion": 1, "x": %s' % ("[" * 500000))):
    with open(TRACE, "w", encoding="utf-8") as f:
        f.write(content)
    refused(what, text)


def changed(what, text, change):
    write([change(json.loads(json.dumps(e))) for e in one])
    refused(what, text)


def without(*keys):
    def change(e):
        for k in keys:
            e["args"].pop(k, None)
        return e
    return change


def with_gradient(**args):
    return lambda e: e if e["name"] != GRADIENT else {**e, "args": {**e["args"], **{k.replace("_", " "): v for k, v in args.items()}}}


changed("no shapes", "profile with record_shapes=True", without("Input Dims"))
changed("no sequence numbers", "no operator of a forward pass has the sequence number", without("Sequence number"))
changed("negative times", "event 'aten::linear' begins at -", lambda e: {**e, "ts": -e["ts"]} if e["name"] == "aten::linear" else e)
changed("a negative duration", "takes -1 microseconds", lambda e: {**e, "dur": -1} if e["name"] == GRADIENT else e)
changed("no duration", "takes nan microseconds", lambda e: {k: v for k, v in e.items() if k != "dur" or e["name"] != GRADIENT})
changed("a time that is text", "begins at nan", lambda e: {**e, "ts": str(e["ts"])})
changed("a time beyond counting", "begins at 1e+30", lambda e: {**e, "ts": 1e30} if e["name"] == GRADIENT else e)
changed("dimensions that are negative", "a dimension that is no number", with_gradient(Input_Dims=[[-3, 4]]))
changed("dimensions that are text", "a dimension that is no number", with_gradient(Input_Dims=[["3"]]))
changed("nine dimensions", "more than 8 dimensions", with_gradient(Input_Dims=[[1] * 9]))
changed("more parameters than can be", "more than 2^48 parameters", with_gradient(Input_Dims=[[1 << 40, 1 << 40]]))
write([e for e in one if "Backward" not in e["name"] and GRADIENT not in e["name"]])
refused("no backward pass", "it has no backward pass")
write([e for e in one if e["ts"] >= 1096])
refused("no forward pass", "profile whole steps, both passes")
write([without("correlation")(e) for e in Step(1000, 0).passes().kernels().events])
refused("kernels without correlations", "none of its kernels has the correlation of a launch")
refused("a file that is not there", "No such file", "--kineto", os.path.join(folder.name, "gone"), "--save", SAVED)
refused("a folder", "this is no file", "--kineto", folder.name, "--save", SAVED)
os.mkfifo(os.path.join(folder.name, "pipe"))
refused("a pipe", "this is no file", "--kineto", os.path.join(folder.name, "pipe"), "--save", SAVED)
write(one)
for what, text, content in (("a name without a shape", "names:2: write NAME 64x3x7x7", "a 4\nb\n"), ("a shape that is none", "names:1: write", "a 4x\n"),
                            ("a shape beyond counting", "names:1: write", "a 99999999999999999999\n"), ("three words", "names:1: write", "a 4 4\n"),
                            ("a list of another model", "no parameter of 4x5 is left for gradient 4 of 4", "a 4\nb 3x4\nc 3\n"),
                            ("an empty list", "no parameter of 4x5 is left", "")):
    with open(NAMES, "w", encoding="utf-8") as f:
        f.write(content)
    refused(what, text, "--kineto", TRACE, "--names", NAMES, "--save", SAVED)
refused("a list that is not there", "names /", "--kineto", TRACE, "--names", os.path.join(folder.name, "gone"), "--save", SAVED)
refused("a trace for a model", "give it with --kineto", "--model", TRACE, "--machine", MACHINE)
refused("a model beside a trace", "give one of them", "--kineto", TRACE, "--model", "resnet50", "--machine", MACHINE, status=2)
refused("names without a trace", "--names goes with --kineto", "--names", NAMES, "--model", "resnet50", "--machine", MACHINE, status=2)
refused("tokens of a trace", "--tokens goes with", "--kineto", TRACE, "--tokens", "5", "--machine", MACHINE, status=2)
refused("stages of a trace", "has no section [layers]", "--kineto", TRACE, "--parallel", "--memory", "1G", "--machine", MACHINE)

# Every prefix is cut short, and bytes that have changed end nothing but the command.
with open(TRACE, "rb") as f:
    whole = f.read()
cuts = range(2, len(whole) - 1, len(whole) // 24)
said = []
for n in cuts:
    with open(TRACE, "wb") as f:
        f.write(whole[:n])
    said.append(plan("--kineto", TRACE, "--save", SAVED))
ok(all(d.returncode == 1 and "cut short" in d.stderr for d in said), f"{len(said)} prefixes are cut short", [d.stderr for d in said if "cut short" not in d.stderr])
dice, ended = random.Random(32), []
for _ in range(40):
    bytes_ = bytearray(whole)
    for _ in range(dice.randrange(1, 8)):
        bytes_[dice.randrange(len(whole))] = dice.choice(b'0123456789{}[]",:-eXx \xff')
    with open(TRACE, "wb") as f:
        f.write(bytes_)
    ended.append(plan("--kineto", TRACE, "--save", SAVED).returncode)
ok(set(ended) <= {0, 1}, f"{len(ended)} files with changed bytes are read or refused", ended)


def most_memory(path):
    """Bytes of the command that reads it."""
    pid = os.posix_spawn(GRADCOMP, [GRADCOMP, "plan", "--kineto", path, "--save", SAVED], os.environ)
    _, status, usage = os.wait4(pid, 0)
    return usage.ru_maxrss * 1024 if not status else float("inf")


if "asan" not in os.environ.get("LD_PRELOAD", ""):
    write(one)
    small = most_memory(TRACE)
    write(one + [event("aten::empty", 2000, 2001, Call_stack="x" * 4000)] * 2000)
    ok(most_memory(TRACE) - small < 4 << 20, "8 MB are read in the memory of some KB", small, os.stat(TRACE).st_size)
done_testing()
