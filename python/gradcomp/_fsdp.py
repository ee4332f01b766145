"""Sharded models through gradcomp: what torch.attach() makes of fully_shard() (FSDP2), of
FullyShardedDataParallel (FSDP1), and of fully_shard() on a mesh of two dimensions (HSDP).

FSDP2   The collectives that fully_shard() lets a program replace since PyTorch 2.9. Gradients are
        reduce-scattered and parameters all-gathered under a code, each through a Coder: the two overtake
        each other. Shards, the optimizer's state and checkpoints stay exact; what is rounded is what
        goes over the network.
HSDP    Gradients are averaged between the replicas of a shard by a Reducer, with whatever compressor and
        its error memory. Its tensors are this rank's shards of the parameters, in their shapes.
FSDP1   Its communication hook has gradients only.

One `_Backward` a model keeps what is on its way: reductions are started in backward and waited
for at its end, by a callback of autograd's.

On a GPU to wait for a call is to have the current stream come after it (`_Order`): the host waits
until the call is on the device, which other ranks have a part in, and never for the device.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from . import _lib, _profile, _pytorch
from ._attachment import Held, Shared, Stats, after_backward, queue_callback
from ._lib import Error
from .coder import Coder, Request
from .job import Group, Job, Reducer

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_WHERE = "shards are coded in host memory or on one CUDA device"
_MOST_REDUCTIONS = 2  # reduce-scatters in flight, which hold unsharded gradients

_known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # models that have been attached before: they may have run
_in_force: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Sharded]] = weakref.WeakKeyDictionary()

_Made = TypeVar("_Made")
# FSDPParamGroup, FSDPParam, and modules with FSDPModule's functions: PyTorch's own, which it may change.
ParamGroup = Any
Param = Any
Module = Any
GroupOf = Callable[[Any], Group]  # of a process group


def kind(model: object) -> str | None:
    """'fsdp2', 'fsdp1' or None."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(model, torch.nn.Module):
        return None
    for name, cls in (("fsdp2", _fsdp_module()), ("fsdp1", getattr(fsdp, "FullyShardedDataParallel", None))):
        if cls is not None and any(isinstance(m, cls) for m in model.modules()):
            return name
    return None


def _fsdp_module() -> Any:
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)


def _refuse(text: str, status: int = _lib.ERR_UNSUPPORTED) -> Error:
    return _lib.Error(status, text)


