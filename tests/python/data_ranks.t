#!/usr/bin/python3
"""gradcomp.data on several ranks, with DataLoader and without: each sample once an
epoch, prepared once by whoever it was, right wherever it came from; and what the
others see of a rank or a worker that fails."""

import collections
import io
import json
import os
import random
import sys
import tarfile
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, done_testing, ok, ranks, skip_all  # noqa: E402

try:
    import torch
except ImportError:
    skip_all("no PyTorch for " + sys.executable)
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    skip_all("PyTorch without Gloo")
if not os.path.exists(os.path.join(BUILD, "lib/libgradcomp.so")):
    skip_all(f"no libgradcomp.so in {BUILD}/lib")
LOADER = os.path.join(SOURCE, "tests/python/loader.py")
COUNT = 83  # no multiple of ranks, batches or workers
folder = tempfile.TemporaryDirectory(prefix="gradcomp-test-")
rng, runs = random.Random(1), 0
tree = os.path.join(folder.name, "tree")
shards = os.path.join(folder.name, "shards")
os.mkdir(shards)
with tarfile.open(os.path.join(shards, "a.tar"), "w") as a, tarfile.open(os.path.join(shards, "b.tar"), "w") as b:
    for i in range(COUNT):
        data = rng.randbytes(rng.randrange(1, 5000))
        name = os.path.join(tree, f"class{i % 4}", f"{i:03}.bin")
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as f:
            f.write(data)
        info = tarfile.TarInfo(f"{i:03}.bin")
        info.size = len(data)
        (a if i < 50 else b).addfile(info, io.BytesIO(data))


def run(nranks, mode, path, timeout=60):
    """What the ranks printed, as [{word: line}], their ends, and how often each sample was prepared."""
    global runs
    runs += 1
    counts = os.path.join(folder.name, f"calls{runs}")
    result = ranks(nranks, [LOADER, mode, path, counts], timeout=timeout)
    lines = [{d["word"]: d for d in map(json.loads, (x for x in out.splitlines() if x.startswith("{")))} for _, out, _ in result]
    calls = collections.Counter()
    for r in range(nranks):
        if os.path.exists(f"{counts}.{r}"):
            with open(f"{counts}.{r}", encoding="ascii") as f:
                calls.update(map(int, f))
    return lines, result, calls


def errors(result):
    return "\n".join(f"rank {r}: status {status}\n{err[-1500:]}" for r, (status, _, err) in enumerate(result))


def seen(lines, *words):
    return [i for line in lines for word in words for i in line.get(word, {"seen": []})["seen"]]


