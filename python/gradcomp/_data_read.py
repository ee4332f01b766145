"""Reads the values that _data_value.py writes. Arrays are handed out where they stand.

A description becomes a function that makes the value out of the memory it stands in,
and is kept: most samples of a dataset have one of few descriptions.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from . import _lib
from ._data_value import ALIGN, DEPTH, ELEMENTS, HEAD, MAGIC, SIZES, Sample
from ._lib import Error

_TYPESTR = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16", "<u2", "<u4", "<u8", None)
Maker = Callable[[int, Any], Any]  # of a value's address, and of its loan
_FIRST = 256  # bytes looked at in one go: mostly head and description
_KEPT = 4096
_known: dict[bytes, tuple[Maker, int]] = {}  # descriptions of at most _FIRST bytes: (maker, bytes of the value)


class _Span:
    """Memory on loan as numpy takes it: the array keeps this, and this the loan."""

    __slots__ = ("__array_interface__", "_loan")

    def __init__(self, address: int, shape: tuple[int, ...], typestr: str, loan: Any):
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": shape, "typestr": typestr}
        self._loan = loan


def _array(at: int, shape: tuple[int, ...], typestr: str, scalar: bool) -> Maker:
    import numpy

    if 0 in shape:
        def empty(_address: int, _loan: Any) -> Any:
            array = numpy.empty(shape, typestr)
            array.flags.writeable = False
            return array

        return empty

    def view(address: int, loan: Any) -> Any:
        array = numpy.asarray(_Span(address + at, shape, typestr, loan))
        return array[()] if scalar else array

    return view


def typestr(number: int) -> str:
    form = _TYPESTR[number]
    if form is None:
        raise ValueError(f"a numpy array of {ELEMENTS[number]}")
    return form


def torch_type(torch: Any, name: str) -> Any:
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise ImportError(f"torch has no {name}")
    return dtype


def _tensor(at: int, shape: tuple[int, ...], name: str, size: int) -> Maker:
    # There are no read-only tensors: a view of the memory that all share would be
    # changed by the first step that works in place.
    import torch

    dtype = torch_type(torch, name)
    for n in shape:
        size *= n

    def copy(address: int, _loan: Any) -> Any:
        try:
            tensor = torch.empty(shape, dtype=dtype)
        except RuntimeError as e:
            raise ValueError(str(e)) from None
        if size:
            ctypes.memmove(tensor.data_ptr(), address + at, size)
        return tensor

    return copy


def _together(kind: Callable[[list[Any]], Any], makers: Sequence[Maker]) -> Maker:
    return lambda address, loan: kind([make(address, loan) for make in makers])


class Description:
    """Walks along a description; `buffers` is how far the value reaches with it."""

    def __init__(self, meta: bytes):
        self.meta, self.at, self.buffers = meta, 0, HEAD.size + len(meta)

    def unpack(self, form: str) -> tuple[Any, ...]:
        got = struct.unpack_from(form, self.meta, self.at)  # struct.error: behind the end
        self.at += struct.calcsize(form)
        return got

    def text(self, size: int) -> str:
        if size > len(self.meta) - self.at:
            raise ValueError(f"a string of {size} bytes ends behind the description")
        self.at += size
        return self.meta[self.at - size:self.at].decode("utf-8", "surrogateescape")

    def buffer(self, size: int) -> int:
        """Where the next buffer is."""
        at = -(-self.buffers // ALIGN) * ALIGN
        self.buffers = at + size
        return at

    def places(self) -> range:
        """As many turns as there are items."""
        (count,) = self.unpack("<I")
        if count > len(self.meta) - self.at:
            raise ValueError(f"{count} items in {len(self.meta) - self.at} bytes of description")
        return range(count)

    def constant(self, letter: bytes) -> Any:
        if letter == b"i":
            return self.unpack("<q")[0]
        if letter == b"f":
            return self.unpack("<d")[0]
        if letter == b"s":
            return self.text(self.unpack("<I")[0])
        return {b"N": None, b"n": False, b"y": True}[letter]

    def plain(self, letter: bytes) -> Maker:
        value = self.constant(letter)
        return lambda _address, _loan: value

    def raw(self, at: int, size: int) -> Maker:
        return lambda address, _loan: ctypes.string_at(address + at, size)

    def array(self, letter: bytes, number: int, shape: tuple[int, ...], at: int) -> Maker:
        if letter == b"t":
            return _tensor(at, shape, ELEMENTS[number], SIZES[number])
        return _array(at, shape, typestr(number), letter == b"v")

    def maker(self, depth: int = 0) -> Maker:
        """The function that makes the next value."""
        if depth > DEPTH + 1:
            raise ValueError("nested too deep")
        letter = self.meta[self.at:self.at + 1]
        self.at += 1
        if letter in (b"a", b"t", b"v"):
            return self.shaped(letter)
        if letter and letter in b"ifsNny":
            return self.plain(letter)
        if letter == b"b":
            (size,) = self.unpack("<Q")
            return self.raw(self.buffer(size), size)
        if letter == b"(" or letter == b"[":
            return _together(tuple if letter == b"(" else list, [self.maker(depth + 1) for _ in self.places()])
        if letter == b"S":
            return _together(Sample._make, [self.maker(depth + 1) for _ in Sample._fields])
        if letter == b"{":
            makers = {self.key(): self.maker(depth + 1) for _ in self.places()}
            return lambda address, loan: {key: make(address, loan) for key, make in makers.items()}
        raise ValueError(f"{letter!r} is no type")

    def key(self) -> Any:
        letter = self.meta[self.at:self.at + 1]
        self.at += 1
        if letter not in (b"s", b"i"):
            raise ValueError("a dict with a key that is neither str nor int")
        return self.constant(letter)

    def shaped(self, letter: bytes) -> Maker:
        number, ndim = self.unpack("<BB")
        if number >= len(ELEMENTS):
            raise ValueError(f"{number} is no element type")
        shape = self.unpack(f"<{ndim}Q")
        count = 1
        for n in shape:
            count *= n
        if max(shape, default=0) >= 1 << 62:
            raise ValueError(f"an array of shape {shape}")
        return self.array(letter, number, shape, self.buffer(count * SIZES[number]))


def _understood(meta: bytes) -> tuple[Maker, int]:
    description = Description(meta)
    maker = description.maker()
    if description.at != len(meta):
        raise ValueError(f"{len(meta) - description.at} bytes of description left over")
    return maker, description.buffers


def read(address: int, size: int, loan: Any) -> Any:
    """The value in `size` bytes at `address`. Its arrays are views that hold `loan`."""
    try:
        if size < HEAD.size:
            raise ValueError(f"{size} bytes are less than a head")
        first = ctypes.string_at(address, min(size, _FIRST))
        magic, meta_size, total = HEAD.unpack_from(first)
        if magic != MAGIC or total != size or meta_size > size - HEAD.size:
            raise ValueError(f"a head that says {magic!r}, {meta_size} of {total} bytes, on {size} bytes")
        if meta_size > len(first) - HEAD.size:
            maker, reach = _understood(ctypes.string_at(address + HEAD.size, meta_size))
        else:
            meta = first[HEAD.size:HEAD.size + meta_size]
            known = _known.get(meta)
            if known is None:
                known = _understood(meta)
                if len(_known) >= _KEPT:
                    _known.clear()
                _known[meta] = known
            maker, reach = known
        if reach != size:
            raise ValueError(f"a description of {reach} bytes, on {size}")
        return maker(address, loan)
    except ImportError as e:
        raise Error(_lib.ERR_UNSUPPORTED, f"the value is of a Python that has more than this one: {e}") from None
    except (ValueError, struct.error, OverflowError, MemoryError) as e:
        raise Error(_lib.ERR_INVALID, f"not a value: {e}") from None
