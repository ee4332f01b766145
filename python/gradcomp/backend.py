"""`torch.distributed.init_process_group("gradcomp")`: the library's groups as a backend of torch.distributed.

The classes below are thin. Each method of ProcessGroup fills in one gradcomp_call (gradcomp.h) and starts it; ranks find each
other through the store that PyTorch gives whoever makes a process group. Tensors are in host memory; those on a GPU go to
PyTorch's own NCCL, which a group makes when it is given the first of them. PyTorch 2.6 and newer. What a policy compresses
goes another way: _policy.py.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_int32, c_uint64, c_void_p
from datetime import timedelta
from functools import partial, wraps
from typing import Any
from typing import cast as typed

import torch
import torch.autograd.profiler as _torch_profiler
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as _c
from torch._C._distributed_c10d import PrefixStore, ReduceOp, Store
from torch.distributed import distributed_c10d as _c10d

from . import _lib, _log, _policy, _profile
from . import job as _jobs
from ._lib import Call, Error, ErrorText, lib
from ._policy_state import Shared
from ._policy_state import load_state_dict as load_state_dict
from ._policy_state import state_dict as state_dict

_DTYPES = {torch.float32: _lib.F32, torch.float64: _lib.F64, torch.float16: _lib.F16, torch.bfloat16: _lib.BF16, torch.int8: _lib.I8,
           torch.uint8: _lib.U8, torch.int16: _lib.I16, torch.int32: _lib.I32, torch.int64: _lib.I64, torch.bool: _lib.U8}
_OPS = {ReduceOp.SUM: _lib.SUM, ReduceOp.AVG: _lib.AVG, ReduceOp.PRODUCT: _lib.PRODUCT, ReduceOp.MIN: _lib.MIN, ReduceOp.MAX: _lib.MAX,
        ReduceOp.BAND: _lib.BAND, ReduceOp.BOR: _lib.BOR, ReduceOp.BXOR: _lib.BXOR, ReduceOp.PREMUL_SUM: _lib.SUM}
# A ReduceOp is not equal to what it was made of, but has the same hash.
_CODES = {hash(op): code for op, code in _OPS.items()}
# What is 0 or 1 again.
_OF_BOOL = {_lib.SUM: _lib.BOR, _lib.MAX: _lib.BOR, _lib.BOR: _lib.BOR, _lib.PRODUCT: _lib.BAND, _lib.MIN: _lib.BAND,
            _lib.BAND: _lib.BAND, _lib.BXOR: _lib.BXOR}
_TorchGroup: Any = _c.ProcessGroup  # whose methods are overloaded there, and take both here
_FOREVER = timedelta(0)
_AT_EXIT = 5.0  # s that collectives in flight have when the program ends
_PLAIN = (Tensor, torch.nn.Parameter)


def _invalid(text: str) -> Error:
    return Error(_lib.ERR_INVALID, text)


class _Wiring:
    """PyTorch's store of a group, as a Job takes one. It is made when all ranks have come, for which it waits as long as the
    group's timeout says: longer than a job does."""

    def __init__(self, store: Store, rank: int, nranks: int, timeout: timedelta):
        self.rank, self.nranks = rank, nranks
        # A store may be used for one group after another.
        life, place = divmod(store.add("arrived", 1) - 1, nranks)
        self._store = PrefixStore(str(life), store)
        self._store.set(f"rank/{rank}", "here")
        if place == nranks - 1:
            self._store.set("all", "here")
        try:
            self._store.wait(["all"], timeout)
        except RuntimeError as e:
            missing = [str(r) for r in range(nranks) if not self._store.check([f"rank/{r}"])]
            if not missing:
                raise
            raise Error(_lib.ERR_TIMEOUT, f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing[:16])} of {nranks} did not come "
                                          f"within the timeout of {timeout.total_seconds():g} s") from e

    def set(self, key: str, value: bytes) -> None:
        self._store.set(f"job/{key}", typed(str, value))  # bytes are taken, though PyTorch's stub says str

    def get(self, key: str, timeout_ms: int) -> bytes:
        self._store.wait([f"job/{key}"], timedelta(milliseconds=timeout_ms))
        return self._store.get(f"job/{key}")


_leaving: list[threading.Thread] = []  # that leave jobs, beside what the program does next


class _Home:
    """A job, for as long as there are channels in it. `own`: nobody had it before."""

    def __init__(self, job: _jobs.Job, own: bool):
        self.job, self.own, self._lock, self._channels = job, own, threading.RLock(), 0
        self.policy = _policy.of_job(job)
        if self.policy is not None:
            _policies.append(self.policy)

    def enter(self, ranks: Sequence[int]) -> c_void_p:
        handle = c_void_p()
        lib().call("group_create", self.job.world._handle, (c_int * len(ranks))(*ranks), len(ranks), byref(handle))
        with self._lock:
            self._channels += 1
        return handle

    def leave(self, at_exit: bool = False) -> None:
        """Of a channel that has been closed. The last one leaves the job, on a thread, for the other ranks may be late; at exit
        job.py does that."""
        global _home
        with self._lock:
            self._channels -= 1
            if self._channels:
                return
        if _home is self:
            _home = None
        if self.policy is not None:
            self.policy.close()
        if self.own and not (at_exit and self.job is _jobs.joined()):
            _jobs.disown(self.job)
            thread = threading.Thread(target=self._free, name="gradcomp-leave", daemon=True)
            _leaving.append(thread)
            thread.start()

    def _free(self) -> None:
        try:
            self.job.free()
        except Error as e:
            if e.status == _lib.ERR_STATE:  # attached models use it
                _jobs.adopt(self.job)
            elif e.status not in (_lib.ERR_PEER, _lib.ERR_TIMEOUT, _lib.ERR_PEER_LOST):
                _log.warn(e)
        _leaving.remove(threading.current_thread())


_home: _Home | None = None  # of the default group
_policies: list[_policy.Policy] = []  # of all homes
shared = Shared()  # the state for all ranks, as an object to give to what saves one file for all


