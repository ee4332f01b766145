#!/usr/bin/python3
"""gradcomp.torch on three ranks, started as torchrun would: the average is DDP's
own, for every way of using DDP, and a rank that fails ends the others."""

import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, in_time, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
TRAIN = os.path.join(SOURCE, "tests/python/train.py")


def said(result, word):
    """What each rank printed after a word; None where it did not."""
    lines = [dict(line.split(" ", 1) for line in out.splitlines() if " " in line) for _, out, _ in result]
    return [line.get(word) for line in lines]


for mode in ("plain", "copied", "accumulate", "unused", "static"):
    got = ranks(3, [TRAIN, mode], GRADCOMP="none")
    if not ok([s for s, _, _ in got] == [0, 0, 0], f"{mode}: three ranks train", errors(got)):
        continue
    ok(max(map(float, said(got, "worst"))) < 1e-6, f"{mode}: gradients are DDP's own average", said(got, "worst"))
    ok(len(set(said(got, "digest"))) == 1, f"{mode}: all ranks hold the same bits", said(got, "digest"))
    ok(said(got, "steps") == ["6"] * 3, f"{mode}: six steps counted", said(got, "steps"))

for spec in ("topk:density=0.05", "powersgd:rank=2,start_step=0", "cast:type=bf16", "*.bias=none+*=topk:density=0.05"):
    got = ranks(3, [TRAIN, "resume"], GRADCOMP=spec)
    ok(said(got, "resumed") == ["True"] * 3, f"{spec}: a saved state continues to the bit", errors(got))
    ok(len(set(said(got, "digest"))) == 1, f"{spec}: all ranks hold the same bits", said(got, "digest"))

got = ranks(3, [TRAIN, "plain"], GRADCOMP="*.bias=none+*=none@rhd")
ok([s for s, _, _ in got] == [0, 0, 0] and max(map(float, said(got, "worst"))) < 1e-6, "SPECs by name: gradients are DDP's own average",
   errors(got))

# With a margin of all of a step it looks and measures, and stays dense whatever the clock says.
got = ranks(3, [TRAIN, "resume"], GRADCOMP="auto:margin=1")
ok(said(got, "resumed") == ["True"] * 3, "auto: a saved state continues to the bit", errors(got))
ok(len(set(said(got, "digest"))) == 1, "auto: all ranks hold the same bits", said(got, "digest"))

got = ranks(2, [TRAIN, "plain"])
ok([s for s, _, _ in got] == [0, 0] and said(got, "worst") == ["0.0", "0.0"], "without GRADCOMP DDP trains as ever",
   errors(got), said(got, "worst"))
told = [err.count("gradcomp: not requested") for _, _, err in got]
ok(told == [1, 0], "attach says so once, on rank 0", told)

start = time.monotonic()
got = ranks(3, [TRAIN, "die"], GRADCOMP="none")
seconds = time.monotonic() - start
ok(all(s not in (0, None) for s, _, _ in got), "one rank raises: all end with a failure", errors(got))
ok("rank 1 has had enough" in got[1][2], "the culprit says why", got[1][2])
ok(all("rank 1" in got[r][2] for r in (0, 2)), "the others name the culprit", errors(got))
ok(in_time(seconds, 30), f"and none waits for a time-out ({seconds:.1f} s)")

got = ranks(2, [TRAIN, "plain"], GRADCOMP="no-such-thing")
ok(all(s not in (0, None) and "no-such-thing" in err for s, _, err in got), "an unknown compressor is named", errors(got))
done_testing()
