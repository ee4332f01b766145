"""Datasets read and prepared once, then served from the memory of the job's nodes.

    ds = gradcomp.data.Dataset(os.environ["GRADCOMP_DATA"], prepare=decode, transform=augment)
    loader = DataLoader(ds, batch_size=64, sampler=ds.sampler)
    for epoch in range(90):
        ds.sampler.set_epoch(epoch)
        for batch in loader:
            ...

or, with or without PyTorch,

    for value in ds.epoch(0):
        ...

What is stored, where, and how much: doc/user/data.md and gradcomp/dataset.h.
"""

from __future__ import annotations

import operator
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Tuple

from . import _lib
from . import job as _job
from ._data_core import Core
from ._data_samples import Samples, names_shards
from ._data_sampler import Following, Sampler
from ._data_value import Sample
from ._lib import Error

if TYPE_CHECKING:
    from torch.utils.data import Dataset as OfTorch

    _Base = OfTorch[Any]
else:
    try:
        from torch.utils.data import Dataset as _Base
    except Exception:  # no torch, or one that cannot be loaded
        _Base = object

Turn = Tuple[int, int, int, int, int]  # of take_turns()

__all__ = ["Dataset", "Sample", "Sampler", "Samples"]


class Dataset(_Base):
    """Samples of `source` (a path, a list of shards, Samples, or anything with len() and [i]), each
    prepared once by the job and kept in its nodes' memory. Collective over the ranks
    of `group` or of `job`; without either over the job that gradcomp.torch or
    gradcomp.Job has made, else one of its own.

    prepare(sample) -> value is called once a sample: reading, decoding, resizing. It
    runs in DataLoader's workers, in `workers` threads of the library ahead of the
    loop, or in the thread that asks. transform(value) is called at every access: what
    is random. `memory` is what a node may keep ("8G" or bytes), `spill` a directory on
    the node for the rest, `prefetch` how many samples are made ready before they are
    asked for; 0 and None: the job's settings. With `reload` the loop may prepare a value
    that another node has, where that is faster than fetching it: source and prepare() give
    the same on every node each time. None: only what is read, without prepare(), from the staged copy."""

    def __init__(self, source: Any, prepare: Callable[[Any], Any] | None = None,
                 transform: Callable[[Any], Any] | None = None, *, group: _job.Group | None = None,
                 job: _job.Job | None = None, memory: int | str | None = None, spill: str | None = None, seed: int = 0,
                 shuffle: bool = True, prefetch: int = 0, workers: int = 0, reload: bool | None = None):
        self._core: Any = None  # a Core
        if reload is None:
            reload = prepare is None and _staged(source)
        if isinstance(source, (str, bytes, os.PathLike)) or names_shards(source):
            source = Samples(source)
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise Error(_lib.ERR_INVALID, f"a source is a path, Samples, or an object with len() and [i], not a "
                                          f"{type(source).__name__}")
        for name, function in (("prepare", prepare), ("transform", transform)):
            if function is not None and not callable(function):
                raise Error(_lib.ERR_INVALID, f"{name} is a {type(function).__name__}, which cannot be called")
        self.source, self.transform = source, transform
        self._count, self._seed, self._shuffle = len(source), _lib.whole("seed", seed), bool(shuffle)
        group = group or _job_of_ranks(job).world
        self._group = group
        self.prefetch = _lib.whole("prefetch", prefetch, above=1 << 20) or int(group.job.setting("dataset.prefetch") or 0)
        self._threads = _lib.whole("workers", workers, above=1 << 32)
        self._core = Core(group, source, prepare, self._count, self._seed, _bytes(memory), spill, self.prefetch,
                          self._shuffle, self._threads, bool(reload))
        self.sampler = Sampler(self)
        self._epochs = 0
        self._batcher: Any = None  # made by the first batches()
        self._turn: Turn | None = None  # (thread, epoch, position, sample there, ranks): what next() comes to

    def __len__(self) -> int:
        """Samples of the whole dataset; `length` are this rank's in an epoch."""
        return self._count

    @property
    def length(self) -> int:
        return int(self._core.length)

    @property
    def rank(self) -> int:
        """Of `nranks`: what this process is now, when the job has gone on without ranks that were lost."""
        return int(self._group.rank)

    @property
    def nranks(self) -> int:
        return int(self._group.nranks)

    def position(self, reached: int) -> int:
        """This rank's first position of an epoch of which the first `reached` samples of the order are done, on all ranks
        together: where epoch() and batches() go on when the ranks are others than before."""
        return max(0, -((self.rank - _lib.whole("reached", reached)) // self.nranks))

    def __getitem__(self, index: int) -> Any:
        i = operator.index(index)
        if not -self._count <= i < self._count:
            raise IndexError(f"sample {i} of {self._count}")
        i %= self._count
        turn = self._turn
        if (turn is not None and turn[3] == i and turn[0] == threading.get_ident() and turn[4] == self.nranks
                and self._core.owned()):
            return self._changed(self._next(turn))
        return self._changed(self._core.get(i))

    def take_turns(self, epoch: int, start: int) -> None:
        """Says that [i] comes in this order from now on, in this thread, so that the
        library's threads work along it. Any other order does no harm."""
        if self._threads and self._core.owned():
            self._epochs += 1
            self._begin_turn(epoch, start)

    def _begin_turn(self, epoch: int, position: int) -> None:
        self._core.begin(epoch, min(position, self.length))
        self._set_turn(epoch, position)

    def _set_turn(self, epoch: int, position: int) -> None:
        more = position < self.length
        self._turn = (threading.get_ident(), epoch, position, self.order(epoch, position), self.nranks) if more else None

    def _next(self, turn: Turn) -> Any:
        try:
            value = self._core.next(turn[1], turn[2])
        except BaseException:
            self._begin_turn(turn[1], turn[2] + 1)  # next() would stay where it is
            raise
        self._set_turn(turn[1], turn[2] + 1)
        return value

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """This rank's values of an epoch, from position `start` on, in the order of
        ds.sampler. One at a time: beginning another ends this one."""
        self._epochs += 1
        own, self._turn = self._epochs, None
        self._core.begin(_lib.whole("epoch", number), _lib.whole("start", start))
        return self._iterate(own, number, start, self.nranks)

    def batches(self, number: int, size: int, start: int = 0, drop_last: bool = False) -> Iterator[Any]:
        """As epoch(), `size` values at a time as one: arrays and tensors have a new first axis, numbers are an array
        along it, tuples, lists and dicts are kept, and what cannot be stacked is a list. The arrays are the
        caller's. Values of one size and form are copied in one call; a `transform` is called for each."""
        size = _lib.whole("size", size, above=1 << 32)
        if not size:
            raise ValueError("size is 0")
        self._epochs += 1
        own, self._turn = self._epochs, None
        self._core.begin(_lib.whole("epoch", number), _lib.whole("start", start))
        return self._batches(own, number, start, size, drop_last, self.nranks)

    def _batches(self, own: int, number: int, position: int, size: int, drop_last: bool, nranks: int) -> Iterator[Any]:
        if self._batcher is None:
            from ._data_batch import Batcher

            self._batcher = Batcher(self._core)
        batcher = self._batcher
        while True:
            left = self.length - position
            if left <= (size - 1 if drop_last else 0):
                return
            self._goes_on(own, number, nranks)
            position += size
            # Kept by no name here: its memory is the next batch's as soon as the caller has dropped it.
            yield batcher.next(number, position - size, min(size, left), self.transform)

    def _goes_on(self, own: int, number: int, nranks: int) -> None:
        if self._epochs != own:
            raise Error(_lib.ERR_STATE, f"epoch {number} was ended by the beginning of another")
        if self.nranks != nranks:
            raise Error(_lib.ERR_STATE, f"epoch {number} was divided among {nranks} ranks, of which {self.nranks} are left: begin "
                                        f"the rest anew, at start=position(reached), where `reached` samples of it are done on all "
                                        "ranks together")

    def _iterate(self, own: int, number: int, start: int, nranks: int) -> Iterator[Any]:
        for position in range(start, self.length):
            self._goes_on(own, number, nranks)
            yield self._changed(self._core.next(number, position))

    def _changed(self, value: Any) -> Any:
        return value if self.transform is None else self.transform(value)

    def order(self, epoch: int, position: int) -> int:
        """The sample at a position of this rank's order."""
        return int(self._core.order(epoch, position))

    def expect(self, indices: Sequence[int]) -> None:
        """Says that these will be asked for soon, in this order."""
        self._core.expect(indices)

    def follow(self, sampler: Any) -> Following:
        """`sampler`, for one DistributedSampler(ds), so that the dataset prepares and
        fetches along its order: DataLoader(ds, sampler=ds.follow(sampler))."""
        return Following(self, sampler)

    def stats(self) -> dict[str, float]:
        """Counters of this rank and its workers since creation."""
        counted: dict[str, float] = self._core.stats()
        return counted

    def identity(self) -> dict[str, Any]:
        """What the order follows from."""
        return {"count": self._count, "seed": self._seed, "shuffle": self._shuffle}

    def close(self) -> None:
        """Collective, since others may still want values of this node. At exit it is
        done for those still open. Values handed out stay readable."""
        self._batcher = None
        if self._core is not None:
            self._core.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, kind: Any, _value: Any, _traceback: Any) -> None:
        # After an exception the others may be anywhere: what ends them is our end.
        if kind is None or self._core.alone:
            self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or not core.owned():
            return
        if core.alone:
            core.close()
        else:
            # When this is called differs from rank to rank, so nobody can be waited for.
            warnings.warn("a gradcomp dataset was dropped without close(); its memory stays until exit",
                          ResourceWarning, stacklevel=2)

    def __reduce__(self) -> Any:
        raise Error(_lib.ERR_UNSUPPORTED, "a gradcomp dataset cannot be sent to another process: it is this process's "
                                          "memory. DataLoader's workers must be forked: "
                                          "DataLoader(..., multiprocessing_context='fork')")


def _staged(source: object) -> bool:
    """Whether it is a path of what was staged on this node as on all others."""
    data = os.environ.get("GRADCOMP_DATA")
    if not data or "GRADCOMP_DATA_SHARD" in os.environ or not isinstance(source, (str, bytes, os.PathLike)):
        return False
    data, path = os.path.realpath(data), os.path.realpath(os.fsdecode(source))
    return os.path.commonpath([data, path]) == data


def _bytes(size: int | str | None) -> int:
    """Bytes, or "500M", "8G" (powers of 1024, as in settings); None: 0."""
    if size is None:
        return 0
    if isinstance(size, str):
        parts = re.fullmatch(r"([0-9]+)([KMGT]?)", size.strip())
        if parts is None:
            raise Error(_lib.ERR_INVALID, f"memory={size!r}: bytes, or a number with K, M, G or T")
        size = int(parts[1]) << (10 * " KMGT".index(parts[2] or " "))
    return _lib.whole("memory", size)


def _job_of_ranks(job: _job.Job | None) -> _job.Job:
    """The job whose ranks hold the dataset together."""
    job = job or _job.current()
    if job is None:
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            from . import torch as with_torch

            job = with_torch._join()
        else:
            job = _own_job()
    return job


def _own_job() -> _job.Job:
    """A job by PMIx, or of this process alone, left at exit."""
    if "PMIX_NAMESPACE" not in os.environ:
        for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
            if os.environ.get(name, "1") not in ("", "1"):
                raise Error(_lib.ERR_STATE, f"{name}={os.environ[name]}, but this process has not joined the others: "
                                            "call gradcomp.torch.init_process_group() first, start with srun "
                                            "--mpi=pmix, or pass job= or group=")
    return _job.join()
