"""A dataset in files, and runs of loader.py over it on several ranks."""

import collections
import io
import json
import os
import random
import tarfile
import tempfile

from tap import SOURCE, errors, forked_ranks as ranks, ok

LOADER = os.path.join(SOURCE, "tests/python/loader.py")
COUNT = 83  # no multiple of ranks, batches or workers
folder = tempfile.TemporaryDirectory(prefix="gradcomp-test-")
os.chmod(folder.name, 0o1777)  # ranks may be of several users
tree = os.path.join(folder.name, "tree")
shards = os.path.join(folder.name, "shards")
_runs = 0


def _write():
    rng = random.Random(1)
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


_write()


def run(nranks, mode, path, **more):
    """What the ranks printed, as [{word: line}], their ends, and how often each sample was prepared."""
    global _runs
    _runs += 1
    counts = os.path.join(folder.name, f"calls{_runs}")
    result = ranks(nranks, [LOADER, mode, path, counts], timeout=180, **more)
    lines = []
    for _, out, _ in result:
        said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        lines.append({d["word"]: d for d in said})
    calls = collections.Counter()
    for r in range(nranks):
        if os.path.exists(f"{counts}.{r}"):
            with open(f"{counts}.{r}", encoding="ascii") as f:
                calls.update(map(int, f))
    return lines, result, calls


def seen(lines, *words):
    return [i for line in lines for word in words for i in line.get(word, {"seen": []})["seen"]]


def three_epochs(nranks, mode, path, **more):
    """Runs a mode of three epochs, and tests what holds for all of them. Returns what the ranks
    printed; None when they failed."""
    name = f"{nranks} ranks, {mode}, {os.path.basename(path)}"
    lines, result, calls = run(nranks, mode, path, **more)
    if not ok([s for s, _, _ in result] == [0] * nranks, f"{name}: all ranks end well", errors(result)):
        return None
    ok(all(d.get("right", True) for line in lines for d in line.values()), f"{name}: every value is right", lines)
    padded = -(-COUNT // nranks) * nranks - COUNT if mode.startswith("distributed") else 0
    for epoch in range(3):
        got = seen(lines, f"epoch {epoch}")
        ok(len(got) == COUNT + padded and set(got) == set(range(COUNT)),
           f"{name}: epoch {epoch} has each sample once", sorted(got))
    orders = [seen(lines, f"epoch {e}") for e in range(3)]
    ok(orders[0] != orders[1] != orders[2], f"{name}: each in another order")
    # Two ranks may want a sample at the same time that DistributedSampler gives to both.
    ok(set(calls) == set(range(COUNT)) and sum(calls.values()) <= COUNT + padded,
       f"{name}: prepare() once a sample in all epochs", {i: n for i, n in calls.items() if n != 1},
       set(range(COUNT)) - set(calls))
    stats = [line["stats"] for line in lines]
    # What a thread makes for another node is not handed out here.
    ok(0 < sum(s["loaded"] for s in stats) <= sum(calls.values()) and not any(s["damaged"] or s["unkept"] for s in stats),
       f"{name}: stats() agree", stats)
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
    return lines


def end_of_a_rank(how, **more):
    """Rank 1 of three is "killed" or "raises" in the first epoch."""
    _, result, _ = run(3, f"die:{how}", tree, **more)
    ok(all(s not in (0, None) for s, _, _ in result), f"a rank {how}: all end with a failure, none by a time-out",
       errors(result))
    ok(all("rank 1" in result[r][2] and "Error" in result[r][2] for r in (0, 2)),
       f"a rank {how}: the others name it", errors(result))
    ok("Fatal" not in errors(result) and "ignored" not in errors(result) and -11 not in [s for s, _, _ in result],
       f"a rank {how}: no crash at exit", errors(result))
