#!/usr/bin/python3
"""16-bit gradients without compression: two bytes a number over every collective, and the mean to
the type's rounding. What a bucket of mixed types has of each is sent in that type."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
KINDS = ("float32", "bfloat16", "float16", "bfloat16+float32", "float32+float16+bfloat16")
RANKS = 3

# What messages cost is given, so that auto sends nothing to measure it.
AUTO = "auto:fit=5000/6000/7000/9000/20000/70000/260000/30000/33000/37000/44000/88000/260000/970000"

for collective in ("ring", "rhd", "tree", "direct", "sparse", "hier", AUTO):
    got = ranks(RANKS, [os.path.join(SOURCE, "tests/python/half.py"), *KINDS], GRADCOMP="none", GRADCOMP_COLLECTIVE=collective)
    if not ok([s for s, _, _ in got] == [0] * RANKS, f"{collective}: {RANKS} ranks reduce", errors(got)):
        continue
    sent, dense, worst = {}, {}, {}
    for _, out, _ in got:
        for line in out.splitlines():
            kind, *words = line.split()
            said = dict(zip(words[::2], map(float, words[1::2])))
            sent[kind] = sent.get(kind, 0) + said["bytes"]
            dense[kind] = dense.get(kind, 0) + said["dense"]
            worst[kind] = max(worst.get(kind, 0), said["worst"])
    for kind in KINDS:
        # One rounding on each rank, one at each hop, one at the end.
        ok(worst[kind] <= RANKS + 1, f"{collective}: {kind}: the mean to the type's rounding", worst)
    for kind in ("bfloat16", "float16"):
        # The small words beside the gradients, such as what collectives ask of each other once.
        most = 0.51 * sent["float32"] + 200
        ok(sent[kind] <= most, f"{collective}: {kind}: two bytes a number", sent, dense)
        ok(dense[kind] * 2 == dense["float32"], f"{collective}: {kind}: so would DDP have sent", dense)
    # auto takes another algorithm for a round that is shorter, with other bytes.
    for kind in KINDS[3:] if collective != AUTO else ():
        # A share of what floats take, as of what DDP would send; a round more has its own small words.
        share = dense[kind] / dense["float32"]
        ok(sent[kind] <= 1.02 * share * sent["float32"] + 400, f"{collective}: {kind}: each in its own type", sent, dense)
done_testing()
