"""Job, Group and Reducer: the library's objects, with gradcomp.Error on failure.

Buffers are torch tensors, numpy arrays or anything with a writable buffer,
contiguous; their memory is used in place.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import multiprocessing.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_char_p, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional, Protocol, Tuple

from . import _lib, _log
from ._lib import Error, lib

# A torch tensor, a numpy array, or another writable buffer; contiguous.
Buffer = Any
# Of bytes and a stream to an address, or None where there are no more; and of an address that is given back.
DeviceMemory = Tuple[Callable[[int, int], Optional[int]], Callable[[int], object]]

_DTYPES = {"float32": _lib.F32, "float16": _lib.F16, "bfloat16": _lib.BF16, "float64": _lib.F64,
           "int32": _lib.I32, "int64": _lib.I64, "uint8": _lib.U8}
_FORMATS = {"f": "float32", "e": "float16", "d": "float64", "i": "int32", "l": "int64", "q": "int64", "B": "uint8"}
_OPS = {"sum": _lib.SUM, "max": _lib.MAX, "min": _lib.MIN, "bor": _lib.BOR}


def dtype_code(name: Any) -> int:
    """'float32', torch.float32 or numpy.dtype('float32') as the library's code."""
    code = _DTYPES.get(str(name).replace("torch.", ""))
    if code is None:
        raise Error(_lib.ERR_UNSUPPORTED, f"element type {str(name).replace('torch.', '')} is not one of "
                                          f"{', '.join(_DTYPES)}")
    return code


def _op(name: str) -> int:
    if name not in _OPS:
        raise Error(_lib.ERR_INVALID, f"op={name!r} is not one of {', '.join(_OPS)}; a mean is the sum over the number of ranks")
    return _OPS[name]


def _name(code: int) -> str:
    return next(name for name, c in _DTYPES.items() if c == code)


def _memory(buf: Buffer, cuda: bool = False) -> tuple[int, int, int]:
    """(address, elements, dtype code) of a buffer; with `cuda` of a tensor on a GPU."""
    if cuda and (not hasattr(buf, "data_ptr") or buf.device.type != "cuda"):
        raise Error(_lib.ERR_INVALID, f"{'a tensor is on ' + str(buf.device) if hasattr(buf, 'data_ptr') else 'a buffer is in host memory'}: "
                                      "this call works on GPU memory, give it a tensor made by .cuda()")
    if hasattr(buf, "data_ptr"):
        if not cuda and buf.device.type != "cpu":
            raise Error(_lib.ERR_INVALID, f"a tensor is on {buf.device}: this call works on host memory, give it a copy "
                                          "made by .cpu()")
        if not buf.is_contiguous():
            raise Error(_lib.ERR_INVALID, "a tensor must be contiguous: give it a copy made by .contiguous()")
        return buf.data_ptr(), buf.numel(), dtype_code(buf.dtype)
    view = memoryview(buf)
    letter = view.format.lstrip("@=<" if sys.byteorder == "little" else "@=>")
    if view.readonly or not view.c_contiguous or letter not in _FORMATS:
        raise Error(_lib.ERR_INVALID, f"a buffer must be writable, contiguous and of a known type, not '{view.format}'")
    count = view.nbytes // view.itemsize
    address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if count else 0
    return address, count, _DTYPES[_FORMATS[letter]]


@contextlib.contextmanager
def _placed(*buffers: Buffer) -> Iterator[Any]:
    """(options that say where they are, all in one place; then (address, elements, dtype code) of each). On a GPU
    that is current meanwhile, and the stream is PyTorch's current one."""
    on = {str(b.device): b.device for b in buffers if hasattr(b, "data_ptr") and b.device.type == "cuda"}
    if not on:
        yield (None, *[_memory(b) for b in buffers])
        return
    found = [_memory(b, True) for b in buffers]
    if len(on) > 1:
        raise Error(_lib.ERR_INVALID, f"tensors are on {' and '.join(sorted(on))}: a call takes those of one device")
    cuda, (device,) = sys.modules["torch"].cuda, on.values()
    with cuda.device(device):
        where = _lib.MemoryOptions(ctypes.sizeof(_lib.MemoryOptions), 1, cuda.current_stream(device).cuda_stream or None)
        yield (ctypes.byref(where), *found)