class Sharded(Held):
    """Of a sharded model. state_dict() is this rank's own: every rank saves and
    loads its own. Ends with detach(), with the model, or with the program."""

    def __init__(self, parts: dict[str, Any], job: Job, free: Callable[..., object]):
        super().__init__(job.world)
        self._parts = parts
        self._undo: list[Callable[[], object]] = []  # how to give the model its own collectives back
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._residuals: _Residuals | None = None  # where ranks may share their state
        self._hold(free, _Together(parts), job.world)

    def detach(self) -> None:
        """Undoes attach(), on all ranks between the same steps: FSDP communicates by itself from now on. A second
        call does nothing."""
        if not self._end.alive:
            return
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        self._stats = self.stats()
        model = None if self._model is None else self._model()
        if model is not None:
            _in_force.pop(model, None)
        self._end()

    def state_dict(self, in_flight: bool = False, shared: bool = False) -> dict[str, Any]:
        """This rank's state (error memory), between steps only. With shared=True, of a model that fully_shard() shards without
        replicas, what codes owe (residual=True) as tensors that are sharded as the parameters are, for
        torch.distributed.checkpoint and any number of ranks; all ranks call it together."""
        del in_flight
        self._check_alive()
        if shared:
            if self._residuals is None:
                raise _refuse("state_dict(shared=True) of this sharded model: what a rank keeps belongs to its shards, so every "
                              "rank saves and loads its own, state_dict(), on as many ranks")
            return {"owed": self._residuals.save()}
        return {name: _pytorch.as_tensor(part.save())
                for name, part in self._parts.items() if hasattr(part, "save")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_alive()
        if _pytorch.is_empty(state):
            return
        if isinstance(state, Mapping) and set(state) == {"owed"} and self._residuals is not None:
            self._residuals.load(state["owed"])
            return
        known = {name for name, part in self._parts.items() if hasattr(part, "save")}
        if not isinstance(state, Mapping) or set(state) != known:
            raise _refuse(f"{_pytorch.described(state)} for a model with {_list(known)}: the state of an attachment is "
                          "for one made the same way", _lib.ERR_MISMATCH)
        for name, saved in state.items():
            self._parts[name].load(_pytorch.as_bytes(saved))

    @property
    def shared(self) -> Shared:
        """Of no use here: its state_dict() says why."""
        return _OneFile(self)

    def stats(self) -> Stats:
        """Counters, in all and by what is communicated: `parts` has reduce_scatter, all_gather, all_reduce, and all_gather_of_N,
        which reshard_after_forward=N gathers in backward, as Coder.stats() and Reducer.stats() have them. Of a coder convert_s is in
        encode_s, and coding in exchange_s. A step is a backward pass that has reduced gradients."""
        if not self._end.alive:
            return self._stats
        parts: dict[str, dict[str, float]] = {name: part.stats() for name, part in self._parts.items() if hasattr(part, "stats")}
        total = Stats(parts.get("all_reduce"), parts)
        for part in (p for name, p in parts.items() if name != "all_reduce"):
            for name in ("dense_bytes", "wire_bytes", "exchange_s", "exposed_s"):
                total[name] += part[name]
            total["encode_s"] += part["convert_s"]
            total["nonfinite_steps"] += part["nonfinite"]
        total["steps"] = self._steps
        return total

    def _reduced(self) -> None:
        """A backward pass has ended, with its gradients reduced."""
        self._steps += 1
        self._stepped()


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


class _OneFile(Shared):
    """What saves one file for all ranks would save one rank's shards."""

    def state_dict(self) -> dict[str, Any]:
        raise _refuse("one file for all ranks has no room for what each keeps of a sharded model: every rank saves and loads its own, "
                      "state_dict(), or torch.distributed.checkpoint saves state_dict(shared=True)")


class _Residuals:
    """What codes have lost of gradients, by parameter and for any number of ranks: the mean over ranks of what each keeps, sharded as
    the parameter is. The sum over ranks is what is owed, so that each of other ranks may begin with the mean. Empty where
    nothing is kept. All ranks call save() and load() together."""

    def __init__(self, shards: _Shards | None, groups: Sequence[ParamGroup], names: Mapping[Any, str]):
        self._shards, self._groups = shards, [weakref.ref(g) for g in groups] if shards is not None else []
        self._names = {id(p): names.get(p.sharded_param, "") for g in groups for p in g.fsdp_params}

    def _slots(self) -> Iterator[tuple[int, list[Param], list[int]]]:
        """(slot, its FSDPParams, numbers of each in a block of the reduce-scatter). FSDP puts shards one behind another."""
        for slot, held in enumerate(self._groups):
            group: ParamGroup = held()
            params = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
            if params:
                yield slot, params, [p.padded_sharded_param_size.numel() for p in params]

    def save(self) -> dict[str, Any]:
        from torch.distributed.tensor import DTensor

        state = {}
        for slot, params, sizes in self._slots():
            shards = self._held()
            counts = [sum(sizes)] * shards.nranks
            kept, whole, own = shards.read_slot(slot), torch.zeros(sum(counts)), torch.empty(sum(sizes))
            if kept and len(kept) != 4 * sum(counts):
                raise _refuse("state_dict(shared=True): some parameters had no gradient when the residual was made, or others are "
                              "trained now", _lib.ERR_STATE)
            if kept:
                whole.copy_(torch.frombuffer(kept, dtype=torch.float32))
            shards.group.reduce_scatter(whole, own, counts)
            own /= shards.nranks
            for p, part in zip(params, own.split(sizes)):
                of = p.sharded_param
                local = part[:p.sharded_size.numel()].view(p.sharded_size).clone().to(_local(of).device)
                state[self._names[id(p)]] = DTensor.from_local(local, of.device_mesh, of.placements, run_check=False, shape=of.shape,
                                                               stride=of.stride())
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        slots = list(self._slots())
        wanted = {self._names[id(p)]: p for _, params, _ in slots for p in params}
        if not isinstance(state, Mapping) or set(state) != set(wanted) or not all(map(torch.is_tensor, state.values())):
            raise _refuse(f"{_pytorch.described(state)} for the parameters {_list(wanted)}: the state is of another model, or of one "
                          f"with{'' if not wanted else 'out'} residual=True", _lib.ERR_MISMATCH)
        for name, p in wanted.items():
            if _local(state[name]).shape != p.sharded_size:
                raise _refuse(f"{name} has {list(_local(state[name]).shape)} of what is owed here, and its shard is {list(p.sharded_size)}: "
                              "load the state on these ranks with torch.distributed.checkpoint", _lib.ERR_MISMATCH)
        for slot, params, sizes in slots:
            shards = self._held()
            counts = [sum(sizes)] * shards.nranks
            own, whole = torch.zeros(sum(sizes)), torch.empty(sum(counts))
            for p, part in zip(params, own.split(sizes)):
                local = _local(state[self._names[id(p)]])
                part[:local.numel()].copy_(local.reshape(-1))
            shards.group.allgather(own, whole, counts)
            if shards.read_slot(slot) or whole.any():
                shards.write_slot(slot, counts, whole)

    def _held(self) -> _Shards:
        assert self._shards is not None
        return self._shards


class _Together:
    """The parts of an attachment, freed in turn."""

    def __init__(self, parts: dict[str, Any]):
        self._parts = parts

    def free(self) -> None:
        for part in self._parts.values():
            part.free()
        self._parts.clear()


class _Order:
    """The stream between PyTorch's and that of a coder or a reducer: it comes after the stream that is current when a
    call is started, and the one that is current when it has been waited for comes after it. On a CPU nothing."""

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make(self, cls: Callable[..., _Made], *arguments: Any, **named: Any) -> _Made:
        """A Coder or Reducer whose calls are in this order."""
        if self._stream is None:
            return cls(*arguments, **named)
        device = self._stream.device
        with torch.cuda.device(device):
            return cls(*arguments, **named, cuda=True, queue=self._stream.cuda_stream, memory=_pytorch.device_memory(device))

    def current(self) -> torch.cuda.Stream | None:
        return None if self._stream is None else torch.cuda.current_stream(self._stream.device)

    def before(self, *tensors: Tensor, made_on: torch.cuda.Stream | None = None) -> None:
        """What is started next reads what the current stream, and that of `made_on`, have made of the tensors; whose
        memory is not another's before the stream is done with them, whenever they are let go."""
        if self._stream is None:
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        if made_on is not None:
            self._stream.wait_stream(made_on)
        for tensor in tensors:
            tensor.record_stream(self._stream)

    def after(self) -> None:
        """What has been waited for comes before what is put on the current stream from now on."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class _Ordered:
    """A coder's call, when it has been waited for."""

    def __init__(self, request: Request, order: _Order, event: list[Any] | None):
        self.order, self.test, self._wait, self._event = order, request.test, request.wait, event

    def wait(self) -> None:
        self._wait()
        self.order.after()
        event, self._event = self._event, None
        if event is not None:
            _profile.end(event)


def _begun(name: str, tensor: Tensor) -> list[Any] | None:
    """An event of the profiler, while it is on."""
    return _profile.begin(f"gradcomp:{name}", [tensor]) if _profile.enabled() else None


class _Shards:
    """A Coder in its order."""

    def __init__(self, device: torch.device, group: Group, *arguments: Any):
        self._order = _Order(device)
        self._coder: Coder = self._order.make(Coder, group, *arguments)
        self.nranks, self.save, self.load = self._coder.nranks, self._coder.save, self._coder.load
        self.group, self.read_slot, self.write_slot = group, self._coder.read_slot, self._coder.write_slot
        self.stats, self.free = self._coder.stats, self._coder.free

    def reduce_scatter(self, parts: Tensor, out: Tensor, **options: Any) -> _Ordered:
        self._order.before(parts, out)
        event = _begun("reduce_scatter", parts)
        return _Ordered(self._coder.reduce_scatter(parts, out, **options), self._order, event)

    def all_gather(self, part: Tensor, out: Tensor) -> _Ordered:
        self._order.before(part, out)
        event = _begun("all_gather", part)
        return _Ordered(self._coder.all_gather(part, out), self._order, event)


class _Backward:
    """The reductions of a model that backward has started.

    Replicas' shards are handed over a layer late: the hook is called before FSDP has made
    gradients of what it is given, in whatever type, added to what, and in whatever order."""

    def __init__(self) -> None:
        self._scatters: collections.deque[tuple[_Ordered, Any]] = collections.deque()  # (call, what it holds)
        self._last: _Ordered | None = None  # scatter of this backward pass
        self._replicas: tuple[Reducer, _Order] | None = None
        self._shards: list[weakref.ref[Param]] = []
        self._index: dict[int, int] = {}
        self._given: dict[int, Tensor] = {}
        self._waiting: list[Param] = []
        self._made_on: torch.cuda.Stream | None = None
        self._reduces = False  # in this backward pass
        self.over: Callable[[], object] = lambda: None  # when one has ended that has reduced gradients

    def replicas(self, reducer: Reducer, order: _Order, shards: Sequence[Param]) -> None:
        """shards: the FSDPParams of the reducer's tensors."""
        self._replicas, self._shards = (reducer, order), [weakref.ref(s) for s in shards]
        self._index = {id(s): i for i, s in enumerate(shards)}

    def scatter(self, call: _Ordered, held: Any, deferred: bool) -> None:
        """Takes a reduce-scatter that was started; where it is not `deferred`, waits for it."""
        self._scatters.append((call, held))
        self._last = call
        if deferred:
            self._at_end()
        elif after_backward(self._finish):
            self._reduces = True
        self._wait_scatters(_MOST_REDUCTIONS if deferred else 0)

    def _wait_scatters(self, most: int) -> None:
        while len(self._scatters) > most:
            self._scatters.popleft()[0].wait()

    def reduced(self, group: ParamGroup) -> None:
        """FSDP has reduced a parameter group's gradients within the node, and makes gradients of them next."""
        self._at_end()
        self._hand_over()
        self._waiting = [p for p in group.fsdp_params if id(p) in self._index]
        self._made_on = self._between()[1].current()  # FSDP's, which makes gradients next

    def _between(self) -> tuple[Reducer, _Order]:
        """What averages between replicas."""
        assert self._replicas is not None
        return self._replicas

    def _hand_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._wait_scatters(0)
            self._give([(self._index[id(shard)], shard) for shard in waiting])

    def _give(self, shards: Iterable[tuple[int, Param]]) -> None:
        reducer, order = self._between()
        gradients = {index: _gradient(shard) for index, shard in shards}
        order.before(made_on=self._made_on)
        _profile.follow()
        for index, gradient in gradients.items():
            self._given[index] = gradient
            reducer.ready(index, gradient.data_ptr())

    def _at_end(self) -> None:
        try:
            queue_callback(self._finish)
            self._reduces = True
        except RuntimeError as e:
            raise _refuse(f"FSDP reduces gradients outside backward() here, where they cannot be waited for: {e}",
                          _lib.ERR_STATE) from None

    def _finish(self) -> None:
        """At the end of backward, possibly more than once."""
        self._average()
        if self._reduces:
            self._reduces = False
            # Behind all that is to be done at the end, this or FSDP's.
            queue_callback(self.over)

    def _average(self) -> None:
        self._wait_scatters(0)
        last, self._last = self._last, None
        if last is not None:  # those before were waited for on other streams
            last.order.after()
        self._hand_over()
        if not self._given:
            return
        # And zeroes of those that have none in this step.
        self._give([(index, shard()) for index, shard in enumerate(self._shards) if index not in self._given])
        reducer, order = self._between()
        reducer.wait()
        order.after()
        _profile.settle()
        self._given.clear()


def _gradient(shard: Param) -> Tensor:
    parameter = shard.sharded_param
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise _refuse("a parameter has a hook that uses its gradient within backward (an optimizer step?): between "
                      "replicas gradients are averaged until backward ends, so step after it", _lib.ERR_STATE)
    gradient = torch.zeros_like(_local(parameter)) if parameter.grad is None else _local(parameter.grad)
    if gradient.dtype != parameter.dtype or not gradient.is_contiguous():
        raise _refuse(f"a gradient of {gradient.dtype} for a parameter of {parameter.dtype}: averaging between "
                      "replicas takes gradients of the parameter's type")
    return gradient


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


class _Comm:
    """How FSDP2 gets memory for a collective."""

    def __init__(self, attachment: Sharded, coder: _Shards, fallback: Any):
        self._attachment, self._coder, self._fallback = attachment, coder, fallback

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _ReduceScatter(_Comm):
    def __init__(self, attachment: Sharded, coder: _Shards, fallback: Any, group: ParamGroup, backward: _Backward, slot: int | None):
        super().__init__(attachment, coder, fallback)
        self._group, self._backward, self._slot = weakref.ref(group), backward, slot
        self._numel = 0  # of a step's input, once known

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False) -> Any:
        if input_tensor.dtype not in _FLOATS:
            return self._fallback(output_tensor=output_tensor, input_tensor=input_tensor, group=group, op=op,
                                  async_op=async_op)
        nranks, fsdp = group.size(), self._group()
        slot = self._slot
        if slot is not None:
            self._numel = self._numel or input_tensor.numel()
            if self._numel != input_tensor.numel():  # some parameters had no gradient
                slot = None
        call = self._coder.reduce_scatter(input_tensor, output_tensor, scale=_scale(op, nranks, fsdp), slot=slot)
        self._backward.scatter(call, (input_tensor, output_tensor), _only_viewed(fsdp, input_tensor.dtype, op))
        return None


