"""The C interface, as in gradcomp/gradcomp.h: structures, prototypes, errors."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import operator
import os
from collections.abc import Sequence
from typing import Any, Dict, Tuple
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32, c_long, c_size_t, c_uint32, c_uint64, c_void_p

# Of this package, and of the library that it works with: the file VERSION.
__version__ = "0.1.0"

F32, F16, BF16, F64, I32, I64, U8 = range(7)
I8, I16 = 9, 10
SUM, MAX, MIN, BOR, PRODUCT, BAND, BXOR, AVG = range(8)
(BARRIER, ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, GATHER, SCATTER, REDUCE_SCATTER, ALLTOALL, SEND, RECV) = range(11)
ANY_RANK = -1
ERR_INVALID, ERR_NOMEM, ERR_NOTFOUND, ERR_UNSUPPORTED, ERR_ABI, ERR_IO = -1, -2, -3, -4, -5, -7
ERR_MISMATCH, ERR_PEER, ERR_TIMEOUT, ERR_STATE, ERR_INTERNAL, ERR_PEER_LOST = -9, -10, -11, -12, -14, -15
ITEMSIZE = {F32: 4, F16: 2, BF16: 2, F64: 8, I32: 4, I64: 8, U8: 1}


class Error(RuntimeError):
    """A call failed. `status` is the library's code, str() its text."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:  # from a process to another
        return Error, (self.status, str(self))


class PeersLost(Error):
    """Ranks were lost, and the job goes on without them. `ranks`: the lost, as they were numbered;
    `rank` of `nranks`: what this one is from now on; `epoch`: 1 after the first loss."""

    def __init__(self, ranks: list[int], rank: int, nranks: int, epoch: int):
        super().__init__(ERR_PEER_LOST, f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} lost: the job goes on as "
                                        f"{nranks} ranks, this one is rank {rank} (epoch {epoch})")
        self.ranks, self.rank, self.nranks, self.epoch = ranks, rank, nranks, epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return PeersLost, (self.ranks, self.rank, self.nranks, self.epoch)


class ErrorText(Structure):
    _fields_ = [("status", c_int), ("text", c_char * 508)]

    def message(self) -> str:
        return str(self.text.decode("utf-8", "replace"))


STORE_SET = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
STORE_GET = ctypes.CFUNCTYPE(c_long, c_void_p, c_char_p, c_void_p, c_size_t, c_int)
DONE = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_int, POINTER(ErrorText))
WORK = ctypes.CFUNCTYPE(None, c_void_p, c_uint32)
DEVICE_ALLOC = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_void_p)
DEVICE_RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
STAGES = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_uint32, c_int)
SETTING = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_char_p, c_char_p)


class Store(Structure):
    _fields_ = [("struct_size", c_uint32), ("rank", c_int32), ("nranks", c_int32), ("reserved0", c_uint32),
                ("ctx", c_void_p), ("set", STORE_SET), ("get", STORE_GET)]


class JobOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved0", c_uint32), ("store", POINTER(Store)),
                ("settings", POINTER(c_char_p))]


class TensorDesc(Structure):
    _fields_ = [("name", c_char_p), ("dims", POINTER(c_uint64)), ("ndim", c_uint32), ("dtype", c_int)]


class ReducerOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved0", c_uint32), ("compressor", c_char_p),
                ("collective", c_char_p), ("bucket_bytes", c_uint64), ("seed", c_uint64), ("done", DONE),
                ("ctx", c_void_p), ("device", c_int), ("reserved1", c_uint32), ("queue", c_void_p),
                ("schedule", c_char_p), ("delay", c_uint32), ("reserved2", c_uint32), ("done_run", c_void_p),
                ("device_alloc", DEVICE_ALLOC), ("device_release", DEVICE_RELEASE), ("device_ctx", c_void_p)]


