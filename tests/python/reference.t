#!/usr/bin/python3
"""Every compressor against an independent computation in float64, through reducers
of several ranks. Every step starts from the error memory as it was read back, so
that one rounding does not grow into another choice of numbers."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import done_testing, need_library, ok, skip_all  # noqa: E402

try:
    import numpy as np
except ImportError:
    skip_all("no numpy for " + sys.executable)
need_library()
import methods  # noqa: E402
import simulated  # noqa: E402
import gradcomp  # noqa: E402

SHAPES = [(40, 30), (30,), (24, 64), (7,), (16, 3, 5), (1, 9)]
STEPS = 4

# SPEC, its method, roundings allowed (of the largest magnitude of the bucket),
# floats of its memory for each of the bucket's.
EXACT, FEW = 4e-7, 2e-5
CASES = [
    ("none", methods.dense, EXACT, 0),
    ("cast:type=fp16", methods.cast("fp16"), 5e-4, 0),
    ("cast:type=bf16", methods.cast("bf16"), 4e-3, 0),
    ("cast:type=bf16,sum=wire", methods.rounded("bf16"), 2e-2, 0),
    ("lossless", methods.dense, EXACT, 0),
    ("topk:density=0.01", methods.topk(0.01), EXACT, 1),
    ("topk:density=0.3,indices=auto", methods.topk(0.3), EXACT, 1),
    ("topk:density=0.05,layerwise=yes", methods.layerwise(0.05), EXACT, 1),
    ("blocktopk:density=0.1,block=32", methods.blocktopk(0.1, 32), EXACT, 1),
    ("lags:density=0.05", methods.layerwise(0.05), EXACT, 1),
    ("gtopk:density=0.02", methods.gtopk(0.02), EXACT, 1),
    ("dgc:density=0.02", methods.dgc(0.02), EXACT, 2),
    ("dgc:density=0.02,nesterov=yes,momentum=0.5,clip=20", methods.dgc(0.02, 0.5, True, 20), 1e-6, 2),
    ("demo:chunk=8,k=5,decay=1", methods.demo(8, 5), 2e-6, 1),
    ("threshold:t=1.5", methods.threshold(1.5), EXACT, 1),
    ("signsgd", methods.signed(False), EXACT, 1),
    ("onebit", methods.signed(True), EXACT, 1),
    ("powersgd:rank=1", methods.powersgd(1), FEW, 1),
    ("powersgd:rank=3", methods.powersgd(3), FEW, 1),
    ("acpsgd:rank=1", methods.acpsgd(1), FEW, 1),
    ("acpsgd:rank=3", methods.acpsgd(3), FEW, 1),
]
# These are close to a method, and conserve exactly.
CLOSE = [
    ("topk:density=0.3,values=block8", methods.topk(0.3), 5e-3),
    ("lqsgd:rank=3", methods.powersgd(3), 3e-2),
    ("block:bits=8", methods.dense, 2e-2),
    ("block:bits=4,rounding=stochastic", methods.dense, 0.7),
    ("zfp:rate=12", methods.dense, 5e-2),
    ("fp8", methods.dense, 0.2),
    ("fp8:type=e5m2,scales=e8m0,block=32", methods.dense, 0.4),
    ("fp4", methods.dense, 0.7),
    ("fp4:type=mx", methods.dense, 0.9),
]


class Run:
    """A reducer of every rank, fed with fresh gradients."""

    def __init__(self, spec, nranks, memory):
        self.rng = np.random.default_rng()
        self.ranks = simulated.Ranks(nranks, SHAPES, spec, seed=int(self.rng.integers(1 << 30)))
        self.memory, self.same = memory, True

    def step(self):
        """u of every rank, the states before, and the average."""
        n = range(self.ranks.nranks)
        states = [self.ranks.state(r) for r in n]
        before = [np.frombuffer(s[:len(s) // 4 * 4], np.float32) for s in states]
        gradients = [self.rng.standard_normal(self.ranks.numel).astype(np.float32) for _ in n]
        # A method with more than an error memory adds things up itself.
        us = [g + b[:self.ranks.numel] if self.memory == 1 else g for g, b in zip(gradients, before)]
        got = self.ranks.step(gradients)
        self.same &= all((g == got[0]).all() for g in got)
        return [u.astype(np.float64) for u in us], before, got[0].astype(np.float64)

    def memories(self):
        d = self.memory * self.ranks.numel
        return [np.frombuffer(self.ranks.state(r), np.float32, d).astype(np.float64)
                for r in range(self.ranks.nranks)]


def compare(spec, method, tolerance, memory, nranks):
    run, worst = Run(spec, nranks, memory), 0
    try:
        for step in range(STEPS):
            us, before, got = run.step()
            more = (step,) if "acpsgd" in spec else ()
            want, memories = method(run.ranks, us, before, *more)
            scale = max(np.abs(u).max() for u in us)
            worst = max(worst, np.abs(got - want).max() / scale)
            if memories is not None:
                worst = max([worst] + [np.abs(a - b).max() / scale for a, b in zip(memories, run.memories())])
    finally:
        run.ranks.close()
    ok(run.same, f"{spec}: {nranks} ranks hold the same bits")
    ok(worst <= tolerance, f"{spec}: {nranks} ranks: within {tolerance:g} of float64", f"off by {worst:g}")


def close(spec, method, tolerance, nranks):
    run, worst, leak = Run(spec, nranks, 1), 0, 0
    try:
        for _ in range(STEPS):
            us, before, got = run.step()
            want, _ = method(run.ranks, us, before)
            scale = max(np.abs(u).max() for u in us)
            worst = max(worst, np.abs(got - want).max() / scale)
            lost = np.sum(us, axis=0) - nranks * got - np.sum(run.memories(), axis=0)
            leak = max(leak, np.abs(lost).max() / scale / nranks)
    finally:
        run.ranks.close()
    ok(run.same, f"{spec}: {nranks} ranks hold the same bits")
    ok(worst <= tolerance, f"{spec}: {nranks} ranks: within {tolerance:g} of its method", f"off by {worst:g}")
    ok(leak <= 2e-6, f"{spec}: {nranks} ranks: nothing is lost", f"{leak:g} of the largest")


def places(nranks):
    """What randomk and mstopk choose is at random, within what they promise."""
    run = Run("randomk:density=0.02", nranks, 1)
    right = True
    for _ in range(STEPS):
        us, _, got = run.step()
        sent = np.flatnonzero(run.memories()[0] == 0)
        right &= len(sent) == methods.kept(0.02, len(got))
        want, errors = methods.shares(us, [sent] * nranks)
        right &= np.abs(got - want).max() < 1e-5
        right &= all(np.abs(a - b).max() == 0 for a, b in zip(errors, run.memories()))
    run.ranks.close()
    ok(right and run.same, f"randomk: {nranks} ranks send the same k places, and keep the rest")
    run = Run("mstopk:density=0.02,samplings=12", nranks, 1)
    right = True
    for _ in range(STEPS):
        us, _, got = run.step()
        k = methods.kept(0.02, len(got))
        chosen = [np.flatnonzero(e == 0) for e in run.memories()]
        for u, sent in zip(us, chosen):
            upper, lower = methods.between(u, k, 12)
            right &= len(sent) == k and (np.abs(u[sent]) >= lower * (1 - 1e-6)).all()
            right &= np.isin(np.flatnonzero(np.abs(u) >= upper * (1 + 1e-6)), sent).all()
        right &= np.abs(got - methods.shares(us, chosen)[0]).max() < 1e-5
    run.ranks.close()
    ok(right and run.same, f"mstopk: {nranks} ranks send exactly k, between its two thresholds")


def drawn(spec, step_of):
    """Of one rank: every number is a multiple of its step next to the gradient's, and
    the mean of many draws is the gradient."""
    draws = 400
    ranks = simulated.Ranks(1, [(600,)], spec, seed=int(np.random.default_rng().integers(1 << 30)))
    g = np.random.default_rng().standard_normal(600).astype(np.float32)
    step = step_of(g.astype(np.float64))
    total, on_grid = np.zeros(600), True
    for _ in range(draws):
        got = ranks.step([g])[0].astype(np.float64)
        on_grid &= (np.abs(got / step - np.round(got / step)) < 1e-4).all() and (np.abs(got - g) < step * 1.0001).all()
        total += got
    ranks.close()
    # The variance of a draw is at most a quarter of the step's square.
    away = np.abs(total / draws - g) / (step / 2 / np.sqrt(draws))
    ok(on_grid, f"{spec}: numbers are multiples of the step, next to the gradient's")
    ok(away.max() < 6, f"{spec}: the mean of {draws} draws is the gradient", f"{away.max():.1f} standard errors")


def qsgd_steps(g, levels=7, block=512):
    return np.concatenate([np.full(len(b), np.linalg.norm(b) / levels)
                           for b in (g[i:i + block] for i in range(0, len(g), block))])


for case in CASES:
    for nranks in (1, 2, 3, 5):
        try:
            compare(*case, nranks)
        except gradcomp.Error as e:
            ok(False, f"{case[0]}: {nranks} ranks", e)
for case in CLOSE:
    for nranks in (1, 2, 3, 5):
        close(*case, nranks)
for nranks in (1, 3):
    places(nranks)
drawn("qsgd:levels=7,block=512", qsgd_steps)
drawn("terngrad:clip=0", lambda g: np.full(len(g), np.abs(g).max()))
done_testing()