def _scale(op: Any, nranks: int, group: ParamGroup) -> float:
    if op == dist.ReduceOp.AVG:
        return 1.0 / nranks
    if op == dist.ReduceOp.SUM:
        return 1.0
    if group.gradient_divide_factor:
        return 1.0 / float(group.gradient_divide_factor)
    raise _refuse(f"a reduce-scatter with {op}: it must be a sum or an average")


def _only_viewed(group: ParamGroup, dtype: torch.dtype, op: Any) -> bool:
    """Whether FSDP only makes views of what a reduce-scatter gives, so that its numbers may come
    until the end of backward."""
    if op == dist.ReduceOp.SUM:  # divided later
        return False
    hook = group._all_reduce_hook
    if hook is not None and not getattr(hook, "waits", False):  # a program's own, which uses them at once
        return False
    for p in group.fsdp_params:
        parameter = p.sharded_param
        if not parameter.requires_grad:
            continue
        if (parameter.grad is not None or parameter.dtype != dtype or p.offload_to_cpu
                or getattr(p, "sharded_grad_dtype", None) not in (None, dtype)
                or getattr(parameter, "_post_accumulate_grad_hooks", None)):
            return False
    return True


class _Work(dist.Work):
    """A gather in flight: FSDP waits for it before it uses the parameters."""

    def __init__(self, call: _Ordered, held: Any):
        super().__init__()
        self._call: _Ordered | None = call
        self._held = held

    def wait(self, timeout: Any = None) -> bool:
        del timeout
        call, self._call = self._call, None
        if call is not None:
            call.wait()
        self._held = None
        return True

    def is_completed(self) -> bool:
        return self._call is None or self._call.test()