class _Channel:
    """The library's group of a process group. Calls that were started and have not ended are kept here, with their memory."""

    def __init__(self, home: _Home, ranks: Sequence[int], timeout: timedelta):
        self.home, self.handle, self.timeout, self._pid = home, home.enter(ranks), timeout.total_seconds(), os.getpid()
        self.lock = threading.RLock()  # a thread that holds it may collect garbage
        self.calls = 0
        self._lib = lib()
        self._collectives: deque[Work] = deque()
        self._messages: dict[int, Work] = {}
        self._many = 64  # messages after which those that have ended are looked for
        self._inside: set[int] = set()  # threads that are in the library
        self._futures: queue.SimpleQueue[Work | None] | None = None
        self._completer: threading.Thread | None = None
        self._closed = False
        self.coding = None if home.policy is None else _policy.Coding(home.policy, home.job, ranks, partial(home.enter, ranks), home.leave)
        _channels.add(self)

    def carry_out(self, call: Call, title: str) -> None:
        """Returns when the call has ended."""
        err = ErrorText()
        self._enter(title)
        try:
            status = self._lib.group_call(self.handle, byref(call), byref(err))
        finally:
            self._inside.discard(threading.get_ident())
        if status < 0:
            raise self.error(status, err, title)

    def start(self, call: Call, title: str) -> c_void_p:
        err, request = ErrorText(), c_void_p()
        self._enter(title)
        try:
            status = self._lib.group_start(self.handle, byref(call), byref(request), byref(err))
        finally:
            self._inside.discard(threading.get_ident())
        if status < 0:
            raise self.error(status, err, title)
        return request

    def wait(self, request: c_void_p, seconds: float) -> tuple[bool, int, ErrorText]:
        """(Whether it has ended, how.)"""
        done, err, me = c_int(), ErrorText(), threading.get_ident()
        self._inside.add(me)
        try:
            status = self._lib.group_wait(request, seconds, byref(done), byref(err))
        finally:
            self._inside.discard(me)
        return bool(done.value), status, err

    def _enter(self, title: str) -> None:
        self._inside.add(threading.get_ident())
        if self._closed:
            self._inside.discard(threading.get_ident())
            raise Error(_lib.ERR_STATE, f"{title}: the process group has been destroyed")
        self.calls += 1

    def error(self, status: int, err: ErrorText, title: str) -> Error:
        text = err.message() or self._lib.strerror(status).decode()
        return Error(status, f"{title}: {text}" + (f" (the group has a timeout of {self.timeout:g} s)" if status == _lib.ERR_TIMEOUT else ""))

    def keep(self, work: Work, message: bool) -> None:
        """Holds what has been started until it has ended, though the program may not."""
        with self.lock:
            if message:
                self._messages[id(work)] = work
                older = list(self._messages.values()) if len(self._messages) > self._many else []
            else:
                self._collectives.append(work)
                older = [self._collectives[0]] if len(self._collectives) > 1 else []
        # Without the lock, since a future's callback may be anything; who has a future is looked after by another thread.
        for other in older:
            if other._raw is None:
                other.is_completed()
        if message and older:
            self._many = max(64, 2 * len(self._messages))

    def let_go(self, work: Work) -> None:
        self._messages.pop(id(work), None)
        while self._collectives and self._collectives[0]._over:
            self._collectives.popleft()

    def complete_later(self, work: Work, message: bool) -> None:
        """Fulfils the work's future when it has ended: collectives one after another, messages each by itself, and so those that a
        future's callback starts, which may wait for them where the others are fulfilled (DDP's PowerSGD hook does)."""
        if message or getattr(_fulfilling, "now", False):
            threading.Thread(target=_complete, args=(work,), name="gradcomp-future", daemon=True).start()
            return
        if self._futures is None:
            self._futures = queue.SimpleQueue()
            self._completer = threading.Thread(target=_complete_all, args=(self._futures,), name="gradcomp-futures", daemon=True)
            self._completer.start()
        self._futures.put(work)

    def close(self, text: str, seconds: float, at_exit: bool = False) -> None:
        """Frees the group. Collectives in flight may end within so many seconds; what has not then, fails with `text`."""
        with self.lock:
            if self._closed or self._pid != os.getpid():  # all of it is the parent's
                return
            self._closed = True
            until = time.monotonic() + seconds
            collectives = list(self._collectives)
        for work in collectives:
            left = until - time.monotonic()
            if left <= 0 or not work._ends_within(left):
                break
        self._lib.group_abort(self.handle, text.encode(), byref(ErrorText()))
        if self._futures is not None and self._completer is not None:
            self._futures.put(None)
            if self._completer is not threading.current_thread():
                self._completer.join()
        while self._inside - {threading.get_ident()}:
            time.sleep(0.001)
        if self.coding is not None:
            self.coding.close(max(until - time.monotonic(), 0.1))
        for work in [*collectives, *self._messages.values()]:
            work._complete()
        self._lib.group_free(self.handle)
        self.home.leave(at_exit)

    def abort(self, text: str) -> None:
        """Ends what is in flight and all that follows; close() is still to come."""
        if not self._closed and self._pid == os.getpid():
            self._lib.call("group_abort", self.handle, text.encode())
            if self.coding is not None:
                self.coding.abort(text)
                with self.lock:
                    coded = [work for work in self._collectives if isinstance(work, _Coded)]
                for work in coded:
                    work.ended(Error(_lib.ERR_STATE, text))


_channels: weakref.WeakSet[_Channel] = weakref.WeakSet()


_fulfilling = threading.local()  # now: on this thread, futures are


def _complete(work: Work) -> None:
    _fulfilling.now = True
    work._complete()


def _complete_all(futures: queue.SimpleQueue[Work | None]) -> None:
    while True:
        work = futures.get()
        if work is None:
            return
        _complete(work)
        del work


class _Request(c_void_p):
    """A call's handle, freed with the last that refers to it, by when the call has ended."""

    def __del__(self) -> None:
        if self.value:
            lib().group_request_free(self)


