"""Values as bytes: what gradcomp.data stores of a sample, and reads again.

A value comes from the memory of another process, so this is no pickle: reading
makes objects of the types below and nothing else, and every length is checked.

    head    "GCV1", u32 bytes of the description, u64 bytes of all
    description
            one node a value, in order: a letter of its type, then what it has
    buffers arrays, tensors and bytes in the order of the description, each at the
            next multiple of 64

All numbers are little-endian. _data_read.py reads it.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from typing import Any, Dict, NamedTuple, NoReturn, Optional

from . import _lib
from ._lib import Error

HEAD = struct.Struct("<4sIQ")
MAGIC = b"GCV1"
ALIGN = 64
DEPTH = 16
# The number of an element type is its place here.
ELEMENTS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
             "complex128", "uint16", "uint32", "uint64", "bfloat16")
_NUMBERS = {name: i for i, name in enumerate(ELEMENTS)}
SIZES = (1, 1, 1, 2, 4, 8, 2, 4, 8, 8, 16, 2, 4, 8, 2)
STORABLE = ("None, bool, int (64 bits), float, str, bytes, numpy arrays and scalars, torch tensors in host memory, "
            "gradcomp.data.Sample, and tuples, lists and dicts (keys str or int) of those")


class Sample(NamedTuple):
    """What a reader yields: `label` is the number of its class, None where it has
    none; `parts` are its files' bytes by their suffix (one part, "", in a folder)."""

    key: str
    label: Optional[int]
    parts: Dict[str, Any]

    @property
    def data(self) -> Any:
        """The bytes of the first part."""
        return next(iter(self.parts.values()))


def _refuse(what: str, where: str) -> NoReturn:
    raise Error(_lib.ERR_UNSUPPORTED, f"{where or 'the value'} is {what}; what can be stored: {STORABLE}")


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _Writer:
    def __init__(self) -> None:
        self.meta = bytearray()
        self.buffers: list[tuple[Any, int, Any]] = []  # (address, bytes, what keeps it alive)

    def put(self, value: Any, where: str, depth: int = 0) -> None:
        if depth > DEPTH:
            _refuse(f"nested more than {DEPTH} deep", where)
        kind, meta = type(value), self.meta
        if value is None:
            meta += b"N"
        elif kind is bool:
            meta += b"y" if value else b"n"
        elif kind is int:
            if not -1 << 63 <= value < 1 << 63:
                _refuse(f"the int {value}, which has more than 64 bits", where)
            meta += struct.pack("<cq", b"i", value)
        elif kind is float:
            meta += struct.pack("<cd", b"f", value)
        elif kind is str:
            text = value.encode("utf-8", "surrogateescape")
            meta += struct.pack("<cI", b"s", len(text)) + text
        elif kind is bytes or kind is bytearray or kind is memoryview:
            value = bytes(value)
            meta += struct.pack("<cQ", b"b", len(value))
            self.buffers.append((value, len(value), None))
        elif kind is tuple or kind is list:
            meta += struct.pack("<cI", b"(" if kind is tuple else b"[", len(value))
            for i, item in enumerate(value):
                self.put(item, f"{where or 'value'}[{i}]", depth + 1)
        elif kind is dict:
            meta += struct.pack("<cI", b"{", len(value))
            for key, item in value.items():
                if type(key) is not str and type(key) is not int:
                    _refuse(f"a dict with a key of type {_type_name(key)}", where)
                self.put(key, where, depth + 1)
                self.put(item, f"{where or 'value'}[{key!r}]", depth + 1)
        elif kind is Sample:
            meta += b"S"
            for name, item in zip(Sample._fields, value):
                self.put(item, f"{where or 'value'}.{name}", depth + 1)
        elif not self._array(value, where):
            _refuse(f"of type {_type_name(value)}", where)

    def _array(self, value: Any, where: str) -> bool:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and (type(value) in (numpy.ndarray, numpy.memmap) or isinstance(value, numpy.generic)):
            array = numpy.ascontiguousarray(value)
            if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
                array = array.astype(array.dtype.newbyteorder("<"))
            number = _NUMBERS.get(array.dtype.name)
            if number is None:
                _refuse(f"a numpy array of {value.dtype}", where)
            # ascontiguousarray() makes one dimension of none.
            letter = b"v" if isinstance(value, numpy.generic) else b"a"
            self._shaped(letter, number, value.shape, array.__array_interface__["data"][0], array)
            return True
        if torch is not None and type(value) is torch.Tensor:
            number = _NUMBERS.get(str(value.dtype)[6:])
            if number is None or value.layout is not torch.strided or value.device.type != "cpu":
                _refuse(f"a torch tensor of {value.dtype}, {value.layout}, on {value.device}", where)
            tensor = value.detach().contiguous().resolve_conj().resolve_neg()
            self._shaped(b"t", number, tuple(tensor.shape), tensor.data_ptr(), tensor)
            return True
        return False

    def _shaped(self, letter: bytes, number: int, shape: Sequence[int], address: int, keep: Any) -> None:
        count = 1
        for n in shape:
            count *= n
        self.meta += struct.pack(f"<cBB{len(shape)}Q", letter, number, len(shape), *shape)
        self.buffers.append((address, count * SIZES[number], keep))


class Packed:
    """A value on its way into memory: `bytes` to have, then write() there."""

    def __init__(self, value: Any):
        writer = _Writer()
        writer.put(value, "")
        self._meta, self._places = bytes(writer.meta), []
        at = HEAD.size + len(self._meta)
        for source, size, keep in writer.buffers:
            at = -(-at // ALIGN) * ALIGN
            self._places.append((at, source, size, keep))
            at += size
        self.bytes = at

    def write(self, address: int) -> None:
        ctypes.memmove(address, HEAD.pack(MAGIC, len(self._meta), self.bytes) + self._meta,
                       HEAD.size + len(self._meta))
        for at, source, size, _ in self._places:
            if size:
                ctypes.memmove(address + at, source, size)