class _AllGather(_Comm):
    """`again`: of the smaller group of reshard_after_forward=N, in which backward gathers what forward has gathered
    before; None: there is none."""

    def __init__(self, attachment: Sharded, coder: _Shards, fallback: Any, nranks: int, again: _Shards | None):
        super().__init__(attachment, coder, fallback)
        self._nranks, self._again = nranks, again

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False) -> Any:
        coder = self._coder if group.size() == self._nranks else self._again
        if coder is None or input_tensor.dtype not in _FLOATS:
            return self._fallback(output_tensor=output_tensor, input_tensor=input_tensor, group=group,
                                  async_op=async_op)
        call = coder.all_gather(input_tensor, output_tensor)
        # Asynchronous even where FSDP asks for a blocking one: it waits for a Work that it is given.
        return _Work(call, (input_tensor, output_tensor))


def _groups(model: torch.nn.Module) -> list[tuple[Module, ParamGroup]]:
    """[(module, FSDPParamGroup)], where fully_shard() takes collectives for each."""
    found = list(_pytorch.sharded(model))
    for module, groups in found:
        if len(groups) > 1:
            raise _refuse(f"{type(module).__name__} has parameters on several meshes (shard_placement_fn): fully_shard() "
                          "takes one collective for a module, so shard those parts as modules of their own")
    return [(module, groups[0]) for module, groups in found]


