"""Local SGD and DiLoCo: ranks train on their own for some steps, then average how far they went.

    model = Net()
    inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    sync = gradcomp.torch.DiLoCo(model, outer, every=50)
    for x, y in loader:
        inner.zero_grad()
        loss(model(x), y).backward()
        inner.step()
        sync.step()
    sync.finish()

The model is no DistributedDataParallel. A synchronisation averages shared - own, the difference
between the weights that all ranks started from and those that a rank has now, through a Reducer
with the job's compressor and its error memory, and gives it to the outer optimizer as the gradient
of the shared weights (Douillard et al., DiLoCo, 2023). LocalSGD(model, every=H) has plain SGD with
rate 1 as its outer optimizer: weights become the mean of all ranks' (Stich, 2019). `fragments` and
`delay` are those of Streaming DiLoCo (Douillard et al., 2025).

Without --gradcomp and GRADCOMP the same is averaged uncompressed by torch.distributed, which is said once.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, List, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel

from . import _fsdp, _lib, _log, _pytorch, launch
from . import job as _jobs
from ._attachment import Stats, Watched
from .job import Group, Reducer

Layers = List[List[Tuple[str, Tensor]]]

_synced: weakref.WeakSet[DiLoCo] = weakref.WeakSet()
_told = False


class DiLoCo(Watched):
    """Synchronises the parameters of `model` that are trained, every so many steps.

    Collective over `process_group` (None: all ranks), which gets rank 0's parameters and buffers.
    `outer_optimizer` is one over model.parameters(). With `fragments` the model's layers are dealt to so
    many parts, each of which is synchronised every `every` steps, one after another. With `delay` a
    part's average is applied so many steps after it was sent, while training goes on; the weights are then
    mix * own + (1 - mix) * shared (default 0.5). What the other options are is said at attach()."""

    def __init__(self, model: torch.nn.Module, outer_optimizer: torch.optim.Optimizer | None, every: int, fragments: int = 1,
                 delay: int = 0, mix: float | None = None, process_group: dist.ProcessGroup | None = None,
                 compressor: str | None = None, collective: str | None = None, bucket_bytes: int = 0, seed: int = 0,
                 schedule: str | None = None):
        super().__init__()
        if not dist.is_initialized():
            raise _lib.Error(_lib.ERR_STATE, "torch.distributed is not initialised: call "
                                             f"gradcomp.torch.init_process_group() before {type(self).__name__}()")
        self._process_group: Any = process_group or dist.group.WORLD
        self._every, self._delay = every, delay
        self._mix = mix if mix is not None else 0.5 if delay else 0.0
        settings: dict[str, Any] = {}
        problem: Exception | None = None
        try:
            model = _module(model, type(self).__name__)
            layers = _layers(model)
            self._outer = self._optimizer(outer_optimizer, layers)
            _check(self._outer, layers, every, fragments, delay, mix)
            settings = {"requested": _lib.requested(), "every": every, "fragments": fragments, "delay": delay,
                        "mix": self._mix, **_described(self._outer, model)}
        except (_lib.Error, TypeError) as e:
            problem = e
        _consensus(self._process_group, settings, problem)

        self._model, self._alike = model, _alike(self._process_group, model)
        self._parameters = [p for layer in layers for _, p in layer]
        self._steps = self._exchanges = 0
        options = {"compressor": compressor, "collective": collective, "bucket_bytes": bucket_bytes, "seed": seed,
                   "schedule": schedule}
        self._wire: Wire = _Library(self._process_group, options) if settings["requested"] else _Torch(self._process_group)
        self._pid = os.getpid()  # a forked child owns none of this
        self._end = weakref.finalize(self, _pytorch.free, self._wire.free, self._pid)
        self._end.atexit = False  # at exit: _leave()
        try:
            self._send_from_first([*model.parameters(), *model.buffers()])
            self._fragments = [_Fragment(named, self._wire, i * every // fragments)
                               for i, named in enumerate(_deal(layers, fragments))]
        except _lib.Error:
            self._end()
            raise
        _synced.add(self)

    @torch.no_grad()
    def step(self) -> bool:
        """After each step of the inner optimizer, on all ranks. Whether weights have been synchronised."""
        self._in_force()
        self._steps += 1
        for f in self._fragments:
            if self._steps % self._every == f.offset:
                f.send(self._steps)
                self._exchanges += 1
        arrived = [f for f in self._fragments if f.sent == self._steps - self._delay]
        for f in arrived:
            self._apply(f)
        self._stepped()
        return bool(arrived)

    @torch.no_grad()
    def finish(self) -> None:
        """Makes parameters and buffers the same to the bit on all ranks: before evaluating, before weights of one rank
        are saved for all, and at the end. Collective, between steps. What is in flight is
        applied; the steps since are averaged uncompressed, and without the outer optimizer. Of
        buffers floats are the mean over ranks, others rank 0's."""
        self._in_force()
        for _, _, f in sorted((f.sent, i, f) for i, f in enumerate(self._fragments) if f.sent is not None):
            self._apply(f)
        apart = [f for f in self._fragments if f.equal != self._steps]
        buffers = [b for _, b in self._model.named_buffers()]
        self._mean([p for f in apart for p in f.parameters] + [b for b in buffers if b.is_floating_point()])
        self._send_from_first([b for b in buffers if not b.is_floating_point()])
        for f in apart:
            f.take(self._steps)

    def state_dict(self, shared: bool = False) -> dict[str, Any]:
        """This rank's state, between steps: shared weights, the outer optimizer's state, error memory, and
        averages in flight, which are waited for. To be saved and loaded by every rank beside its own model
        and inner optimizer. With shared=True one for any number of ranks, the same on all, which
        call this together after finish(), when the model is the same on all too."""
        self._in_force()
        if shared and self._unfinished():
            raise _lib.Error(_lib.ERR_STATE, "the ranks' weights differ, and a state that they share has one copy of them: "
                                             "call finish() first, or state_dict() for every rank's own")
        return {"settings": self._settings(), "steps": self._steps, "exchanges": self._exchanges,
                "outer": self._outer.state_dict(), "fragments": [f.state(shared) for f in self._fragments]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state of either kind, on all ranks together. The model's own weights are loaded by the caller."""
        self._in_force()
        saved: dict[str, Any] = {}
        problem: Exception | None = None
        steps = None
        try:
            saved, steps = state["settings"], state["steps"]
        except (KeyError, TypeError, IndexError):
            problem = _lib.Error(_lib.ERR_INVALID, f"{_pytorch.described(state)} is no state of {type(self).__name__}: give "
                                                   "load_state_dict() what its state_dict() returned")
        for name, value in self._settings().items() if problem is None else ():
            if saved.get(name) != value:
                problem = _lib.Error(_lib.ERR_MISMATCH, f"the state is of another run: {name} is {saved.get(name)} in it "
                                                        f"and {value} here")
        _consensus(self._process_group, {"the state's number of steps": steps}, problem)
        for f, part in zip(self._fragments, state["fragments"]):
            f.load(part)
        self._outer.load_state_dict(state["outer"])
        self._steps, self._exchanges = state["steps"], state["exchanges"]

    def stats(self) -> Stats:
        """As of an attachment: the sums of the reducers' counters, but steps are those of step(). And exchanges, of fragments."""
        counted = self._wire.stats()
        return Stats({**counted, "steps": self._steps, "exchanges": self._exchanges}, {"all_reduce": counted} if counted else {})

    def detach(self) -> None:
        """Gives threads, connections and memory back, on all ranks between the same steps; the model is as it
        is: finish() first, where it is to be the same everywhere."""
        self._end()

    def _optimizer(self, given: Any, _layers: Layers) -> Any:
        return given

    def _in_force(self) -> None:
        if not self._end.alive:
            raise _lib.Error(_lib.ERR_STATE, f"this {type(self).__name__} has been detached: make another")

    def _settings(self) -> dict[str, Any]:
        return {"every": self._every, "delay": self._delay, "mix": self._mix,
                "fragments": [[(n, tuple(s.shape)) for n, s in zip(f.names, f.shared)] for f in self._fragments]}

    def _apply(self, fragment: _Fragment) -> None:
        averages = fragment.receive()
        with _only(self._parameters, fragment, averages):
            self._outer.step()
        if not self._alike:
            self._send_from_first(fragment.shared)
        fragment.adopt(self._mix, self._steps)

    def _mean(self, tensors: Sequence[Tensor]) -> None:
        """Their mean over ranks, in floats, in one all-reduce."""
        if tensors:
            flat = self._together(tensors, [t.detach().float() for t in tensors])
            self._wire.mean(flat)
            for t, mean in zip(tensors, flat.split([t.numel() for t in tensors])):
                t.copy_(mean.reshape(t.shape))

    @torch.no_grad()
    def _send_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's, to the bit, in one broadcast, as bytes, whatever their types."""
        if tensors:
            flat = self._together(tensors, [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors])
            self._wire.broadcast(flat)
            for t, part in zip(tensors, flat.split([t.numel() * t.element_size() for t in tensors])):
                # A copy of its own: its address is right for any type.
                t.copy_(part.clone().view(t.dtype).reshape(t.shape))

    def _together(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """All their values, where they are exchanged."""
        parts = [v.reshape(-1) for v in values]
        return torch.cat(parts if self._wire.gpu(tensors) else [p.cpu() for p in parts])

    def _unfinished(self) -> bool:
        return any(f.equal != self._steps for f in self._fragments)


class LocalSGD(DiLoCo):
    """Makes the parameters of `model` the mean of all ranks' every so many steps: DiLoCo with plain SGD and rate 1 outside.
    The difference is what is compressed. With every=1 and SGD inside, momentum or not, this is gradient averaging,
    but for the rounding of the difference."""

    def __init__(self, model: torch.nn.Module, every: int, **options: Any):
        super().__init__(model, None, every, **options)

    def _optimizer(self, _given: Any, layers: Layers) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for layer in layers for _, p in layer], lr=1.0)