class Work(_c.Work):
    """A call in flight, or ended."""

    def __init__(self, channel: _Channel, title: str, tensors: list[Any], request: c_void_p | None = None, keep: Any = None,
                 finish: Callable[[], None] | None = None, message: bool = False, source: c_int32 | None = None):
        super().__init__()
        self._channel, self._title, self._tensors, self._keep, self._finish = channel, title, tensors, keep, finish
        self._request, self._message, self._source = _Request(request.value if request else None), message, source
        self._over = request is None
        self._failure: Error | None = None
        self._event: list[Any] | None = None  # of PyTorch's profiler
        self._raw: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Returns when the call has ended; raises what it failed with. When a timeout is over the call goes on."""
        if not self._over:
            seconds = timeout.total_seconds()
            done, status, err = self._channel.wait(self._request, seconds if seconds > 0 else -1.0)
            if not done:
                raise Error(_lib.ERR_TIMEOUT, f"{self._title}: Operation timed out! It has not ended within {seconds:g} s, and goes on")
            self._end(status, err)
        if self._failure is not None:
            raise Error(self._failure.status, str(self._failure))
        return True

    def _ends_within(self, seconds: float) -> bool:
        return self._over or self._channel.wait(self._request, seconds)[0]

    def is_completed(self) -> bool:
        if not self._over:
            done, err = c_int(), ErrorText()
            status = lib().group_test(self._request, byref(done), byref(err))
            if done.value:
                self._end(status, err)
        return self._over

    def _end(self, status: int, err: ErrorText) -> None:
        self._settle(self._channel.error(status, err, self._title) if status < 0 else None)

    def _settle(self, failure: Error | None) -> None:
        """Once: what is left to do on this side."""
        with self._channel.lock:
            if self._over:
                return
            try:
                if failure is not None:
                    raise failure
                if self._finish is not None:
                    with torch.no_grad():
                        self._finish()
            except Error as e:
                self._failure = e
            self._keep = self._finish = None
            self._over = True
            self._channel.let_go(self)
            raw = self._raw
        self._end_event()
        if raw is not None:
            raw.set_result(None)

    def _end_event(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            _profile.end(event)

    def _complete(self) -> None:
        try:
            self.wait()
        except Error:
            pass  # whoever waits is told

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the list of result tensors."""
        with self._channel.lock:
            if self._future is not None:
                return self._future
            raw: torch.futures.Future[Any] = torch.futures.Future()
            # DDP looks at the future from C++, where only the failure of a continuation shows as one.
            self._future = future = raw.then(self._value)
            if not self._over:
                self._raw = raw
                self._channel.complete_later(self, self._message)
                return future
        raw.set_result(None)
        return future

    def _value(self, raw: torch.futures.Future[Any]) -> list[Any]:
        del raw
        if self._failure is not None:
            raise Error(self._failure.status, str(self._failure))
        return self._tensors

    def is_success(self) -> bool:
        return self.is_completed() and self._failure is None

    def exception(self) -> Error | None:
        self.is_completed()
        return self._failure

    def result(self) -> list[Any]:
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """Of a receive: the rank in the group that the message came from."""
        return -1 if self._source is None else self._source.value

    _source_rank = source_rank


class _Coded(Work):
    """A call that a policy compresses."""

    def __init__(self, channel: _Channel, title: str, tensors: list[Any]):
        super().__init__(channel, title, tensors)
        self._over, self._done = False, threading.Event()
        self._why: Error | None = None

    def ended(self, failure: Error | None) -> None:
        """Called by its lane, or for a group that is given up meanwhile."""
        if not self._done.is_set():
            self._why = failure and Error(failure.status, f"{self._title}: {failure}")
            self._done.set()

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        if not self._over:
            seconds = timeout.total_seconds()
            if not self._done.wait(seconds if seconds > 0 else self._channel.timeout):
                limit = f"{seconds:g} s" if seconds > 0 else f"the group's timeout of {self._channel.timeout:g} s"
                raise Error(_lib.ERR_TIMEOUT, f"{self._title}: Operation timed out! It has not ended within {limit}, and goes on")
            self._settle(self._why)
        return super().wait()

    def _ends_within(self, seconds: float) -> bool:
        return self._over or self._done.wait(seconds)

    def is_completed(self) -> bool:
        if not self._over and self._done.is_set():
            self._settle(self._why)
        return self._over


class _Together(Work):
    """Several calls that the program sees as one."""

    def __init__(self, channel: _Channel, works: list[Work], tensors: list[Any]):
        super().__init__(channel, "", tensors)
        self._works = works

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        for work in self._works:
            work.wait(timeout)
        self._end_event()
        return True

    def is_completed(self) -> bool:
        return all([work.is_completed() for work in self._works])

    def exception(self) -> Error | None:
        return next((work._failure for work in self._works if work.is_completed() and work._failure is not None), None)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            self._future = torch.futures.collect_all([work.get_future() for work in self._works]).then(self._collected)
        return self._future

    def _collected(self, futures: torch.futures.Future[list[torch.futures.Future[Any]]]) -> list[Any]:
        for future in futures.value():
            future.value()
        return self._tensors


def _size(t: Tensor) -> int:
    return t.numel() * t.element_size()


def _addresses(tensors: Sequence[Tensor]) -> Any:
    return (c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])


def _numbers(values: Sequence[int]) -> Any:
    return (c_uint64 * len(values))(*values)


def _one(title: str, tensors: Any) -> Any:
    """The only one of a list, or what is not in one: both ways of a process group's methods are taken."""
    if not isinstance(tensors, (list, tuple)):
        return tensors
    if len(tensors) != 1:
        raise _invalid(f"{title}: takes one tensor on each rank, not {len(tensors)}")
    return tensors[0]


def _listed(tensors: Any) -> Any:
    return tensors[0] if tensors and isinstance(tensors[0], (list, tuple)) else tensors