class Call(Structure):
    _fields_ = [("struct_size", c_uint32), ("kind", c_uint32), ("dtype", c_uint32), ("op", c_uint32), ("peer", c_int32),
                ("flags", c_uint32), ("in_", c_void_p), ("out", c_void_p), ("count", c_uint64), ("in_counts", c_void_p),
                ("out_counts", c_void_p), ("in_blocks", c_void_p), ("out_blocks", c_void_p), ("tag", c_uint64),
                ("factor", c_double), ("timeout", c_double), ("from_", c_void_p), ("got", c_void_p), ("done", c_void_p),
                ("ctx", c_void_p)]


class MemoryOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("device", c_int), ("queue", c_void_p)]


class ReducerStats(Structure):
    _fields_ = [("struct_size", c_uint32), ("buckets", c_uint32), ("steps", c_uint64), ("nonfinite_steps", c_uint64),
                ("dense_bytes", c_double), ("wire_bytes", c_double), ("encode_s", c_double),
                ("exchange_s", c_double), ("decode_s", c_double), ("exposed_s", c_double), ("error_steps", c_uint64),
                ("error_mean", c_double), ("error_last", c_double)]


class CoderOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved0", c_uint32), ("collective", c_char_p), ("seed", c_uint64),
                ("name", c_char_p), ("device", c_uint32), ("reserved1", c_uint32), ("queue", c_void_p),
                ("device_alloc", DEVICE_ALLOC), ("device_release", DEVICE_RELEASE), ("device_ctx", c_void_p)]


class CoderStats(Structure):
    _fields_ = [("struct_size", c_uint32), ("slots", c_uint32), ("reduce_scatters", c_uint64),
                ("all_gathers", c_uint64), ("nonfinite", c_uint64), ("dense_bytes", c_double),
                ("wire_bytes", c_double), ("convert_s", c_double), ("exchange_s", c_double), ("exposed_s", c_double),
                ("residual_bytes", c_uint64)]


class Survivors(Structure):
    _fields_ = [("struct_size", c_uint32), ("epoch", c_uint32), ("rank", c_int32), ("nranks", c_int32), ("old_rank", c_int32),
                ("old_nranks", c_int32), ("ranks", POINTER(c_int32)), ("lost", POINTER(c_int32)), ("step_done", c_int32),
                ("reserved0", c_uint32), ("made", c_void_p)]


class PolicyCall(Structure):
    _fields_ = [("struct_size", c_uint32), ("operation", c_uint32), ("dtype", c_uint32), ("role", c_uint32), ("name", c_char_p),
                ("bytes", c_uint64)]


class PolicyEntry(Structure):
    _fields_ = [("struct_size", c_uint32), ("number", c_uint32), ("selector", c_char_p), ("spec", c_char_p), ("collective", c_char_p),
                ("roles", c_uint32), ("operations", c_uint32), ("name", c_char_p)]