class _Fragment:
    """Some layers, which are synchronised together. `shared` are the weights that all ranks agree on."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], wire: Wire, offset: int):
        self.offset = offset
        self.names, self.parameters = [n for n, _ in named], [p for _, p in named]
        self.exchange = wire.exchange([(n, tuple(p.shape), "float32") for n, p in named], wire.gpu(self.parameters))
        self.sent: int | None = None  # the step in which it was, while its average has not been applied
        self._flight: tuple[Tensor, list[Tensor]] | None = None  # the difference, then the average: (all numbers, by parameter)
        self.take(0)

    def take(self, step: int) -> None:
        """Weights that are equal on all ranks are the shared ones."""
        self.shared = [p.detach().clone() for p in self.parameters]
        self.equal = step  # the last step in which weights were equal on all ranks

    def send(self, step: int) -> None:
        self._flight = flat, parts = self._room()
        for difference, p, s in zip(parts, self.parameters, self.shared):
            difference.copy_(s.float() - p.float())
        self.exchange.start(flat, parts)
        self.sent = step

    def receive(self) -> list[Tensor]:
        """The averages that were sent for."""
        self.exchange.wait()
        assert self._flight is not None
        return self._flight[1]

    def adopt(self, mix: float, step: int) -> None:
        """After an outer step: weights become the shared ones, but for the share `mix` of what they are."""
        for p, s in zip(self.parameters, self.shared):
            if mix:
                p.mul_(mix).add_(s, alpha=1 - mix)
            else:
                p.copy_(s)
        self.equal = self.equal if mix else step
        self.sent = self._flight = None

    def _room(self) -> tuple[Tensor, list[Tensor]]:
        flat = self.exchange.room(sum(p.numel() for p in self.parameters))
        return flat, [part.view(p.shape) for part, p in zip(flat.split([p.numel() for p in self.parameters]), self.parameters)]

    def state(self, shared: bool) -> dict[str, Any]:
        if self.sent is not None:
            self.exchange.wait()
        return {"shared": [s.clone() for s in self.shared], "equal": self.equal, "sent": self.sent,
                "average": self._flight[0].clone() if self._flight is not None else None, "reducer": self.exchange.state(shared)}

    def load(self, state: dict[str, Any]) -> None:
        if self.sent is not None:
            self.exchange.wait()
        self.exchange.load(state["reducer"])
        for s, saved in zip(self.shared, state["shared"]):
            s.copy_(saved)
        self.equal, self.sent, self._flight = state["equal"], state["sent"], None
        if self.sent is not None:
            self._flight = self._room()
            self._flight[0].copy_(state["average"])


class _Library:
    """The ranks through gradcomp."""

    def __init__(self, process_group: Any, options: dict[str, Any]):
        from . import torch as ours

        self._group, self._options = ours.group(process_group), options
        self._reducers: list[Reducer] = []

    def gpu(self, tensors: Sequence[Tensor]) -> torch.device | None:
        """The GPU on which they are exchanged; None: in host memory."""
        return _one_gpu(tensors)

    def exchange(self, tensors: Sequence[Any], gpu: torch.device | None) -> _Coded:
        coded = _Coded(self._group, tensors, gpu, self._options)
        self._reducers.append(coded.reducer)
        return coded

    def mean(self, flat: Tensor) -> None:
        self._group.allreduce(flat)
        flat /= self._group.nranks

    def broadcast(self, flat: Tensor) -> None:
        self._group.broadcast(flat)

    def stats(self) -> dict[str, float]:
        every = [r.stats() for r in self._reducers]
        return {name: sum(s[name] for s in every) for name in every[0] if not name.startswith("error_")}

    def free(self) -> None:
        for reducer in self._reducers:
            reducer.free()
        if self._group is not self._group.job.world:
            self._group.free()


class _Coded:
    """The average of some tensors through a Reducer. On a GPU the host waits for nothing: what the current stream
    has comes before an exchange, and what it gets after wait() comes after the average."""

    def __init__(self, group: Group, tensors: Sequence[Any], gpu: torch.device | None, options: dict[str, Any]):
        self._under_way, self._gpu = False, gpu
        if gpu is None:
            self.reducer = Reducer(group, tensors, **options)
            return
        self._stream = torch.cuda.Stream(gpu)
        with torch.cuda.device(gpu):
            self.reducer = Reducer(group, tensors, cuda=True, queue=self._stream.cuda_stream,
                                   memory=_pytorch.device_memory(gpu), **options)

    def room(self, numel: int) -> Tensor:
        return torch.empty(numel, device=self._gpu)

    def start(self, _flat: Tensor, parts: Sequence[Tensor]) -> None:
        if self._gpu is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._gpu))
        for i in reversed(range(len(parts))):
            self.reducer.ready(i, parts[i].data_ptr())
        self._under_way = True

    def wait(self) -> None:
        if self._under_way:
            self.reducer.wait()
            self._under_way = False
            if self._gpu is not None:
                torch.cuda.current_stream(self._gpu).wait_stream(self._stream)

    def state(self, shared: bool) -> Tensor | None:
        return _pytorch.as_tensor(self.reducer.save(shared))

    def load(self, state: Tensor | None) -> None:
        if state is not None:
            self.reducer.load(_pytorch.as_bytes(state))


class _Torch:
    """The ranks through torch.distributed alone, where gradcomp was not asked for."""

    def __init__(self, process_group: Any):
        global _told
        if not _told and dist.get_rank() == 0:
            _log.tell("not requested (no --gradcomp): differences of weights are averaged uncompressed")
        _told = True
        self._process_group = process_group

    def gpu(self, tensors: Sequence[Tensor]) -> torch.device | None:
        return _one_gpu(tensors) if dist.get_backend(self._process_group) == "nccl" else None

    def exchange(self, _tensors: Sequence[Any], gpu: torch.device | None) -> _Dense:
        return _Dense(self._process_group, gpu)

    def mean(self, flat: Tensor) -> None:
        exchange = _Dense(self._process_group, None)
        exchange.start(flat, None)
        exchange.wait()

    def broadcast(self, flat: Tensor) -> None:
        there = flat if dist.get_backend(self._process_group) != "nccl" else flat.cuda()
        dist.broadcast(there, launch.global_ranks(self._process_group)[0], group=self._process_group)
        if there is not flat:
            flat.copy_(there)

    def stats(self) -> dict[str, float]:
        return {}

    def free(self) -> None:
        pass


class _Dense:
    """The average of all numbers by an all-reduce of PyTorch's."""

    def __init__(self, process_group: Any, gpu: torch.device | None):
        self._process_group, self._gpu = process_group, gpu
        self._work: Any = None

    def room(self, numel: int) -> Tensor:
        return torch.empty(numel, device=self._gpu)

    def start(self, flat: Tensor, _parts: Sequence[Tensor] | None) -> None:
        self._flat = flat if dist.get_backend(self._process_group) != "nccl" else flat.cuda()
        self._target = flat
        self._work = dist.all_reduce(self._flat, group=self._process_group, async_op=True)

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._flat /= dist.get_world_size(self._process_group)
            if self._target is not self._flat:
                self._target.copy_(self._flat)
            self._work = None

    def state(self, _shared: bool) -> Tensor | None:
        return None

    def load(self, state: Tensor | None) -> None:
        pass


