"""Samplers: the dataset's own order, resumed where a job had come to, and others'
orders made known to the dataset ahead of time."""

from __future__ import annotations

import collections
from typing import Any

from . import _lib
from ._lib import Error

try:
    from torch.utils.data import Sampler as _Base
except Exception:  # no torch, or one that cannot be loaded
    _Base = object


def _expecting(dataset, indices):
    """The same indices, each named to the dataset when it is about `prefetch` places away."""
    known, step = collections.deque(), max(1, dataset.prefetch // 4)
    fresh = []
    for index in indices:
        fresh.append(index)
        if len(fresh) < (step if known else dataset.prefetch):
            continue
        dataset.expect(fresh)
        known.extend(fresh)
        fresh = []
        while len(known) > dataset.prefetch - step:
            yield known.popleft()
    dataset.expect(fresh)
    yield from known
    yield from fresh


class Sampler(_Base):
    """This rank's samples of an epoch, in the dataset's order: on all ranks together
    each sample once, and no rank has more than one more than another. With
    `drop_last` all ranks have equally many, and the last count % ranks of the order
    are left out: what DistributedDataParallel wants.

    set_epoch() before each epoch, or every one has the same order."""

    def __init__(self, dataset: Any, drop_last: bool = False):
        self._dataset, self._drop_last = dataset, drop_last
        self._epoch = 0
        self._start = 0  # position at which the next iteration begins
        self._first = self._given = 0  # of the present one: where it began, where it is

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch: from its beginning, or from where a
        loaded state of it says."""
        if epoch != self._epoch:
            self._start = 0
        self._epoch, self._first, self._given = epoch, self._start, self._start

    def _end(self):
        ds = self._dataset
        return len(ds) // ds.nranks if self._drop_last else ds.length

    def __len__(self):
        """What the next iteration yields: less than an epoch after load_state_dict()."""
        return max(0, self._end() - self._start)

    def __iter__(self):
        start, self._start = self._start, 0
        self._first = self._given = start
        epoch, order = self._epoch, self._dataset.order
        self._dataset.take_turns(epoch, start)
        for index in _expecting(self._dataset, (order(epoch, p) for p in range(start, self._end()))):
            self._given += 1
            yield index

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where to go on; the same on all ranks, on any number of which it can be
        loaded. `taken` is how many samples of this iteration this rank has trained on;
        without it all that were given out count, which is too many where a
        DataLoader's workers are ahead of the loop."""
        at = self._given if taken is None else self._first + taken
        ds = self._dataset
        return {"epoch": self._epoch, "reached": min(at * ds.nranks, len(ds)), **ds.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration is the rest of that epoch."""
        wrong = [f"{k} {state.get(k)} (here {v})" for k, v in self._dataset.identity().items() if state.get(k) != v]
        if wrong:
            raise Error(_lib.ERR_INVALID, f"the state is of another order: {', '.join(wrong)}")
        epoch, reached = state.get("epoch"), state.get("reached")
        if type(epoch) is not int or type(reached) is not int or epoch < 0 or reached < 0:
            raise Error(_lib.ERR_INVALID, f"a state of epoch {epoch!r}, reached {reached!r}: both are ints, 0 or more")
        ds = self._dataset
        # Position p of rank r is place p * nranks + r of the order.
        self._epoch = epoch
        self._start = self._first = self._given = max(0, -((ds.rank - reached) // ds.nranks))


class Following(_Base):
    """Another sampler's order (DistributedSampler's, for one), made known to the
    dataset ahead of time, so that it prepares and fetches along it."""

    def __init__(self, dataset, sampler):
        self._dataset, self._sampler = dataset, sampler

    def __len__(self):
        return len(self._sampler)

    def __iter__(self):
        return _expecting(self._dataset, self._sampler)

    def __getattr__(self, name):  # set_epoch() and what else it has
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)