_current: Job | None = None  # made last, until it is left
_joined: Job | None = None  # the one of join()
_ends: list[Callable[[BaseException | None], object]] = []


def join(store: Callable[[], Store] | None = None, settings: Iterable[str] | None = None) -> Job:
    """The job that all of this process shares: made at the first call, left at exit.
    `store` makes the store where there is no PMIx server for this rank; `settings` as Job takes them."""
    job = joined()
    if job is None:
        job = Job(settings, store=None if store is None or _has_pmix() else store())
        adopt(job)
    return job


def adopt(job: Job) -> None:
    """Makes a job that of join(), which is left at exit."""
    global _joined
    _joined = job
    if multiprocessing.parent_process() is not None:
        # A forked process of multiprocessing ends without atexit.
        multiprocessing.util.Finalize(None, _leave, exitpriority=0)


def disown(job: Job) -> None:
    """Undoes adopt(), where it is that job."""
    global _joined
    if _joined is job:
        _joined = None


def joined() -> Job | None:
    """The job of join(); None when there is none yet."""
    return _joined if _joined is not None and _joined._handle is not None else None


def _has_pmix() -> bool:
    """Whether a PMIx server wires this rank up. torchrun's workers inherit the variables of
    the task that torchrun is: the server knows that task, and not them."""
    return "PMIX_NAMESPACE" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ


def at_exit(end: Callable[[BaseException | None], object]) -> None:
    """end(failed) is called at exit, those that came last first, before the job of
    join() is left; `failed`: the exception that ends the program, or None. A forked child calls
    them too, and owns nothing of its parent's."""
    _ends.append(end)


def _failed() -> BaseException | None:
    """The exception that ends the program. In a process of multiprocessing it is still on its way."""
    ending = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return None if isinstance(ending, SystemExit) and ending.code in (None, 0) else ending


@atexit.register
def _leave() -> None:
    failed = _failed()
    for end in reversed(_ends):
        end(failed)
    # A process that ends by an exception must not wait for the others: they learn
    # from its end who failed.
    if failed is not None or _joined is None or _joined._handle is None or os.getpid() != _joined._pid:
        return
    try:
        _joined.free()
    except Error as e:
        _log.warn(e)


def current() -> Job | None:
    """The Job made last in this process; None when it has none."""
    return _current if _current is not None and _current._pid == os.getpid() else None


class Survivors(NamedTuple):
    """What Job.shrink() found. `ranks`: what each rank of now was before; `lost`: those that were lost, as they were
    numbered before; `step_done`: the call that failed here is done on all ranks, else it is void on all and to be called
    again; `result`: what it would have returned, if it is done: a Reducer, or the bytes of save(shared=True)."""

    epoch: int
    rank: int
    nranks: int
    old_rank: int
    old_nranks: int
    ranks: list[int]
    lost: list[int]
    step_done: bool
    result: Any


class Store(Protocol):
    """What ranks find each other through where there is no PMIx."""

    rank: int
    nranks: int

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_ms: int) -> bytes: ...


