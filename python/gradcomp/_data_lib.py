"""The C interface of samples and datasets, as in gradcomp/samples.h and dataset.h."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any

from . import _lib

AUTO, FOLDER, TAR = range(3)
FORMATS = {"auto": AUTO, "folder": FOLDER, "tar": TAR}


class SamplesOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("format", c_int), ("suffixes", c_char_p),
                ("workers", c_uint32), ("reserved0", c_uint32)]


class SampleInfo(Structure):
    _fields_ = [("struct_size", c_uint32), ("nparts", c_uint32), ("label", c_int32), ("reserved0", c_uint32),
                ("bytes", c_uint64), ("key", c_char_p)]


class ValueBuffer(Structure):
    pass


ALLOC = ctypes.CFUNCTYPE(c_void_p, POINTER(ValueBuffer), c_uint64)
LOAD = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(ValueBuffer), POINTER(_lib.ErrorText))
ValueBuffer._fields_ = [("struct_size", c_uint32), ("reserved0", c_uint32), ("alloc", ALLOC), ("ctx", c_void_p)]


class DatasetOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("workers", c_uint32), ("count", c_uint64), ("seed", c_uint64),
                ("memory", c_uint64), ("spill", c_char_p), ("prefetch", c_uint32), ("shuffle", c_uint32),
                ("load", LOAD), ("ctx", c_void_p), ("reload", c_uint32), ("reserved0", c_uint32)]


class ValueView(Structure):
    _fields_ = [("struct_size", c_uint32), ("source", c_uint32), ("index", c_uint64), ("data", c_void_p),
                ("bytes", c_uint64), ("hold", c_void_p)]


class DatasetStats(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved0", c_uint32), ("local", c_uint64), ("remote", c_uint64),
                ("loaded", c_uint64), ("spilled", c_uint64), ("remote_bytes", c_uint64), ("damaged", c_uint64),
                ("unkept", c_uint64), ("memory_used", c_uint64), ("memory_limit", c_uint64), ("wait_s", c_double),
                ("load_s", c_double)]


_ERR = POINTER(_lib.ErrorText)
_PROTOTYPES: _lib.Prototypes = {
    "samples_close": (None, [c_void_p]),
    "samples_count": (c_uint64, [c_void_p]),
    "samples_format": (c_int, [c_void_p]),
    "samples_class": (c_char_p, [c_void_p, c_uint32]),
    "samples_info": (c_int, [c_void_p, c_uint64, POINTER(SampleInfo), _ERR]),
    "samples_part": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(c_char_p), POINTER(c_uint64), _ERR]),
    "samples_read": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p, c_uint64, POINTER(c_uint64), _ERR]),
    "dataset_create": (c_int, [c_void_p, POINTER(DatasetOptions), POINTER(c_void_p), _ERR]),
    "dataset_free": (c_int, [c_void_p, _ERR]),
    "dataset_stop": (None, [c_void_p]),
    "dataset_length": (c_uint64, [c_void_p]),
    "dataset_order": (c_int, [c_void_p, c_uint64, c_uint64, POINTER(c_uint64), _ERR]),
    "dataset_begin": (c_int, [c_void_p, c_uint64, c_uint64, _ERR]),
    "dataset_next": (c_int, [c_void_p, POINTER(ValueView), _ERR]),
    "dataset_next_copies": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, c_void_p, POINTER(c_uint64), _ERR]),
    "dataset_get": (c_int, [c_void_p, c_uint64, POINTER(ValueView), _ERR]),
    "dataset_expect": (c_int, [c_void_p, POINTER(c_uint64), c_uint64, _ERR]),
    "dataset_release": (None, [c_void_p, POINTER(ValueView)]),
    "dataset_get_stats": (None, [c_void_p, POINTER(DatasetStats)]),
    # Last: that it is bound says that all are.
    "samples_open": (c_int, [c_char_p, POINTER(SamplesOptions), POINTER(c_void_p), _ERR]),
}


def lib() -> Any:
    """The library, with these functions."""
    library = _lib.lib()
    if not hasattr(library, "samples_open"):
        try:
            library.bind(_PROTOTYPES)
        except AttributeError as e:
            raise _lib.Error(_lib.ERR_NOTFOUND, f"libgradcomp is older than this package: {e}") from None
    return library
