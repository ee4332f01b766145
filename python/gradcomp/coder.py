"""Coder: reduce-scatter and all-gather under a code, for programs that shard (FSDP, ZeRO).

Buffers are torch CPU tensors, numpy arrays or other writable buffers, or with `cuda` torch tensors on
a GPU, contiguous, of float32, float16 or bfloat16; their memory is used in place. See gradcomp/coder.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int, c_uint64, c_void_p
from typing import Any

from . import _lib
from ._lib import Error, lib
from .job import Buffer, DeviceMemory, Group, _device_memory, _memory, _name

_NO_SLOT = 0xffffffff


class Request:
    """A call in flight. Its buffers are the coder's until wait() has returned."""

    def __init__(self, coder: Coder, handle: c_void_p, buffers: tuple[Buffer, ...]):
        self._coder = coder
        self._handle: c_void_p | None = handle
        self._buffers: tuple[Buffer, ...] = buffers
        coder._flight.add(self)  # the library writes to the buffers, whoever forgets the request

    def test(self) -> bool:
        """Whether the call has ended, well or not; never sleeps. wait() tells how."""
        if self._handle is None:
            return True
        done = c_int()
        lib().coder_test(self._handle, ctypes.byref(done), None)
        return bool(done.value)

    def wait(self) -> None:
        """Returns when the call has ended; Error when it failed. A second time does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            lib().call("coder_wait", handle)
        finally:
            self._coder._flight.discard(self)
            self._buffers = ()


class Coder:
    """A compressor that gives a code (block, zfp, lossless; none sends numbers as they are), a
    collective, and calls that are carried out one after another in the order in which they were started,
    the same on all ranks of the group. Collective to create.

    `spec` and `collective` are SPECs, None the job's; `seed` is equal on all ranks; `name` is
    what the report, the timeline and messages call it. With `cuda` numbers are in the memory of the
    current CUDA device; calls come after what the stream `queue` (torch.cuda.Stream.cuda_stream) has when
    they are started, and what it is given after wait() comes after them: the host waits for neither. `memory` is
    where the coder's own memory of the device comes from, as of a Reducer."""

    def __init__(self, group: Group, spec: str | None = None, collective: str | None = None, seed: int = 0,
                 name: str | None = None, cuda: bool = False, queue: int = 0,
                 memory: DeviceMemory | None = None):
        options = _lib.CoderOptions(ctypes.sizeof(_lib.CoderOptions), 0, _lib.text("collective", collective),
                                    _lib.whole("seed", seed), _lib.text("name", name), int(cuda), 0, queue or None)
        self._memory = _device_memory(options, memory)
        self._cuda = cuda
        self.nranks, self.rank = group.nranks, group.rank
        self._flight: set[Request] = set()
        handle: Any = c_void_p()
        lib().call("coder_create", group._handle, _lib.text("spec", spec), ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle

    @staticmethod
    def check(spec: str | None = None, collective: str | None = None) -> None:
        """Error when no coder can be made of these; it says what to take instead. Needs no job."""
        lib().call("coder_check", _lib.text("spec", spec), _lib.text("collective", collective))

    @property
    def spec(self) -> str:
        """The compressor, every parameter spelt out."""
        return str(lib().coder_spec(self._handle).decode())

    @property
    def collective(self) -> str:
        return str(lib().coder_collective(self._handle).decode())

    def reduce_scatter(self, parts: Buffer, out: Buffer, counts: Sequence[int] | None = None, scale: float = 1.0,
                       slot: int | None = None) -> Request:
        """Starts: `out` gets this rank's block of `scale` * sum over ranks. `parts`, a block of
        counts[r] numbers for each rank r, is used as workspace; without counts they are equal.
        With a `slot`, a number from 0 of this tensor's own, what codes lose is kept here and
        added to what the next call with that slot is given. Returns a Request."""
        source, total, dtype = _memory(parts, self._cuda)
        target, own, out_dtype = _memory(out, self._cuda)
        counts = self._counts(counts, own, total, dtype, out_dtype)
        if slot is not None and not 0 <= slot < _NO_SLOT:
            raise Error(_lib.ERR_INVALID, f"slot {slot}: must be 0..{_NO_SLOT - 1}")
        return self._start("coder_reduce_scatter_start", (parts, out), source, target, counts, dtype, scale,
                           _NO_SLOT if slot is None else slot)

    def all_gather(self, part: Buffer, out: Buffer, counts: Sequence[int] | None = None) -> Request:
        """Starts: `out` gets every rank's `part` as its code decodes, the same bits on all
        ranks, counts[r] numbers from rank r; without counts they are equal. Returns a Request."""
        source, own, dtype = _memory(part, self._cuda)
        target, total, out_dtype = _memory(out, self._cuda)
        counts = self._counts(counts, own, total, dtype, out_dtype)
        return self._start("coder_all_gather_start", (part, out), source, target, counts, dtype)

    def _counts(self, counts: Sequence[int] | None, own: int, total: int, dtype: int, out_dtype: int) -> Any:
        if dtype != out_dtype:
            raise Error(_lib.ERR_INVALID, f"input of {_name(dtype)} and output of {_name(out_dtype)}: types must be equal")
        counts = [own] * self.nranks if counts is None else list(counts)
        if len(counts) != self.nranks or own != counts[self.rank] or total != sum(counts):
            raise Error(_lib.ERR_INVALID, f"counts {counts} of {self.nranks} ranks do not fit a block of {own} and "
                                          f"{total} numbers in all")
        return (c_uint64 * len(counts))(*counts)

    def _start(self, name: str, buffers: tuple[Buffer, ...], source: int, target: int, counts: Any, *more: Any) -> Request:
        handle = c_void_p()
        lib().call(name, self._handle, source or None, target or None, counts, *more, ctypes.byref(handle))
        return Request(self, handle, buffers)

    def save(self) -> bytes:
        """This rank's state (residuals of all slots) as bytes; with nothing in flight only."""
        size = c_uint64()
        lib().call("coder_save", self._handle, None, 0, ctypes.byref(size))
        state = ctypes.create_string_buffer(max(1, size.value))
        lib().call("coder_save", self._handle, state, size, ctypes.byref(size))
        return state.raw[:size.value]

    def load(self, state: bytes) -> None:
        lib().call("coder_load", self._handle, state, len(state))

    def read_slot(self, slot: int) -> bytearray:
        """What a slot keeps, as float32 in the order of its blocks; empty where nothing has been lost yet. With nothing in
        flight only."""
        total = c_uint64()
        number = _lib.whole("slot", slot, above=_NO_SLOT)
        lib().call("coder_read_slot", self._handle, number, None, 0, ctypes.byref(total))
        numbers = bytearray(4 * total.value)
        if numbers:
            lib().call("coder_read_slot", self._handle, number, (ctypes.c_char * len(numbers)).from_buffer(numbers), total,
                       ctypes.byref(total))
        return numbers

    def write_slot(self, slot: int, counts: Sequence[int], numbers: Buffer) -> None:
        """Puts float32 in host memory in the place of what a slot keeps: counts[r] for block r, as calls with that slot have
        them. What is owed is the sum over ranks. With nothing in flight only."""
        address, count, dtype = _memory(numbers)
        if dtype != _lib.F32 or len(counts) != self.nranks or count != sum(counts):
            raise Error(_lib.ERR_INVALID, f"counts {list(counts)} of {self.nranks} ranks do not fit {count} numbers of {_name(dtype)}, "
                                          "or these are not float32")
        lib().call("coder_write_slot", self._handle, _lib.whole("slot", slot, above=_NO_SLOT), (c_uint64 * len(counts))(*counts),
                   address or None)

    def stats(self) -> dict[str, float]:
        stats = _lib.CoderStats(struct_size=ctypes.sizeof(_lib.CoderStats))
        lib().coder_get_stats(self._handle, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, *_ in stats._fields_[1:]}

    def free(self) -> None:
        """Waits for what is in flight."""
        handle, self._handle = self._handle, None
        for request in list(self._flight):
            request._handle = None
        lib().coder_free(handle)
        self._flight.clear()
