#!/usr/bin/python3
"""Training that stops on four ranks and goes on, on two and on seven: from the state that all
share, whose loss curve is that of four ranks within what other batches make of it; and on
four from each rank's own, to the bit. Through torch.save() and torch.distributed.checkpoint."""

import json
import os
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
RESUMED = os.path.join(SOURCE, "tests/python/resumed.py")


SPECS = ("topk:density=0.02", "powersgd:rank=2")


def run(nranks, mode, folder):
    """By compressor, what each rank found."""
    got = ranks(nranks, [RESUMED, mode, folder, *SPECS], timeout=300, GRADCOMP="none")
    if not ok([s for s, _, _ in got] == [0] * nranks, f"{nranks} ranks, {mode}", errors(got)):
        done_testing()
    return list(zip(*[json.loads(out.splitlines()[-1]) for _, out, _ in got]))


def same(found, key, what, value=True):
    if key in found[0]:  # of old versions of PyTorch there is no torch.distributed.checkpoint
        ok(all(f[key] == value for f in found), what, [f[key] for f in found])


with tempfile.TemporaryDirectory() as folder:
    four = run(4, "save", folder)
    for spec, found in zip(SPECS, four):
        same(found, "shared", f"{spec}: the shared state is the same on all ranks", found[0]["shared"])
        same(found, "resumed", "each rank's own continues to the bit")
        same(found, "dcp own", "... through torch.distributed.checkpoint, too")
    for n in (2, 7):
        for spec, before, now in zip(SPECS, four, run(n, "load", folder)):
            ok(all("of rank 0 of 4" in f["own"] or "rank 0 on" in f["own"] for f in now),
               f"{spec}: {n} ranks refuse the state of one of four", [f["own"] for f in now])
            ok("is damaged" in now[1]["broken"] and all("rank 1 on" in f["broken"] for f in now[:1] + now[2:]),
               "all refuse what is damaged on one of them", [f["broken"] for f in now])
            same(now, "dcp shared", "torch.distributed.checkpoint gives back what is owed")
            ok(len({f["digest"] for f in now}) == 1, "all ranks hold the same bits", [f["digest"] for f in now])
            curves = list(zip(before[0]["curves"], now[0]["curves"]))
            noise = max(statistics.stdev(at) for at in zip(*before[0]["curves"]))
            off = max(abs(a - b) for there, here in curves for a, b in zip(there, here))
            ok(off <= noise, f"the loss goes on as on four ranks, from {before[0]['start'][-1]:.4f} to {curves[0][0][-1]:.4f} "
                             f"and {curves[0][1][-1]:.4f}: at most {off:.4f} apart, where other batches make {noise:.4f}",
               before[0]["start"], *curves)
done_testing()
