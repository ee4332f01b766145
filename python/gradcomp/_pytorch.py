"""What the modules for PyTorch share."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Tuple

import torch
from torch import Tensor

from . import _lib, _log, job

Named = Sequence[Tuple[str, Tensor]]  # parameters with their names
Orders = Mapping[str, Sequence[int]]  # unusual_orders()

_freeing: list[threading.Thread] = []
_left: list[Callable[[], object]] = []  # for which there could be none
_freeing_lock = threading.RLock()  # a thread that holds it may collect garbage


class NotSaved:
    """What has threads and connections, and a state_dict() for checkpoints."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be copied or saved: save what its state_dict() returns")


def as_tensor(state: bytes) -> Tensor:
    """A state's bytes, as what checkpoints are made of."""
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def as_bytes(tensor: Any) -> bytes:
    if not torch.is_tensor(tensor):
        raise _lib.Error(_lib.ERR_INVALID, f"{described(tensor)} stands where a state has a tensor: give load_state_dict() what "
                                           "state_dict() returned")
    kept = tensor.cpu().contiguous()
    return ctypes.string_at(kept.data_ptr(), kept.numel())


def is_empty(state: Any) -> bool:
    """Whether it is that of a run without gradcomp."""
    return state is None or isinstance(state, Mapping) and not state


def memory_order(parameter: Tensor) -> tuple[int, ...]:
    """The dimensions that have an order in memory (more than one element), outermost first: of a parameter without gaps, and
    of its gradient in a bucket of DDP; where there are gaps gradients have the order of the indices."""
    strides = torch.empty_like(parameter, device="meta").stride()
    return tuple(sorted((d for d, n in enumerate(parameter.shape) if n > 1), key=lambda d: -strides[d]))


def memory_shape(parameter: Tensor) -> tuple[int, ...]:
    """Its shape as it lies in memory, so that a matrix has rows where memory has."""
    order = iter(memory_order(parameter))
    return tuple(parameter.shape[next(order)] if n > 1 else n for n in parameter.shape)


def unusual_orders(named: Named) -> dict[str, tuple[int, ...]]:
    """{name: memory_order()} of those that do not lie in the order of their indices."""
    orders = {name: memory_order(p) for name, p in named}
    return {name: order for name, order in orders.items() if list(order) != sorted(order)}


def check_orders(group: job.Group, named: Named) -> None:
    """Fails on all ranks where one of them has a parameter in another order. DistributedDataParallel looks itself."""
    orders = [str(memory_order(p)) for _, p in named]
    own = torch.tensor([zlib.crc32(o.encode()) for o in orders], dtype=torch.int64)
    every = torch.empty(group.nranks, len(orders), dtype=torch.int64)
    group.allgather(own, every, [len(orders)] * group.nranks)
    for rank, theirs in enumerate(every):
        for i in (theirs != every[0]).nonzero().flatten().tolist()[:1]:
            raise _lib.Error(_lib.ERR_MISMATCH, f"parameter {named[i][0]} lies in memory in another order on rank {rank} than on "
                                                "rank 0: gradients are added as they lie, so convert the model alike on all ranks "
                                                "(model.to(memory_format=...)) before attach()")


def as_state(saved: bytes, orders: Orders, **more: Any) -> dict[str, Any]:
    """What state_dict() of an attachment returns: numbers that lie as the parameters do, and how that is where it is unusual."""
    return {"gradcomp": as_tensor(saved), **more, **({"order": orders} if orders else {})}


def _lies_elsewhere(saved: Orders, orders: Orders) -> str | None:
    """Why a state of these orders is none for parameters of those; None where it is."""
    for name in sorted({*saved, *orders}):
        both = [tuple(o[name]) if name in o else None for o in (saved, orders)]
        if both[0] != both[1]:
            theirs, own = (f"in the order {o} of its dimensions" if o else "in the usual order" for o in both)
            return (f"the state is of a model whose parameter {name} lies in memory {theirs}, and here it lies {own}: convert the "
                    "model as it was (model.to(memory_format=...)) before DistributedDataParallel and attach()")
    return None


def load(state: Any, orders: Orders, take: Callable[[bytes], object]) -> None:
    """take(bytes) of what state_dict() of an attachment has given, with the unusual_orders() of its model. All ranks are in
    take() together, so one that was given something else has it refuse nothing, which tells the others."""
    saved = state.get("gradcomp") if isinstance(state, Mapping) else None
    wrong = (_lies_elsewhere(state.get("order", {}), orders) if torch.is_tensor(saved) else
             f"{described(state)} is no state of a model that DistributedDataParallel wraps: give load_state_dict() what "
             "state_dict() returned")
    try:
        take(b"" if wrong else as_bytes(saved))
    except _lib.Error as e:
        if not wrong or isinstance(e, _lib.PeersLost):
            raise
        raise _lib.Error(e.status, wrong) from None


def described(state: Any) -> str:
    if not isinstance(state, Mapping):
        name = type(state).__name__
        return f"a{'n' * (name[0] in 'aeiou')} {name}"
    if not state:
        return "an empty dict"
    names = sorted(map(str, state))
    return f"a dict with {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"


def without_compile(model: Any) -> Any:
    """The module that torch.compile() was given."""
    while isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
        model = model._orig_mod
    return model


def sharded(model: torch.nn.Module) -> Iterator[tuple[Any, list[Any]]]:
    """(module, its FSDPParamGroups) of all within a model that fully_shard() was given and that have parameters; of a list of
    modules, which share theirs, the first."""
    seen: set[int] = set()
    module: Any
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        if groups[0] is not None and id(groups[0]) not in seen:
            seen.update(map(id, groups))
            yield module, groups


def device_memory(where: torch.device) -> job.DeviceMemory:
    """PyTorch's own memory of the device, for a Reducer or a Coder."""
    def alloc(bytes: int, stream: int) -> int | None:
        try:
            address: int = torch.cuda.caching_allocator_alloc(bytes, where, stream)
            return address
        except RuntimeError as e:  # out of memory: PyTorch's words are worth more than ours
            _log.warn(e)
            return None

    return alloc, torch.cuda.caching_allocator_delete


def free(function: Callable[[], object], pid: int) -> None:
    """What frees a reducer, for a finalizer; in a forked child that is its parent's."""
    if os.getpid() != pid:
        return
    # The garbage collector may run on any thread, those that a reducer's free() waits for too.
    if isinstance(threading.current_thread(), threading._DummyThread):
        with _freeing_lock:
            thread = threading.Thread(target=function)
            try:
                thread.start()
            except RuntimeError:  # Python 3.12 starts none when it ends
                _left.append(function)
            else:
                _freeing[:] = [t for t in _freeing if t.is_alive()] + [thread]
    else:
        function()


def _freed(failed: BaseException | None) -> None:
    """The interpreter no longer waits for threads that are started when it ends; a job is left when all of it is free."""
    if failed is None:
        with _freeing_lock:
            threads, functions = list(_freeing), list(_left)
            _left.clear()
        for thread in threads:
            thread.join()
        for function in functions:
            function()


def _forked() -> None:
    """Threads of the parent's are not there, nor is who may have held the lock."""
    global _freeing_lock
    _freeing_lock = threading.RLock()
    _freeing.clear()
    _left.clear()


job.at_exit(_freed)
os.register_at_fork(after_in_child=_forked)


def end(finalizer: weakref.finalize[..., Any]) -> None:
    """At exit, when weakref has shut its own finalizers down."""
    left = finalizer.detach()
    if left is not None:
        left[1](*left[2])