class Job:
    """Membership of this process in its job; collective over all ranks.

    `settings` are "section.key=value" strings that win over everything. `store`
    is an object with rank, nranks, set(key, bytes) and get(key, timeout_ms) ->
    bytes, for launchers without PMIx; it is used during creation only."""

    def __init__(self, settings: Iterable[str] | None = None, store: Store | None = None):
        options = _lib.JobOptions(struct_size=ctypes.sizeof(_lib.JobOptions))
        if settings:
            if isinstance(settings, str):
                raise TypeError(f"settings={settings!r}: must be a list of such texts")
            given = [_lib.text("a setting", s) for s in settings]
            if None in given:
                raise TypeError(f"settings={settings!r}: must be a list of texts, without None")
            options.settings = (c_char_p * (len(given) + 1))(*given, None)
        if store is not None:
            c_store = _c_store(store)
            options.store = ctypes.pointer(c_store)
        self._handle: Any = c_void_p()
        lib().call("job_create", ctypes.byref(options), ctypes.byref(self._handle))
        self.rank = lib().job_rank(self._handle)
        self.nranks = lib().job_nranks(self._handle)
        self.world = Group(lib().job_world(self._handle), self)
        self._pid = os.getpid()
        self._result: Callable[[int | None], Any] | None = None  # of the call that is under way
        self._recover: Callable[[], Survivors] | None = None  # shrink(), where one attachment does it for the program
        global _current
        _current = self

    def host(self, rank: int) -> str | None:
        name = lib().job_host(self._handle, rank)
        return name.decode() if name is not None else None

    def check(self) -> None:
        """The Error that the job has failed with, if it has; never sleeps. For a program whose own
        communication fails and does not say which rank is gone."""
        lib().call("job_check", self._handle)

    def shrink(self) -> Survivors:
        """With gradcomp.on_failure=shrink, after an Error whose status is -15 (a rank is lost), on all ranks that live: they
        agree on who is left and are numbered anew, and `world` and reducers go on among them."""
        result, self._result = self._result, None
        found = _lib.Survivors(struct_size=ctypes.sizeof(_lib.Survivors))
        lib().call("job_shrink", self._handle, ctypes.byref(found))
        self.rank = self.world.rank = found.rank
        self.nranks = self.world.nranks = found.nranks
        return Survivors(found.epoch, found.rank, found.nranks, found.old_rank, found.old_nranks, found.ranks[:found.nranks],
                         found.lost[:found.old_nranks - found.nranks], bool(found.step_done),
                         result(found.made) if result and found.step_done else None)

    @contextlib.contextmanager
    def _giving(self, result: Callable[[int | None], Any]) -> Iterator[None]:
        """Around a call: what it gives, if it fails and shrink() finds that it is done."""
        self._result = result
        try:
            yield
        except Error as e:
            if e.status != _lib.ERR_PEER_LOST:
                self._result = None
            raise
        self._result = None

    def _certain(self, call: Callable[[], Any]) -> Any:
        """call(); where an attachment recovers for the program, until it is done."""
        while True:
            try:
                return call()
            except Error as e:
                if e.status != _lib.ERR_PEER_LOST or self._recover is None:
                    raise
            found = self._recover()
            if found.step_done:
                return found.result

    def setting(self, name: str) -> str | None:
        value = lib().job_setting(self._handle, name.encode())
        return value.decode() if value is not None else None

    def free(self) -> None:
        """Leaves the job; waits for the other ranks to leave too."""
        global _current
        handle, self._handle = self._handle, None
        try:
            if handle:
                lib().call("job_free", handle)
        except Error as e:
            if e.status == _lib.ERR_STATE:  # something of it is still in use, and nothing was done
                self._handle = handle
            raise
        finally:
            if _current is self and self._handle is None:
                _current = None


def _c_store(store: Store) -> _lib.Store:
    def put(_ctx: Any, key: bytes, value: int, size: int) -> int:
        try:
            store.set(key.decode(), ctypes.string_at(value, size))
            return 0
        except Exception:  # the library reports which key could not be set
            return -1

    def get(_ctx: Any, key: bytes, value: int, capacity: int, timeout_ms: int) -> int:
        try:
            data = store.get(key.decode(), timeout_ms)
        except Exception:  # as above; a timeout is one of these
            return -1
        ctypes.memmove(value, data, min(len(data), capacity))
        return len(data)

    return _lib.Store(ctypes.sizeof(_lib.Store), store.rank, store.nranks, 0, None, _lib.STORE_SET(put),
                      _lib.STORE_GET(get))


def _device_memory(options: Any, memory: DeviceMemory | None) -> tuple[Any, Any] | None:
    """Where device memory comes from, in the options of a Reducer or Coder; what it returns is held for as long
    as the library may call it."""
    if memory is None:
        return None
    alloc, release = memory
    options.device_alloc = _lib.DEVICE_ALLOC(lambda _ctx, bytes, stream: alloc(bytes, stream or 0))
    options.device_release = _lib.DEVICE_RELEASE(lambda _ctx, address: release(address))
    return options.device_alloc, options.device_release


