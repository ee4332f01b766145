"""Values of a batch as one: stacked arrays, which look at memory of their own.

The library copies the values one behind the other. When they differ in nothing but what arrays, ints and
floats hold, their arrays are strided views of that memory; else each value is read and they are stacked."""

import sys

import numpy

from . import _data_read, _lib
from ._data_value import ALIGN, ELEMENTS, HEAD, MAGIC, Sample
from ._lib import Error

_CONSTANTS = {b"i": "<i8", b"f": "<f8"}


class _Description(_data_read.Description):
    """Its maker takes rows of bytes, one a value; `varying` says where these may differ."""

    def __init__(self, meta):
        super().__init__(meta)
        self.varying = []

    def plain(self, letter):
        at, value = HEAD.size + self.at, self.constant(letter)
        if letter in _CONSTANTS:
            self.varying.append(slice(at, at + 8))
            return lambda rows, _: rows[:, at:at + 8].copy().view(_CONSTANTS[letter])[:, 0]
        return lambda rows, _: stacked([value] * len(rows))

    def raw(self, at, size):
        return lambda rows, _: [row[at:at + size].tobytes() for row in rows]

    def array(self, letter, number, shape, at):
        size = _data_read.SIZES[number]
        strides = [size]
        for n in shape[:0:-1]:
            strides.insert(0, strides[0] * n)
        strides = tuple(strides) if shape else ()
        if letter == b"t":
            return lambda rows, _: _tensors(rows, shape, ELEMENTS[number], size, at, strides)
        typestr = _data_read.typestr(number)
        if 0 in shape:
            return lambda rows, _: numpy.empty((len(rows), *shape), typestr)
        return lambda rows, _: numpy.ndarray((len(rows), *shape), typestr, rows, at, (rows.strides[0], *strides))


def _tensors(rows, shape, name, size, at, strides):
    import torch

    dtype = _data_read.torch_type(torch, name)
    if 0 in shape:
        return torch.empty((len(rows), *shape), dtype=dtype)
    memory = torch.from_numpy(rows.reshape(-1)).view(dtype)
    return memory.as_strided((len(rows), *shape), tuple(n // size for n in (rows.strides[0], *strides)), at // size)


def stacked(values):
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

        return torch.stack(values)
    return list(values)


class _Blocks:
    """Memory for batches, used again when no array looks at it any more: fresh memory takes longer to be had from
    the kernel than values to be copied."""

    MOST = 4

    def __init__(self):
        self._kept = []

    def rows(self, count, size):
        stride = -(-size // ALIGN) * ALIGN
        for i in range(len(self._kept)):
            # Referred to by the list and the call's argument.
            unused = sys.getrefcount(self._kept[i]) == 2
            if unused and self._kept[i].shape[0] >= count and self._kept[i].shape[1] == stride:
                self._kept.append(self._kept.pop(i))
                return self._kept[-1][:count]
        block = numpy.empty((count, stride), numpy.uint8)
        self._kept = [*self._kept[1 - self.MOST:], block]
        return block[:count]


class Batcher:
    """Makes batches of a dataset's values, in its order."""

    def __init__(self, core, transform):
        self._core, self._transform = core, transform
        self._blocks = _Blocks()
        self._bytes = 0  # of a value, as the last ones had
        self._description = None
        self._maker = None  # by the description
        self._template = None  # its bytes, without what varies

    def next(self, epoch, position, most):
        """The next `most` values as one."""
        rows = self._copies(most) if self._bytes else ()
        if len(rows) == most and self._transform is None and self._alike(rows):
            return self._maker(rows, None)
        values = self._each(rows, position)
        while len(values) < most:
            value, self._bytes = self._core.sized(epoch, position + len(values))
            values.append(value)
            if len(values) < most:
                values += self._each(self._copies(most - len(values)), position + len(values))
        if self._transform is not None:
            values = [self._transform(value) for value in values]
        return stacked(values)

    def _copies(self, most):
        return self._core.copies(self._blocks.rows(most, self._bytes), self._bytes)

    def _each(self, rows, position):
        """Their arrays hold the rows."""
        try:
            return [_data_read.read(row.ctypes.data, self._bytes, rows) for row in rows]
        except Error as e:
            raise Error(e.status, f"a value from position {position} on: {e}") from None

    def _alike(self, rows):
        if self._fits(rows):
            return True
        magic, meta_size, total = HEAD.unpack_from(rows[0])
        if magic != MAGIC or total != self._bytes or meta_size > total - HEAD.size:
            return False  # read() says what is wrong
        try:
            description = _Description(rows[0, HEAD.size:HEAD.size + meta_size].tobytes())
            self._maker = description.maker()
        except (ValueError, ImportError, _data_read.struct.error):
            return False
        if description.at != meta_size or description.buffers != total:
            return False
        self._description = description
        self._template = self._without_what_varies(rows[:1])[0]
        return self._fits(rows)

    def _without_what_varies(self, rows):
        heads = rows[:, :HEAD.size + len(self._description.meta)].copy()
        for part in self._description.varying:
            heads[:, part] = 0
        return heads

    def _fits(self, rows):
        return (self._description is not None and self._description.buffers == self._bytes
                and bool((self._without_what_varies(rows) == self._template).all()))
