#!/usr/bin/python3
"""gradcomp.torch.LocalSGD and DiLoCo on four ranks: DDP where a synchronisation follows every step, the algorithms
in doubles, bytes, checkpoints, what is refused."""

import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
PROGRAM = os.path.join(SOURCE, "tests/python/synced.py")
FOLDER = tempfile.TemporaryDirectory(prefix="gradcomp-test-")


def words(got, part):
    """What each rank printed in a part, by word."""
    said = [dict(line.split(" ", 1) for line in out.splitlines() if "." in line.split(" ")[0]) for _, out, _ in got]
    return [{k[len(part) + 1:]: v for k, v in one.items() if k.startswith(part + ".")} for one in said]


def run(nranks, *parts, **env):
    """words() of every part; None when it failed."""
    got = ranks(nranks, [PROGRAM, *parts], timeout=180, TMPDIR=FOLDER.name, **env)
    if not ok([s for s, _, _ in got] == [0] * nranks, f"{nranks} ranks: {', '.join(parts)}", errors(got)):
        return {}, got
    return {p: words(got, p) for p in parts}, got


def same(got, word="digest"):
    return len({r[word] for r in got}) == 1


said, _ = run(4, "early", "every_step/0.0", "every_step/0.9", "few_bits", "simulated", "streamed", "bytes_sent", "others",
              "resumed/topk:density=0.05/3/4", "resumed/block:bits=4/1/0", "begun_together", "learnt/none/1/0",
              "learnt/block:bits=4/3/2", "refused", GRADCOMP="none")
for part, got in said.items():
    if part in ("early", "refused"):
        continue
    ok(same(got), f"{part}: all ranks hold the same bits", got)
    if "worst" in got[0]:
        ok(max(float(r["worst"]) for r in got) < 1e-6, f"{part}: weights are those they should be", got)
    if part == "few_bits":
        ok(all(r["same"] == "True" for r in got), "few_bits: DDP's weights, to the bit", got)
    if part == "streamed":
        ok(not same(got, "apart"), "streamed: between, ranks are apart", got)
        ok(all(r["exchanges"] == "11" for r in got), "streamed: each fragment goes every six steps", got)
    if part == "bytes_sent":
        # A number of 4 bits, and a scale of 4 bytes for 256 of them, instead of 10 floats.
        ok(all(abs(float(r["ratio"]) / (10 * 32 / (4 + 32 / 256)) - 1) < 0.01 for r in got),
           "bytes_sent: bytes a step by the formula", got)
    if part == "others":
        ok(all(same(got, w) for w in ("begun", "half", "sparse")) and all(r["mean"] == "True" for r in got),
           "others: begun with rank 0's; buffers are means", got)
    if part.startswith("resumed"):
        ok(all(r["same"] == "True" for r in got), f"{part}: a saved state continues to the bit", got)
        ok(all(int(r["in_flight"]) == (2 if "/4" in part else 0) for r in got), f"{part}: with what was in flight", got)
        ok(all("every is 7 in it and 6 here" in r["other"] for r in got), f"{part}: a state of another run", got)
        ok(all("is no state of" in r["none"] and "state_dict()" in r["none"] for r in got), f"{part}: what is no state, with what to give", got)
        ok(all("an empty dict is no state" in r["empty"] for r in got), f"{part}: nor is an empty dict", got)
    if part.startswith("learnt"):
        before, after = map(float, got[0]["loss"].split())
        ok(after < before / 2, f"{part}: the loss falls", got)

if said:
    ok("torch.distributed is not initialised" in said["early"][0]["early"], "before init_process_group()", said["early"])
    got = said["refused"]
    for word, *texts in (
            ("every", "every=0: must be a whole number, 1 or more"), ("half", "every=2.5"),
            ("differ", "every is 2 on rank 0 and 3 on rank 1"), ("fragments", "fragments=4: the model has 3 layers"),
            ("delay", "delay=5: must be less than every=5"), ("mix", "mix=1.5"), ("unmixed", "mix=0.5 without a delay"),
            ("double", "parameter 1.weight is float64", "convert it"), ("frozen", "no parameter of the model is trained"),
            ("ddp", "TypeError", "model.module"), ("text", "TypeError", "not a str"), ("none", "TypeError", "NoneType"),
            ("part", "parameter 2.weight is trained and not in outer_optimizer"), ("foreign", "that are not the model's"),
            ("rates", "lr of the outer optimizer is 0.5 on rank 0 and 1.5 on rank 1"),
            ("shapes", "is float32 [2, 2] trained on rank 0 and float32 [3, 2] trained on rank 2"),
            ("spec", "no-such-thing"), ("specs", "rank 1", "cast"), ("after", "made"), ("detached", "has been detached")):
        ok(all(all(t in r.get(word, "") for t in texts) for r in got), f"{word}: said on all ranks", [r.get(word) for r in got])
    ok("every=0" in got[0]["one"] and all("rank 0: every=0" in r["one"] for r in got[1:]), "one rank's mistake is all ranks'",
       [r["one"] for r in got])

together = said.get("begun_together")
if together:
    ok(all("call finish() first" in r["refused"] for r in together), "begun_together: not before finish()", together)
    said, _ = run(2, "continued", GRADCOMP="none")
    for got in said.values():
        ok(all(r["begun"] == together[0]["digest"] and r["steps"] == "24" for r in got), "two ranks go on where four ended", got)
        ok(all("the state's number of steps is 23 on rank 0 and 24 on rank 1" in r["differ"] for r in got),
           "not with states of different steps", got)

said, got = run(2, "plain")
if said:
    ok(same(said["plain"]), "without GRADCOMP: all ranks hold the same bits", said)
    ok([err.count("gradcomp: not requested") for _, _, err in got] == [1, 0], "which is said once, on rank 0", errors(got))
    ok(not any("without DiLoCo.finish" in err for _, _, err in got), "nothing is left to say after finish()", errors(got))
said, got = run(2, "unfinished", GRADCOMP="cast")
if said:
    ok(not same(said["unfinished"]), "before finish() the ranks' weights differ", said)
    ok(["without DiLoCo.finish" in err for _, _, err in got] == [True, False], "which rank 0 says at the end", errors(got))

got = ranks(3, [PROGRAM, "die"], timeout=180, GRADCOMP="none")
ok(all(s not in (0, None) for s, _, _ in got), "one rank raises: all end with a failure, and wait for no time-out", errors(got))
ok(all("rank 1" in got[r][2] for r in (0, 2)), "the others name the culprit", errors(got))

try:
    import sklearn  # noqa: F401
except ImportError:
    print("# no scikit-learn for the example")
else:
    got = ranks(2, [os.path.join(SOURCE, "examples/pytorch/diloco.py"), "--fragments", "4", "--delay", "5"], timeout=180,
                GRADCOMP="block:bits=4")
    ok([s for s, _, _ in got] == [0] * 2 and float(got[0][1].rpartition(" ")[2]) > 0.9, "examples/pytorch/diloco.py", errors(got),
       got[0][1])
done_testing()
