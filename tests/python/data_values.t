#!/usr/bin/python3
"""Values as gradcomp.data stores them: to the bit, refused by name, and damaged ones
never believed."""

import os
import random
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import done_testing, environment, error_of, ok, skip_all  # noqa: E402

try:
    import numpy as np
except ImportError:
    skip_all("no numpy for " + sys.executable)
sys.path.insert(0, environment()["PYTHONPATH"])
import gradcomp  # noqa: E402
from gradcomp import _data_read, _data_value  # noqa: E402
from gradcomp.data import Sample  # noqa: E402


class Place:
    """Memory as the store gives it."""

    def __init__(self, size):
        self._array = np.zeros(size + 64, np.uint8)
        self.bytes = self._array[-self._array.ctypes.data % 64:][:size]
        self.address = self.bytes.ctypes.data


def packed(value):
    p = _data_value.Packed(value)
    place = Place(p.bytes)
    p.write(place.address)
    return place


def there_and_back(value):
    place = packed(value)
    return _data_read.read(place.address, len(place.bytes), place)


def same(a, b):
    if isinstance(a, (np.ndarray, np.generic)):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


VALUES = [None, True, False, 0, -1 << 63, (1 << 63) - 1, 2.5, float("inf"), "", "häß\udcff", b"", bytes(range(256)),
          (), [], {}, (1, [2.0, {"a": None, 3: b"x"}]), Sample("a/b", None, {"": b"1"}),
          Sample("c", 7, {"jpg": b"", "cls": b"7"})]
for value in VALUES:
    ok(same(value, there_and_back(value)), f"{str(value)[:40]!r} is stored and read")
for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
             "complex128", "uint16", "uint32", "uint64"):
    array = np.arange(24).astype(name).reshape(2, 3, 4)
    back = there_and_back((array, array[1, 2, 3], array[0, 0, 0:0]))
    ok(same((array, array[1, 2, 3], array[0, 0, 0:0]), back), f"arrays and scalars of {name}", back)
array = np.arange(12, dtype=">f4").reshape(3, 4)
ok((there_and_back(array.T) == array.T).all(), "of the other byte order, and not contiguous")
ok(there_and_back(np.array(5)).shape == (), "an array without dimensions")
place = packed((np.zeros(1000), b"x", np.ones(3, np.float32)))
first, _, second = _data_read.read(place.address, len(place.bytes), place)
ok(first.ctypes.data % 64 == 0 and second.ctypes.data % 64 == 0, "buffers are aligned to 64 bytes")
place.bytes[first.ctypes.data - place.address + 7] = 64
ok(first[0] == 2.0, "an array is a view, not a copy")
ok(not first.flags.writeable and isinstance(error_of(setattr, first.flags, "writeable", True), ValueError),
   "and cannot be written, nor made so")

for value, named in ((object(), "object"), ({1.5: 2}, "float"), (1 << 70, "1180591620717411303424"), ({1, 2}, "set"),
                     ((0, {"a": [range(3)]}), "value[1]['a'][0] is of type range"), (np.array(["x"]), "<U1"),
                     (np.array([None]), "object"), (np.ma.array([1]), "MaskedArray"), (float, "type")):
    e = error_of(packed, value)
    ok(isinstance(e, gradcomp.Error) and named in str(e) and "numpy" in str(e), f"refused by name: {named}", e)
nested = []
for _ in range(30):
    nested = [nested]
ok("deep" in str(error_of(packed, nested)), "too deep a value is refused")

try:
    import torch
except ImportError:
    torch = None
    print("# no PyTorch: tensors are not tried")
for name in ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "complex64") if torch else ():
    tensor = torch.arange(24).to(getattr(torch, name)).reshape(2, 3, 4)
    place = packed({"t": tensor.transpose(0, 2), "none": tensor[0:0], "one": tensor[1, 2, 3]})
    back = _data_read.read(place.address, len(place.bytes), place)
    ok(back["t"].dtype is tensor.dtype and torch.equal(back["t"], tensor.transpose(0, 2))
       and back["one"] == tensor[1, 2, 3] and back["none"].shape == (0, 3, 4), f"tensors of {name}", back)
    back["t"].zero_()
    ok(torch.equal(_data_read.read(place.address, len(place.bytes), place)["t"], tensor.transpose(0, 2)),
       f"and of {name} everybody has a copy")

good = packed((np.arange(6.0), {"k": [1, None, True, 2.5]}, "text", Sample("k", 3, {"": b"data"})))
whole, rng, wrong, read = good.bytes.copy(), random.Random(5), [], 0
for _ in range(20000):
    good.bytes[:] = whole
    for _ in range(rng.randrange(1, 4)):
        good.bytes[rng.randrange(140)] = rng.choice((0, 1, 255, rng.randrange(256)))
    try:
        _data_read.read(good.address, rng.choice((len(whole), len(whole), rng.randrange(len(whole)))), good)
        read += 1
    except gradcomp.Error:
        pass
    except BaseException as e:
        wrong.append(repr(e))
ok(not wrong and 0 < read < 15000, "damaged values are refused, or read as another, 20000 times", wrong[:3], read)
done_testing()
