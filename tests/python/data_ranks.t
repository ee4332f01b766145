#!/usr/bin/python3
"""gradcomp.data on several ranks, with DataLoader and without: each sample once an
epoch, prepared once by whoever it was, right wherever it came from; and what the
others see of a rank or a worker that fails."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
from loading import COUNT, end_of_a_rank, folder, run, seen, shards, three_epochs, tree  # noqa: E402

for nranks, mode, path in ((2, "plain:2", shards), (4, "plain:0", tree), (1, "loader:2", tree), (2, "loader:0", tree),
                           (2, "loader:2", shards), (2, "distributed:follow", tree), (2, "distributed:plain", shards)):
    three_epochs(nranks, mode, path)
for how in ("killed", "raises"):
    end_of_a_rank(how)
lines, result, _ = run(2, "fail", tree)
said = [line.get("errors", {"seen": []})["seen"] for line in lines]
ok([s for s, _, _ in result] == [0, 0], "a sample that cannot be prepared does not end the job", errors(result))
ok(sum(map(len, said)) == 2 and all("five is bad" in e and "sample 5" in e for s in said for e in s),
   "whoever asks for it hears why", said)
lines, result, _ = run(2, "dropped", tree)
ok([s for s, _, _ in result] == [0, 0] and all(line["held"]["right"] for line in lines)
   and sorted(seen(lines, "epoch 0")) == list(range(COUNT)), "a dataset dropped without close() is in nobody's way",
   errors(result))
lines, result, _ = run(2, "mismatch", tree)
ok(all(s not in (0, None) and "seed" in err for s, _, err in result), "ranks of different seeds are told",
   errors(result))
# PyTorch raises from a signal handler when a worker is killed; 2.6 makes another error of that
# where it interrupts the lookup of an operator.
for how, word in (("killed", "dataloader.py"), ("raises", "no more")):
    lines, result, _ = run(1, f"worker:{how}", tree)
    ok(result[0][0] not in (0, None) and word in result[0][2], f"a worker that is {how} is an error, not a hang",
       errors(result))
    if how == "raises":
        ok("in broken" in result[0][2] and "gradcomp" in result[0][2], "with the worker's traceback", errors(result))

EXAMPLE = os.path.join(SOURCE, "examples/pytorch/dataset.py")
for form in ("folder", "tar"):
    path = os.path.join(folder.name, "digits-" + form)
    result = ranks(2, [EXAMPLE, path, "--as", form, "--epochs", "4", "--workers", "1"], GRADCOMP="cast:type=bf16")
    if result[0][0] != 0 and "No module named 'sklearn'" in result[0][2]:
        print("# no scikit-learn: the example was not run")
        break
    ok([s for s, _, _ in result] == [0, 0], f"the example: trains on a {form}", errors(result))
    lines = result[0][1].splitlines()
    accuracy = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("epoch")]
    ok(len(accuracy) == 4 and accuracy[-1] > 0.85, f"the example: {form}: and learns", lines)
    loaded = [int(line.split("loaded ")[1].split(",")[0]) for line in lines if "loaded " in line]
    ok(len(loaded) == 1 and 0 < loaded[0] < 1797, f"the example: {form}: each rank prepared its part", lines)
done_testing()
