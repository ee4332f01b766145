"""PyTorch: the gradients of a DistributedDataParallel model through gradcomp.

    gradcomp.torch.init_process_group()
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    gradcomp.torch.attach(model)

attach() registers a DDP communication hook that hands over one parameter at a
time, so the state of a compressor belongs to parameters and survives DDP's
rebuilding of its buckets. Works with no_sync(), find_unused_parameters and
static_graph. Without --gradcomp it does nothing and the model trains over DDP's
own all-reduce. PyTorch 1.13 and 2.x; gradients in host memory or on a GPU.

With attach(model, delay=D) no step waits for the network unless it is D steps behind:
a gradient is this rank's own and what the average of D steps ago corrects. Ranks are then a
little apart, until drain(optimizer) makes all ranks' weights identical again: before a
checkpoint, before weights are compared or evaluated, and at the end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from . import _fsdp, _lib, _log, _profile, _pytorch, _shrink, autoload, launch
from . import job as _jobs
from ._attachment import Attachment, Held, Shared, Stats, after_backward
from ._lib import Error
from .job import Reducer
from .local_sgd import DiLoCo, LocalSGD  # noqa: F401
from .parallel_optimizer import LAMB, LARS, ParallelOptimizer  # noqa: F401

init_process_group = launch.init_process_group
autoload.register()

__all__ = ["Attachment", "DiLoCo", "LocalSGD", "Shared", "Stats", "attach", "group", "init_process_group", "join"]

_attached: weakref.WeakSet[Held] = weakref.WeakSet()
_hooks: weakref.WeakKeyDictionary[torch.nn.Module, _Hook] = weakref.WeakKeyDictionary()  # by DDP model
_told = False


class Replicated(Held):
    """Of a DistributedDataParallel. Every rank has a state of its own, and there is one that all share.

    It ends with detach(), with the model (when nothing refers to either any more), or with
    the program."""

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]], group: _jobs.Group, options: dict[str, Any]):
        super().__init__(group)
        where = named[0][1].device if named else torch.device("cpu")
        # What the reducer waits for: it follows whatever stream backward runs on. And what futures are
        # completed on, which follows the averages.
        self._stream = torch.cuda.Stream(where) if where.type == "cuda" else None
        self._averaged = torch.cuda.Stream(where) if where.type == "cuda" else None
        self._index: dict[torch.Tensor, int] = {p: i for i, (_, p) in enumerate(named)}
        self._names = [n for n, _ in named]
        self._parameters, self._delay = [p for _, p in named], options["delay"]
        self._strides = [p.stride() for p in self._parameters]
        self._orders = _pytorch.unusual_orders(named)
        self._hook: weakref.ref[_Hook] | None = None  # DDP's, once this is in force: weak, so that both go with the model
        self._lock = threading.Lock()
        self._begun: dict[int, torch.Tensor] = {}  # what has been given of a step that lacks gradients yet, and its memory
        self._bucket_of: list[_Flight | None] = [None] * len(named)
        tensors = [(n, _pytorch.memory_shape(p), p.dtype) for n, p in named]
        # The reducer, which is to go with this object, must not hold it.
        me = weakref.WeakMethod(self._done)

        def done(index: int, error: Error | None) -> None:
            method = me()
            if method is not None:
                method(index, error)

        if self._stream is None:
            self._reducer = Reducer(group, tensors, done, **options)
        else:
            with torch.cuda.device(where):
                self._reducer = Reducer(group, tensors, done, cuda=True, queue=self._stream.cuda_stream,
                                        memory=_pytorch.device_memory(where), **options)
        self._hold(_free, self._reducer, group)

    def _in_force(self) -> Reducer:
        self._check_alive()
        return self._reducer

    def detach(self) -> None:
        """Undoes attach(), on all ranks between the same steps: DDP reduces the model's
        gradients itself from now on, and the threads, connections and memory are given back.
        The state goes too: state_dict() first, where it is wanted. The model may be attached
        again. With a delay: after drain(). A second call does nothing."""
        if not self._end.alive:
            return
        if self._owes:
            raise self._undrained("detach() would lose them")
        hook = None if self._hook is None else self._hook()
        if hook is not None:
            hook.attachment = None
        self._stats = self.stats()
        self._end()

    def _undrained(self, otherwise: str) -> Error:
        return _lib.Error(_lib.ERR_STATE, f"averages of the last {self._late()} are not in the weights yet: call "
                                          f"drain(optimizer) first; {otherwise}")

    def state_dict(self, in_flight: bool = False, shared: bool = False) -> dict[str, Any]:
        """This rank's state (error memory, warm-start factors), which continues to the bit; between
        steps only. With shared=True one for any number of ranks, the same on all, which call this
        together: the mean of error memory over ranks. With a delay: after drain(), since the
        ranks' weights differ before it; with in_flight=True what is owed is saved too, for those
        who save every rank's own weights."""
        if self._owes and (shared or not in_flight):
            raise self._undrained("or state_dict(in_flight=True), and save the weights of every rank")
        return _pytorch.as_state(self._in_force().save(shared), self._orders, owes=self._owes)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state of either kind. All ranks call it together, with their own or with the
        same shared one; when one of them cannot, all raise and go on as before."""
        if _pytorch.is_empty(state):
            return
        _pytorch.load(state, self._orders, self._in_force().load)
        self._owes = state.get("owes", False)

    @torch.no_grad()
    def drain(self, optimizer: torch.optim.Optimizer) -> None:
        """With a delay: waits for the steps in flight, applies what they owe with the
        optimizer's learning rates, and makes weights and the optimizer's state the mean over
        ranks, the same to the bit on all. Collective, between steps. Without a delay nothing.

        That is exact for SGD, with momentum too but for what compression held back (momentum
        averages like a gradient does); other optimizers get the corrections as plain SGD
        steps, which are small beside their own."""
        if not self._delay:
            return
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(f"drain() takes the optimizer that steps the model, not a {type(optimizer).__name__}")
        rates = {p: group["lr"] * (-1 if group.get("maximize") else 1)
                 for group in optimizer.param_groups for p in group["params"]}
        owed = [torch.zeros(p.numel(), dtype=p.dtype, device=p.device) for p in self._parameters]
        reducer = self._in_force()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        reducer.drain(owed)
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        for p, correction in zip(self._parameters, owed):
            p.sub_(_as_in_bucket(correction, p) * rates.get(p, 0))
        self._average([t for p in self._parameters for t in [p, *_moments(optimizer.state.get(p, {}), p)]])
        self._owes = False

    def _average(self, tensors: list[torch.Tensor]) -> None:
        """The mean over ranks, in floats, in one all-reduce."""
        together = torch.cat([t.detach().float().reshape(-1) for t in tensors])
        self._group.allreduce(together)
        together /= self._group.nranks
        for t, mean in zip(tensors, together.split([t.numel() for t in tensors])):
            t.copy_(mean.reshape(t.shape))

    def stats(self) -> Stats:
        if not self._end.alive:
            return self._stats
        counted = self._reducer.stats()
        return Stats(counted, {"all_reduce": counted})

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A future of the bucket's average. The parameters of a bucket become done
        one by one, on threads of the library; the last one fulfils the future."""
        flight = _Flight(bucket, self)
        _profile.follow()
        profiled = _profile.enabled()
        if profiled:
            flight.event = _profile.until("gradcomp:all_reduce", [flight.buffer])
        self._check_order(flight.indices)  # of a compiled model none has been looked at before
        self._owes = self._delay > 0
        for i in flight.indices:
            self._bucket_of[i] = flight
        self._begun.update(zip(flight.indices, flight.gradients))
        if len(self._begun) == len(self._index):
            self._begun = {}
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for i, gradient in zip(flight.indices, flight.gradients):
            try:
                self._reducer.ready(i, gradient.data_ptr())
            except _lib.Error as e:
                self._done(i, e)
        if bucket.is_last():
            self._steps += 1
            if profiled:
                after_backward(_profile.settle)
            if self._callbacks:
                after_backward(self._stepped)
        return flight.future

    def _check_order(self, indices: Iterable[int]) -> None:
        """Error memory lies as the parameters did, and DDP's buckets follow a parameter that is converted."""
        for i in indices:
            p = self._parameters[i]
            if p.stride() != self._strides[i]:
                if _pytorch.unusual_orders([(self._names[i], p)]).get(self._names[i]) != self._orders.get(self._names[i]):
                    raise _lib.Error(_lib.ERR_STATE, f"parameter {self._names[i]} has another order in memory than when the model "
                                                     "was attached: convert the model (model.to(memory_format=...)) before "
                                                     "DistributedDataParallel and attach()")
                self._strides[i] = p.stride()

    def _another_pass(self) -> None:
        """A forward pass begins that gradients follow. DDP refuses it where the last backward pass was
        given up half-way, on that rank alone, which may catch that too: here the others learn it."""
        self._check_order(range(len(self._parameters)))
        if self._begun:
            index, gradient = next(iter(self._begun.items()))
            try:
                self._reducer.ready(index, gradient.data_ptr())
            except _lib.Error as e:
                raise _lib.Error(e.status, f"another forward pass, and the last backward pass was given up half-way: {e}") from None

    def _done(self, index: int, error: Error | None) -> None:
        with self._lock:
            flight, self._bucket_of[index] = self._bucket_of[index], None
            if flight is None:  # refused by ready() and failed with the step
                return
            flight.left -= 1
            flight.error = flight.error or error
            last = flight.left == 0
        if not last:
            return
        if flight.event is not None:
            flight.event.set_result(0)
        if self._averaged is None or flight.error is not None:
            flight.raw.set_result(flight.buffer)
            return
        # Tensors are done in the order in which the device averages them. The future keeps what is
        # on the stream here, and whoever waits for it has a stream wait, not the host.
        with torch.cuda.stream(self._averaged):
            try:
                self._reducer.follow(index, self._averaged.cuda_stream)
            except _lib.Error as e:
                flight.error = e
            flight.raw.set_result(flight.buffer)