class Group:
    """Some ranks of a job, and plain blocking collectives among them. Buffers are all in host memory, or all
    tensors on one GPU, on all ranks: then a call is as if it were put on PyTorch's current stream, and has been
    done when it returns (gradcomp_allreduce_on() in gradcomp.h)."""

    def __init__(self, handle: Any, job: Job):
        self._handle, self.job = handle, job
        self.rank = lib().group_rank(handle)
        self.nranks = lib().group_nranks(handle)

    def split(self, colour: int, key: int = 0) -> Group | None:
        """Collective: the group of all ranks with this colour; None for -1."""
        out = c_void_p()
        lib().call("group_split", self._handle, colour, key, ctypes.byref(out))
        return Group(out.value, self.job) if out else None

    def create(self, ranks: Sequence[int]) -> Group:
        """The group of these ranks, in this order; they alone call it, with the same list."""
        out = c_void_p()
        lib().call("group_create", self._handle, (ctypes.c_int * len(ranks))(*ranks), len(ranks), ctypes.byref(out))
        return Group(out.value, self.job)

    def world_rank(self, r: int) -> int:
        return int(lib().group_world_rank(self._handle, r))

    def allreduce(self, buf: Buffer, op: str = "sum") -> None:
        with _placed(buf) as (where, (address, count, dtype)):
            lib().call("allreduce_on", self._handle, where, address, count, dtype, _op(op))

    def allgather(self, part: Buffer, out: Buffer, counts: Sequence[int]) -> None:
        """`out` gets every rank's part; counts[r] elements from rank r."""
        with _placed(part, out) as (where, (source, own, dtype), (target, total, out_dtype)):
            self._check_counts(counts, own, total, dtype == out_dtype)
            lib().call("allgather_on", self._handle, where, source, target, (c_uint64 * len(counts))(*counts), dtype)

    def reduce_scatter(self, parts: Buffer, out: Buffer, counts: Sequence[int], op: str = "sum") -> None:
        """`out` gets this rank's block of the sum; `parts` is used as workspace."""
        with _placed(parts, out) as (where, (source, total, dtype), (target, own, out_dtype)):
            self._check_counts(counts, own, total, dtype == out_dtype)
            lib().call("reduce_scatter_on", self._handle, where, source, target, (c_uint64 * len(counts))(*counts), dtype, _op(op))

    def _check_counts(self, counts: Sequence[int], own: int, total: int, same_type: bool) -> None:
        if len(counts) != self.nranks or own < counts[self.rank] or total < sum(counts) or not same_type:
            raise Error(_lib.ERR_INVALID, f"counts {list(counts)} of {self.nranks} ranks do not fit buffers of "
                                          f"{own} and {total} elements, or their types differ")

    def broadcast(self, buf: Buffer, root: int = 0) -> None:
        with _placed(buf) as (where, (address, count, dtype)):
            lib().call("broadcast_on", self._handle, where, address, count, dtype, root)

    def barrier(self) -> None:
        lib().call("barrier", self._handle)

    def free(self) -> None:
        handle, self._handle = self._handle, None
        lib().group_free(handle)


def world() -> Group:
    """All ranks of the job, which the first call joins: for programs that make no process group of torch.distributed, which
    torchrun may have started all the same."""
    store: Any = None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from .launch import LaunchedStore

        store = LaunchedStore
    job: Job = join(store)
    return job.world


