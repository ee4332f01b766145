"""Calls of the backend as events of PyTorch's profiler, with the shapes of their tensors, that end on another thread than they
began on: by that the profiler knows that a call goes on beside the program."""

from typing import Any, List

import torch
from torch import Tensor

_fork: Any = torch.jit.fork
_wait: Any = torch.jit.wait
_ending: List[List[Any]] = []
_fork_to_end: Any = None


def begin(title: str, tensors: List[Tensor]) -> List[Any]:
    """An event, in a list that alone refers to it. Only while torch.autograd.profiler._is_profiler_enabled."""
    global _clear, _fork_to_end
    if _fork_to_end is None:
        ignored: Any = torch.jit.ignore
        _clear = ignored(_clear)
        _fork_to_end = torch.jit.script(_forked)
        end([])  # what takes long the first time is not to be in an event
    event = torch._C._profiler._RecordFunctionFast(title, tensors)
    event.__enter__()
    return [event]


def _clear() -> int:
    _ending.pop().clear()  # the event ends with the last that refers to it
    return 0


def _scripted(given: int) -> int:
    return given + _clear()


# TorchScript's threads have the profiler's state of the one that forks, without which an event has no end; Python's own
# threads have not.
def _forked(given: int) -> int:  # fork() takes no function without an argument
    ended: int = _wait(_fork(_scripted, given))
    return ended


def end(event: List[Any]) -> None:
    _ending.append(event)
    # What TorchScript does is no event of its own: one could still be written to when the profiler has stopped.
    torch._C._autograd._enable_record_function(False)
    try:
        _fork_to_end(0)
    finally:
        torch._C._autograd._enable_record_function(True)
