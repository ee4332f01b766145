"""JAX: the mean of a pytree of gradients over the ranks of a job, within jit.

    reduce = gradcomp.jax.Reduction(params)

    @jax.jit
    def step(params, batch):
        grads = reduce(jax.grad(loss)(params, batch))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

Each process has one device, the CPU, and a part of the batch. What compression holds back is
kept here, outside of JAX's arrays, and goes into checkpoints by save() and load().

XLA calls the library itself (jax.ffi), with the memory of its own arrays, and goes on when the
library says that the means are there: no thread of XLA's waits for the network. JAX's callbacks
(io_callback, pure_callback) would hold a thread of the pool by which their own arguments are to
be copied, and with arrays of some megabytes both wait for each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import os
import queue
import threading
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any, TypeVar

import jax
import numpy as np

from . import _lib
from .job import Group, Reducer, at_exit
from .job import world as world

Tree = TypeVar("Tree")

_TARGET = "gradcomp_reduce"
_TYPES = ("float32", "bfloat16", "float16")
_reductions: dict[int, Reduction] = {}  # those in force, by the numbers that compiled functions have
_numbers = itertools.count(1)


class Reduction:
    """Averages pytrees like `tree` over the ranks of `group`, all of the job where it is None.

    Collective to make: all ranks make the same ones in the same order. `tree` has arrays of float32, bfloat16 or
    float16, or jax.ShapeDtypeStruct; any other type is refused. `compressor`, `collective` and `schedule` are SPECs in place of
    the job's, `names` those of the leaves in place of their paths. Called on all ranks, in functions of jit that all call in one
    order; several may be on their way in one of these."""

    def __init__(self, tree: Any, group: Group | None = None, compressor: str | None = None, collective: str | None = None,
                 bucket_bytes: int = 0, seed: int = 0, schedule: str | None = None, names: Sequence[str] | None = None):
        self._treedef: Any
        found, self._treedef = jax.tree_util.tree_flatten_with_path(tree)
        names = [jax.tree_util.keystr(path, simple=True, separator=".") or "array" for path, _ in found] if names is None else names
        self._leaves = [(name, *_described(leaf)) for name, (_, leaf) in zip(names, found, strict=True)]
        for name, _, dtype in self._leaves:
            if dtype not in _TYPES:
                raise _lib.Error(_lib.ERR_UNSUPPORTED, f"{name} is {dtype}: gradients are reduced as {', '.join(_TYPES)}; convert it, or "
                                                       "leave it out of the tree")
        # An array without elements has no memory, and passes through.
        self._reduced = [i for i, (_, shape, _) in enumerate(self._leaves) if 0 not in shape]
        if not self._reduced:
            raise _lib.Error(_lib.ERR_INVALID, "the tree has no numbers to reduce: give the parameters, or gradients of them")
        _register()
        self.group = world() if group is None else group
        self._reducer = Reducer(self.group, [self._leaves[i] for i in self._reduced], None, compressor, collective, bucket_bytes, seed,
                                schedule=schedule)
        self._number, self._pid, self._idle = next(_numbers), os.getpid(), threading.Event()
        self._idle.set()
        self._calls: queue.SimpleQueue[tuple[_Api, int, str | None] | None] = queue.SimpleQueue()
        self._waiter = threading.Thread(target=_wait, args=(self._calls, self._reducer, self._idle), daemon=True)
        self._waiter.start()
        _reductions[self._number] = self

    def __call__(self, gradients: Tree) -> Tree:
        """Their mean over ranks; within jit or not. Memory of `gradients` is used where nothing else needs it."""
        self._in_force()
        found, treedef = jax.tree_util.tree_flatten_with_path(gradients)
        if self._treedef != treedef:
            raise _lib.Error(_lib.ERR_MISMATCH, f"the gradients are the tree {treedef}, and this reduction was made for {self._treedef}: "
                                                "make another Reduction for another tree")
        for (name, shape, dtype), (_, leaf) in zip(self._leaves, found):
            if (shape, dtype) != _described(leaf):
                raise _lib.Error(_lib.ERR_MISMATCH, f"the gradient {name} is {_text(*_described(leaf))}, and this reduction was made for "
                                                    f"{_text(shape, dtype)}: shapes and types stay, make another Reduction for others")
        leaves = [leaf for _, leaf in found]
        given = [leaves[i] for i in self._reduced]
        means = jax.ffi.ffi_call(_TARGET, [jax.ShapeDtypeStruct(g.shape, g.dtype) for g in given], has_side_effect=True,
                                 input_output_aliases={i: i for i in range(len(given))})(*given, reduction=np.int64(self._number))
        for i, mean in zip(self._reduced, means):
            leaves[i] = mean
        mean_tree: Tree = jax.tree_util.tree_unflatten(treedef, leaves)
        return mean_tree

    def save(self, shared: bool = False) -> np.ndarray:
        """This rank's state, bytes as an array; with `shared` one for any number of ranks, which save it together. Waits for
        the steps that JAX has begun."""
        _settle()
        return np.frombuffer(self._in_force().save(shared), np.uint8)

    def load(self, state: Any) -> None:
        """Takes up what save() gave, all ranks together; when one cannot, all raise and go on as before."""
        _settle()
        self._in_force().load(np.asarray(state, np.uint8).tobytes())

    def stats(self) -> dict[str, float]:
        return self._in_force().stats()

    def free(self) -> None:
        """Gives back what it holds, when the steps that JAX has begun are done; else that is at exit. A function of jit that has
        it fails from then on."""
        _settle()
        if _reductions.pop(self._number, None) is not None:
            self._calls.put(None)
            self._waiter.join()

    def _in_force(self) -> Reducer:
        if self._number not in _reductions:
            raise _freed()
        return self._reducer

    def _begin(self, api: _Api, inputs: list[_Buffer], outputs: list[_Buffer]) -> int:
        """Hands over a step's gradients, on a thread of XLA's, and returns the future of their means."""
        reducer = self._in_force()
        if not self._idle.is_set():
            raise _lib.Error(_lib.ERR_STATE, "a reduction was called again before its last step was done: make one for each tree of a "
                                             "step, and have one device in a process")
        self._idle.clear()
        failure = None
        try:
            for i in reversed(range(len(inputs))):
                to, (_, shape, dtype) = outputs[i].data, self._leaves[self._reduced[i]]
                if to != inputs[i].data:
                    ctypes.memmove(to, inputs[i].data, math.prod(shape) * (4 if dtype == "float32" else 2))
                reducer.ready(i, to)
        except _lib.Error as e:
            failure = str(e)
        future = api.future()
        self._calls.put((api, future, failure))
        return future


def _wait(calls: queue.SimpleQueue[tuple[_Api, int, str | None] | None], reducer: Reducer, idle: threading.Event) -> None:
    """The thread of a Reduction: ends each step, and the reducer. XLA goes on with its computation on it."""
    while (call := calls.get()) is not None:
        api, future, failure = call
        try:
            reducer.wait()
        except _lib.Error as e:
            failure = failure or str(e)
        idle.set()
        api.fulfil(future, failure)
    reducer.free()


def _settle() -> None:
    """Waits for the steps that JAX has begun; a failure is that of what they give."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()


