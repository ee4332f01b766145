"""A dataset of the library: its handle, the function that loads values, values on
loan, and its end."""

from __future__ import annotations

import ctypes
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from ctypes import c_uint64, c_void_p
from typing import Any, Dict, NoReturn, Tuple

from . import _data_lib, _lib, _log, job
from ._data_lib import lib
from ._data_read import read
from ._data_value import Packed, Sample
from ._lib import Error

_open: list[Core] = []  # by creation; closed in reverse at exit, which is the same order on all ranks
Failures = Dict[int, Tuple[BaseException, int]]  # by index of the sample: what, and on which thread
_FAILURES = 32  # kept until the call that asked for the sample comes for them
_HERE = os.path.dirname(os.path.abspath(__file__))


def _what(failure: BaseException) -> str:
    """An exception in one line, for those who see no more of it than the library carries."""
    if isinstance(failure, Error):
        return str(failure)  # says already what and where
    text = " ".join(traceback.format_exception_only(type(failure), failure)[-1].split())
    frames = [f for f in traceback.extract_tb(failure.__traceback__) if os.path.dirname(f.filename) != _HERE]
    at = [f"{os.path.basename(f.filename)}:{f.lineno} in {f.name}" for f in reversed(frames[-3:])]
    return text[:320] + (f" ({', from '.join(at)})" if at else "")


def _loader(source: Any, prepare: Callable[[Any], Any] | None, failures: Failures) -> Any:
    """The library's load(): on any of its threads, and in forked children."""

    def load(_ctx: Any, index: int, buffer: Any, err: Any) -> int:
        name = ""  # the library puts the index before it
        try:
            value = source[index]
            if type(value) is Sample:
                name = f"{value.key}: "
            packed = Packed(value if prepare is None else prepare(value))
            memory = buffer.contents.alloc(buffer, packed.bytes)
            if not memory:
                return _lib.ERR_NOMEM
            packed.write(memory)
            return 0
        except BaseException as e:  # all of it: the caller in C could not do anything with it
            if len(failures) < _FAILURES:
                failures[index] = e, threading.get_ident()
            status = e.status if isinstance(e, Error) else _lib.ERR_IO if isinstance(e, OSError) else _lib.ERR_INVALID
            if err:
                err.contents.status = status
                err.contents.text = f"{name}{_what(e)}".encode("utf-8", "replace")[:507]
            return status

    return _data_lib.LOAD(load)


_forks = 0  # this process is so many away from the first


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class _Loan:
    """Gives a value back when the last array that looks at it is gone."""

    __slots__ = ("_release", "_handle", "_view", "_by")

    def __init__(self, release: Callable[..., object], handle: c_void_p, view: Any):
        self._release, self._handle, self._view, self._by = release, handle, view, _forks

    def __del__(self) -> None:
        # What a child inherited is its parent's to give back.
        if self._by == _forks:
            self._release(self._handle, ctypes.byref(self._view))