class ProcessGroup(_TorchGroup):  # type: ignore[misc]
    """What a process group of the backend is: in host memory what Gloo's does, by the calls of gradcomp.h.

    A tensor that is not contiguous goes through a copy. Where this is called from C++ (DistributedDataParallel, functional
    collectives) PyTorch finds the methods by their names."""

    def __init__(self, channel: _Channel, store: Store, rank: int, size: int, timeout: timedelta, name: str, label: str):
        super().__init__(rank, size)
        self._channel, self._store, self._number, self._count, self._label = channel, store, rank, size, label
        self._name, self._description, self._limit = name, "undefined", timeout
        self._on_gpu: Any = None
        self._coalescing: list[Work] | None = None
        self._barriers = 0
        self._finalizer = weakref.finalize(self, channel.close, "the process group is gone: nothing refers to it any more", 0.0)
        self._finalizer.atexit = False  # at exit: _end()

    # What a group is.

    def rank(self) -> int:
        return self._number

    def size(self) -> int:
        return self._count

    getRank, getSize = rank, size

    def getBackendName(self) -> str:
        return "gradcomp"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description
        if self._channel.coding is not None:
            self._channel.coding.named(description, f"group {self._name}")

    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type == "cpu":
            return self
        if self._on_gpu is None:
            raise RuntimeError(f"process group {self._name} has not been used on {device}")
        return self._on_gpu

    supports_coalescing = supports_splitting = supports_time_estimate = False

    def __repr__(self) -> str:
        return f"<gradcomp.backend.ProcessGroup {self._name}: rank {self._number} of {self._count}>"

    def set_timeout(self, timeout: timedelta) -> None:
        self._limit, self._channel.timeout = timeout, timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._channel.calls

    def shutdown(self) -> None:
        """Ends the group on this rank. Collectives in flight are waited for, as Gloo does; messages are given up."""
        self._channel.close("the process group has been destroyed", self._channel.timeout)
        if self._on_gpu is not None:
            self._on_gpu.shutdown()

    def abort(self) -> None:
        self._channel.abort("the process group has been aborted on this rank")
        if self._on_gpu is not None:
            self._on_gpu.abort()

    # How a call is made.

    def _submit(self, title: str, call: Call, opts: Any, tensors: list[Any], shown: list[Tensor] | None, keep: Any = None,
                finish: Callable[[], None] | None = None, message: bool = False, source: c_int32 | None = None) -> Work:
        """Starts a call, or carries it out where the program waits anyway. `shown`: what the profiler tells of, None: another
        event does; `keep`: whose memory the call needs."""
        channel = self._channel
        call.struct_size, call.timeout = ctypes.sizeof(Call), channel.timeout
        wait = False
        if opts is not None:
            wait = not getattr(opts, "asyncOp", True)
            limit = getattr(opts, "timeout", _FOREVER).total_seconds()
            if limit > 0:
                call.timeout = limit
        event = None
        if _torch_profiler._is_profiler_enabled and shown is not None:
            event = _profile.begin(f"{self._label}:{title}", shown)
        elif wait and self._coalescing is None:
            channel.carry_out(call, title)
            if finish is not None:
                with torch.no_grad():
                    finish()
            return Work(channel, title, tensors)
        work = Work(channel, title, tensors, channel.start(call, title), (tensors, keep), finish, message, source)
        work._event = event
        channel.keep(work, message)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _coded(self, operation: int, t: Tensor, numbers: int, op: Any = None, plain: bool = False) -> tuple[_policy.Lane, _policy.Entry] | None:
        """The lane and the policy's entry for a call of so many numbers like those of t; None: it goes as it is, as with `plain`."""
        coding = self._channel.coding
        if coding is None:
            return None
        found = coding.find(operation, t, numbers) if not plain and (op is None or _CODES.get(hash(op)) in (_lib.SUM, _lib.AVG)) else None
        if found is None:
            coding.passes(_policy.OPERATIONS[operation], numbers * t.element_size())
        return found

    def _weights(self, op: Any) -> tuple[float, float]:
        """(What this rank's numbers are multiplied by, what their sum is.)"""
        factor = float(op.__getstate__()[1]) if op == ReduceOp.PREMUL_SUM else 1.0
        return factor, 1 / self._count if _CODES[hash(op)] == _lib.AVG else 1.0

    def _submit_coded(self, lane: _policy.Lane, run: Callable[[], None], opts: Any, tensors: list[Any], shown: list[Tensor] | None,
                      finish: Callable[[], None] | None) -> Work:
        """Starts a call on its lane, or carries it out where the program waits anyway."""
        channel, title = self._channel, _policy.OPERATIONS[lane.operation]
        if channel._closed or channel._pid != os.getpid():
            why = "the process group has been destroyed" if channel._closed else "this process was forked off the rank, and is none"
            raise Error(_lib.ERR_STATE, f"{title}: {why}")
        channel.calls += 1

        def all_of_it() -> None:
            run()
            if finish is not None:
                finish()

        work = _Coded(channel, title, tensors)
        if _torch_profiler._is_profiler_enabled and shown is not None:
            work._event = _profile.begin(f"{self._label}:{title}", shown)
        channel.keep(work, message=False)
        lane.submit(all_of_it, work.ended, here=self._coalescing is None and opts is not None and not getattr(opts, "asyncOp", True))
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _together(self, title: str, each: Sequence[Callable[[], Work]], tensors: list[Any], shown: list[Tensor]) -> Work:
        event = _profile.begin(f"{self._label}:{title}", shown) if _torch_profiler._is_profiler_enabled else None
        work = _Together(self._channel, [call() for call in each], tensors)
        work._event = event
        return work

    def _checked(self, t: Tensor, title: str) -> Tensor:
        """A tensor whose memory a call can use."""
        if type(t) not in _PLAIN:
            wait = getattr(t, "trigger_wait", None)  # of a functional collective that is under way
            if wait is None:
                raise _invalid(f"{title}: takes tensors, not {type(t).__name__}")
            t = wait()
        if not t.is_cpu:
            raise _invalid(f"{title}: a tensor is on {t.device}, and the call has tensors in host memory (cpu) or all on one GPU")
        if t.layout != torch.strided:
            raise _invalid(f"{title}: a tensor is {t.layout}: make it dense (to_dense()); all_reduce alone takes sparse ones")
        return t

    def _memory(self, t: Tensor, title: str) -> Tensor:
        """`t`, or a copy of it that is contiguous."""
        return self._checked(t, title).resolve_conj().contiguous()

    def _outputs(self, tensors: Sequence[Tensor], title: str) -> tuple[list[Tensor], Callable[[], None] | None]:
        """(Memory for what comes, what is to be done when it has come.)"""
        given = [self._checked(t, title) for t in tensors]
        memory = [t.resolve_conj().contiguous() for t in given]
        copies = [(t, m) for t, m in zip(given, memory) if t is not m]
        if not copies:
            return memory, None

        def finish() -> None:
            for t, m in copies:
                t.copy_(m)

        return memory, finish

    def _reduction(self, call: Call, op: Any, t: Tensor, title: str) -> Tensor:
        """Fills in what is done to numbers of the type of t. Returns it as the library takes it: complex numbers as real ones."""
        code = _CODES.get(hash(op))
        if code is None:
            raise _invalid(f"{title}: {op} is not one of {', '.join(str(o).rpartition('.')[2] for o in _OPS)}")
        if op == ReduceOp.PREMUL_SUM:
            call.factor = float(op.__getstate__()[1])
        if t.is_complex():
            if code not in (_lib.SUM, _lib.AVG):
                raise _invalid(f"{title}: complex numbers have a sum and a mean, not {op}")
            t = torch.view_as_real(t)
        dtype = _DTYPES.get(t.dtype)
        if dtype is None:
            raise _invalid(f"{title}: {t.dtype} cannot be reduced; what can: {', '.join(str(d).replace('torch.', '') for d in _DTYPES)}")
        if t.dtype == torch.bool:
            if code not in _OF_BOOL:
                raise _invalid(f"{title}: there is no mean of bool")
            code = _OF_BOOL[code]
        call.dtype, call.op = dtype, code
        return t

    # Collectives. Numbers that are only moved are moved as bytes.

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, root: int | None = None) -> Work:
        t = _one("broadcast", tensors)
        if t.is_cuda:
            return self._gpu(t).broadcast([t], _options(_c.BroadcastOptions, opts, timeout, rootRank=root))
        opts, root = _rooted(opts, root, timeout)
        (memory,), finish = self._outputs([t], "broadcast")
        call = Call(kind=_lib.BROADCAST, dtype=_lib.U8, peer=root, out=memory.data_ptr(), count=_size(memory))
        return self._submit("broadcast", call, opts, [t], [t], memory, finish)

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None) -> Work:
        t = _one("all_reduce", tensors)
        if t.is_cuda:
            return self._gpu(t).allreduce([t], _options(_c.AllreduceOptions, opts, timeout, reduceOp=op))
        opts, op = _reducing(opts, op, timeout)
        if t.layout == torch.sparse_coo:
            return self._sparse_allreduce(t, op)
        return self._allreduce(t, opts, op, [t])

    def _allreduce(self, t: Tensor, opts: Any, op: Any, shown: list[Tensor] | None) -> Work:
        (memory,), finish = self._outputs([t], "all_reduce")
        call = Call(kind=_lib.ALLREDUCE)
        numbers = self._reduction(call, op, memory, "all_reduce")
        coded = self._coded(_policy.ALL_REDUCE, memory, memory.numel(), op)
        if coded is not None:
            lane, entry = coded
            factor, scale = self._weights(op)
            place = lane.place((str(memory.dtype), scale != 1, memory.numel()))
            return self._submit_coded(lane, partial(lane.all_reduce, entry, place, memory, factor, scale), opts, [t], shown, finish)
        call.out, call.count = numbers.data_ptr(), numbers.numel()
        return self._submit("all_reduce", call, opts, [t], shown, memory, finish)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        if tensors[0].is_cuda:
            return self._gpu(tensors[0]).allreduce_coalesced(tensors, _options(_c.AllreduceCoalescedOptions, opts))
        _, op = _reducing(opts, None, None)
        return self._together("all_reduce", [partial(self._allreduce, t, None, op, None) for t in tensors], tensors, tensors)

    def _sparse_allreduce(self, t: Tensor, op: Any) -> Work:
        """Gathers what is not zero, and adds it up: done when this returns. No policy is for it: entries for gathers mean weights, and
        what a code loses of gradients would be lost, since other rows come each time."""
        if op != ReduceOp.SUM:
            raise _invalid(f"all_reduce: sparse tensors have a sum, not {op}")
        own = t.coalesce()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()
        counts = torch.tensor([own._nnz(), own.sparse_dim(), own.dense_dim()], dtype=torch.int64)
        every = torch.empty(self._count, 3, dtype=torch.int64)
        self._allgather([*every], counts, None, None).wait()
        if (every[:, 1:] != counts[1:]).any():
            raise Error(_lib.ERR_MISMATCH, f"all_reduce: a sparse tensor has other dimensions on another rank: {every[:, 1:].tolist()}")
        numbers = every[:, 0].tolist()
        all_indices = [torch.empty((n, *indices.shape[1:]), dtype=indices.dtype) for n in numbers]
        all_values = [torch.empty((n, *values.shape[1:]), dtype=values.dtype) for n in numbers]
        self._allgather(all_indices, indices, None, None).wait()
        self._allgather(all_values, values, None, None, plain=True).wait()
        with torch.no_grad():
            t.copy_(torch.sparse_coo_tensor(torch.cat(all_indices).t(), torch.cat(all_values), t.shape).coalesce())
        return Work(self._channel, "all_reduce", [t])

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None, root: int | None = None) -> Work:
        t = _one("reduce", tensors)
        if t.is_cuda:
            return self._gpu(t).reduce([t], _options(_c.ReduceOptions, opts, timeout, rootRank=root, reduceOp=op))
        opts, root = _rooted(opts, root, timeout)
        opts, op = _reducing(opts, op, timeout)
        (memory,), finish = self._outputs([t], "reduce")
        call = Call(kind=_lib.REDUCE, peer=root)
        numbers = self._reduction(call, op, memory, "reduce")
        call.count = numbers.numel()
        if self._number == root:
            call.out = numbers.data_ptr()
        else:
            call.in_, finish = numbers.data_ptr(), None
        return self._submit("reduce", call, opts, [t], [t], memory, finish)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        t = _one("all_gather", input_tensors)
        outputs = _listed(output_tensors)
        if t.is_cuda:
            return self._gpu(t).allgather([outputs], [t], _options(_c.AllgatherOptions, opts, timeout))
        return self._allgather(outputs, t, _timed(opts, timeout), [t])

    def _allgather(self, outputs: Sequence[Tensor], t: Tensor, opts: Any, shown: list[Tensor] | None, plain: bool = False) -> Work:
        self._check_blocks(outputs, t, "all_gather", "output")
        coded = self._coded(_policy.ALL_GATHER, t, sum(o.numel() for o in outputs), plain=plain)
        if coded is not None and all(o.dtype == t.dtype for o in outputs):
            return self._gather_coded(*coded, outputs, t, opts, list(outputs), shown)
        memory, finish = self._outputs(outputs, "all_gather")
        own, blocks, counts = self._memory(t, "all_gather"), _addresses(memory), _numbers([_size(m) for m in memory])
        call = Call(kind=_lib.ALLGATHER, dtype=_lib.U8, in_=own.data_ptr(), count=_size(own), out_counts=ctypes.addressof(counts),
                    out_blocks=ctypes.addressof(blocks))
        return self._submit("all_gather", call, opts, list(outputs), shown, (own, memory, blocks, counts), finish)

    def _gather_coded(self, lane: _policy.Lane, entry: _policy.Entry, outputs: Sequence[Tensor], t: Tensor, opts: Any, tensors: list[Any],
                      shown: list[Tensor] | None) -> Work:
        """Into one tensor, or several, of which each has a rank's numbers."""
        given, own = [self._checked(o, "all_gather") for o in outputs], self._memory(t, "all_gather")
        counts = [o.numel() for o in given] if len(given) > 1 else [own.numel()] * self._count
        whole = given[0] if len(given) == 1 and given[0].is_contiguous() else torch.empty(sum(counts), dtype=t.dtype)

        def spread() -> None:
            for o, part in zip(given, typed(Any, whole).split(counts)) if len(given) > 1 else [(given[0], whole)]:
                o.copy_(part.view(o.shape))

        run = partial(lane.all_gather, entry, own, whole, counts)
        return self._submit_coded(lane, run, opts, tensors, shown, None if whole is given[0] else spread)

    def _check_blocks(self, blocks: Sequence[Tensor], t: Tensor, title: str, what: str) -> None:
        if len(blocks) != self._count:
            raise _invalid(f"{title}: {len(blocks)} {what} tensors for {self._count} ranks")
        if _size(blocks[self._number]) != _size(t):
            raise _invalid(f"{title}: this rank's {what} tensor has {_size(blocks[self._number])} bytes, and its other one {_size(t)}")

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None, timeout: timedelta | None = None) -> Work:
        if input.is_cuda:
            return self._gpu(input)._allgather_base(output, input, _options(_c.AllgatherOptions, opts, timeout))
        return self._gather_flat(output, input, _timed(opts, timeout), [input])

    def _gather_flat(self, output: Tensor, input: Tensor, opts: Any, shown: list[Tensor] | None) -> Work:
        if _size(output) != self._count * _size(input):
            raise _invalid(f"all_gather_into_tensor: an output of {_size(output)} bytes for {self._count} ranks with {_size(input)} bytes each")
        coded = self._coded(_policy.ALL_GATHER, input, output.numel())
        if coded is not None and output.dtype == input.dtype:
            return self._gather_coded(*coded, [output], input, opts, [output], shown)
        (memory,), finish = self._outputs([output], "all_gather_into_tensor")
        own = self._memory(input, "all_gather_into_tensor")
        call = Call(kind=_lib.ALLGATHER, dtype=_lib.U8, in_=own.data_ptr(), out=memory.data_ptr(), count=_size(own))
        return self._submit("all_gather", call, opts, [output], shown, (own, memory), finish)

    def allgather_coalesced(self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None) -> Work:
        calls = [partial(self._allgather, [o[i] for o in output_lists], t, None, None) for i, t in enumerate(input_list)]
        return self._together("all_gather", calls, output_lists, input_list)

    def allgather_into_tensor_coalesced(self, output_lists: list[Tensor], input_list: list[Tensor], opts: Any = None) -> Work:
        if input_list[0].is_cuda:
            return self._gpu(input_list[0]).allgather_into_tensor_coalesced(output_lists, input_list, _options(_c.AllgatherOptions, opts))
        calls = [partial(self._gather_flat, o, t, None, None) for o, t in zip(output_lists, input_list)]
        return self._together("all_gather", calls, output_lists, input_list)

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None,
               root: int | None = None) -> Work:
        t = _one("gather", input_tensors)
        outputs = _listed(output_tensors)
        if t.is_cuda:
            return self._gpu(t).gather([outputs] if outputs else [], [t], _options(_c.GatherOptions, opts, timeout, rootRank=root))
        opts, root = _rooted(opts, root, timeout)
        own = self._memory(t, "gather")
        call = Call(kind=_lib.GATHER, dtype=_lib.U8, peer=root, in_=own.data_ptr(), count=_size(own))
        if self._number != root:
            return self._submit("gather", call, opts, [], [t], own)
        self._check_blocks(outputs, t, "gather", "output")
        memory, finish = self._outputs(outputs, "gather")
        blocks, counts = _addresses(memory), _numbers([_size(m) for m in memory])
        call.out_blocks, call.out_counts = ctypes.addressof(blocks), ctypes.addressof(counts)
        return self._submit("gather", call, opts, list(outputs), [t], (own, memory, blocks, counts), finish)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None,
                root: int | None = None) -> Work:
        t = _one("scatter", output_tensors)
        inputs = _listed(input_tensors)
        if t.is_cuda:
            return self._gpu(t).scatter([t], [inputs] if inputs else [], _options(_c.ScatterOptions, opts, timeout, rootRank=root))
        opts, root = _rooted(opts, root, timeout)
        (memory,), finish = self._outputs([t], "scatter")
        call = Call(kind=_lib.SCATTER, dtype=_lib.U8, peer=root, out=memory.data_ptr(), count=_size(memory))
        if self._number != root:
            return self._submit("scatter", call, opts, [t], [t], memory, finish)
        self._check_blocks(inputs, t, "scatter", "input")
        parts = [self._memory(i, "scatter") for i in inputs]
        blocks, counts = _addresses(parts), _numbers([_size(p) for p in parts])
        call.in_blocks, call.in_counts = ctypes.addressof(blocks), ctypes.addressof(counts)
        return self._submit("scatter", call, opts, [t], list(inputs), (memory, parts, blocks, counts), finish)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None,
                       op: Any = None) -> Work:
        t = _one("reduce_scatter", output_tensors)
        inputs = _listed(input_tensors)
        if t.is_cuda:
            return self._gpu(t).reduce_scatter([t], [inputs], _options(_c.ReduceScatterOptions, opts, timeout, reduceOp=op))
        opts, op = _reducing(opts, op, timeout)
        self._check_blocks(inputs, t, "reduce_scatter", "input")
        (memory,), finish = self._outputs([t], "reduce_scatter")
        call = Call(kind=_lib.REDUCE_SCATTER)
        numbers = self._reduction(call, op, memory, "reduce_scatter")
        parts = [torch.view_as_real(p) if p.is_complex() else p for p in [self._memory(i, "reduce_scatter") for i in inputs]]
        coded = self._coded(_policy.REDUCE_SCATTER, memory, sum(p.numel() for p in parts), op)
        if coded is not None and all(p.dtype == memory.dtype for p in parts):
            return self._scatter_coded(*coded, parts, memory, opts, op, [t], list(inputs), finish)
        blocks, counts = _addresses(parts), _numbers([p.numel() for p in parts])
        call.out, call.count = numbers.data_ptr(), numbers.numel()
        call.in_blocks, call.in_counts = ctypes.addressof(blocks), ctypes.addressof(counts)
        return self._submit("reduce_scatter", call, opts, [t], list(inputs), (memory, parts, blocks, counts), finish)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None, timeout: timedelta | None = None,
                             op: Any = None) -> Work:
        if input.is_cuda:
            return self._gpu(input)._reduce_scatter_base(output, input, _options(_c.ReduceScatterOptions, opts, timeout, reduceOp=op))
        opts, op = _reducing(opts, op, timeout)
        return self._scatter_flat(output, input, opts, op, [input])

    def _scatter_flat(self, output: Tensor, input: Tensor, opts: Any, op: Any, shown: list[Tensor] | None) -> Work:
        if input.numel() != self._count * output.numel() or input.dtype != output.dtype:
            raise _invalid(f"reduce_scatter_tensor: an input of {input.numel()} {input.dtype} for {self._count} ranks that get "
                           f"{output.numel()} {output.dtype} each")
        (memory,), finish = self._outputs([output], "reduce_scatter_tensor")
        own = self._memory(input, "reduce_scatter_tensor")
        call = Call(kind=_lib.REDUCE_SCATTER, in_=own.data_ptr())
        numbers = self._reduction(call, op, memory, "reduce_scatter_tensor")
        coded = self._coded(_policy.REDUCE_SCATTER, memory, own.numel(), op)
        if coded is not None:
            return self._scatter_coded(*coded, [own], memory, opts, op, [output], shown, finish)
        call.out, call.count = numbers.data_ptr(), numbers.numel()
        return self._submit("reduce_scatter", call, opts, [output], shown, (own, memory), finish)

    def _scatter_coded(self, lane: _policy.Lane, entry: _policy.Entry, parts: list[Tensor], memory: Tensor, opts: Any, op: Any, tensors: list[Any],
                       shown: list[Tensor] | None, finish: Callable[[], None] | None) -> Work:
        factor, scale = self._weights(op)
        place = lane.place((str(memory.dtype), scale != 1, memory.numel(), *(p.numel() for p in parts)))
        run = partial(lane.reduce_scatter, entry, place, parts, memory, factor, scale)
        return self._submit_coded(lane, run, opts, tensors, shown, finish)

    def reduce_scatter_tensor_coalesced(self, outputTensors: list[Tensor], inputTensors: list[Tensor], opts: Any = None) -> Work:
        if inputTensors[0].is_cuda:
            return self._gpu(inputTensors[0]).reduce_scatter_tensor_coalesced(outputTensors, inputTensors,
                                                                              _options(_c.ReduceScatterOptions, opts))
        _, op = _reducing(opts, None, None)
        calls = [partial(self._scatter_flat, o, t, None, op, None) for o, t in zip(outputTensors, inputTensors)]
        return self._together("reduce_scatter", calls, outputTensors, inputTensors)

    def alltoall_base(self, output: Tensor, input: Tensor, output_split_sizes: list[int], input_split_sizes: list[int], opts: Any = None,
                      timeout: timedelta | None = None) -> Work:
        if input.is_cuda:
            return self._gpu(input).alltoall_base(output, input, output_split_sizes, input_split_sizes,
                                                  _options(_c.AllToAllOptions, opts, timeout))
        (memory,), finish = self._outputs([output], "all_to_all_single")
        own = self._memory(input, "all_to_all_single")
        taken, given = self._splits(output_split_sizes, memory, "output"), self._splits(input_split_sizes, own, "input")
        call = Call(kind=_lib.ALLTOALL, dtype=_lib.U8, in_=own.data_ptr(), out=memory.data_ptr(), in_counts=ctypes.addressof(given),
                    out_counts=ctypes.addressof(taken))
        return self._submit("all_to_all", call, _timed(opts, timeout), [output], [input], (own, memory, taken, given), finish)

    def _splits(self, sizes: list[int], t: Tensor, what: str) -> Any:
        """The bytes that are for or from each rank, by rows."""
        rows = t.size(0) if t.dim() else 1
        if not sizes:
            if rows % self._count:
                raise _invalid(f"all_to_all_single: Tensor's dim 0 does not divide equally across group size: {rows} rows of the {what} "
                               f"for {self._count} ranks")
            sizes = [rows // self._count] * self._count
        if len(sizes) != self._count or sum(sizes) != rows or min(sizes) < 0:
            raise _invalid(f"all_to_all_single: Split sizes doesn't match total dim 0 size: {what} splits {list(sizes)} for {rows} rows and "
                           f"{self._count} ranks")
        row = _size(t) // rows if rows else 0
        return _numbers([n * row for n in sizes])

    def alltoall(self, output_tensor: list[Tensor], input_tensor: list[Tensor], opts: Any = None, timeout: timedelta | None = None) -> Work:
        if input_tensor[0].is_cuda:
            return self._gpu(input_tensor[0]).alltoall(output_tensor, input_tensor, _options(_c.AllToAllOptions, opts, timeout))
        if len(output_tensor) != self._count or len(input_tensor) != self._count:
            raise _invalid(f"all_to_all: {len(output_tensor)} output and {len(input_tensor)} input tensors for {self._count} ranks")
        memory, finish = self._outputs(output_tensor, "all_to_all")
        parts = [self._memory(i, "all_to_all") for i in input_tensor]
        taken, given = _numbers([_size(m) for m in memory]), _numbers([_size(p) for p in parts])
        outs, ins = _addresses(memory), _addresses(parts)
        call = Call(kind=_lib.ALLTOALL, dtype=_lib.U8, in_counts=ctypes.addressof(given), out_counts=ctypes.addressof(taken),
                    in_blocks=ctypes.addressof(ins), out_blocks=ctypes.addressof(outs))
        return self._submit("all_to_all", call, _timed(opts, timeout), list(output_tensor), list(input_tensor),
                            (memory, parts, taken, given, outs, ins), finish)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        return self._submit("barrier", Call(kind=_lib.BARRIER), _timed(opts, timeout), [], [])

    # As newer PyTorch names them.

    all_gather_single, all_gather_single_coalesced = _allgather_base, allgather_into_tensor_coalesced
    reduce_scatter_single, reduce_scatter_single_coalesced = _reduce_scatter_base, reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def gather_single(self, output: Tensor | None, input: Tensor, opts: Any = None) -> Work:
        return self.gather([] if output is None or self._number != opts.rootRank else list(output.chunk(self._count)), [input], opts)

    # Messages.

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        t = _one("send", tensors)
        if t.is_cuda:
            return self._gpu(t).send([t], dstRank, tag)
        own = self._memory(t, "send")
        if self._channel.coding is not None:
            self._channel.coding.passes("send", _size(own))
        call = Call(kind=_lib.SEND, dtype=_lib.U8, peer=dstRank, in_=own.data_ptr(), count=_size(own), tag=tag)
        return self._submit("send", call, None, [t], [t], own, message=True)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        t = _one("recv", tensors)
        if t.is_cuda:
            return self._gpu(t).recv([t], srcRank, tag)
        return self._receive(t, srcRank, tag, "recv")

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        t = _one("recv", tensors)
        return self._receive(t, _lib.ANY_RANK, tag, "recvAnySource")

    def _receive(self, t: Tensor, source: int, tag: int, title: str) -> Work:
        (memory,), copy = self._outputs([t], title)
        sender, got, size = c_int32(-1), c_uint64(), _size(memory)

        def finish() -> None:
            if got.value != size:
                raise Error(_lib.ERR_MISMATCH, f"{title}: rank {sender.value} has sent {got.value} bytes for a tensor of {size}")
            if copy is not None:
                copy()

        call = Call(kind=_lib.RECV, dtype=_lib.U8, peer=source, out=memory.data_ptr(), count=size, tag=tag,
                    from_=ctypes.addressof(sender), got=ctypes.addressof(got))
        return self._submit(title, call, None, [t], [t], (memory, got), finish, message=True, source=sender)

    # What torch.distributed asks of some backends.

    def _start_coalescing(self, device: torch.device) -> None:
        if torch.device(device).type == "cuda":
            typed(Any, self._gpu(torch.empty(0, device=device)))._start_coalescing()
        else:
            self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> Work:
        if torch.device(device).type == "cuda":
            return typed(Work, typed(Any, self._gpu(torch.empty(0, device=device)))._end_coalescing())
        works, self._coalescing = self._coalescing or [], None
        return _Together(self._channel, works, [t for work in works for t in work._tensors])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier through the store, by which rank 0 finds out who does not come. The group goes on in any case."""
        limit = (self._limit if timeout is None else timeout).total_seconds()
        until, here = time.monotonic() + limit, PrefixStore(f"barrier/{self._barriers}", self._store)
        self._barriers += 1
        if self._number:
            here.set(f"rank/{self._number}", "here")
            try:
                here.wait(["end"], timedelta(seconds=max(limit, 0.001)))
            except RuntimeError:
                pass
            if not here.check(["end"]) or here.get("end") != b"all":
                raise Error(_lib.ERR_TIMEOUT, f"monitored_barrier: Rank {self._number} successfully reached monitoredBarrier, but received "
                                              "errors while waiting for send/recv from rank 0: please check rank 0's messages for who "
                                              "did not come")
            return
        missing: list[str] = []
        for rank in range(1, self._count):
            left = until - time.monotonic()
            if left <= 0 and not missing:
                here.set("end", "timeout")
                raise Error(_lib.ERR_TIMEOUT, f"monitored_barrier: Rank 0 timed out in monitoredBarrier after {limit:g} s")
            try:
                here.wait([f"rank/{rank}"], timedelta(seconds=max(left, 0.001)))
            except RuntimeError:
                missing.append(str(rank))
                if not wait_all_ranks:
                    break
        here.set("end", "missing" if missing else "all")
        if missing:
            raise Error(_lib.ERR_TIMEOUT, f"monitored_barrier: Rank{'s' if wait_all_ranks else ''} {', '.join(missing)} failed to pass "
                                          f"monitoredBarrier in {limit:g} s")

    def _gpu(self, t: Tensor) -> ProcessGroup:
        """PyTorch's NCCL, which has these methods too, among these ranks, made when the group is given the first tensor on a GPU."""
        if self._on_gpu is None:
            if not dist.is_nccl_available():
                raise _invalid(f"a tensor is on {t.device}, and this PyTorch has no NCCL: give the group a copy made by .cpu()")
            options = _c.ProcessGroupNCCL.Options()
            options._timeout = self._limit
            self._on_gpu = _c.ProcessGroupNCCL(PrefixStore("cuda", self._store), self._number, self._count, options)
        return typed(ProcessGroup, self._on_gpu)


def _lasting(method: Callable[..., Work]) -> Callable[..., Any]:
    """Before PyTorch 2.7 what C++ has of a work does not hold the Python object, and waits for nothing when that is gone. So callers
    other than torch.distributed's functions in Python get a work of a future."""

    @wraps(method)
    def call(self: ProcessGroup, *given: Any, **named: Any) -> Any:
        work = method(self, *given, **named)
        if sys._getframe(1).f_code.co_filename == _c10d.__file__:
            return work
        return typed(Any, _c)._create_work_from_future(work.get_future())

    return call


if typed(Any, torch.__version__) < (2, 7):
    for _name in ("allgather", "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced", "alltoall_base", "barrier", "broadcast",
                  "reduce_scatter", "reduce_scatter_tensor_coalesced"):  # which C++ calls
        setattr(ProcessGroup, _name, _lasting(getattr(ProcessGroup, _name)))


def _timed(opts: Any, timeout: timedelta | None) -> Any:
    """Options of a call, where a timeout was given in their place, too."""
    if isinstance(opts, timedelta):
        timeout, opts = opts, None
    if timeout is None:
        return opts
    made = _c.BarrierOptions()
    made.timeout = timeout
    return made


def _rooted(opts: Any, root: int | None, timeout: timedelta | None) -> tuple[Any, int]:
    if isinstance(opts, int):
        opts, root = None, opts
    if root is None:
        root = 0 if opts is None else opts.rootRank
    return _timed(opts, timeout), root


def _reducing(opts: Any, op: Any, timeout: timedelta | None) -> tuple[Any, Any]:
    if isinstance(opts, (ReduceOp, ReduceOp.RedOpType)):
        opts, op = None, opts
    if op is None:
        op = ReduceOp.SUM if opts is None else opts.reduceOp
    return _timed(opts, timeout), op


def _options(kind: Any, opts: Any, timeout: timedelta | None = None, **given: Any) -> Any:
    """The same as PyTorch's own backends take it."""
    if isinstance(opts, kind):
        return opts
    made = kind()
    if timeout is not None:
        made.timeout = timeout
    for name, value in given.items():
        if value is not None:
            setattr(made, name, value)
    return made


def create(store: Store, rank: int, size: int, timeout: timedelta, ranks: Sequence[int], name: str, label: str = "gradcomp") -> ProcessGroup:
    """A process group. `ranks`: of the default group, that are in it; none: this is the default group.

    The ranks of the default group are a job, which attached models share, and other groups are parts of it, made without a word
    to anybody. Beside a default group of another backend a group is a job of its own."""
    global _home
    _serve_monitored_barrier()
    home, mine = _home, list(ranks)
    if not mine or home is None:
        home, mine = _Home(*_job(store, rank, size, timeout, shared=not ranks)), list(range(size))
        if not ranks:
            _home = home
    return ProcessGroup(_Channel(home, mine, timeout), store, rank, size, timeout, name, label)


def stats(plain: bool = False) -> list[dict[str, Any]]:
    """What policies have matched on this rank: a row for each group, operation and entry. `calls`, of which `plain` went as they are,
    since nothing was known of them, and `remembered` with error memory; `bytes` of numbers that they were given; `dense_bytes` this rank
    would have sent without a code, `wire_bytes` it has sent, and `ratio`, how many times fewer; `seconds` in all.
    With plain=True also a row, whose `entry` and `seconds` are None, for each group and operation (those that a policy names, and
    `send`) that a policy has let pass; what a ring sends is its `wire_bytes`."""
    return [row for policy in _policies for row in policy.stats(plain)]


def _job(store: Store, rank: int, size: int, timeout: timedelta, shared: bool) -> tuple[_jobs.Job, bool]:
    """(The job, whether it has been made here.)"""
    job = _jobs.joined() if shared else None
    if job is not None and (job.rank, job.nranks) == (rank, size):
        try:
            job.check()
            return job, False
        except Error:
            pass  # it has failed
    job = _jobs.Job(store=_Wiring(store, rank, size, timeout))
    if shared:
        _jobs.adopt(job)
    return job, True


def _serve_monitored_barrier() -> None:
    """torch.distributed.monitored_barrier() refuses all backends but one, by name."""
    theirs = _c10d.monitored_barrier
    if hasattr(theirs, "_gradcomp"):
        return

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        own = group or dist.group.WORLD
        if not isinstance(own, ProcessGroup):
            theirs(group, timeout, wait_all_ranks)
            return
        own.monitored_barrier(timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout, wait_all_ranks)

    monitored_barrier.__doc__ = theirs.__doc__
    monitored_barrier._gradcomp = True  # type: ignore[attr-defined]
    _c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


def _end(failed: BaseException | None) -> None:
    """When the program ends without destroy_process_group(), or has just called it."""
    if failed is not None:
        return
    for channel in list(_channels):
        channel.close("the program has ended", _AT_EXIT, at_exit=True)
    for thread in list(_leaving):
        thread.join()


_jobs.at_exit(_end)