Prototypes = Dict[str, Tuple[Any, Sequence[Any]]]  # of functions, by their short names
_ERR = POINTER(ErrorText)
_WHERE = POINTER(MemoryOptions)
_PROTOTYPES: Prototypes = {
    "version": (c_char_p, []),
    "strerror": (c_char_p, [c_int]),
    "requested": (c_int, []),
    "setting_each": (c_int, [SETTING, c_void_p, _ERR]),
    "job_create": (c_int, [POINTER(JobOptions), POINTER(c_void_p), _ERR]),
    "job_free": (c_int, [c_void_p, _ERR]),
    "job_rank": (c_int, [c_void_p]),
    "job_nranks": (c_int, [c_void_p]),
    "job_host": (c_char_p, [c_void_p, c_int]),
    "job_check": (c_int, [c_void_p, _ERR]),
    "job_shrink": (c_int, [c_void_p, POINTER(Survivors), _ERR]),
    "job_world": (c_void_p, [c_void_p]),
    "job_setting": (c_char_p, [c_void_p, c_char_p]),
    "group_split": (c_int, [c_void_p, c_int, c_int, POINTER(c_void_p), _ERR]),
    "group_create": (c_int, [c_void_p, POINTER(c_int), c_int, POINTER(c_void_p), _ERR]),
    "group_free": (None, [c_void_p]),
    "group_rank": (c_int, [c_void_p]),
    "group_nranks": (c_int, [c_void_p]),
    "group_world_rank": (c_int, [c_void_p, c_int]),
    "group_call": (c_int, [c_void_p, POINTER(Call), _ERR]),
    "group_start": (c_int, [c_void_p, POINTER(Call), POINTER(c_void_p), _ERR]),
    "group_test": (c_int, [c_void_p, POINTER(c_int), _ERR]),
    "group_wait": (c_int, [c_void_p, c_double, POINTER(c_int), _ERR]),
    "group_request_free": (None, [c_void_p]),
    "group_abort": (c_int, [c_void_p, c_char_p, _ERR]),
    "allreduce_on": (c_int, [c_void_p, _WHERE, c_void_p, c_uint64, c_int, c_int, _ERR]),
    "allgather_on": (c_int, [c_void_p, _WHERE, c_void_p, c_void_p, POINTER(c_uint64), c_int, _ERR]),
    "reduce_scatter_on": (c_int, [c_void_p, _WHERE, c_void_p, c_void_p, POINTER(c_uint64), c_int, c_int, _ERR]),
    "broadcast_on": (c_int, [c_void_p, _WHERE, c_void_p, c_uint64, c_int, c_int, _ERR]),
    "barrier": (c_int, [c_void_p, _ERR]),
    "reducer_create": (c_int, [c_void_p, POINTER(TensorDesc), c_uint32, POINTER(ReducerOptions),
                               POINTER(c_void_p), _ERR]),
    "reducer_free": (None, [c_void_p]),
    "reducer_ready": (c_int, [c_void_p, c_uint32, c_void_p, _ERR]),
    "reducer_wait": (c_int, [c_void_p, _ERR]),
    "reducer_wait_for": (c_int, [c_void_p, c_uint32, _ERR]),
    "reducer_follow": (c_int, [c_void_p, c_uint32, c_void_p, _ERR]),
    "reducer_drain": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_void_p), c_double, _ERR]),
    "reducer_save": (c_int, [c_void_p, c_void_p, c_uint64, POINTER(c_uint64), _ERR]),
    "reducer_save_shared": (c_int, [c_void_p, c_void_p, c_uint64, POINTER(c_uint64), _ERR]),
    "reducer_load": (c_int, [c_void_p, c_void_p, c_uint64, _ERR]),
    "reducer_get_stats": (None, [c_void_p, POINTER(ReducerStats)]),
    "watch_phases": (None, [STAGES, c_void_p]),
    "coder_create": (c_int, [c_void_p, c_char_p, POINTER(CoderOptions), POINTER(c_void_p), _ERR]),
    "coder_check": (c_int, [c_char_p, c_char_p, _ERR]),
    "coder_free": (None, [c_void_p]),
    "coder_reduce_scatter_start": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(c_uint64), c_int, c_double, c_uint32,
                                           POINTER(c_void_p), _ERR]),
    "coder_all_gather_start": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(c_uint64), c_int, POINTER(c_void_p), _ERR]),
    "coder_test": (c_int, [c_void_p, POINTER(c_int), _ERR]),
    "coder_wait": (c_int, [c_void_p, _ERR]),
    "coder_save": (c_int, [c_void_p, c_void_p, c_uint64, POINTER(c_uint64), _ERR]),
    "coder_load": (c_int, [c_void_p, c_void_p, c_uint64, _ERR]),
    "coder_read_slot": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64, POINTER(c_uint64), _ERR]),
    "coder_write_slot": (c_int, [c_void_p, c_uint32, POINTER(c_uint64), c_void_p, _ERR]),
    "coder_get_stats": (None, [c_void_p, POINTER(CoderStats)]),
    "coder_spec": (c_char_p, [c_void_p]),
    "coder_collective": (c_char_p, [c_void_p]),
    "policy_create": (c_int, [c_char_p, POINTER(c_void_p), _ERR]),
    "policy_free": (None, [c_void_p]),
    "policy_is": (c_int, [c_char_p]),
    "policy_text": (c_char_p, [c_void_p]),
    "policy_entries": (c_uint32, [c_void_p]),
    "policy_get": (c_int, [c_void_p, c_uint32, POINTER(PolicyEntry), _ERR]),
    "policy_match": (c_int, [c_void_p, POINTER(PolicyCall)]),
    "policy_role": (c_int, [c_char_p, c_int, c_int]),
    "parallel_create_on": (c_int, [c_void_p, _WHERE, POINTER(c_uint64), c_uint32, POINTER(c_void_p), _ERR]),
    "parallel_apply": (c_int, [c_void_p, POINTER(c_void_p), WORK, c_void_p, _ERR]),
    "parallel_reason": (c_char_p, [c_void_p]),
    "parallel_free": (None, [c_void_p]),
}

