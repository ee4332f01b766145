"""Values of a batch as one: stacked arrays, which look at memory of their own.

The library copies the values one behind the other. When they differ in nothing but what arrays, ints and
floats hold, their arrays are strided views of that memory; else each value is read and they are stacked."""

from __future__ import annotations

import collections
import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, Tuple

import numpy

from . import _data_read, _lib
from ._data_value import ALIGN, ELEMENTS, HEAD, MAGIC, SIZES, Sample
from ._lib import Error

Block = Tuple[int, Any]  # its address, and the array it is in
_CONSTANTS = {b"i": "<i8", b"f": "<f8"}


class _Description(_data_read.Description):
    """Its maker takes rows of bytes, one a value; `varying` says where these may differ."""

    def __init__(self, meta: bytes):
        super().__init__(meta)
        self.varying: list[slice] = []

    def plain(self, letter: bytes) -> Callable[[Any, Any], Any]:
        at, value = HEAD.size + self.at, self.constant(letter)
        if letter in _CONSTANTS:
            self.varying.append(slice(at, at + 8))
            return lambda rows, _: rows[:, at:at + 8].copy().view(_CONSTANTS[letter])[:, 0]
        return lambda rows, _: stacked([value] * len(rows))

    def raw(self, at: int, size: int) -> Callable[[Any, Any], Any]:
        return lambda rows, _: [row[at:at + size].tobytes() for row in rows]

    def array(self, letter: bytes, number: int, shape: tuple[int, ...], at: int) -> Callable[[Any, Any], Any]:
        size = SIZES[number]
        steps = [size]
        for n in shape[:0:-1]:
            steps.insert(0, steps[0] * n)
        strides = tuple(steps) if shape else ()
        if letter == b"t":
            return lambda rows, _: _tensors(rows, shape, ELEMENTS[number], size, at, strides)
        dtype = numpy.dtype(_data_read.typestr(number))
        if 0 in shape:
            return lambda rows, _: numpy.empty((len(rows), *shape), dtype)
        return lambda rows, _: numpy.ndarray((len(rows), *shape), dtype, rows, at, (rows.strides[0], *strides))


