"""What the modules for PyTorch share."""

import ctypes
import os
import sys
import threading
from collections.abc import Mapping

import torch

from . import _lib, job

_freeing = []  # threads
_left = []  # functions for which there could be none
_freeing_lock = threading.RLock()  # a thread that holds it may collect garbage


class NotSaved:
    """What has threads and connections, and a state_dict() for checkpoints."""

    def __reduce_ex__(self, protocol):
        raise TypeError(f"{type(self).__name__} cannot be copied or saved: save what its state_dict() returns")


def as_tensor(state):
    """A state's bytes, as what checkpoints are made of."""
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def as_bytes(tensor):
    if not torch.is_tensor(tensor):
        raise _lib.Error(_lib.ERR_INVALID, f"{described(tensor)} stands where a state has a tensor: give load_state_dict() what "
                                           "state_dict() returned")
    kept = tensor.cpu().contiguous()
    return ctypes.string_at(kept.data_ptr(), kept.numel())


def is_empty(state):
    """Whether it is that of a run without gradcomp."""
    return state is None or isinstance(state, Mapping) and not state


def load(state, take):
    """take(bytes) of what state_dict() of an attachment has given. All ranks are in take() together, so one that was given
    something else has it refuse nothing, which tells the others."""
    saved = state.get("gradcomp") if isinstance(state, Mapping) else None
    usable = torch.is_tensor(saved)
    try:
        take(as_bytes(saved) if usable else b"")
    except _lib.Error as e:
        if usable or isinstance(e, _lib.PeersLost):
            raise
        raise _lib.Error(e.status, f"{described(state)} is no state of a model that DistributedDataParallel wraps: give "
                                   "load_state_dict() what state_dict() returned") from None


def described(state):
    if not isinstance(state, Mapping):
        name = type(state).__name__
        return f"a{'n' * (name[0] in 'aeiou')} {name}"
    if not state:
        return "an empty dict"
    names = sorted(map(str, state))
    return f"a dict with {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"


def without_compile(model):
    """The module that torch.compile() was given."""
    while isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
        model = model._orig_mod
    return model


def sharded(model):
    """(module, its FSDPParamGroups) of all within a model that fully_shard() was given and that have parameters."""
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        if groups[0] is not None:
            yield module, groups


def device_memory(where):
    """PyTorch's own memory of the device, for a Reducer or a Coder."""
    def alloc(bytes, stream):
        try:
            return torch.cuda.caching_allocator_alloc(bytes, where, stream)
        except RuntimeError as e:  # out of memory: PyTorch's words are worth more than ours
            print(f"gradcomp: {e}", file=sys.stderr)
            return None

    return alloc, torch.cuda.caching_allocator_delete


def free(function, pid):
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


def _freed(failed):
    """The interpreter no longer waits for threads that are started when it ends; a job is left when all of it is free."""
    if failed is None:
        with _freeing_lock:
            threads, functions = list(_freeing), list(_left)
            _left.clear()
        for thread in threads:
            thread.join()
        for function in functions:
            function()


def _forked():
    """Threads of the parent's are not there, nor is who may have held the lock."""
    global _freeing_lock
    _freeing_lock = threading.RLock()
    _freeing.clear()
    _left.clear()


job.at_exit(_freed)
os.register_at_fork(after_in_child=_forked)


def end(finalizer):
    """At exit, when weakref has shut its own finalizers down."""
    left = finalizer.detach()
    if left is not None:
        left[1](*left[2])
