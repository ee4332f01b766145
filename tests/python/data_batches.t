#!/usr/bin/python3
"""ds.batches(): values of every kind as one, of one size and of many, the end of an epoch, failures,
transforms, and memory that is used again: never while anything looks at it."""

import gc
import os
import queue
import random
import sys
import threading
import tracemalloc

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import done_testing, environment, error_of, need_library, ok, skip_all  # noqa: E402

try:
    import numpy as np
except ImportError:
    skip_all("no numpy for " + sys.executable)
need_library()
os.environ.update(environment())
sys.path.insert(0, os.environ["PYTHONPATH"])
try:
    import torch
except ImportError:
    torch = None
from gradcomp.data import Dataset, Sample  # noqa: E402

COUNT, SIZE, START = 150, 16, 3
drawn = np.random.default_rng().normal(size=(COUNT, 3, 5, 7)).astype(np.float32)

# What is stored of sample i, and what a batch of samples `s` (an array) is.
FORMS = {
    "an array": (lambda i: drawn[i], lambda s: drawn[s]),
    "an array and its label": (lambda i: (drawn[i], i), lambda s: (drawn[s], s)),
    "a dict of all sorts": (
        lambda i: {"x": drawn[i].astype(np.float64), "y": i * 0.5, "s": "abc", "b": b"12%c" % i, "n": None,
                   "k": [np.int16(i), True], 5: np.array(i)},
        lambda s: {"x": drawn[s].astype(np.float64), "y": s * 0.5, "s": ["abc"] * len(s), "b": [b"12%c" % i for i in s],
                   "n": [None] * len(s), "k": [s.astype(np.int16), np.full(len(s), True)], 5: s}),
    "booleans, and arrays without elements": (
        lambda i: (i % 2 == 0, np.zeros((0, 2), np.int8)), lambda s: (s % 2 == 0, np.zeros((len(s), 0, 2), np.int8))),
    "arrays of many shapes": (
        lambda i: (drawn[i][:, :i % 4 + 1], i),
        lambda s: ([drawn[i][:, :i % 4 + 1] for i in s] if len({i % 4 for i in s}) > 1 else
                   drawn[s][:, :, :s[0] % 4 + 1], s)),
    "texts of many lengths": (lambda i: {"t": "x" * (i % 9), "l": i}, lambda s: {"t": ["x" * (i % 9) for i in s], "l": s}),
    "numbers and texts": (lambda i: i if i % 5 else "five", lambda s: [int(i) if i % 5 else "five" for i in s]
                          if len({i % 5 > 0 for i in s}) > 1 else (s if s[0] % 5 else ["five"] * len(s))),
    "samples": (lambda i: Sample(f"k{i:03}", i, {"": b"z" * 5}),
                lambda s: Sample([f"k{i:03}" for i in s], s, {"": [b"z" * 5] * len(s)})),
}
if torch is not None:
    FORMS["tensors"] = (
        lambda i: (torch.full((2, 3), i, dtype=torch.bfloat16), torch.tensor(i), torch.zeros(0, 3), torch.tensor([i % 2 == 0])),
        lambda s: (torch.tensor(s, dtype=torch.bfloat16)[:, None, None].expand(-1, 2, 3), torch.tensor(s),
                   torch.zeros(len(s), 0, 3), torch.tensor(s % 2 == 0)[:, None]))


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if torch is not None and isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return a == b


def in_batches(ds, epoch):
    order = np.array([ds.order(epoch, p) for p in range(START, COUNT)])
    return [order[k:k + SIZE] for k in range(0, len(order), SIZE)]


for name, (stored, batch) in FORMS.items():
    right = True
    for workers in (0, 1):
        with Dataset(range(COUNT), prepare=stored, memory="64M", workers=workers) as ds:
            for epoch in range(2):
                want = [batch(s) for s in in_batches(ds, epoch)]
                right &= same(list(ds.batches(epoch, SIZE, start=START)), want)
            right &= same(list(ds.batches(1, SIZE, START, drop_last=True)), want[:-1])
    ok(right, f"{name}: from a position to the end of an epoch, with and without the last batch")

with Dataset(range(COUNT), prepare=lambda i: drawn[i], transform=lambda x: x.sum(), memory="64M") as ds:
    ok(all(np.allclose(got, [drawn[i].sum() for i in s]) for got, s in zip(ds.batches(1, SIZE, START), in_batches(ds, 1))),
       "a transform is called for each value")

with Dataset(range(COUNT), prepare=lambda i: drawn[i], memory="64M") as ds:
    kept = list(ds.batches(1, SIZE, START))
    for got in ds.batches(2, SIZE):
        got[...] = np.nan
    ok(same(kept, [drawn[s] for s in in_batches(ds, 1)]), "batches that are kept stay as they were")
    ok(same(list(ds.batches(1, SIZE, START)), kept), "what is written into a batch changes no value")
    places = {got.__array_interface__["data"][0] for got in ds.batches(3, SIZE)}
    ok(len(places) <= 4, f"memory is used again: {len(places)} places")
    for epoch in range(2):
        one = ds.batches(epoch, SIZE)
        next(one)
    other = ds.batches(5, SIZE)
    ok("was ended by the beginning of another" in str(error_of(lambda: next(one))), "a second epoch ends the first")
    ok(isinstance(error_of(lambda: ds.batches(0, 0)), ValueError), "size 0 is refused")
    ok("size=-1" in str(error_of(lambda: ds.batches(0, -1))), "a negative size too")
    del other

