#!/usr/bin/python3
"""Every compressor against an independent computation in float64, through reducers
of several ranks. Every step starts from the error memory as it was read back, so
that one rounding does not grow into another choice of numbers."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, done_testing, ok, skip_all  # noqa: E402

try:
    import numpy as np
except ImportError:
    skip_all("no numpy for " + sys.executable)
if not os.path.exists(os.path.join(BUILD, "lib/libgradcomp.so")):
    skip_all(f"no libgradcomp.so in {BUILD}/lib")
import methods  # noqa: E402
import simulated  # noqa: E402
import gradcomp  # noqa: E402

SHAPES = [(40, 30), (30,), (24, 64), (7,), (16, 3, 5), (1, 9)]
STEPS = 4

# SPEC, its method, roundings allowed (of the largest magnitude of the bucket),
# whether it has an error memory.
EXACT, FEW = 4e-7, 2e-5
CASES = [
    ("none", methods.dense, EXACT, False),
    ("cast:type=fp16", methods.rounded("fp16"), 2e-3, False),
    ("cast:type=bf16", methods.rounded("bf16"), 2e-2, False),
    ("topk:density=0.01", methods.topk(0.01), EXACT, True),
    ("topk:density=0.3", methods.topk(0.3), EXACT, True),
    ("topk:density=0.05,layerwise=yes", methods.layerwise(0.05), EXACT, True),
    ("lags:density=0.05", methods.layerwise(0.05), EXACT, True),
    ("gtopk:density=0.02", methods.gtopk(0.02), EXACT, True),
    ("threshold:t=1.5", methods.threshold(1.5), EXACT, True),
    ("signsgd", methods.signed(False), EXACT, True),
    ("onebit", methods.signed(True), EXACT, True),
    ("powersgd:rank=1", methods.powersgd(1), FEW, True),
    ("powersgd:rank=3", methods.powersgd(3), FEW, True),
]


def compare(spec, method, tolerance, remembers, nranks):
    rng = np.random.default_rng()
    ranks = simulated.Ranks(nranks, SHAPES, spec, seed=int(rng.integers(1 << 30)))
    worst, same = 0, True
    try:
        for _ in range(STEPS):
            before = [np.frombuffer(ranks.state(r)[:len(ranks.state(r)) // 4 * 4], np.float32) for r in range(nranks)]
            memory = ranks.errors() if remembers else [np.zeros(ranks.numel, np.float32)] * nranks
            gradients = [rng.standard_normal(ranks.numel).astype(np.float32) for _ in range(nranks)]
            us = [(g + e).astype(np.float64) for g, e in zip(gradients, memory)]
            want, errors = method(ranks, us, before)
            got = ranks.step(gradients)
            same &= all((g == got[0]).all() for g in got)
            scale = max(np.abs(u).max() for u in us)
            worst = max(worst, np.abs(got[0] - want).max() / scale)
            if errors is not None:
                for e, left in zip(errors, ranks.errors()):
                    worst = max(worst, np.abs(left - e).max() / scale)
    finally:
        ranks.close()
    ok(same, f"{spec}: {nranks} ranks hold the same bits")
    ok(worst <= tolerance, f"{spec}: {nranks} ranks: within {tolerance:g} of float64", f"off by {worst:g}")


for case in CASES:
    for nranks in (1, 2, 3, 5):
        try:
            compare(*case, nranks)
        except gradcomp.Error as e:
            ok(False, f"{case[0]}: {nranks} ranks", e)
done_testing()
