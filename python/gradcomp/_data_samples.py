"""Samples of a dataset on a filesystem."""

from __future__ import annotations

import ctypes
import operator
import os
import re
from collections.abc import Iterable
from ctypes import c_char_p, c_uint64, c_void_p
from typing import Any, Union

from . import _data_lib, _lib
from ._data_lib import lib
from ._data_value import Sample
from ._lib import Error


Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Samples:
    """The samples below `path`: a folder, or tar shards as WebDataset writes them. Shards may be a
    pattern, "train-{000..099}.tar" or "train-*.tar", or a list of names and patterns.
    `format` is "auto", "folder" or "tar"; `suffixes`, for a folder, the endings of the
    files that count: "jpg/png" or ["jpg", "png"].

    len(), and [i] -> Sample. Forked workers may use what their parent opened; a
    spawned one opens `path` again."""

    def __init__(self, path: Path | Iterable[Path], format: str = "auto",
                 suffixes: str | Iterable[str] | None = None):
        if format not in _data_lib.FORMATS:
            raise Error(_lib.ERR_INVALID, f"format {format!r} is not one of {', '.join(_data_lib.FORMATS)}")
        if suffixes is not None and not isinstance(suffixes, str):
            suffixes = "/".join(suffixes)
        self._handle = None
        self._again = (path, format, suffixes)
        options = _data_lib.SamplesOptions(ctypes.sizeof(_data_lib.SamplesOptions), _data_lib.FORMATS[format],
                                           suffixes and os.fsencode(suffixes))
        handle = c_void_p()
        lib().call("samples_open", _pattern(path), ctypes.byref(options), ctypes.byref(handle))
        self._handle, self._close = handle, lib().samples_close
        self._count = lib().samples_count(handle)
        found = lib().samples_format(handle)
        self.format = next(name for name, number in _data_lib.FORMATS.items() if number == found)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._close(self._handle)
            self._handle = None

    def __reduce__(self) -> Any:
        return Samples, self._again

    def __len__(self) -> int:
        return int(self._count)

    @property
    def classes(self) -> list[str]:
        """Names of the classes; a sample's label is a place among them."""
        names: list[str] = []
        while (name := lib().samples_class(self._handle, len(names))) is not None:
            names.append(os.fsdecode(name))
        return names

    def info(self, index: int) -> tuple[str, int | None, int]:
        """(key, label, bytes) of a sample, without reading it."""
        info = self._info(self._checked(index))
        return os.fsdecode(info.key), _label(info.label), info.bytes

    def __getitem__(self, index: int) -> Sample:
        index = self._checked(index)
        info = self._info(index)
        parts = {}
        for part in range(info.nparts):
            name, size = c_char_p(), c_uint64()
            lib().call("samples_part", self._handle, index, part, ctypes.byref(name), ctypes.byref(size))
            memory = bytearray(size.value)
            target = (ctypes.c_char * len(memory)).from_buffer(memory)
            lib().call("samples_read", self._handle, index, part, target, len(memory), ctypes.byref(size))
            parts[os.fsdecode(name.value or b"")] = bytes(memoryview(memory)[:size.value])
        return Sample(os.fsdecode(info.key), _label(info.label), parts)

    def _checked(self, index: int) -> int:
        i = operator.index(index)
        if not -self._count <= i < self._count:
            raise IndexError(f"sample {i} of {self._count}")
        return i % int(self._count)

    def _info(self, index: int) -> Any:
        info = _data_lib.SampleInfo(struct_size=ctypes.sizeof(_data_lib.SampleInfo))
        lib().call("samples_info", self._handle, index, ctypes.byref(info))
        return info


def names_shards(source: object) -> bool:
    """Whether it is a list of shards by name, not a sequence of samples."""
    return (isinstance(source, (list, tuple)) and bool(source) and
            all(isinstance(name, (str, bytes, os.PathLike)) and os.fsencode(name).lower().endswith(b".tar")
                for name in source))


def _pattern(path: Any) -> bytes:
    """What samples_open() takes: a list becomes one pattern, in which a name that exists stands for itself."""
    if isinstance(path, (str, bytes, os.PathLike)):
        return os.fsencode(path)
    names = [os.fsencode(name) for name in path]
    if not names:
        raise Error(_lib.ERR_INVALID, "the list of shards is empty")
    if len(names) == 1:
        return names[0]
    return b"::".join(re.sub(rb"([\\{}*?\[\]:,])", rb"\\\1", name) if os.path.lexists(name) else name
                      for name in names)


def _label(number: int) -> int | None:
    return None if number < 0 else number
