"""Values as bytes: what gradcomp.data stores of a sample, and reads again.

A value comes from the memory of another process, so this is no pickle: reading
makes objects of the types below and nothing else, and every length is checked.

    head    "GCV1", u32 bytes of the description, u64 bytes of all
    description
            one node a value, in order: a letter of its type, then what it has
    buffers arrays, tensors and bytes in the order of the description, each at the
            next multiple of 64

All numbers are little-endian. Arrays are handed out where they stand.
"""

import ctypes
import struct
import sys
from typing import NamedTuple, Optional

from . import _lib
from ._lib import Error

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"GCV1"
_ALIGN = 64
_DEPTH = 16
# The number of an element type is its place here.
_ELEMENTS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
             "complex128", "uint16", "uint32", "uint64", "bfloat16")
_NUMBERS = {name: i for i, name in enumerate(_ELEMENTS)}
_SIZES = (1, 1, 1, 2, 4, 8, 2, 4, 8, 8, 16, 2, 4, 8, 2)
_TYPESTR = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16", "<u2", "<u4", "<u8", None)
STORABLE = ("None, bool, int (64 bits), float, str, bytes, numpy arrays and scalars, torch tensors in host memory, "
            "gradcomp.data.Sample, and tuples, lists and dicts (keys str or int) of those")


class Sample(NamedTuple):
    """What a reader yields: `label` is the number of its class, None where it has
    none; `parts` are its files' bytes by their suffix (one part, "", in a tree)."""

    key: str
    label: Optional[int]
    parts: dict

    @property
    def data(self):
        """The bytes of the first part."""
        return next(iter(self.parts.values()))


def _refuse(what, where):
    raise Error(_lib.ERR_UNSUPPORTED, f"{where or 'the value'} is {what}; what can be stored: {STORABLE}")


def _type_name(value):
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _Writer:
    def __init__(self):
        self.meta = bytearray()
        self.buffers = []  # (address, bytes, what keeps it alive)

    def put(self, value, where, depth=0):
        if depth > _DEPTH:
            _refuse(f"nested more than {_DEPTH} deep", where)
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

    def _array(self, value, where):
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

    def _shaped(self, letter, number, shape, address, keep):
        count = 1
        for n in shape:
            count *= n
        self.meta += struct.pack(f"<cBB{len(shape)}Q", letter, number, len(shape), *shape)
        self.buffers.append((address, count * _SIZES[number], keep))