def _tensors(rows: Any, shape: tuple[int, ...], name: str, size: int, at: int, strides: tuple[int, ...]) -> Any:
    import torch

    dtype = _data_read.torch_type(torch, name)
    if 0 in shape:
        return torch.empty((len(rows), *shape), dtype=dtype)
    memory = torch.from_numpy(rows.reshape(-1)).view(dtype)
    return memory.as_strided((len(rows), *shape), tuple(n // size for n in (rows.strides[0], *strides)), at // size)


def stacked(values: Sequence[Any]) -> Any:
    """Values of a batch as one: arrays and tensors along a new first axis, numbers as an array, of tuples, lists and
    dicts each part by itself, all else as a list."""
    first, kinds = values[0], {type(v) for v in values}
    kind = type(first)
    if len(kinds) > 1:
        return list(values)
    if kind is bool or kind is int or kind is float or issubclass(kind, numpy.generic):
        return numpy.array(values)
    if kind is Sample or kind in (tuple, list):
        if any(len(v) != len(first) for v in values):
            return list(values)
        parts = [stacked(part) for part in zip(*values)]
        return Sample._make(parts) if kind is Sample else kind(parts)
    if kind is dict:
        if any(v.keys() != first.keys() for v in values):
            return list(values)
        return {key: stacked([v[key] for v in values]) for key in first}
    if isinstance(first, numpy.ndarray) or hasattr(first, "data_ptr"):
        if any(v.shape != first.shape or v.dtype != first.dtype for v in values):
            return list(values)
        if isinstance(first, numpy.ndarray):
            return numpy.stack(values)
        import torch

        return torch.stack(list(values))
    return list(values)


class _Rows:
    """A block of memory while any array, tensor or buffer looks at it: numpy keeps this as the base of all of them."""

    __slots__ = ("__array_interface__", "_block", "_give_back")

    def __init__(self, block: Block, shape: tuple[int, ...], give_back: Callable[[Block], object]):
        self.__array_interface__ = {"version": 3, "data": (block[0], False), "shape": shape, "typestr": "|u1"}
        self._block, self._give_back = block, give_back

    def __del__(self) -> None:
        self._give_back(self._block)


class _Blocks:
    """Memory for batches, used again when nothing looks at it any more: fresh memory takes longer to be had from
    the kernel than values to be copied. Any thread may be the one that drops a batch."""

    MOST = 4    # unused ones that are kept
    ROOMY = 8  # a block is not for what is so many times shorter

    def __init__(self) -> None:
        # The last one dropped is the one that caches still have; those too many go at the other end.
        self._unused: collections.deque[Block] = collections.deque(maxlen=self.MOST)

    def rows(self, count: int, size: int) -> tuple[Any, int]:
        """(an array with a row for each value, its address)"""
        stride = -(-size // ALIGN) * ALIGN
        block = self._take(count * stride)
        return numpy.asarray(_Rows(block, (count, stride), self._unused.append)), block[0]

    def _take(self, size: int) -> Block:
        """(address, the array it is in)"""
        with contextlib.suppress(IndexError):  # another thread was first
            for _ in range(len(self._unused)):
                block = self._unused.pop()
                if size <= block[1].nbytes - ALIGN < self.ROOMY * size:
                    return block
                self._unused.appendleft(block)
        memory: Any = numpy.empty(size + ALIGN, numpy.uint8)
        address = memory.__array_interface__["data"][0]
        return address + -address % ALIGN, memory


class _Form:
    """What values have that differ in nothing but the contents of arrays, ints and floats: bytes, description, maker."""

    def __init__(self, row: Any, size: int):
        """ValueError and its like: values that read() is for, and says what is wrong with."""
        magic, meta_size, total = HEAD.unpack_from(row)
        if magic != MAGIC or total != size or meta_size > total - HEAD.size:
            raise ValueError("no head of a value")
        description = _Description(row[HEAD.size:HEAD.size + meta_size].tobytes())
        self.make = description.maker()
        if description.at != meta_size or description.buffers != total:
            raise ValueError("a description of other bytes")
        self._size, self._reach, self._varying = size, HEAD.size + meta_size, description.varying
        self._same = self._heads(row[None])

    def _heads(self, rows: Any) -> bytes:
        heads = rows[:, :self._reach]
        if self._varying:
            heads = heads.copy()
            for part in self._varying:
                heads[:, part] = 0
        return bytes(heads.tobytes())

    def fits(self, rows: Any, size: int) -> bool:
        return size == self._size and self._heads(rows) == self._same * len(rows)


class Batcher:
    """Makes batches of a dataset's values, in its order. What it has learnt of them and its memory last from epoch to
    epoch."""

    def __init__(self, core: Any):
        self._core = core
        self._blocks = _Blocks()
        self._bytes = 0  # of a value, as the last ones had
        self._form: _Form | None = None

    def next(self, epoch: int, position: int, most: int, transform: Callable[[Any], Any] | None) -> Any:
        """The next `most` values as one."""
        size = self._bytes
        rows: Any = self._copies(most, size) if size else ()
        if len(rows) == most and transform is None:
            form = self._form_of(rows, size)
            if form is not None:
                return form.make(rows, None)
        values = self._each(rows, size, position)
        while len(values) < most:
            value, size = self._core.sized(epoch, position + len(values))
            self._bytes = size
            values.append(value)
            if len(values) < most:
                values += self._each(self._copies(most - len(values), size), size, position + len(values))
        if transform is not None:
            values = [transform(value) for value in values]
        return stacked(values)

    def _copies(self, most: int, size: int) -> Any:
        rows, address = self._blocks.rows(most, size)
        got = self._core.copies(address, most, size, rows.shape[1])
        return rows if got == most else rows[:got]

    def _each(self, rows: Any, size: int, position: int) -> list[Any]:
        """Their arrays hold the rows."""
        try:
            return [_data_read.read(row.ctypes.data, size, rows) for row in rows]
        except Error as e:
            raise Error(e.status, f"a value from position {position} on: {e}") from None

    def _form_of(self, rows: Any, size: int) -> _Form | None:
        """That of all of them, if they have one."""
        form = self._form
        if form is not None and form.fits(rows, size):
            return form
        try:
            form = _Form(rows[0], size)
        except (ValueError, ImportError, struct.error):
            return None
        self._form = form
        return form if form.fits(rows, size) else None
