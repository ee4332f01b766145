#!/usr/bin/python3
"""gradcomp.data in one process, without PyTorch: readers, order, what is refused and
how it is said, and the end of a program that closes nothing."""

import gc
import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import done_testing, environment, error_of, need_library, ok, pace, skip_all  # noqa: E402

try:
    import numpy as np
except ImportError:
    skip_all("no numpy for " + sys.executable)
need_library()
os.environ.update(environment())
sys.path.insert(0, os.environ["PYTHONPATH"])
sys.modules["torch"] = None  # as where there is none
import gradcomp  # noqa: E402
import gradcomp.data  # noqa: E402
from gradcomp import _lib  # noqa: E402
from gradcomp.data import Dataset, Sample, Samples  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="gradcomp-test-")

# ---- readers ------------------------------------------------------------------

FILES = {f"{cls}/{i:03}.bin": bytes([i]) * (i * 37 % 900) for cls in ("cat", "dog", "eel") for i in range(20)}
tree = os.path.join(folder.name, "tree")
for name, data in FILES.items():
    os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
    with open(os.path.join(tree, name), "wb") as f:
        f.write(data)
shards = os.path.join(folder.name, "shards")
os.mkdir(shards)
for s in range(3):
    with tarfile.open(os.path.join(shards, f"part-{s}.tar"), "w") as tar:
        for i in range(10):
            for suffix, data in (("bin", bytes([s, i]) * 50), ("cls", str(i % 4).encode())):
                info = tarfile.TarInfo(f"{s}{i}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
s = Samples(tree)
ok((len(s), s.format, s.classes) == (60, "folder", ["cat", "dog", "eel"]),
   "a folder: files, classes", len(s), s.format, s.classes)
ok([s[i].key for i in range(60)] == sorted(FILES) and all(s[i].data == FILES[s[i].key] for i in range(60)),
   "in the order of their paths, each as it is")
ok([s[i].label for i in (0, 20, 59)] == [0, 1, 2] and s[-1] == s[59], "labels are the classes' numbers")
ok(isinstance(error_of(lambda: s[60]), IndexError) and len(list(s)) == 60, "[60] of 60 is an IndexError")
ok(s.info(5) == (s[5].key, 0, len(s[5].data)), "info() without reading", s.info(5))
ok(len(Samples(tree, suffixes=["txt", "md"])) == 0 and len(Samples(tree, suffixes="bin")) == 60, "only some suffixes")
s = Samples(shards, format="tar")
ok(len(s) == 30 and s[12] == Sample(s[12].key, s[12].label, {"bin": bytes([1, 2]) * 50, "cls": b"2"}), "tar shards",
   s[12])
parts = [os.path.join(shards, f"part-{s}.tar") for s in range(3)]
ok(len(Samples(os.path.join(shards, "part-{0..2}.tar"))) == 30 and len(Samples(parts[::-1])) == 30 and
   Samples(parts[::-1])[0] == s[20], "shards by a pattern and by a list, in its order")
with Dataset(parts[:2], shuffle=False) as ds:
    ok(len(ds) == 20, "a list of shards is no list of samples", len(ds))
with Dataset(["a", "b.tar"], shuffle=False) as ds:
    ok(len(ds) == 2, "other texts are samples", len(ds))
odd = os.path.join(folder.name, "odd{1}*,x::y.tar")
with open(parts[0], "rb") as f, open(odd, "wb") as g:
    g.write(f.read())
ok(len(Samples([odd, parts[1]])) == 20 and len(Samples([odd])) == 10, "a name that is there stands for itself")
e = error_of(Samples, parts + [os.path.join(shards, "part-3.tar")])
ok(isinstance(e, gradcomp.Error) and "part-3.tar" in str(e), "a shard of a list that is not there is named", e)
e = error_of(Samples, folder.name)
ok(isinstance(e, gradcomp.Error) and "name the" in str(e), "a root above shards and folders is no dataset", e)
e = error_of(Samples, os.path.join(folder.name, "none"))
ok(isinstance(e, gradcomp.Error) and "none" in str(e), "a path that is not there is named", e)
e = error_of(Samples, tree, format="zip")
ok(isinstance(e, gradcomp.Error) and "zip" in str(e) and "folder" in str(e), "so is a format that is none", e)

# ---- the dataset --------------------------------------------------------------

calls = []


def prepare(sample):
    calls.append(sample.key)
    return np.frombuffer(sample.data, np.uint8), sample.label


ds = Dataset(tree, prepare)
ok((len(ds), ds.length, ds.rank, ds.nranks) == (60, 60, 0, 1), "a dataset of one rank")
keys = sorted(FILES)
epochs = [[ds.order(e, p) for p in range(60)] for e in range(3)]
ok(all(sorted(e) == list(range(60)) for e in epochs) and epochs[0] != epochs[1] != epochs[2],
   "the order of an epoch has each sample once, and epochs differ")
for e in range(3):
    got = [(bytes(a), label) for a, label in ds.epoch(e)]
    ok(got == [(FILES[keys[i]], i // 20) for i in epochs[e]], f"epoch {e}: every value, in the order", got[:2])
ok(sorted(calls) == keys, "prepare() was called once a sample in three epochs", len(calls))
stats = ds.stats()
ok(stats["loaded"] == 60 and stats["local"] == 120 and stats["memory_used"] > 0, "stats() says so", stats)
ok([bytes(a) for a, _ in ds.epoch(1, start=50)] == [FILES[keys[i]] for i in epochs[1][50:]],
   "an epoch from position 50")
ok(list(ds.epoch(1, start=60)) == [] and "60" in str(error_of(ds.epoch, 1, start=61)), "from its end there is none")
ok([bytes(ds[i][0]) for i in range(60)] == [FILES[k] for k in keys] and bytes(ds[-1][0]) == FILES[keys[59]],
   "by index")
ok(isinstance(error_of(lambda: ds[60]), IndexError) and len(list(ds)) == 60, "[60] of 60 is an IndexError")
older = ds.epoch(0)
next(older)
newer = ds.epoch(0)
next(newer)
e = error_of(next, older)
ok(isinstance(e, gradcomp.Error) and "epoch 0" in str(e), "a second iteration ends the first, and that is said", e)
held = ds[10][0]
text = bytes(held)
ds.close()
ds.close()
gc.collect()
ok(bytes(held) == text, "a value outlives close()")
del held
ok("closed" in str(error_of(lambda: ds[0])) and "closed" in str(error_of(ds.epoch, 0)),
   "after close() there are none")

with Dataset(Samples(shards), shuffle=False) as ds:
    ok(ds[3] == Sample("03", 3, {"bin": bytes([0, 3]) * 50, "cls": b"3"}), "without prepare() the sample itself", ds[3])
    ok([v.key for v in ds.epoch(5)][:3] == ["00", "01", "02"], "shuffle=False: in order")
with Dataset(shards, lambda s: s.data, lambda v: v + b"!") as ds:
    ok(ds[0].endswith(b"!") and [v[-1:] for v in ds.epoch(0)] == [b"!"] * 30, "transform() at every access")
with Dataset([(np.full(3, i), i) for i in range(7)], workers=2, prefetch=4) as ds:
    ok(sorted(n for _, n in ds.epoch(0)) == list(range(7)), "any sequence, with workers of the library")
ahead = []


def watched(n):
    if threading.get_ident() != threading.main_thread().ident:
        ahead.append(n)
    if n == 30:
        raise ValueError("thirty")
    return n


with Dataset(list(range(60)), watched, workers=2, prefetch=16) as ds:
    got, wrong, patience = [], [], time.monotonic() + 30
    for i in ds.sampler:
        try:
            got.append(ds[i])
        except gradcomp.Error as e:
            wrong.append(str(e))
        while len(ahead) < 10 and time.monotonic() < patience:
            time.sleep(0.01)
    ok(sorted(got) == [n for n in range(60) if n != 30] and len(wrong) == 1 and "thirty" in wrong[0],
       "along the sampler by index", got, wrong)
    ok(len(ahead) >= 10, "threads of the library prepare ahead of it", ahead)
    order = list(ds.sampler)
    it = iter(ds.sampler)
    ok([ds[next(it)], ds[order[7]], ds[next(it)], ds[order[0]]] == [order[0], order[7], order[1], order[0]],
       "and out of turn")
with Dataset([], seed=9) as ds:
    ok((len(ds), list(ds.epoch(0)), list(ds.sampler)) == (0, [], []), "no samples at all")

# What does not fit is made again, or comes from a file.
big = [np.full(10000, i, np.uint8) for i in range(40)]
made = []
with Dataset(big, lambda a: made.append(1) or a, memory="150K") as ds:
    ok(all((ds[i] == i).all() for _ in range(2) for i in range(40)), "more than memory= holds: all values are right")
    stats = ds.stats()
    ok(stats["memory_used"] <= stats["memory_limit"] <= 150 << 10 and 40 < len(made) < 80 and stats["unkept"] > 0,
       "and what did not fit was made again", len(made), stats)
made.clear()
spill = os.path.join(folder.name, "spill")
os.mkdir(spill)
with Dataset(big, lambda a: made.append(1) or a, memory="150K", spill=spill) as ds:
    ok(all((ds[i] == i).all() for _ in range(2) for i in range(40)) and len(made) == 40,
       "with spill= nothing is made twice",
       len(made))
    ok(ds.stats()["spilled"] > 0, "stats() says so", ds.stats())
ok(os.listdir(spill) == [], "and no file is left")

# The order, resumed.
ds = Dataset(list(range(25)))
sampler = ds.sampler
whole = {}
for e in range(2):
    sampler.set_epoch(e)
    ok(len(sampler) == 25, f"epoch {e}: len() of the sampler")
    whole[e] = list(sampler)
ok(sorted(whole[0]) == sorted(whole[1]) == list(range(25)) and whole[0] != whole[1],
   "the sampler: each sample once an epoch")
sampler.set_epoch(1)
it = iter(sampler)
begun = [next(it) for _ in range(10)]
state = sampler.state_dict()
sooner = sampler.state_dict(taken=8)
again = Dataset(list(range(25))).sampler
again.load_state_dict(state)
again.set_epoch(1)
ok(len(again) == 15 and begun + list(again) == whole[1], "a saved state goes on where it was")
ok(list(again) == whole[1], "and the iteration after it is whole")
again.load_state_dict(sooner)
ok(list(again) == whole[1][8:], "taken= says how far training was")
again.load_state_dict(state)
again.set_epoch(0)
ok(list(again) == whole[0], "another epoch than the state's begins at its beginning")
again.load_state_dict(state)
it = iter(again)
next(it)
ok(again.state_dict(taken=1)["reached"] == 11, "and a resumed one is saved again", again.state_dict())
e = error_of(Dataset(list(range(25)), seed=1).sampler.load_state_dict, state)
ok(isinstance(e, gradcomp.Error) and "seed 0 (here 1)" in str(e),
   "a state of another order is refused, and what differs named", e)
for bad in ({}, {**state, "reached": -1}, {**state, "epoch": "1"}):
    ok(isinstance(error_of(again.load_state_dict, bad), gradcomp.Error), f"no state: {str(bad)[:40]}")

job = gradcomp.Job()
ds = Dataset([1, 2], job=job)
e = error_of(job.free)
ok(isinstance(e, gradcomp.Error) and e.status == _lib.ERR_STATE, "a job with an open dataset is not left", e)
ok(ds[0] == 1, "and both can be used")
ds.close()
job.free()
with Dataset([1, 2]) as ds:
    ok(ds[1] == 2, "after its end there is another")

# ---- failures -------------------------------------------------------------------


def failing(sample):
    if sample == 3:
        raise ValueError("three is bad")
    return object() if sample == 4 else 1 << 64 if sample == 5 else sample


for workers in (0, 2):
    with Dataset(list(range(8)), failing, shuffle=False, workers=workers) as ds:
        e = error_of(lambda: ds[3])
        ok(isinstance(e, gradcomp.Error) and "sample 3" in str(e) and "three is bad" in str(e) and "data.t" in str(e)
           and "in failing" in str(e), f"{workers} workers: an exception of prepare() comes with its place", e)
        e = error_of(lambda: ds[4])
        ok(isinstance(e, gradcomp.Error) and "sample 4" in str(e) and "object" in str(e),
           "so does a value of no known type", e)
        got = []
        e = error_of(lambda: got.extend(ds.epoch(0)))
        ok(got == [0, 1, 2] and isinstance(e, gradcomp.Error) and "three is bad" in str(e),
           "iteration: what comes before, then it",
           got, e)
        ok(isinstance(e.__cause__, ValueError), "the exception itself is its cause", repr(e.__cause__))
        ok(ds[6] == 6, "others are served as before")


def interrupted(_sample):
    raise KeyboardInterrupt


with Dataset([1], interrupted) as ds:
    ok(isinstance(error_of(lambda: ds[0]), KeyboardInterrupt), "Ctrl-C in prepare() is Ctrl-C")
with tempfile.TemporaryDirectory() as part:
    for shard, staged in ((None, True), ("0/2", False)):
        os.environ.update({"GRADCOMP_DATA": part, **({"GRADCOMP_DATA_SHARD": shard} if shard else {})})
        ok(gradcomp.data._staged(part) is staged, f"staged files are on every node, but not with mode=shard ({shard})")
    del os.environ["GRADCOMP_DATA"], os.environ["GRADCOMP_DATA_SHARD"]
pressed = []


def interrupted_once(sample):
    if sample == 2 and not pressed:
        pressed.append(sample)
        raise KeyboardInterrupt
    return sample


with Dataset(range(8), interrupted_once, shuffle=False) as ds:
    e = error_of(lambda: list(ds.batches(0, 4)))
    ok(isinstance(e, KeyboardInterrupt), "in batches() too, where the next call would meet it no more", e)
for options, named in (({"memory": "much"}, "much"), ({"workers": -1}, "workers"), ({"prepare": 3}, "prepare is a int"),
                       ({"seed": 1 << 64}, "seed")):
    e = error_of(Dataset, [1, 2], **options)
    ok(isinstance(e, gradcomp.Error) and named in str(e), f"refused: {options}", e)
e = error_of(Dataset, 17)
ok(isinstance(e, gradcomp.Error) and "int" in str(e), "a source that is none", e)
e = error_of(Dataset, [1], spill="/nonexistent/spill")
ok(isinstance(e, gradcomp.Error) and "/nonexistent/spill" in str(e), "a spill folder that is not there", e)

# ---- ends -----------------------------------------------------------------------


def python(*argv, **more):
    return subprocess.run([sys.executable, *argv], env=environment(**more), capture_output=True, text=True, timeout=60 * pace())


HEAD = "import gradcomp.data, os, sys, time\nds = gradcomp.data.Dataset(list(range(500)), prepare, workers=3)\n"
ENDS = {
    "nothing closed": ("", 0),
    "in mid-epoch": ("it = ds.epoch(0)\nnext(it)", 0),
    "an exception in mid-epoch": ("it = ds.epoch(0)\nnext(it)\nraise ValueError('on purpose')", 1),
    "sys.exit(3)": ("it = ds.epoch(0)\nnext(it)\nsys.exit(3)", 3),
    "values still held": ("held = [v for v in ds.epoch(0)]\nds.close()", 0),
    "a dataset in a cycle": ("ds.me = ds\nnext(ds.epoch(0))\ndel ds\nimport gc\ngc.collect()", 0),
    "a forked child that exits": ("next(ds.epoch(0))\npid = os.fork()\nif not pid: ds[400]; sys.exit(0)\n"
                                  "assert os.waitpid(pid, 0)[1] == 0\nassert ds[400] == 400", 0),
}
for name, (body, wanted) in ENDS.items():
    code = "def prepare(x):\n    time.sleep(0.002)\n    return x\n" + HEAD + body
    p = python("-W", "error", "-c", code)
    complaint = p.stderr if wanted != 1 else p.stderr.replace("ValueError", "")
    ok(p.returncode == wanted and ("Error" not in complaint and "ignored" not in complaint),
       f"the end of a program: {name}",
       p.returncode, p.stderr[-1500:])
p = python("-c", "import gradcomp.data, os\nos.environ['WORLD_SIZE'] = '4'\ngradcomp.data.Dataset([1])")
ok("WORLD_SIZE=4" in p.stderr and "init_process_group" in p.stderr,
   "one of four that has not joined them says what to do",
   p.stderr)
p = python("-c", "import gradcomp.data", GRADCOMP_LIBRARY="/none.so")
ok(p.returncode == 0, "importing needs no library", p.stderr)
KILLED = """
import gradcomp.data, os, signal

def prepare(x):
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return x

parent = os.getpid()
ds = gradcomp.data.Dataset(list(range(9)), prepare)
pid = os.fork()
if not pid:
    ds[5]
print(os.waitpid(pid, 0)[1], ds[5], ds[6])
"""
p = python("-c", KILLED)
ok(p.stdout.split() == [str(int(signal.SIGKILL)), "5", "6"],
   "a child killed in prepare() leaves its sample to the others",
   p.stdout, p.stderr)
done_testing()