Wire = Union[_Library, _Torch]


@contextlib.contextmanager
def _only(parameters: Sequence[Tensor], fragment: _Fragment, averages: Sequence[Tensor]) -> Iterator[None]:
    """Within, the fragment's parameters are the shared ones with the averages as gradients, and no
    other has a gradient: what an outer optimizer's step() is to see."""
    gradients = [p.grad for p in parameters]
    own = [p.data for p in fragment.parameters]
    try:
        for p in parameters:
            p.grad = None
        for p, shared, average in zip(fragment.parameters, fragment.shared, averages):
            p.data = shared
            p.grad = average.to(shared)
        yield
    finally:
        for p, data in zip(fragment.parameters, own):
            p.data = data
        for p, gradient in zip(parameters, gradients):
            p.grad = gradient


def _invalid(text: str) -> _lib.Error:
    return _lib.Error(_lib.ERR_INVALID, text)


def _module(model: Any, who: str) -> torch.nn.Module:
    """The module within torch.compile(); what is no plain module is refused."""
    model = _pytorch.without_compile(model)
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        raise TypeError(f"{who}() takes a plain module, whose ranks train on their own between synchronisations, not a "
                        f"{type(model).__name__}: give it model.module")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{who}() takes a torch.nn.Module, not a {type(model).__name__}")
    if _fsdp.kind(model):
        raise TypeError(f"{who}() takes a plain module, with all of its weights on every rank, not one that is sharded")
    return model