def attached(group: ParamGroup) -> bool:
    """Whether what communicates for an FSDPParamGroup is ours."""
    return (any(isinstance(getattr(group, name, None), _Comm) for name in ("_reduce_scatter_comm", "_all_gather_comm"))
            or bool(getattr(getattr(group, "_all_reduce_hook", None), "waits", False)))


def _has_run(model: torch.nn.Module, groups: Iterable[tuple[Module, ParamGroup]]) -> bool:
    return model not in _known and any(m._get_fsdp_state()._is_root is not None for m, _ in groups)


def _specs(asked: str, reduce_scatter: str | None, all_gather: str | None) -> dict[str, str]:
    """The SPECs of both, where `asked` is for what is not named."""
    if all_gather is None:
        name, _, options = asked.partition(":")
        bits = dict(o.partition("=")[::2] for o in options.split(",")).get("bits", "8")
        # Weights bear less than gradients do.
        all_gather = "block:bits=8" if name == "block" and bits != "8" else asked
    return {"reduce_scatter": reduce_scatter or asked, "all_gather": all_gather}


def attach(model: torch.nn.Module, kind_of: str, free: Callable[..., object], group_of: GroupOf, join: Callable[[], Job],
           options: dict[str, Any]) -> Sharded:
    """The attachment of a sharded model. `group_of(process_group)` is the job's group of a process
    group's ranks, join() the job."""
    previous = _in_force.get(model)
    # Or a part of it, or what is around it.
    if previous is not None and previous() is not None or any(attached(g) for _, groups in _pytorch.sharded(model) for g in groups):
        raise _refuse("the model is attached already: use what the first attach() returned, or its detach() before "
                      "another attach()", _lib.ERR_STATE)
    if options["delay"]:
        raise _refuse("delay is for replicas (DistributedDataParallel): a shard's average cannot be late, or ranks "
                      "would gather different weights")
    make = _attach_fsdp2 if kind_of == "fsdp2" else _attach_fsdp1
    attachment = make(model, free, group_of, join, options)
    attachment._model = weakref.ref(model)
    _known.add(model)
    _in_force[model] = weakref.ref(attachment)
    return attachment