class Reducer:
    """Averages the gradients of a model over a group; collective to create.

    `tensors` is a list of (name, shape, dtype) in forward order. `done(index,
    error)` is called on a thread of the library once for every tensor and step,
    error being None or an Error; it must not call into the reducer, but for follow(). With `cuda`
    gradients are in the memory of the current CUDA device, and made on the stream
    `queue` (its handle as a number; 0: the default one), and the reducer's own memory comes from
    `memory`, a pair of functions: of bytes and a stream to an address, or None where there are no
    more, and of an address that is given back; without it from CUDA. `schedule` is a SPEC of how
    gradients are merged. With `delay` averages are applied so many steps late: a step's
    gradient is done at once and holds what the step's own and the average of `delay`
    steps ago make up to (see drain())."""

    def __init__(self, group: Group, tensors: Sequence[tuple[str, Sequence[int], Any]],
                 done: Callable[[int, Error | None], object] | None = None, compressor: str | None = None,
                 collective: str | None = None, bucket_bytes: int = 0, seed: int = 0, cuda: bool = False, queue: int = 0,
                 schedule: str | None = None, delay: int = 0,
                 memory: DeviceMemory | None = None):
        if not 0 <= _lib.whole("delay", delay, least=-1 << 64) < 1 << 32:
            raise Error(_lib.ERR_INVALID, f"a delay of {delay} steps: must be 0 or more")
        self._sizes = [(name, math.prod(shape), dtype_code(dtype)) for name, shape, dtype in tensors]
        described = (_lib.TensorDesc * len(tensors))()
        for d, (name, shape, dtype) in zip(described, tensors):
            d.name, d.ndim, d.dtype = name.encode(), len(shape), dtype_code(dtype)
            d.dims = (c_uint64 * len(shape))(*shape)

        def call_done(_ctx: Any, index: int, status: int, err: Any) -> None:
            assert done is not None
            done(index, None if status >= 0 else Error(status, err.contents.message() if err else ""))

        # Held for as long as the library may call it.
        self._done = _lib.DONE(call_done) if done else _lib.DONE()
        options = _lib.ReducerOptions(ctypes.sizeof(_lib.ReducerOptions), 0, _lib.text("compressor", compressor),
                                      _lib.text("collective", collective), _lib.whole("bucket_bytes", bucket_bytes),
                                      _lib.whole("seed", seed), self._done)
        self._cuda = cuda
        options.device, options.queue = int(cuda), queue or None
        options.schedule, options.delay = _lib.text("schedule", schedule), delay
        self._memory = _device_memory(options, memory)
        self._handle: Any = c_void_p()
        self._job = group.job
        with self._job._giving(self._adopt):
            lib().call("reducer_create", group._handle, described, len(tensors), ctypes.byref(options),
                       ctypes.byref(self._handle))

    def _adopt(self, made: int | None) -> Reducer:
        self._handle.value = made
        return self

    def ready(self, index: int, address: int) -> None:
        """Hands over the gradient at `address`; its memory is the reducer's until
        the tensor is done."""
        lib().call("reducer_ready", self._handle, index, address)

    def wait(self) -> None:
        lib().call("reducer_wait", self._handle)

    def wait_for(self, index: int) -> None:
        """Returns when this tensor of the step in flight is done."""
        lib().call("reducer_wait_for", self._handle, index)

    def follow(self, index: int, queue: int) -> None:
        """With `cuda`: what is put on the stream `queue` from now on comes after this tensor's average,
        when the tensor is done, which it is as soon as that has been put on the device. Also in done()."""
        lib().call("reducer_follow", self._handle, index, queue or None)

    def drain(self, corrections: Sequence[Buffer], weights: Sequence[Buffer] | None = None,
              rate: float = 0.0) -> None:
        """With a delay: waits for the steps in flight and adds what they owe to
        `corrections`, a buffer for every tensor. With `weights`, likewise: weights -=
        rate * corrections, then their mean over ranks, so that they are the same to the
        bit. Collective, between steps. With `cuda` both are tensors on the GPU, made and used
        on the reducer's `queue`."""
        lib().call("reducer_drain", self._handle, self._addresses("corrections", corrections),
                   weights and self._addresses("weights", weights), rate)

    def _addresses(self, what: str, buffers: Sequence[Buffer]) -> Any:
        if len(buffers) != len(self._sizes):
            raise Error(_lib.ERR_INVALID, f"{len(buffers)} {what} for {len(self._sizes)} tensors")
        found = [_memory(b, self._cuda) for b in buffers]
        for (name, numel, dtype), (_, count, own) in zip(self._sizes, found):
            if (numel, dtype) != (count, own):
                raise Error(_lib.ERR_INVALID, f"{what} of '{name}': {count} elements of {_name(own)} for {numel} of "
                                              f"{_name(dtype)}")
        return (c_void_p * len(found))(*[address for address, _, _ in found])

    def save(self, shared: bool = False) -> bytes:
        """This rank's state as bytes; with `shared` one for any number of ranks, the same on all,
        which save it together. Between steps only."""
        call, size = "reducer_save_shared" if shared else "reducer_save", c_uint64()
        lib().call(call, self._handle, None, 0, ctypes.byref(size))
        state = ctypes.create_string_buffer(max(1, size.value))
        with self._job._giving(lambda _made: state.raw[:size.value]):
            lib().call(call, self._handle, state, size, ctypes.byref(size))
        return state.raw[:size.value]

    def load(self, state: bytes) -> None:
        """Takes up what save() gave; all ranks call it together."""
        lib().call("reducer_load", self._handle, state, len(state))

    def stats(self) -> dict[str, float]:
        stats = _lib.ReducerStats(struct_size=ctypes.sizeof(_lib.ReducerStats))
        lib().reducer_get_stats(self._handle, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, *_ in stats._fields_[1:]}

    def free(self) -> None:
        """Waits for a step in flight."""
        handle, self._handle = self._handle, None
        lib().reducer_free(handle)