def _layers(model: torch.nn.Module) -> Layers:
    """The trained parameters as (name, parameter), by the module that owns them, in forward order."""
    layers: dict[str, list[tuple[str, Tensor]]] = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        kind = str(p.dtype).replace("torch.", "") if p.layout == torch.strided else "sparse"
        if kind not in ("float32", "float16", "bfloat16"):
            raise _lib.Error(_lib.ERR_UNSUPPORTED, f"parameter {name} is {kind}: weights are averaged as dense float32, "
                                                   "float16 or bfloat16: convert it, or keep it as it is with "
                                                   "requires_grad_(False)")
        layers.setdefault(name.rpartition(".")[0], []).append((name, p))
    if not layers:
        raise _invalid("no parameter of the model is trained (requires_grad)")
    return list(layers.values())


def _check(outer: torch.optim.Optimizer, layers: Layers, every: int, fragments: int, delay: int, mix: float | None) -> None:
    for name, value, least in (("every", every, 1), ("fragments", fragments, 1), ("delay", delay, 0)):
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise _invalid(f"{name}={value!r}: must be a whole number, {least} or more")
    if fragments > len(layers):
        raise _invalid(f"fragments={fragments}: the model has {len(layers)} layers with trained parameters, and a fragment "
                       "has one at least")
    if delay >= every:
        raise _invalid(f"delay={delay}: must be less than every={every}, so that an average has come before the next is sent")
    if mix is not None and not (isinstance(mix, numbers.Real) and 0 <= mix < 1):
        raise _invalid(f"mix={mix!r}: must be 0 or more, and less than 1")
    if mix and not delay:
        raise _invalid(f"mix={mix} without a delay: only where an average comes late has a rank own steps to keep")
    if not isinstance(outer, torch.optim.Optimizer):
        raise TypeError(f"outer_optimizer is a {type(outer).__name__}, not a torch.optim.Optimizer over model.parameters(); "
                        "torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True) is what DiLoCo has")
    theirs = {p for group in outer.param_groups for p in group["params"]}
    for layer in layers:
        for name, p in layer:
            if p not in theirs:
                raise _invalid(f"parameter {name} is trained and not in outer_optimizer: make it over model.parameters()")
    if len({p for p in theirs if p.requires_grad}) > sum(map(len, layers)):
        raise _invalid("outer_optimizer has parameters that are not the model's: make it over model.parameters()")