def _attach_fsdp2(model: torch.nn.Module, free: Callable[..., object], group_of: GroupOf, join: Callable[[], Job],
                  options: dict[str, Any]) -> Sharded:
    groups = _groups(model)
    if not groups:
        raise TypeError("fully_shard() has been given no parameters in this model")
    if not hasattr(groups[0][0], "set_custom_reduce_scatter"):
        raise TypeError(f"fully_shard() takes collectives from a program since PyTorch 2.9, and this is {torch.__version__}: "
                        "take a newer one, or FullyShardedDataParallel, or where the model fits into each rank's memory, wrap it in "
                        "DistributedDataParallel instead")
    if _has_run(model, groups):
        raise _refuse("the model has run already: attach() it after fully_shard() and before its first forward pass",
                      _lib.ERR_STATE)
    meshes = [g.mesh_info for _, g in groups]
    if any(not hasattr(m, "shard_process_group") for m in meshes):
        raise TypeError("attach() takes models that fully_shard() shards: replicate() of this PyTorch has no hook in "
                        "place of its all-reduce; wrap the model in DistributedDataParallel instead")
    hsdp = any(hasattr(m, "replicate_process_group") for m in meshes)
    if hsdp and any(g._all_reduce_hook is not None for _, g in groups):
        raise _refuse("the model has an all-reduce hook of somebody else's, and fully_shard() takes one: leave that "
                      "set_all_reduce_hook() out", _lib.ERR_STATE)
    names = {p: n for n, p in model.named_parameters()}
    for _, group in groups:
        for p in group.fsdp_params:
            _check(names.get(p.sharded_param, "a parameter"), p, group.device, groups[0][1].device, hsdp)
    if hsdp and not all(hasattr(m, "replicate_process_group") for m in meshes):
        raise _refuse("some modules of the model are sharded on a mesh with replicas and some without: use one mesh")
    if not hsdp:
        options = dict(options, reduce_scatter=options["reduce_scatter"] or options["compressor"])
        for name in ("bucket_bytes", "schedule"):
            if options[name]:
                raise TypeError(f"{name}: for averages between replicas, and the mesh of this model has one dimension")
    job = join()
    # With replicas, what the job names is for the links between nodes.
    device = groups[0][1].device
    asked, collective = ("none", "ring" if device.type == "cpu" else None) if hsdp else (
        job.setting("gradcomp.compressor") or "none", options["collective"])
    specs = _specs(asked, options["reduce_scatter"], options["all_gather"])

    made: dict[tuple[int, ...], Group] = {}
    parts: dict[str, Any] = {}
    own: list[Group] = []

    def group_for(process_group: Any) -> Group:
        """The job's group of a process group's ranks, made once."""
        ranks = tuple(dist.get_process_group_ranks(process_group))
        if ranks not in made:
            made[ranks] = group_of(process_group)
            if made[ranks] is not job.world:
                own.append(made[ranks])
        return made[ranks]

    backward = _Backward()
    try:
        coders = _coders(parts, group_for, [m.shard_process_group for m in meshes], device, specs, collective,
                         options["seed"])
        again = _coders_again(parts, group_for, groups if coders else [], device, options["seed"])
        if hsdp:
            parts["all_reduce"] = _replicas(groups, names, group_for, backward, device, options)
        for i, group in enumerate(own):
            parts[f"group {i}"] = group
    except BaseException:
        _Together({**parts, **{f"group {i}": g for i, g in enumerate(own)}}).free()
        raise
    attachment = Sharded(parts, job, free)
    backward.over = _weakly(attachment, Sharded._reduced)
    if not hsdp:
        attachment._residuals = _Residuals(coders.get("reduce_scatter") if options["residual"] else None, [g for _, g in groups], names)
    for slot, (module, group) in enumerate(groups):
        _take_over(attachment, module, group, coders, again, backward, slot if options["residual"] else None)
        if hsdp:
            _average_replicas(attachment, module, group, backward)
    return attachment


def _check_type(name: str, parameter: Tensor) -> None:
    if parameter.requires_grad and parameter.dtype not in _FLOATS:
        raise _refuse(f"parameter {name} is {str(parameter.dtype).replace('torch.', '')}: gradients are reduced as float32, "
                      "float16 or bfloat16: convert it")


def _check_device(name: str, device: torch.device, first: torch.device) -> None:
    if device != first or device.type not in ("cpu", "cuda"):
        raise _refuse(f"{name} is used on {device}: {_WHERE}" + (f", and others are on {first}" if device != first else ""))


def _check(name: str, p: Param, device: torch.device, first: torch.device, replicas: bool) -> None:
    _check_type(name, p.sharded_param)
    _check_device(f"parameter {name}", device, first)
    if replicas and device.type != "cpu" and p.offload_to_cpu:
        raise _refuse(f"parameter {name} is kept in host memory (CPUOffloadPolicy) and used on {device}: with replicas leave "
                      "the policy out")