for nranks, mode, path in ((1, "plain:0", tree), (2, "plain:2", shards), (4, "plain:0", tree), (1, "loader:2", tree),
                           (2, "loader:0", tree), (2, "loader:2", shards), (4, "loader:1", tree),
                           (2, "distributed:follow", tree), (2, "distributed:plain", shards)):
    name = f"{nranks} ranks, {mode}, {os.path.basename(path)}"
    lines, result, calls = run(nranks, mode, path)
    if not ok([s for s, _, _ in result] == [0] * nranks, f"{name}: all ranks end well", errors(result)):
        continue
    ok(all(d.get("right", True) for line in lines for d in line.values()), f"{name}: every value is right", lines)
    padded = -(-COUNT // nranks) * nranks - COUNT if mode.startswith("distributed") else 0
    for epoch in range(3):
        got = seen(lines, f"epoch {epoch}")
        ok(len(got) == COUNT + padded and set(got) == set(range(COUNT)), f"{name}: epoch {epoch} has each sample once", sorted(got))
    orders = [seen(lines, f"epoch {e}") for e in range(3)]
    ok(orders[0] != orders[1] != orders[2], f"{name}: each in another order")
    ok(calls == collections.Counter(range(COUNT)), f"{name}: prepare() once a sample in all epochs",
       {i: n for i, n in calls.items() if n != 1}, set(range(COUNT)) - set(calls))
    stats = [line["stats"] for line in lines]
    ok(sum(s["made"] for s in stats) == COUNT and not any(s["damaged"] or s["unkept"] for s in stats), f"{name}: stats() agree", stats)
    if mode.startswith("plain"):
        ok([line["resumed"]["seen"] for line in lines] == [line["epoch 1"]["seen"][len(line["epoch 1"]["seen"]) // 2:]
                                                            for line in lines], f"{name}: an epoch from its middle")
    if mode.startswith("loader"):
        got = seen(lines, "first half", "second half")
        ok(sorted(got) == list(range(COUNT)) and all(len(line["first half"]["seen"]) == 12 for line in lines),
           f"{name}: resumed in mid-epoch, each sample once", sorted(got))
        even = [line["even"]["seen"] for line in lines]
        ok({len(e) for e in even} == {COUNT // nranks} and len(set(sum(even, []))) == COUNT // nranks * nranks,
           f"{name}: drop_last gives all ranks equally many", even)

for how in ("killed", "raises"):
    start = time.monotonic()
    lines, result, _ = run(3, f"die:{how}", tree)
    seconds = time.monotonic() - start
    ok(all(s not in (0, None) for s, _, _ in result), f"a rank {how}: all end with a failure", errors(result))
    ok(all("rank 1" in result[r][2] and "Error" in result[r][2] for r in (0, 2)), f"a rank {how}: the others name it", errors(result))
    ok(seconds < 30, f"a rank {how}: and none waits for a time-out ({seconds:.1f} s)")
    ok("Fatal" not in errors(result) and "ignored" not in errors(result) and -11 not in [s for s, _, _ in result],
       f"a rank {how}: no crash at exit", errors(result))
lines, result, _ = run(2, "fail", tree)
said = [line.get("errors", {"seen": []})["seen"] for line in lines]
ok([s for s, _, _ in result] == [0, 0], "a sample that cannot be prepared does not end the job", errors(result))
ok(sum(map(len, said)) == 2 and all("five is bad" in e and "sample 5" in e for s in said for e in s),
   "whoever asks for it hears why", said)
lines, result, _ = run(2, "dropped", tree)
ok([s for s, _, _ in result] == [0, 0] and all(line["held"]["right"] for line in lines)
   and sorted(seen(lines, "epoch 0")) == list(range(COUNT)), "a dataset dropped without close() is in nobody's way", errors(result))
lines, result, _ = run(2, "mismatch", tree)
ok(all(s not in (0, None) and "seed" in err for s, _, err in result), "ranks of different seeds are told", errors(result))
for how, word in (("killed", "killed by signal"), ("raises", "no more")):
    lines, result, _ = run(1, f"worker:{how}", tree)
    ok(result[0][0] not in (0, None) and word in result[0][2], f"a worker that is {how} is an error, not a hang", errors(result))
    if how == "raises":
        ok("in broken" in result[0][2] and "gradcomp" in result[0][2], "with the worker's traceback", errors(result))

EXAMPLE = os.path.join(SOURCE, "examples/pytorch/dataset.py")
for form in ("tree", "tar"):
    path = os.path.join(folder.name, "digits-" + form)
    result = ranks(2, [EXAMPLE, path, "--as", form, "--epochs", "4", "--workers", "1"], GRADCOMP="cast:type=bf16")
    if result[0][0] != 0 and "No module named 'sklearn'" in result[0][2]:
        print("# no scikit-learn: the example was not run")
        break
    ok([s for s, _, _ in result] == [0, 0], f"the example: trains on a {form}", errors(result))
    lines = result[0][1].splitlines()
    accuracy = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("epoch")]
    ok(len(accuracy) == 4 and accuracy[-1] > 0.85, f"the example: {form}: and learns", lines)
    made = [int(line.split("made ")[1].split(",")[0]) for _, out, _ in result for line in out.splitlines() if "made " in line]
    ok(len(made) == 1 and 0 < made[0] < 1797, f"the example: {form}: each rank prepared its part", lines)
done_testing()