def text(name: str, value: str | None) -> bytes | None:
    """A text for the library, which would take what stands before a NUL for all of it."""
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise TypeError(f"{name}={value!r}: must be a text without NUL, or None")
    return None if value is None else value.encode()


def whole(name: str, value: int, least: int = 0, above: int = 1 << 64) -> int:
    """A number that the library's type has; ctypes would cut any other off."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be a whole number (int)") from None
    if not least <= number < above:
        raise Error(ERR_INVALID, f"{name}={number}: must be {least}..{above - 1}")
    return number


_HERE = os.path.dirname(os.path.abspath(__file__))


def _candidates() -> list[str]:
    named = os.environ.get("GRADCOMP_LIBRARY")
    if named:
        return [named]
    # In a wheel it is a part of the package; installed, that is LIBDIR/gradcomp/python/gradcomp.
    for libdir in (os.path.join(_HERE, "lib"), os.path.normpath(os.path.join(_HERE, "../../.."))):
        beside = sorted(glob.glob(os.path.join(glob.escape(libdir), "libgradcomp.so*")), key=len)
        if beside:
            return beside[:1]
    found = ctypes.util.find_library("gradcomp")
    return [found] if found else []


class _Library:
    """Every function of the header by its short name, with its prototype."""

    def __init__(self, path: str):
        self._cdll = ctypes.CDLL(path)
        self.bind({"version": _PROTOTYPES["version"]})
        own = self.version().decode()
        if own != __version__:
            remedy = ("GRADCOMP_LIBRARY names it: unset that" if os.environ.get("GRADCOMP_LIBRARY") else
                      "install both of one version, or set GRADCOMP_LIBRARY to the library of this one")
            raise Error(ERR_ABI, f"the package {_HERE} is of gradcomp {__version__}, but {path} is {own}; {remedy}")
        self.bind(_PROTOTYPES)

    def __getattr__(self, name: str) -> Any:  # of what bind() has not set
        raise AttributeError(name)

    def bind(self, prototypes: Prototypes) -> None:
        for name, (result, arguments) in prototypes.items():
            function = getattr(self._cdll, "gradcomp_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a status; raises what it reports."""
        err = ErrorText()
        status = getattr(self, name)(*arguments, ctypes.byref(err))
        if status < 0:
            raise Error(status, err.message() or self.strerror(status).decode())


_loaded: _Library | None = None


def lib() -> _Library:
    """The library; loaded at first use. Raises Error when there is none."""
    global _loaded
    if _loaded is None:
        paths = _candidates()
        if not paths:
            raise Error(ERR_NOTFOUND, "libgradcomp.so not found beside this package or among the system's "
                                      "libraries; set GRADCOMP_LIBRARY to its path")
        try:
            _loaded = _Library(paths[0])
        except (OSError, AttributeError) as e:
            raise Error(ERR_NOTFOUND, f"cannot use {paths[0]}: {e}") from None
    return _loaded


def requested() -> bool:
    """Whether this process was started with --gradcomp or GRADCOMP is set."""
    try:
        return bool(lib().requested())
    except Error:
        # No library to ask: the run is untouched unless someone asked for it.
        return os.environ.get("GRADCOMP", "off") not in ("", "off")


def setting(name: str) -> str | None:
    """The value of a setting, without a job; None where there is none of that name."""
    found = []
    lib().call("setting_each", SETTING(lambda _ctx, n, value, _origin, _help: found.append(value) if n == name.encode() else None),
               None)
    return found[0].decode() if found else None


def version() -> str:
    """The version of the library in use."""
    return str(lib().version().decode())