def _described(outer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, str]:
    """What must be equal on all ranks, in words."""
    described = {f"{k} of the outer optimizer": str(v) for group in reversed(outer.param_groups)
                 for k, v in group.items() if k != "params"}
    described["outer optimizer"] = type(outer).__name__
    gpus: dict[torch.device, int] = {}  # as this model has them: numbers are each rank's own
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        described[name] = f"{str(t.dtype).replace('torch.', '')} {list(t.shape)}{' trained' * t.requires_grad}"
        if t.device.type == "cuda":
            described[name] += f" on its GPU {gpus.setdefault(t.device, len(gpus) + 1)}"
    return described


def _consensus(process_group: Any, settings: dict[str, Any], problem: Exception | None) -> None:
    """Fails on all ranks when one has a problem, or other settings."""
    said: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(said, (settings, problem and str(problem)), group=process_group)
    if problem is not None:
        raise problem
    ranks = launch.global_ranks(process_group)
    for rank, (_, text) in zip(ranks, said):
        if text is not None:
            raise _lib.Error(_lib.ERR_MISMATCH, f"rank {rank}: {text}")
    first = said[0][0]
    for rank, (theirs, _) in zip(ranks, said):
        for name in [*first, *theirs]:
            a, b = first.get(name, "absent"), theirs.get(name, "absent")
            if a != b:
                what = "gradcomp being asked for (--gradcomp, GRADCOMP)" if name == "requested" else name
                raise _lib.Error(_lib.ERR_MISMATCH, f"{what} is {a} on rank {ranks[0]} and {b} on rank {rank}: must be "
                                                    "equal on all ranks")