class _Flight:
    """A DDP bucket on its way. Holds the gradients' memory until it is done."""

    def __init__(self, bucket: GradBucket, attachment: Replicated):
        self.buffer = bucket.buffer()
        if self.buffer.is_sparse:
            raise _lib.Error(_lib.ERR_UNSUPPORTED, "sparse gradients cannot be reduced: make them dense (to_dense()) where "
                                                   "they are made")
        self.gradients = bucket.gradients()
        self.indices = [attachment._index[p] for p in bucket.parameters()]
        self.left = len(self.indices)
        self.error: Error | None = None
        self.event: Any = None  # of the profiler, while it is on
        # DDP looks at the future from C++, where only the failure of a
        # continuation shows as one.
        on = attachment._averaged
        self.raw: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=None if on is None else [on.device])
        self.future = self.raw.then(self._finish)

    def _finish(self, raw: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return raw.value()


def _as_in_bucket(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Numbers in the order in which a bucket of DDP has a gradient: that of the parameter's memory (channels_last), where it has
    no gaps, else that of its indices."""
    strides = torch.empty_like(parameter).stride()
    return flat.as_strided(parameter.shape, strides) if strides == parameter.stride() else flat.view(parameter.shape)


def _moments(state: dict[str, Any], parameter: torch.Tensor) -> list[torch.Tensor]:
    """What an optimizer keeps for a parameter, number by number, in the order of its names."""
    return [state[k] for k in sorted(state, key=str) if torch.is_tensor(state[k]) and state[k].is_floating_point()
            and state[k].shape == parameter.shape]


class _Hook:
    """DDP takes one communication hook and keeps it: this is whose turn it is."""

    def __init__(self, process_group: dist.ProcessGroup):
        self.process_group = process_group
        self.attachment: Replicated | _shrink.Shrinking | None = None


class _Passes:
    """Before each forward pass of a model. A model that is copied or saved has none."""

    def __init__(self, hook: _Hook):
        self.hook = hook
        self.__name__ = self.__qualname__ = "gradcomp"  # tools list hooks by these

    def __call__(self, model: torch.nn.Module, inputs: Any) -> None:
        del model, inputs
        if not _compiling() and torch.is_grad_enabled() and self.hook.attachment is not None:
            self.hook.attachment._another_pass()

    def __reduce__(self) -> Any:
        return autoload.NOTHING


_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)


def _communicate(hook: _Hook, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    if isinstance(hook.attachment, Replicated):
        return hook.attachment._reduce(bucket)
    return default_hooks.allreduce_hook(hook.process_group, bucket)


_communicate.__qualname__ = "gradcomp"  # what DistributedDataParallel logs as its hook
# It compares these, which are texts here.
_communicate.__annotations__.update({"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]})

def _free(reducer: Any, group: _jobs.Group, pid: int) -> None:
    """What an attachment leaves."""
    def free() -> None:
        reducer.free()
        if group is not group.job.world:
            group.free()

    _pytorch.free(free, pid)


def _replicated(model: torch.nn.Module) -> Any:
    """The DDP that composable replicate() makes of a module; None where it has not been replicated."""
    composable = sys.modules.get("torch.distributed._composable.replicate")
    state = composable.replicate.state(model) if composable is not None else None
    if state is not None and hasattr(state, "lazy_init") and not state.has_initialized:
        state.lazy_init()  # else at the first forward pass
    return getattr(state, "_ddp", None)


def _ddp_of(model: Any) -> tuple[Any, torch.nn.Module]:
    """(The DistributedDataParallel in what attach() was given, the module whose parameters it reduces)."""
    inner = _pytorch.without_compile(model)
    if isinstance(inner, DistributedDataParallel):
        ddp: Any = inner
        root = inner.module
    else:
        ddp, root = _replicated(inner) if isinstance(inner, torch.nn.Module) else None, inner
    if ddp is None:
        raise TypeError(f"attach() takes a DistributedDataParallel, not a {type(inner).__name__}: {_instead(inner)}")
    if getattr(ddp, "_use_python_reducer", False):
        raise TypeError('torch._dynamo.config.optimize_ddp is "python_reducer", which has no communication hook: leave it '
                        "as it is (True) when the DistributedDataParallel is made")
    return ddp, root


def _instead(model: object) -> str:
    if not isinstance(model, torch.nn.Module):
        return "give it the module that the training step calls"
    within = next((name for name, m in model.named_modules() if isinstance(m, DistributedDataParallel)), None)
    if within is not None:
        return f"the one within is attach(model.{within})"
    return "wrap the model first, model = DistributedDataParallel(model)"


def _reduced(module: torch.nn.Module, root: torch.nn.Module, ignored: Collection[str]) -> list[tuple[str, torch.nn.Parameter]]:
    """The (name, parameter) of all of the module that is reduced, in forward order. What gradcomp cannot reduce is
    refused here, before the first backward pass."""
    sparse = {m.weight for m in root.modules()
              if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse}
    names = {p: n for n, p in root.named_parameters()}
    # As DDP itself looks for them: tied weights are ignored where all of their names are, and what the outermost module has
    # of its own is not.
    found: dict[torch.nn.Parameter, str] = {}
    for prefix, m in module.named_modules():
        for n, p in m.named_parameters(recurse=False):
            if p.requires_grad and f"{prefix}.{n}" not in ignored:
                found.setdefault(p, names.get(p, n))
    named = [(n, p) for p, n in found.items()]
    for name, p in named:
        if p in sparse:
            raise _unsupported(name, "an embedding with sparse gradients", "make it with sparse=False")
        if p.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise _unsupported(name, str(p.dtype).replace("torch.", ""),
                               "gradients are reduced as float32, float16 or bfloat16: convert it")
        if p.device != named[0][1].device or p.device.type not in ("cpu", "cuda"):
            raise _unsupported(name, f"on {p.device}", "have all in host memory, or all on one CUDA device")
    return named


def _unsupported(name: str, what: str, remedy: str) -> Error:
    return _lib.Error(_lib.ERR_UNSUPPORTED, f"parameter {name} is {what}: {remedy}, or keep it from DDP "
                                            "(DistributedDataParallel._set_params_and_buffers_to_ignore_for_model) and "
                                            "reduce it yourself")


@overload
def attach(model: torch.nn.Module, compressor: str | None = ..., collective: str | None = ..., bucket_bytes: int = ..., seed: int = ...,
           schedule: str | None = ..., delay: int = ..., reduce_scatter: str | None = ..., all_gather: str | None = ...,
           residual: bool = ..., on_failure: Literal["abort"] | None = ...) -> Attachment: ...


@overload
def attach(model: torch.nn.Module, compressor: str | None = ..., collective: str | None = ..., bucket_bytes: int = ..., seed: int = ...,
           schedule: str | None = ..., delay: int = ..., reduce_scatter: str | None = ..., all_gather: str | None = ...,
           residual: bool = ..., *, on_failure: Literal["shrink"]) -> _shrink.Surviving: ...


def attach(model: torch.nn.Module, compressor: str | None = None, collective: str | None = None, bucket_bytes: int = 0,
           seed: int = 0, schedule: str | None = None, delay: int = 0, reduce_scatter: str | None = None,
           all_gather: str | None = None, residual: bool = False, on_failure: str | None = None) -> Attachment:
    """Reduces the gradients of `model` with gradcomp: a DistributedDataParallel, one in
    torch.compile(), a module after composable replicate(), or a sharded model (FSDP).

    Collective over all ranks, before the first backward pass. `compressor`,
    `collective` and `schedule` are SPECs in place of the job's; `seed` must be equal on
    all ranks. With `delay` averages may be applied up to so many steps
    late: drain() says what that asks for. Without --gradcomp and GRADCOMP: does nothing and says so once.
    What it returns undoes it: detach().

    Of a sharded model, `reduce_scatter` and `all_gather` are SPECs of codes for gradients and for
    weights on their way, with `residual` what gradients lose is kept (the memory of unsharded gradients);
    `compressor` is for the averages between replicas, where a mesh has them.

    With on_failure="shrink" training goes on when ranks are lost, among those that live: every step is in the step() of what
    this returns. `model` may then be any module, without torch.distributed. "abort", the default: the job ends."""
    global _told
    if on_failure not in (None, "abort", "shrink"):
        raise TypeError(f"on_failure={on_failure!r}: must be 'abort' or 'shrink'")
    inner = _pytorch.without_compile(model)
    if on_failure == "shrink":
        _shrink.check(inner, _fsdp.kind(inner), delay, residual or reduce_scatter or all_gather)
    if not _lib.requested():
        if not _told and int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0:
            whose = "FSDP communicates" if _fsdp.kind(inner) else "DDP reduces the gradients"
            _log.tell(f"not requested (no --gradcomp): {whose} itself")
        _told = True
        return _shrink.Alone(inner) if on_failure == "shrink" else Attachment()
    options: dict[str, Any] = {"compressor": compressor, "collective": collective, "bucket_bytes": bucket_bytes, "seed": seed,
               "schedule": schedule, "delay": delay}
    if on_failure == "shrink":
        ddp = inner if isinstance(inner, DistributedDataParallel) else None
        root = inner if ddp is None else ddp.module
        named = _reduced(root, root, () if ddp is None else ddp.parameters_to_ignore)
        return _shrink.attach(root, ddp, named, options, None if ddp is None else _hook_of(ddp))
    if not dist.is_initialized():
        raise _lib.Error(_lib.ERR_STATE, "torch.distributed is not initialised: call "
                                         "gradcomp.torch.init_process_group(), make the model a DistributedDataParallel, "
                                         "then attach() it")
    sharding = {"reduce_scatter": reduce_scatter, "all_gather": all_gather, "residual": residual}
    sharded = _fsdp.kind(inner)
    if sharded:
        parts = _fsdp.attach(inner, sharded, _free, _group, _join, dict(options, **sharding))
        _attached.add(parts)
        return parts
    if any(sharding.values()):
        raise TypeError(f"{', '.join(k for k, v in sharding.items() if v)}: for models that are sharded (fully_shard(), "
                        f"FullyShardedDataParallel), and this is a {type(model).__name__}")
    ddp, root = _ddp_of(model)
    named = _reduced(ddp.module, root, ddp.parameters_to_ignore)
    group = _group(ddp.process_group)
    if group.job.setting("gradcomp.on_failure") == "shrink":
        raise _lib.Error(_lib.ERR_STATE, "gradcomp.on_failure=shrink: the training loop must say where a step begins and ends, with "
                                         'attach(model, on_failure="shrink") and its step(); or set gradcomp.on_failure=abort')
    hook = _hook_of(ddp)
    attachment = Replicated(named, group, options)
    hook.attachment, attachment._hook = attachment, weakref.ref(hook)
    _attached.add(attachment)
    return attachment


def _hook_of(model: Any) -> _Hook:
    """The hook of a model that has none in force."""
    hook = _hooks.get(model)
    if hook is None:
        hook = _Hook(model.process_group)
        try:
            model.register_comm_hook(hook, _communicate)
            # PyTorch 2 notes it for a reducer that is not in use here; a model that is copied or saved begins without.
            if hasattr(model, "_comm_hooks"):
                model._comm_hooks.remove((_communicate, hook))
        except RuntimeError as e:
            raise _lib.Error(_lib.ERR_STATE, "the model has a communication hook of somebody else's, and DDP takes one: "
                                             f"leave that register_comm_hook() out ({str(e).splitlines()[0]})") from None
        model.register_forward_pre_hook(_Passes(hook))
        _hooks[model] = hook
    elif isinstance(hook.attachment, Replicated) and hook.attachment.automatic:
        if hook.attachment._group.rank == 0:
            _log.warn(f"attach() takes over after {hook.attachment.stats()['steps']} steps that the model has taken attached "
                      "automatically; what their compression kept is lost: call attach() before the first forward pass")
        hook.attachment.detach()
    elif hook.attachment is not None:
        raise _lib.Error(_lib.ERR_STATE, "the model is attached already: use what the first attach() returned, or its "
                                         "detach() before another attach()")
    return hook


def _join(asked: Sequence[int] | None = None) -> _jobs.Job:
    """The job that all models of this process share. `asked`: the ranks that something is for."""
    world = dist.get_world_size()
    try:
        if _jobs.joined() is None and asked is not None and len(asked) < world and dist.get_rank() == asked[0]:
            _log.tell(f"attaching to {len(asked)} of {world} ranks; all {world} join the job first: those that attach no model "
                      "call gradcomp.torch.join()")
        job = _jobs.join(launch.TorchStore)
    except _lib.Error as e:
        if asked is None or len(asked) == world or e.status != _lib.ERR_TIMEOUT:
            raise
        raise _lib.Error(e.status, f"{e}; all {world} ranks join the job, also those that attach no model: call "
                                   "gradcomp.torch.join() on them") from None
    if (job.rank, job.nranks) != (dist.get_rank(), world):
        raise _lib.Error(_lib.ERR_MISMATCH, f"rank {job.rank} of {job.nranks} in the job is rank {dist.get_rank()} of "
                                            f"{world} in torch.distributed; give both the same ranks "
                                            "(gradcomp.torch.init_process_group() does)")
    return job


def join() -> None:
    """Joins the job, where one is asked for, on ranks that attach no model while others do. They leave
    it at exit, when all do: let them wait for the others there (torch.distributed.barrier())."""
    if _lib.requested():
        _join()


def group(process_group: dist.ProcessGroup | None = None) -> _jobs.Group:
    """The library's group of a process group's ranks (None: of all), for gradcomp.Parallel and
    plain collectives. Those ranks call it."""
    return _group(process_group or dist.group.WORLD)


def _group(process_group: Any) -> _jobs.Group:
    """The job's group for a DDP process group, whose ranks alone make it."""
    ranks = launch.global_ranks(process_group)
    job = _join(ranks)
    return job.world if len(ranks) == job.nranks else job.world.create(ranks)


def _leave(failed: BaseException | None) -> None:
    if failed is None:
        _shrink.leave()
    else:
        job = _jobs.joined()
        if job is not None and _of_backend(failed):
            _tell_failure(job)
        return
    for attachment in list(_attached):
        if attachment._pid == os.getpid() and attachment._end.alive and attachment._owes and attachment._group.rank == 0:
            _log.warn(f"the program ended without drain(): its weights lack the averages of the last {attachment._late()}")
        _pytorch.end(attachment._end)


def _of_backend(error: BaseException) -> bool:
    """Whether torch.distributed's own communication has failed."""
    return isinstance(error, getattr(dist, "DistError", ())) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _tell_failure(job: _jobs.Job) -> None:
    """Gloo does not say which rank is gone, and may know before the job does."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        try:
            job.check()
        except _lib.Error as e:
            _log.warn(e)
            return
        time.sleep(0.02)


_jobs.at_exit(_leave)
