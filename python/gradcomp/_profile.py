"""Calls as events of PyTorch's profiler that end on another thread than they began on: by that the profiler knows that a
call goes on beside the program. And what the library's own threads do, of which the profiler knows nothing."""

import collections
import itertools
import threading
from typing import Any, Deque, Dict, List, Tuple

import torch
from torch import Tensor

from . import _lib

_fork: Any = torch.jit.fork
_wait: Any = torch.jit.wait
_ending: List[List[Any]] = []
_fork_to_end: Any = None
_version: Any = torch.__version__
_recent = bool(_version >= (2, 6))  # has what is used here


def enabled() -> bool:
    """Whether events are recorded now."""
    return _recent and bool(torch.autograd.profiler._is_profiler_enabled)


def begin(title: str, tensors: List[Tensor]) -> List[Any]:
    """An event, in a list that alone refers to it. Only while enabled()."""
    global _clear, _fork_to_end
    if _fork_to_end is None:
        ignored: Any = torch.jit.ignore
        _clear = ignored(_clear)
        _fork_to_end = torch.jit.script(_forked)
        end([])  # what takes long the first time is not to be in an event
    return _event(title, tensors)


def _event(title: str, tensors: List[Tensor]) -> List[Any]:
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
    _unseen(_fork_to_end, 0)


def _unseen(function: Any, *given: Any) -> Any:
    """What TorchScript does is no event of its own: one could still be written to when the profiler has stopped."""
    torch._C._autograd._enable_record_function(False)
    try:
        return function(*given)
    finally:
        torch._C._autograd._enable_record_function(True)


# Events that end, or begin, on threads of the library. TorchScript waits for a future without a thread that waits, and goes
# on where it has the profiler's state.

_until: Dict[int, List[Any]] = {}  # events by number
_numbers = itertools.count()
_forks: List[Any] = []  # what TorchScript has been given
_scripts: Dict[str, Any] = {}


def until(title: str, tensors: List[Tensor]) -> Any:
    """Begins an event, which ends when the future that is returned gets a result, on any thread. Only while enabled()."""
    if not _scripts:
        _make_scripts()
    number = next(_numbers)
    over: Any = torch.futures.Future()
    _until[number] = begin(title, tensors)
    _forks.append(_unseen(_scripts["until"], over, number))
    return over


def settle() -> None:
    """Returns when events have ended whose futures have their results, and stages of which the library has told. On the thread
    that has called until() and follow()."""
    global _following
    if _following:
        _following = False
        _tell(None)
    while _forks:
        _forks.pop().wait()


def _make_scripts() -> None:
    global _drop, _next_word, _take_words
    ignored: Any = torch.jit.ignore
    _drop = ignored(_drop)
    _next_word = ignored(_next_word)
    _take_words = ignored(_take_words)
    _scripts.update(until=torch.jit.script(_forked_until), stages=torch.jit.script(_forked_stages))


def _drop(number: int) -> int:
    _until.pop(number).clear()
    return 0


def _drop_after(over: torch.jit.Future[int], number: int) -> int:
    _wait(over)  # whose result is Python's
    return _drop(number)


def _forked_until(over: torch.jit.Future[int], number: int) -> torch.jit.Future[int]:
    forked: torch.jit.Future[int] = _fork(_drop_after, over, number)
    return forked


_NAMES = ("gradcomp:encode", "gradcomp:exchange", "gradcomp:decode")
_lock = threading.Lock()
_watcher: Any = None  # while the library has it; kept for ever, since a call may be under way
_words: Deque[Any] = collections.deque()  # (begins, what) of stages; None: follow no more
_word: Any = None  # the future of the next one, while it is waited for
_stages: Dict[Tuple[int, int, int], List[Any]] = {}  # events by stage, bucket and thread
_watching = _following = False


def follow() -> None:
    """Has the stages of the library's reducers be events while enabled(), until settle(). Before gradients are handed over."""
    global _watcher, _watching, _following
    on = enabled()
    if on != _watching:
        if _watcher is None:
            _watcher = _lib.STAGES(_told)
        _lib.lib().watch_phases(_watcher if on else _lib.STAGES(), None)
        _watching = on
        if not on:
            settle()
            _words.clear()
            _stages.clear()
    if on and not _following:
        if not _scripts:
            _make_scripts()
        _following = True
        _forks.append(_unseen(_scripts["stages"], 1))


def _told(_ctx: Any, stage: int, bucket: int, begins: int) -> None:
    _tell((begins, (stage, bucket, threading.get_ident())))


def _tell(word: Any) -> None:
    global _word
    with _lock:
        _words.append(word)
        waits, _word = _word, None
    if waits is not None:
        waits.set_result(0)


def _next_word() -> torch.jit.Future[int]:
    global _word
    made: Any = torch.futures.Future()
    future: torch.jit.Future[int] = made
    with _lock:
        if not _words:
            _word = made
            return future
    made.set_result(0)
    return future


def _take_words() -> int:
    """0 when no more are to follow."""
    torch._C._autograd._enable_record_function(True)  # which is off here, as _unseen() had it
    try:
        while _words:
            word = _words.popleft()
            if word is None:
                return 0
            begins, stage = word
            if begins:
                _stages[stage] = _event(_NAMES[stage[0]], [])
            else:
                _stages.pop(stage, []).clear()
    finally:
        torch._C._autograd._enable_record_function(False)
    return 1


def _stages_until(given: int) -> int:
    while given > 0:
        _wait(_next_word())
        given = _take_words()
    return given


def _forked_stages(given: int) -> torch.jit.Future[int]:
    forked: torch.jit.Future[int] = _fork(_stages_until, given)
    return forked