# Bytes of every value, NaNs of all kinds among the numbers, in sizes that fill no page.
LARGE, ODD = 48, 25601
bits = np.random.default_rng().integers(0, 1 << 32, (LARGE, ODD), np.uint32)
bits[:, ::7] |= 0x7f800000
numbers = bits.view(np.float32)


def looks(batch):
    """What programs make of a batch and keep: all of it are the batch's own bytes."""
    made = [lambda b: b, lambda b: b[1:], lambda b: b[::-1, 5::3], lambda b: b.T, lambda b: b.view(np.uint8).reshape(-1)[3:-1],
            lambda b: memoryview(b[-1]), lambda b: b.view(np.recarray), lambda b: np.frombuffer(b[0], np.uint16),
            lambda b: np.lib.stride_tricks.as_strided(b, (len(b), 9), (b.strides[0], 8)), lambda b: next(iter(b))]
    if torch is not None:
        made += [torch.from_numpy, lambda b: torch.from_numpy(b)[1:, 2:9], lambda b: torch.from_numpy(b).numpy()]
    return random.choice(made)(batch)


def content(look):
    return (look.numpy() if torch is not None and isinstance(look, torch.Tensor) else np.asarray(look)).tobytes()


with Dataset(range(LARGE), prepare=lambda i: numbers[i], memory="64M") as ds:
    def expected(epoch, size):
        order = [ds.order(epoch, p) for p in range(LARGE)]
        return [bits[order[k:k + size]] for k in range(0, LARGE, size)]

    right, kept = True, []
    for epoch in range(12):
        size = random.choice((1, 5, 8))
        for got, want in zip(ds.batches(epoch, size), expected(epoch, size)):
            right &= got.tobytes() == want.tobytes()
            if random.random() < 0.4:
                look = looks(got)
                kept.append((look, content(look)))
            while len(kept) > random.randrange(30):
                kept.pop(random.randrange(len(kept)))
            del got
        right &= all(content(look) == was for look, was in kept)
    ok(right, "every bit of a batch, and of what is kept of one: views, memoryviews, tensors, an iterator's row")
    kept = [looks(got) for got in ds.batches(1, 8)]
    were = [content(look) for look in kept]

    # Two threads hold what a third one takes, as those that copy to a device do.
    waiting, wrong = queue.Queue(3), []

    def hold(seed):
        chance = random.Random(seed)
        while True:
            item = waiting.get()
            if item is None:
                return
            got, want = item
            del item
            for _ in range(chance.randrange(3)):
                threading.Event().wait(0.001)
                if got.tobytes() != want:
                    wrong.append(want)
            got[...] = 1

    holders = [threading.Thread(target=hold, args=(n,)) for n in range(2)]
    for thread in holders:
        thread.start()
    for epoch in range(4):
        for got, want in zip(ds.batches(epoch, 5), expected(epoch, 5)):
            waiting.put((got, want.tobytes()))
            del got
    for _ in holders:
        waiting.put(None)
    for thread in holders:
        thread.join()
    ok(not wrong, "batches that other threads hold are not written to", f"{len(wrong)} were")

    for epoch in range(2):
        tracemalloc.start()
        for got in ds.batches(epoch, 8):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        del got
    ok(most < 2 * ODD * 4, "a later epoch takes no memory anew", f"{most} bytes")
    tracemalloc.start()
    many = [got for epoch in range(8) for got in ds.batches(epoch, 8)]
    least = len(many) * 8 * ODD * 4
    held = tracemalloc.get_traced_memory()[0]
    del many
    gc.collect()
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    ok(held > least * 0.9 and left < 5 * 8 * (ODD * 4 + 128), "and what was kept and is dropped goes back to it but for a few",
       f"{held} bytes, then {left}")
ok([content(look) for look in kept] == were, "what is kept stays after close()")
del kept, look

FORMS_OF_NOTHING = {"no bytes": lambda i: b"", "arrays without elements": lambda i: np.zeros((3, 0), np.float32),
                    "None": lambda i: None, "an odd byte": lambda i: np.full(1, i % 251, np.uint8)}
for name, stored in FORMS_OF_NOTHING.items():
    with Dataset(range(21), prepare=stored, memory="8M", shuffle=False) as ds:
        want = [stored(i) for i in range(21)]
        for epoch in range(2):
            got = [value for batch in ds.batches(epoch, 4) for value in batch]
            right = all(np.array_equal(a, b) for a, b in zip(got, want)) and len(got) == 21
    ok(right, f"{name}: as many as there are")

broken = set(range(40, 50))


def fails(i):
    if i in broken:
        raise OSError(f"sample {i} is gone")
    return drawn[i]


for workers in (0, 1):
    with Dataset(range(COUNT), prepare=fails, memory="64M", shuffle=False, workers=workers) as ds:
        batches = ds.batches(1, SIZE)
        first = [next(batches), next(batches)]
        failure = error_of(lambda: next(batches))
        ok(same(first, [drawn[:16], drawn[16:32]]) and "40" in str(failure) and "gone" in str(failure.__cause__),
           f"a sample that cannot be prepared is named, {workers} workers")
        broken, kept_broken = set(), broken
        ok(same(list(ds.batches(1, SIZE, 32)), [drawn[k:min(k + 16, COUNT)] for k in range(32, COUNT, 16)]), "and can be asked for again")
        broken = kept_broken
done_testing()
