"""Samplers: the dataset's own order, resumed where a job had come to, and others'
orders made known to the dataset ahead of time."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import _lib
from ._lib import Error

if TYPE_CHECKING:
    from torch.utils.data import Sampler as OfTorch

    _Base = OfTorch[int]
else:
    try:
        from torch.utils.data import Sampler as _Base
    except Exception:  # no torch, or one that cannot be loaded
        _Base = object


def _expecting(dataset: Any, indices: Iterable[int]) -> Iterator[int]:
    """The same indices, each named to the dataset when it is about `prefetch` places away."""
    known: collections.deque[int] = collections.deque()
    step = max(1, dataset.prefetch // 4)
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
    `drop_last` all ranks have equally many, and at most ranks - 1 samples at the end of the
    order are left out: what DistributedDataParallel wants.

    set_epoch() before each epoch, or every one has the same order. After gradcomp.PeersLost it
    goes on, in the same epoch and over the ranks that are left, behind what done() has been told of."""

    def __init__(self, dataset: Any, drop_last: bool = False):
        self._dataset, self._drop_last = dataset, drop_last
        self._epoch = 0
        # Places of the order, of all ranks together: position p of rank r is place p * nranks + r.
        self._next = 0  # where the next iteration begins,
        self._first = 0  # and where the present one did, of
        self._nranks = dataset.nranks
        self._given = self._done = 0  # samples of it, of each rank

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch: from its beginning, from where a
        loaded state of it says, or from where the ranks had come to of which some have been lost."""
        self._divide()
        if epoch != self._epoch:
            self._next = 0
        self._epoch, self._first, self._given, self._done = epoch, self._next, 0, 0

    def _divide(self) -> None:
        """Once after ranks have been lost."""
        ds = self._dataset
        if ds.nranks == self._nranks:
            return
        self._next = min(self._first + self._done * self._nranks, len(ds))
        self._nranks = ds.nranks
        if not self._left():
            self._next = 0  # that epoch was over
        self._first, self._given, self._done = self._next, 0, 0

    def _left(self) -> int:
        ds = self._dataset
        return int((len(ds) - self._next) // ds.nranks if self._drop_last else ds.length - ds.position(self._next))

    def __len__(self) -> int:
        """What the next iteration yields: less than an epoch after load_state_dict()."""
        self._divide()
        return max(0, self._left())

    def __iter__(self) -> Iterator[int]:
        left = len(self)
        self._first, self._next = self._next, 0
        self._given = self._done = 0
        start, epoch, order = self._dataset.position(self._first), self._epoch, self._dataset.order
        self._dataset.take_turns(epoch, start)
        for index in _expecting(self._dataset, (order(epoch, p) for p in range(start, start + left))):
            self._given += 1
            yield index

    def done(self, samples: int) -> None:
        """This rank has trained on so many more samples of the iteration, and each other rank on as many. To be called after each
        step where ranks may be lost (attach(on_failure="shrink"))."""
        self._done += samples

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where to go on; the same on all ranks, on any number of which it can be
        loaded. `taken` is how many samples of this iteration this rank has trained on;
        without it those that done() has been told of, or else all that were given out, which is too many where a
        DataLoader's workers are ahead of the loop."""
        at = taken if taken is not None else self._done or self._given
        ds = self._dataset
        return {"epoch": self._epoch, "reached": min(self._first + at * self._nranks, len(ds)), **ds.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration is the rest of that epoch."""
        wrong = [f"{k} {state.get(k)} (here {v})" for k, v in self._dataset.identity().items() if state.get(k) != v]
        if wrong:
            raise Error(_lib.ERR_INVALID, f"the state is of another order: {', '.join(wrong)}")
        epoch, reached = state.get("epoch"), state.get("reached")
        if type(epoch) is not int or type(reached) is not int or epoch < 0 or reached < 0:
            raise Error(_lib.ERR_INVALID, f"a state of epoch {epoch!r}, reached {reached!r}: both are ints, 0 or more")
        self._epoch, self._nranks = epoch, self._dataset.nranks
        self._next = self._first = min(reached, len(self._dataset))
        self._given = self._done = 0


class Following(_Base):
    """Another sampler's order (DistributedSampler's, for one), made known to the
    dataset ahead of time, so that it prepares and fetches along it."""

    def __init__(self, dataset: Any, sampler: Any):
        self._dataset, self._sampler, self._nranks = dataset, sampler, dataset.nranks

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        ds, replicas = self._dataset, getattr(self._sampler, "num_replicas", None)
        if ds.nranks != self._nranks and replicas is not None and replicas != ds.nranks:
            raise Error(_lib.ERR_STATE, f"the {type(self._sampler).__name__} divides among {replicas} ranks, of which {ds.nranks} are "
                                        "left: gradcomp.data.Sampler divides among those")
        return _expecting(ds, self._sampler)

    def __getattr__(self, name: str) -> Any:  # set_epoch() and what else it has
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)