def _alike(process_group: Any, model: torch.nn.Module) -> bool:
    """Whether PyTorch computes the same bits on all ranks: an optimizer's step rounds otherwise on another processor, or in
    another release."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    said: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(said, (torch.__version__, re.findall("CPU capability usage: (.*)", torch.__config__.show()),
                                  sorted(map(torch.cuda.get_device_name, devices))), group=process_group)
    return said.count(said[0]) == len(said)


def _deal(layers: Layers, fragments: int) -> list[list[tuple[str, Tensor]]]:
    """Layers to fragments, the largest first, each to the one that has least: fragments of about one size."""
    parts: list[list[Any]] = [[0, i, []] for i in range(fragments)]
    for index in sorted(range(len(layers)), key=lambda i: -_size(layers[i])):
        least = min(parts, key=lambda part: part[:2])
        least[0] += _size(layers[index])
        least[2].append(index)
    return [[named for index in sorted(indices) for named in layers[index]] for _, _, indices in parts]


def _size(layer: Sequence[tuple[str, Tensor]]) -> int:
    return sum(p.numel() for _, p in layer)


def _one_gpu(tensors: Sequence[Tensor]) -> torch.device | None:
    """The GPU that all of them are on; None where there is none such."""
    devices = {t.device for t in tensors}
    return devices.pop() if len(devices) == 1 and next(iter(devices)).type == "cuda" else None


def _leave(failed: BaseException | None) -> None:
    if failed is not None:
        return
    for sync in list(_synced):
        if sync._pid == os.getpid() and sync._end.alive and sync._unfinished() and dist.is_initialized() \
                and dist.get_rank(sync._process_group) == 0:
            _log.warn(f"the program ended without {type(sync).__name__}.finish(): the ranks' weights differ")
        _pytorch.end(sync._end)


_jobs.at_exit(_leave)