class Core:
    """gradcomp_dataset_*; collective to create and to close."""

    def __init__(self, group: job.Group, source: Any, prepare: Callable[[Any], Any] | None, count: int, seed: int, memory: int,
                 spill: str | None, prefetch: int, shuffle: bool, workers: int, reload: bool):
        self._failures: Failures = {}
        self._pid = os.getpid()
        self._handle: c_void_p | None = None
        self._load = _loader(source, prepare, self._failures)  # held for as long as the library may call it
        options = _data_lib.DatasetOptions(ctypes.sizeof(_data_lib.DatasetOptions), workers, count, seed, memory,
                                           spill and os.fsencode(spill), prefetch, int(shuffle), self._load, None, int(reload))
        handle = c_void_p()

        def create() -> None:
            with group.job._giving(lambda made: setattr(handle, "value", made)):
                lib().call("dataset_create", group._handle, ctypes.byref(options), ctypes.byref(handle))

        # Other groups do not outlive a rank.
        self._until_done = group.job._certain if group is group.job.world else lambda call: call()
        self._until_done(create)
        self._handle, self._lib, self._group = handle, lib(), group
        _open.append(self)

    @property
    def alone(self) -> bool:
        return bool(self._group.nranks == 1)

    @property
    def length(self) -> int:
        return int(self._lib.dataset_length(self._used()))

    def _used(self, parents: str | None = None) -> c_void_p:
        """The handle; `parents` names what a forked child must not do."""
        if self._handle is None:
            raise Error(_lib.ERR_STATE, "the dataset is closed")
        if parents and os.getpid() != self._pid:
            raise Error(_lib.ERR_STATE, f"{parents} is for the process that made the dataset ({self._pid}), not for a "
                                        f"forked worker ({os.getpid()}): workers read by index")
        return self._handle

    def _fail(self, status: int, err: _lib.ErrorText, index: int) -> NoReturn:
        failure, _thread = self._failures.pop(index, (None, None))
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # KeyboardInterrupt and its like mean the program, not the sample
        raise Error(status, err.message() or self._lib.strerror(status).decode()) from failure

    def _got(self) -> None:
        """After a call that has given values: the library got along where load() failed in it. KeyboardInterrupt and its like
        are raised all the same."""
        mine = [i for i, (_, thread) in list(self._failures.items()) if thread == threading.get_ident()]
        for failure, _thread in [self._failures.pop(i) for i in mine]:
            if not isinstance(failure, Exception):
                raise failure

    def _value(self, handle: c_void_p, view: Any) -> Any:
        try:
            return read(view.data, view.bytes, _Loan(self._lib.dataset_release, handle, view))
        except Error as e:
            raise Error(e.status, f"sample {view.index}: {e}") from None

    def get(self, index: int) -> Any:
        handle = self._used()
        view, err = _data_lib.ValueView(struct_size=ctypes.sizeof(_data_lib.ValueView)), _lib.ErrorText()
        status = self._lib.dataset_get(handle, index, ctypes.byref(view), ctypes.byref(err))
        if status < 0:
            self._fail(status, err, index)
        return self._value(handle, view)

    def order(self, epoch: int, position: int) -> int:
        index = c_uint64()
        self._lib.call("dataset_order", self._used(), epoch, position, ctypes.byref(index))
        return index.value

    def begin(self, epoch: int, position: int) -> None:
        self._lib.call("dataset_begin", self._used("iteration"), epoch, position)

    def next(self, epoch: int, position: int) -> Any:
        """The value at `position`, which is where begin() and earlier calls came to."""
        return self.sized(epoch, position)[0]

    def sized(self, epoch: int, position: int) -> tuple[Any, int]:
        """The same, and its bytes."""
        handle = self._used("iteration")
        view, err = _data_lib.ValueView(struct_size=ctypes.sizeof(_data_lib.ValueView)), _lib.ErrorText()
        status = self._lib.dataset_next(handle, ctypes.byref(view), ctypes.byref(err))
        if status < 0:
            self._fail(status, err, self.order(epoch, position))
        if not view.data:
            raise Error(_lib.ERR_INTERNAL, f"epoch {epoch} ended at position {position} of {self.length}: report it")
        size = view.bytes
        value = self._value(handle, view)
        self._got()
        return value, size

    def copies(self, address: int, count: int, size: int, stride: int) -> int:
        """Copies the next values as long as they have `size` bytes, `count` at most: how many those were. What fails
        and what has another size is left to next()."""
        got = c_uint64()
        self._lib.dataset_next_copies(self._used("iteration"), count, size, stride, address, ctypes.byref(got), None)
        self._got()
        return got.value

    def expect(self, indices: Sequence[int]) -> None:
        self._lib.call("dataset_expect", self._used("expect()"), (c_uint64 * len(indices))(*indices), len(indices))

    def stats(self) -> dict[str, float]:
        stats = _data_lib.DatasetStats(struct_size=ctypes.sizeof(_data_lib.DatasetStats))
        self._lib.dataset_get_stats(self._used("stats()"), ctypes.byref(stats))
        return {name: getattr(stats, name) for name, *_ in stats._fields_[2:]}

    def owned(self) -> bool:
        """Whether it is this process's to close, and open."""
        return self._handle is not None and os.getpid() == self._pid

    def close(self) -> None:
        """Collective. In a forked child, and a second time: nothing."""
        if not self.owned():
            return
        try:
            self._until_done(lambda: self._lib.call("dataset_free", self._handle))
        except Error as e:
            if e.status == _lib.ERR_PEER_LOST:  # Job.shrink() finds out whether it is freed
                self.stop()
            self._forget()
            raise
        self._forget()

    def _forget(self) -> None:
        self._handle = None
        _open.remove(self)

    def stop(self) -> None:
        """What a program that ends by an exception does in place of close()."""
        self._lib.dataset_stop(self._handle)


def _close_all(failed: BaseException | None) -> None:
    for core in reversed(_open[:]):
        if not core.owned():
            continue
        if failed is not None:
            # The others learn from this process's end that it failed: do not wait for
            # them, but let no thread come back into an interpreter that is gone.
            core.stop()
            continue
        try:
            core.close()
        except Error as e:
            _log.warn(e)


job.at_exit(_close_all)
