"""What attach() returns, whatever the model is: state for checkpoints, counters, and callbacks after steps."""

from __future__ import annotations

import collections
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Dict

import torch
from torch.utils.hooks import RemovableHandle

from . import _lib
from ._pytorch import NotSaved
from .job import Group

# What every stats() has, of gradcomp_reducer_stats.
COUNTERS = tuple(str(name) for name, *_ in _lib.ReducerStats._fields_[1:])


class Stats(Dict[str, float]):
    """Counters since attach(), those of Reducer.stats(), all of them and always. They are sums over what is communicated; `parts`
    has those of each: all_reduce of a replicated model, reduce_scatter, all_gather and all_reduce of a sharded one."""

    def __init__(self, counters: Mapping[str, float] | None = None, parts: Mapping[str, Mapping[str, float]] | None = None):
        super().__init__({**dict.fromkeys(COUNTERS, 0), **(counters or {})})
        self.parts: dict[str, dict[str, float]] = {name: dict(part) for name, part in (parts or {}).items()}

    def __missing__(self, name: str) -> Any:
        """A part by its name: stats["reduce_scatter"] is stats.parts["reduce_scatter"]."""
        return self.parts[name]


Callback = Callable[[int, Stats], object]


class Watched(NotSaved):
    """Has steps that callbacks are told of."""

    _steps = 0  # that have been reduced here

    def __init__(self) -> None:
        self._callbacks: collections.OrderedDict[int, Callback] = collections.OrderedDict()

    def stats(self) -> Stats:
        raise NotImplementedError

    def on_step(self, callback: Callback) -> RemovableHandle:
        """callback(step, stats) when the gradients of a step have been averaged, at the end of its backward pass and on the thread
        that runs that; `step` counts from 1, `stats` are those of stats(), which averages that come late are not in yet. What it
        raises comes out of backward(). Never called where gradcomp was not asked for. The handle that is returned has remove()."""
        if not callable(callback):
            raise TypeError(f"on_step() takes a function of a step and its counters, not a {type(callback).__name__}")
        handle = RemovableHandle(self._callbacks)
        self._callbacks[handle.id] = callback
        return handle

    def _stepped(self) -> None:
        if self._callbacks:
            stats = self.stats()
            for callback in list(self._callbacks.values()):
                callback(self._steps, stats)


class Attachment(Watched):
    """What attach() returns: the state to put in a checkpoint, counters, and the end. Without --gradcomp and GRADCOMP it does
    nothing and has an empty state."""

    automatic = False  # made by gradcomp.autoload, not by the program
    _owes = False  # averages that are not in the weights yet
    _delay = 0

    def state_dict(self, in_flight: bool = False, shared: bool = False) -> dict[str, Any]:
        """This rank's state, between steps; with shared=True one for any number of ranks, the same on all, which call this
        together."""
        del in_flight, shared
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state of either kind, on all ranks together."""
        del state

    @property
    def shared(self) -> Shared:
        """The state for all ranks, as an object to give to what saves one file for all."""
        return Shared(self)

    def drain(self, optimizer: torch.optim.Optimizer) -> None:
        """With a delay: applies what is late. Else nothing."""
        del optimizer

    def detach(self) -> None:
        """Undoes attach(), on all ranks between the same steps. A second call does nothing."""

    def stats(self) -> Stats:
        """Counters since attach(); also after detach()."""
        return Stats()


class Held(Attachment):
    """One that holds objects of the library's, until its end: detach(), or when nothing refers to it any more, or at exit."""

    _end: weakref.finalize[..., Any]

    def __init__(self, group: Group):
        super().__init__()
        self._group = group
        self._pid = os.getpid()  # a forked child owns none of this
        self._stats = Stats()  # the last ones, after detach()

    def _hold(self, free: Callable[..., object], *held: object) -> None:
        """free(*held, the process) is called at the end."""
        self._end = weakref.finalize(self, free, *held, self._pid)
        self._end.atexit = False  # the job's own way to leave comes first

    def _check_alive(self) -> None:
        if not self._end.alive:
            raise _lib.Error(_lib.ERR_STATE, "this attachment has been detached; attach(model) makes another")

    def _late(self) -> str:
        return "step" if self._delay == 1 else f"{self._delay} steps"


class Shared:
    """state_dict(shared=True) and load_state_dict() of an attachment under the names that are looked for
    in an object: accelerator.register_for_checkpointing(attachment.shared). All ranks call each together."""

    def __init__(self, attachment: Attachment):
        self._attachment = attachment

    def state_dict(self) -> dict[str, Any]:
        return self._attachment.state_dict(shared=True)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._attachment.load_state_dict(state)


def queue_callback(call: Callable[[], object]) -> None:
    """call() at the end of the backward pass that runs now, behind what has been queued. RuntimeError: none runs."""
    getattr(torch.autograd.Variable, "_execution_engine").queue_callback(call)


def after_backward(call: Callable[[], object]) -> bool:
    """Has call() called at the end of the backward pass that runs now, behind what DistributedDataParallel and FSDP do there. False
    where none runs, as in the shadow passes of join(): it is not called."""
    try:
        queue_callback(lambda: queue_callback(call))
    except RuntimeError:
        return False
    return True