def _coders(parts: dict[str, Any], group_for: GroupOf, process_groups: Sequence[Any], device: torch.device, specs: Mapping[str, str],
            collective: str | None, seed: int) -> dict[str, _Shards]:
    """{name: coder} of the ranks that share the shards; they are parts of the attachment too."""
    if len({tuple(dist.get_process_group_ranks(pg)) for pg in process_groups}) > 1:
        if set(specs.values()) == {"none"}:
            return {}  # FSDP's own are exact, too
        raise _refuse("modules of the model are sharded over different ranks: shards are coded among the same ones")
    if process_groups[0].size() == 1:
        return {}
    group = group_for(process_groups[0])
    for name, spec in specs.items():
        parts[name] = _Shards(device, group, spec, collective, seed, name)
    return {name: parts[name] for name in specs}


def _smaller_group(group: ParamGroup) -> Any:
    """The process group that backward gathers in, where reshard_after_forward=N makes it a smaller one; else None."""
    after = getattr(group.post_forward_mesh_info, "shard_process_group", None)
    return after if after is not None and 1 < after.size() < group.mesh_info.shard_process_group.size() else None


def _coders_again(parts: dict[str, Any], group_for: GroupOf, groups: Iterable[tuple[Module, ParamGroup]], device: torch.device,
                  seed: int) -> dict[int, _Shards]:
    """{number of ranks: coder} of the smaller groups. They keep forward's weights, which have been under a code already,
    and pass them on as they are."""
    made: dict[int, _Shards] = {}
    for _, group in groups:
        process_group = _smaller_group(group)
        n = process_group.size() if process_group is not None else 0
        if n and n not in made:
            name = f"all_gather_of_{n}"
            made[n] = parts[name] = _Shards(device, group_for(process_group), "none", "ring" if device.type == "cpu" else None, seed, name)
    return made


def _take_over(attachment: Sharded, module: Module, group: ParamGroup, coders: Mapping[str, _Shards], again: Mapping[int, _Shards],
               backward: _Backward, slot: int | None) -> None:
    """Puts our collectives in the place of the module's own."""
    nranks = group.mesh_info.shard_process_group.size()
    if nranks == 1:
        return
    if "reduce_scatter" in coders:
        own = group._reduce_scatter_comm
        module.set_custom_reduce_scatter(_ReduceScatter(attachment, coders["reduce_scatter"], own, group, backward, slot))
        attachment._undo.append(_weakly(module, lambda m: m.set_custom_reduce_scatter(own)))
    if "all_gather" in coders:
        theirs = group._all_gather_comm
        smaller = _smaller_group(group)
        module.set_custom_all_gather(_AllGather(attachment, coders["all_gather"], theirs, nranks,
                                                again[smaller.size()] if smaller is not None else None))
        attachment._undo.append(_weakly(module, lambda m: m.set_custom_all_gather(theirs)))


def _weakly(module: _Made, undo: Callable[[_Made], object]) -> Callable[[], None]:
    to = weakref.ref(module)

    def do() -> None:
        m = to()
        if m is not None:
            undo(m)

    return do


def _replicas(groups: Sequence[tuple[Module, ParamGroup]], names: Mapping[Any, str], group_for: GroupOf, backward: _Backward,
              device: torch.device, options: dict[str, Any]) -> Reducer:
    """The reducer between replicas: a tensor for every parameter that this rank has a shard of."""
    shards = [p for _, g in groups for p in g.fsdp_params if p.sharded_param.requires_grad and _local(p.sharded_param).numel()]
    tensors = [(names[p.sharded_param], tuple(_local(p.sharded_param).shape), p.sharded_param.dtype) for p in shards]
    same = {id(g.mesh_info.replicate_process_group): g.mesh_info.replicate_process_group for _, g in groups}
    ranks = {tuple(dist.get_process_group_ranks(pg)) for pg in same.values()}
    if len(ranks) > 1:
        raise _refuse("modules of the model are sharded on different meshes: replicas are averaged over one")
    order = _Order(device)
    reducer: Reducer = order.make(Reducer, group_for(next(iter(same.values()))), tensors, None,
                         **{k: options[k] for k in ("compressor", "collective", "bucket_bytes", "seed", "schedule")})
    backward.replicas(reducer, order, shards)
    return reducer


