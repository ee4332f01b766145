"""Work that all ranks would do alike (norms, an optimizer's update), shared among them
where that is faster than doing all of it everywhere."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from ctypes import c_uint64, c_void_p
from typing import Any

from . import _lib
from ._lib import lib
from .job import Buffer, Group, _placed


class Parallel:
    """Pieces of work, each of which fills a buffer; collective to create.

    `pieces` are torch tensors, numpy arrays or other writable buffers, of the same
    sizes on all ranks; all in host memory, or all on one GPU: then work(i) finds a stream of this object's
    current, on which pieces come after what the caller's has, and what that gets after apply() comes after them. apply(work) calls work(i) for those this rank is to do, or for all,
    and returns with every piece complete: the same bits on all ranks. What work(i) changes
    and reads again later must be in pieces[i], since another rank may do it next time.
    The first four calls are timed both ways, and two of every hundred."""

    def __init__(self, group: Group, pieces: Iterable[Buffer]):
        self.pieces = list(pieces)
        self._gpu = next((p.device for p in self.pieces if hasattr(p, "data_ptr") and p.device.type == "cuda"), None)
        self._stream = None if self._gpu is None else sys.modules["torch"].cuda.Stream(self._gpu)
        self._handle: Any = c_void_p()
        with self._streams(), _placed(*self.pieces) as (where, *found):
            sizes = [count * _lib.ITEMSIZE[dtype] for _, count, dtype in found]
            self._out = (c_void_p * len(found))(*[address for address, _, _ in found])
            if self._stream is not None:
                where._obj.queue = self._stream.cuda_stream
            lib().call("parallel_create_on", group._handle, where, (c_uint64 * len(sizes))(*sizes), len(sizes),
                       ctypes.byref(self._handle))

    @contextlib.contextmanager
    def _streams(self) -> Iterator[None]:
        """On a GPU: what is done within is on this object's stream."""
        if self._stream is None:
            yield
            return
        cuda = sys.modules["torch"].cuda
        current = cuda.current_stream(self._gpu)
        self._stream.wait_stream(current)
        with cuda.device(self._gpu), cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def apply(self, work: Callable[[int], object]) -> None:
        """Collective. When work() raises, its other pieces are left as they are and the
        exception comes from here once the others have what there is; let it end the program."""
        raised: list[BaseException] = []

        def piece(_ctx: Any, index: int) -> None:
            try:
                if not raised:
                    work(index)
            except BaseException as e:  # C in between could not do anything with it
                raised.append(e)

        with self._streams():
            lib().call("parallel_apply", self._handle, self._out, _lib.WORK(piece), None)
        if raised:
            raise raised[0]

    @property
    def reason(self) -> str:
        """What was decided and why, in a line."""
        return str(lib().parallel_reason(self._handle).decode())

    def free(self) -> None:
        handle, self._handle = self._handle, None
        lib().parallel_free(handle)
