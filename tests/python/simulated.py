"""Ranks as threads of this process, with reducers over the real links, and their
state taken apart."""

import os
import sys
import threading

import numpy as np
from tap import environment

os.environ.update(environment())
sys.path.insert(0, os.environ["PYTHONPATH"])
from gradcomp.job import Job, Reducer  # noqa: E402

# gradcomp_reducer_save()'s head (runtime/reducer/state/reducer_state.h), and where the number of buckets is
# in it; ends and places of so many follow, before the error memory.
STATE_HEAD, BUCKETS = 360, slice(344, 348)


class _Store:
    """What a launcher gives its ranks to find each other."""

    def __init__(self, shared, rank, nranks):
        self._values, self._changed = shared
        self.rank, self.nranks = rank, nranks

    def set(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key, timeout_ms):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_ms / 1000):
                raise TimeoutError(key)
            return self._values[key]


def on_ranks(nranks, body):
    """[body(rank)] of every rank, each on a thread of its own; the first exception
    of any is raised here."""
    results, errors = [None] * nranks, []

    def run(r):
        try:
            results[r] = body(r)
        except BaseException as e:  # also what a thread would only print
            errors.append(e)
    threads = [threading.Thread(target=run, args=(r,)) for r in range(nranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


class Ranks:
    """A job of nranks and one reducer of all tensors, as one bucket. Vectors are in
    the order of the layout: the last tensor first."""

    def __init__(self, nranks, shapes, compressor, seed):
        shared = ({}, threading.Condition())
        self.nranks, self.shapes = nranks, shapes
        self._jobs = on_ranks(nranks, lambda r: Job(store=_Store(shared, r, nranks)))
        named = [(f"t{i}", s, "float32") for i, s in enumerate(shapes)]
        self._reducers = on_ranks(nranks, lambda r: Reducer(self._jobs[r].world, named, compressor=compressor,
                                                            bucket_bytes=1 << 30, seed=seed))
        self.sizes = [int(np.prod(s)) for s in shapes]
        self.numel = sum(self.sizes)

    def pieces(self, flat):
        """Views of a vector of the layout, one a tensor, in layout order, shaped."""
        at, out = 0, []
        for shape, size in zip(reversed(self.shapes), reversed(self.sizes)):
            out.append(flat[at:at + size].reshape(shape))
            at += size
        return out

    def step(self, gradients):
        """Every rank's copy of the average; gradients are float32 vectors."""
        work = [np.array(g, dtype=np.float32) for g in gradients]

        def one(r):
            parts = self.pieces(work[r])
            for i, part in zip(reversed(range(len(parts))), parts):
                self._reducers[r].ready(i, part.ctypes.data)
            self._reducers[r].wait()
            return work[r]
        return on_ranks(self.nranks, one)

    def state(self, r):
        saved = self._reducers[r].save()
        return saved[STATE_HEAD + 8 * int.from_bytes(saved[BUCKETS], sys.byteorder):]

    def close(self):
        on_ranks(self.nranks, lambda r: self._reducers[r].free())
        on_ranks(self.nranks, lambda r: self._jobs[r].free())