def _average_replicas(attachment: Sharded, module: Module, group: ParamGroup, backward: _Backward) -> None:
    """FSDP reduces within the shards' mesh, then calls us in place of its own all-reduce between
    replicas: a mesh of one dimension is what it has that for. Parameters stay on both."""
    info, after = group.mesh_info, group.post_forward_mesh_info
    inner = next(c for c in type(info).__mro__ if c.__name__ == "FSDPMeshInfo")
    fields = {f.name: getattr(info, f.name) for f in dataclasses.fields(inner) if f.init}
    shards = inner(**dict(fields, replicate_mesh_dim=None))
    group.mesh_info = shards
    if after is info:
        group.post_forward_mesh_info = shards
    held = weakref.ref(group)

    def averaged(reduced: Tensor) -> None:
        del reduced
        g: ParamGroup = held()
        if not g.all_reduce_grads:
            raise _refuse("set_requires_all_reduce(False): to accumulate gradients take "
                          "set_requires_gradient_sync(False) instead, which keeps them from the network altogether",
                          _lib.ERR_STATE)
        if g.gradient_divide_factor is not None:
            raise _refuse("set_gradient_divide_factor() with replicas: gradients are averaged; scale the loss instead",
                          _lib.ERR_STATE)
        attachment._check_alive()
        backward.reduced(g)

    setattr(averaged, "waits", True)
    module.set_all_reduce_hook(averaged)

    def undo(m: Module) -> None:
        m.set_all_reduce_hook(None)
        g: ParamGroup = held()
        g.mesh_info = info
        if g.post_forward_mesh_info is shards:
            g.post_forward_mesh_info = info

    attachment._undo.append(_weakly(module, undo))


def _attach_fsdp1(model: torch.nn.Module, free: Callable[..., object], group_of: GroupOf, join: Callable[[], Job],
                  options: dict[str, Any]) -> Sharded:
    cls = sys.modules["torch.distributed.fsdp"].FullyShardedDataParallel
    if not isinstance(model, cls):
        name = next(n for n, m in model.named_modules() if isinstance(m, cls))
        raise TypeError(f"attach() takes the outermost FullyShardedDataParallel, not the {type(model).__name__} around it: "
                        f"attach(model.{name})")
    units = cls.fsdp_modules(model)
    for unit in units:
        strategy = unit.sharding_strategy.name
        if strategy == "NO_SHARD" and unit.process_group.size() > 1:
            raise TypeError("FullyShardedDataParallel with NO_SHARD shards nothing: wrap the model in "
                            "DistributedDataParallel instead")
        if "HYBRID" in strategy:
            raise TypeError(f"FullyShardedDataParallel has no hook with {strategy}: take fully_shard() with a mesh of two "
                            "dimensions instead")
        if unit._comm_hook is not None:
            raise _refuse("the model has a communication hook of somebody else's, and FSDP takes one: leave that "
                          "register_comm_hook() out", _lib.ERR_STATE)
        _check_device("the model", unit.compute_device, units[0].compute_device)
    for name, p in model.named_parameters():
        _check_type(name, p)
    if model not in _known and any(u._is_root is not None for u in units):
        raise _refuse("the model has run already: attach() it before its first forward pass", _lib.ERR_STATE)
    if options["all_gather"] not in (None, "none"):
        raise _refuse(f"all_gather={options['all_gather']}: FullyShardedDataParallel has no hook for its gathers; take "
                      "fully_shard(), or leave all_gather out")
    if options["residual"]:
        raise _refuse("residual=True: the hook of FullyShardedDataParallel does not say which gradient it is given; take "
                      "fully_shard(), or leave residual out")
    job = join()
    scatter = options["reduce_scatter"] or options["compressor"] or job.setting("gradcomp.compressor") or "none"
    groups = [u.process_group for u in units]
    parts: dict[str, Any] = {}

    def group_for(process_group: Any) -> Group:
        made = group_of(process_group)
        if made is not job.world:
            parts["group"] = made
        return made

    try:
        coder = _coders(parts, group_for, groups, units[0].compute_device, {"reduce_scatter": scatter},
                        options["collective"], options["seed"])
    except BaseException:
        _Together(dict(reversed(parts.items()))).free()
        raise
    if "group" in parts:  # freed last
        parts["group"] = parts.pop("group")
    attachment = Sharded(parts, job, free)
    if coder:
        model.register_comm_hook(_Fsdp1(attachment, coder["reduce_scatter"]), _scatter_fsdp1)
        for unit in units:
            attachment._undo.append(_weakly(unit, _unhook_fsdp1))
    return attachment


class _Fsdp1:
    """The state of FSDP1's hook."""

    def __init__(self, attachment: Sharded, coder: _Shards):
        self.attachment, self.coder, self._reduces = attachment, coder, False

    def at_end(self) -> None:
        self._reduces = after_backward(self._over) or self._reduces

    def _over(self) -> None:
        """Possibly more than once in a backward pass."""
        if self._reduces:
            self._reduces = False
            self.attachment._reduced()


def _scatter_fsdp1(state: _Fsdp1, gradient: Tensor, own: Tensor) -> None:
    state.at_end()
    state.coder.reduce_scatter(gradient, own, scale=1.0 / state.coder.nranks).wait()


def _unhook_fsdp1(unit: Any) -> None:
    unit._comm_hook = unit._comm_hook_state = None
