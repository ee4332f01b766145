"""Calls of the backend as events of PyTorch's profiler, with the shapes of their tensors, that end on another thread than they
began on: by that the profiler knows that a call goes on beside the program."""

import itertools
from typing import Any, Dict, List

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


_until: Dict[int, List[Any]] = {}  # events by number
_forks: List[Any] = []  # that end them
_numbers = itertools.count()
_fork_until: Any = None


def enabled() -> bool:
    """Whether events are recorded now, by a PyTorch in which begin() and until() have what they need."""
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False)) and bool(torch.__version__ >= (2, 6))


def until(title: str, tensors: List[Tensor]) -> Any:
    """Begins an event, which ends when the future that is returned gets a result, on any thread. Only while enabled()."""
    global _drop, _fork_until
    event = begin(title, tensors)
    if _fork_until is None:
        ignored: Any = torch.jit.ignore
        _drop = ignored(_drop)
        _fork_until = torch.jit.script(_forked_until)
    number, over = next(_numbers), torch.futures.Future()  # type: ignore[var-annotated]
    _until[number] = event
    torch._C._autograd._enable_record_function(False)
    try:
        _forks.append(_fork_until(over, number))
    finally:
        torch._C._autograd._enable_record_function(True)
    return over


def settle() -> None:
    """Returns when the events whose futures have their results have ended."""
    while _forks:
        _forks.pop().wait()


def _drop(number: int) -> int:
    _until.pop(number).clear()
    return 0


def _waiting(over: torch.jit.Future[int], number: int) -> int:
    _wait(over)  # whose result is Python's
    return _drop(number)


def _forked_until(over: torch.jit.Future[int], number: int) -> torch.jit.Future[int]:
    return _fork(_waiting, over, number)