class Packed:
    """A value on its way into memory: `bytes` to have, then write() there."""

    def __init__(self, value):
        writer = _Writer()
        writer.put(value, "")
        self._meta, self._places = bytes(writer.meta), []
        at = _HEAD.size + len(self._meta)
        for source, size, keep in writer.buffers:
            at = -(-at // _ALIGN) * _ALIGN
            self._places.append((at, source, size, keep))
            at += size
        self.bytes = at

    def write(self, address):
        ctypes.memmove(address, _HEAD.pack(_MAGIC, len(self._meta), self.bytes) + self._meta,
                       _HEAD.size + len(self._meta))
        for at, source, size, _ in self._places:
            if size:
                ctypes.memmove(address + at, source, size)


class _Span:
    """Memory on loan as numpy takes it: the array keeps this, and this the loan."""

    __slots__ = ("__array_interface__", "_loan")

    def __init__(self, address, shape, typestr, loan):
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": shape, "typestr": typestr}
        self._loan = loan


class _Reader:
    def __init__(self, address, size, meta, loan):
        self.address, self.size, self.meta, self.loan = address, size, meta, loan
        self.at, self.buffers = 0, _HEAD.size + len(meta)

    def unpack(self, form):
        got = struct.unpack_from(form, self.meta, self.at)  # struct.error: behind the end
        self.at += struct.calcsize(form)
        return got

    def text(self, size):
        if size > len(self.meta) - self.at:
            raise ValueError(f"a string of {size} bytes ends behind the description")
        self.at += size
        return self.meta[self.at - size:self.at].decode("utf-8", "surrogateescape")

    def buffer(self, size):
        """The address of the next buffer."""
        at = -(-self.buffers // _ALIGN) * _ALIGN
        if size > self.size - at:
            raise ValueError(f"{size} bytes at {at} end behind the value's {self.size}")
        self.buffers = at + size
        return self.address + at

    def places(self):
        """As many turns as there are items."""
        (count,) = self.unpack("<I")
        if count > len(self.meta) - self.at:
            raise ValueError(f"{count} items in {len(self.meta) - self.at} bytes of description")
        return range(count)

    def value(self, depth=0):
        if depth > _DEPTH + 1:
            raise ValueError("nested too deep")
        letter = self.meta[self.at:self.at + 1]
        self.at += 1
        if letter == b"i":
            return self.unpack("<q")[0]
        if letter in (b"a", b"t", b"v"):
            return self._array(letter)
        if letter == b"(":
            return tuple([self.value(depth + 1) for _ in self.places()])
        if letter == b"f":
            return self.unpack("<d")[0]
        if letter == b"s":
            return self.text(self.unpack("<I")[0])
        if letter == b"b":
            (size,) = self.unpack("<Q")
            return ctypes.string_at(self.buffer(size), size)
        if letter == b"[":
            return [self.value(depth + 1) for _ in self.places()]
        if letter == b"{":
            return {self.key(depth): self.value(depth + 1) for _ in self.places()}
        if letter == b"S":
            return Sample(*[self.value(depth + 1) for _ in Sample._fields])
        if letter in (b"N", b"n", b"y"):
            return {b"N": None, b"n": False, b"y": True}[letter]
        raise ValueError(f"{letter!r} is no type")

    def key(self, depth):
        key = self.value(depth + 1)
        if type(key) is not str and type(key) is not int:
            raise ValueError("a dict with a key that is neither str nor int")
        return key

    def _array(self, letter):
        number, ndim = self.unpack("<BB")
        if number >= len(_ELEMENTS):
            raise ValueError(f"{number} is no element type")
        shape = self.unpack(f"<{ndim}Q")
        count = 1
        for n in shape:
            count *= n
        size = count * _SIZES[number]
        if max(shape, default=0) >= 1 << 62:
            raise ValueError(f"an array of shape {shape}")
        address = self.buffer(size)
        if letter == b"t":
            return self._tensor(number, shape, address, size)
        import numpy

        if _TYPESTR[number] is None:
            raise ValueError(f"a numpy array of {_ELEMENTS[number]}")
        if size == 0:
            array = numpy.empty(shape, _TYPESTR[number])
            array.flags.writeable = False
            return array
        array = numpy.asarray(_Span(address, shape, _TYPESTR[number], self.loan))
        return array[()] if letter == b"v" else array

    @staticmethod
    def _tensor(number, shape, address, size):
        # There are no read-only tensors: a view of the memory that all share would be
        # changed by the first step that works in place.
        import torch

        dtype = getattr(torch, _ELEMENTS[number], None)
        if dtype is None:
            raise ImportError(f"torch has no {_ELEMENTS[number]}")
        try:
            tensor = torch.empty(shape, dtype=dtype)
        except RuntimeError as e:
            raise ValueError(str(e)) from None
        if size:
            ctypes.memmove(tensor.data_ptr(), address, size)
        return tensor


def read(address, size, loan):
    """The value in `size` bytes at `address`. Its arrays are views that hold `loan`."""
    try:
        if size < _HEAD.size:
            raise ValueError(f"{size} bytes are less than a head")
        magic, meta_size, total = _HEAD.unpack(ctypes.string_at(address, _HEAD.size))
        if magic != _MAGIC or total != size or meta_size > size - _HEAD.size:
            raise ValueError(f"a head that says {magic!r}, {meta_size} of {total} bytes, on {size} bytes")
        reader = _Reader(address, size, ctypes.string_at(address + _HEAD.size, meta_size), loan)
        value = reader.value()
        if reader.at != meta_size or reader.buffers != size:
            raise ValueError(f"{meta_size - reader.at} bytes of description and {size - reader.buffers} of buffers left over")
        return value
    except ImportError as e:
        raise Error(_lib.ERR_UNSUPPORTED, f"the value was stored by a Python that has more than this one: {e}") from None
    except (ValueError, struct.error, OverflowError, MemoryError) as e:
        raise Error(_lib.ERR_INVALID, f"not a value: {e}") from None