def _freed() -> _lib.Error:
    return _lib.Error(_lib.ERR_STATE, "this reduction has been freed: make another, and trace the step with it")


def _described(leaf: Any) -> tuple[tuple[int, ...], str]:
    """(shape, name of the type) of an array."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(f"a leaf of the tree is a {type(leaf).__name__}: must be an array")
    return tuple(leaf.shape), str(leaf.dtype)


def _text(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


# The parts of XLA's FFI (xla/ffi/api/c_api.h, version 0.3) that a handler needs. All structures begin with their size.
class _Start(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p)]


class _Buffer(_Start):
    _fields_ = [("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64))]


class _Buffers(_Start):
    _fields_ = [("count", c_int64), ("types", POINTER(c_int)), ("items", POINTER(POINTER(_Buffer)))]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("value", POINTER(c_int64))]


class _Attributes(_Start):
    _fields_ = [("count", c_int64), ("types", POINTER(c_int)), ("names", c_void_p), ("items", POINTER(POINTER(_Scalar)))]


class _Version(_Start):
    _fields_ = [("major", c_int), ("minor", c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", _Version)]


class _Extension(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", POINTER(_Metadata))]


class _Failure(_Start):
    _fields_ = [("message", c_char_p), ("code", c_int)]


class _Future(_Start):
    _fields_ = [("future", c_void_p), ("error", c_void_p)]


_CALL = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _Api(_Start):
    _fields_ = [("version", _Version), ("internal", c_void_p), ("error", _CALL), ("others", c_void_p * 12), ("create", _CALL),
                ("available", _CALL), ("failed", _CALL)]

    def failure(self, text: str) -> int:
        """An error of XLA's."""
        return int(self.error(ctypes.byref(_Failure(ctypes.sizeof(_Failure), None, text.encode(), 13))))  # INTERNAL

    def future(self) -> int:
        made = _Future(ctypes.sizeof(_Start) + ctypes.sizeof(c_void_p))
        self.create(ctypes.byref(made))
        return int(made.future)

    def fulfil(self, future: int, failure: str | None) -> None:
        end = _Future(ctypes.sizeof(_Future) if failure else _Future.error.offset, None, future)
        if failure:
            end.error = self.failure(failure)
        (self.failed if failure else self.available)(ctypes.byref(end))


class _Frame(_Start):
    _fields_ = [("api", POINTER(_Api)), ("context", c_void_p), ("stage", c_int), ("inputs", _Buffers), ("outputs", _Buffers),
                ("attributes", _Attributes), ("future", c_void_p)]


def _handle(given: Any) -> int | None:
    """XLA calls it to ask for its version, when it is registered, and then for every reduction of a step."""
    frame = given.contents
    api = frame.api.contents
    try:
        if frame.extension:
            extension = _Extension.from_address(frame.extension)
            if extension.type == 1:
                _meet(api.version, api.size, extension.metadata.contents.version)
                return None
        reduction = _reductions.get(frame.attributes.items[0].contents.value[0])
        if reduction is None:
            raise _freed()
        frame.future = reduction._begin(api, *([buffers.items[i].contents for i in range(buffers.count)]
                                               for buffers in (frame.inputs, frame.outputs)))
    except BaseException as e:  # C in between could not do anything with it
        return int(api.failure(str(e)))
    return None


_handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))(_handle)


def _meet(theirs: _Version, size: int, own: _Version) -> None:
    if theirs.major != 0 or size < ctypes.sizeof(_Api):
        raise _lib.Error(_lib.ERR_ABI, f"JAX {jax.__version__} has version {theirs.major}.{theirs.minor} of XLA's FFI, and gradcomp.jax needs "
                                       "0.3 or what agrees with it: take JAX 0.10")
    own.major, own.minor = 0, min(3, theirs.minor)


@functools.cache
def _register() -> None:
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(ctypes.cast(_handler, c_void_p).value), platform="cpu")


def _leave(failed: BaseException | None) -> None:
    for reduction in list(_reductions.values()):
        if failed is None and reduction._pid == os.getpid():
            reduction.free()


at_exit(_leave)
