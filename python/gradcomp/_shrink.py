"""attach(model, on_failure="shrink"): data-parallel training that goes on without the ranks it loses.

The process groups of torch.distributed have a fixed set of ranks and cannot be mended, so nothing of them is used once
a model is attached. A DistributedDataParallel is left as in no_sync(), in which it does not communicate; hooks of the
parameters hand gradients over, and buffers are broadcast over the job.

On a GPU a hook puts the reducer's stream behind that of backward, and the stream of who calls step() behind the averages.
No future and no communicator of PyTorch's is in use: what a lost rank leaves half done there is gradcomp's to abort."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from . import _lib, _log, _profile, _pytorch, launch
from . import job as _jobs
from ._attachment import Attachment, Stats
from ._lib import Error, PeersLost

# What makes a DistributedDataParallel communicate, or run its graph through a node that does.
_QUIET = {"require_backward_grad_sync": False, "require_forward_param_sync": False, "broadcast_buffers": False,
          "static_graph": False, "find_unused_parameters": False}

_in_force: Shrinking | None = None  # of this process
_leaves = False  # at exit


def check(model: torch.nn.Module, sharded: Any, delay: int, codes: Any) -> None:
    """What cannot outlive a rank is refused before anything is done."""
    if sharded or codes:
        raise _unsupported("a sharded model (FSDP) has parameters that only the lost rank had: take DistributedDataParallel")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"attach() takes a module, not a {type(model).__name__}")
    if delay:
        raise _unsupported("averages that come late (delay=) cannot be with it")
    for name, m in model.named_modules():
        if isinstance(m, torch.nn.SyncBatchNorm):
            raise _unsupported(f"module {name} is a SyncBatchNorm, which communicates over torch.distributed: take BatchNorm")
        if isinstance(m, DistributedDataParallel) and m is not model:
            raise _unsupported(f"module {name} is a DistributedDataParallel within the model: attach that, or its module")
    gpus: dict[torch.device, str] = {}
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        if t.device.type not in ("cpu", "cuda"):
            raise _unsupported(f"{name} is on {t.device}: it must be in host memory or on a GPU")
        if t.device.type == "cuda":
            gpus.setdefault(t.device, name)
    if len(gpus) > 1:
        raise _unsupported(", ".join(f"{name} is on {gpu}" for gpu, name in gpus.items()) + ": have all on one GPU")
    if isinstance(model, DistributedDataParallel) and len(launch.global_ranks(model.process_group)) != dist.get_world_size():
        raise _unsupported("the DistributedDataParallel is of a part of the ranks: make it of all")
    if gpus and dist.is_available() and dist.is_initialized() and _lib.requested():
        _check_watchdog(model)


def _check_watchdog(model: torch.nn.Module) -> None:
    """A communicator that PyTorch's NCCL process group has made has a watchdog, which ends the process when an operation
    of it fails, as it does on a lost rank. A group makes it with its first operation, or at once for a device_id."""
    config: Any = getattr(distributed_c10d, "get_backend_config", dist.get_backend)
    world = dist.group.WORLD
    groups: dict[tuple[str, str], Any] = {("the DistributedDataParallel's process group",
               'make it of Gloo, DistributedDataParallel(model, process_group=torch.distributed.new_group(backend="gloo")) '
               "(gradients do not go over it)"): model.process_group if isinstance(model, DistributedDataParallel) else None,
              ("the default process group, which was given a device_id,",
               "leave that out, or make the group of Gloo"): getattr(world, "bound_device_id", None) and world}
    # PyTorch 2.2 has put TORCH_ before the names, of which the first that is there counts, and has begun to monitor watchdogs.
    renamed = tuple(map(int, re.findall("[0-9]+", torch.__version__)[:2])) >= (2, 2)
    names = ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] * renamed + ["NCCL_ASYNC_ERROR_HANDLING"]
    monitor = ["TORCH_NCCL_ENABLE_MONITORING"] * renamed
    modes = [os.environ[n] for n in names if n in os.environ]
    if modes[:1] == ["0"] and all(os.environ.get(n) == "0" for n in monitor):
        return
    for (what, remedy), group in groups.items():
        # "nccl" before PyTorch 2; "cpu:gloo,cuda:nccl" since.
        if group and config(group).split("cuda:")[-1].split(",")[0] == "nccl":
            raise _unsupported(f"{what} has communicators of NCCL, whose watchdog ends this process when a rank is lost: {remedy}, "
                               f"or start with {' '.join(f'{n}=0' for n in names[:1] + monitor)}")


def attach(root: torch.nn.Module, ddp: DistributedDataParallel | None, named: Sequence[tuple[str, torch.nn.Parameter]],
           options: dict[str, Any], hook: Any) -> Shrinking:
    """`root` is what is reduced, in a DistributedDataParallel or not; `named` its (name, parameter) in forward order; `hook`
    the communication hook of the former, which is not called meanwhile."""
    global _leaves
    if not _leaves:
        # Before datasets are closed, which is for ranks that have met.
        _jobs.at_exit(_at_exit)
        _leaves = True
    if _in_force is not None:
        raise _lib.Error(_lib.ERR_STATE, 'a model is attached with on_failure="shrink" already: have both in one module '
                                         "(torch.nn.ModuleList), since a step is void for both or for none")
    return Shrinking(_join(), ddp, root, named, options, hook)


def _unsupported(why: str) -> Error:
    return _lib.Error(_lib.ERR_UNSUPPORTED, f'on_failure="shrink": {why}')


def _join() -> _jobs.Job:
    store = launch.TorchStore if dist.is_available() and dist.is_initialized() else None
    job = _jobs.join(store, ["gradcomp.on_failure=shrink"])
    if job.setting("gradcomp.on_failure") != "shrink":
        raise _lib.Error(_lib.ERR_STATE, "the job began with gradcomp.on_failure=abort, before this model was attached: set "
                                         "GRADCOMP_ON_FAILURE=shrink, or attach this model first")
    if store is not None and (job.rank, job.nranks) != (dist.get_rank(), dist.get_world_size()):
        raise _lib.Error(_lib.ERR_MISMATCH, f"rank {job.rank} of {job.nranks} in the job is rank {dist.get_rank()} of "
                                            f"{dist.get_world_size()} in torch.distributed; give both the same ranks "
                                            "(gradcomp.torch.init_process_group() does)")
    return job


class Surviving(Attachment):
    """What attach(model, on_failure="shrink") returns. `rank` of `nranks` is what this process is now, `epoch` how
    often ranks have been lost.

        while n < steps:
            try:
                with shared.step():
                    optimizer.zero_grad()
                    loss(model, batch(n, shared.rank, shared.nranks)).backward()
            except gradcomp.PeersLost:
                continue                # step n is void on all ranks: again, as the rank that this is now
            optimizer.step()
            n += 1

    All calls come from one thread, and step(), state_dict(shared=True), load_state_dict() and detach() on all ranks."""

    epoch = 0

    @property
    def rank(self) -> int:
        raise NotImplementedError

    @property
    def nranks(self) -> int:
        raise NotImplementedError

    def step(self) -> contextlib.AbstractContextManager[Surviving]:
        """Around all forward and backward passes of one step; at its end p.grad is the average over the ranks that live.
        Raises gradcomp.PeersLost when ranks have been lost: the step is void on all that are left, which have
        agreed, gradients are None and buffers are as before it. gradcomp.Error when the job cannot go on."""
        raise NotImplementedError

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Within step(): backward passes that only add to the gradients, all but the last of a step."""
        raise NotImplementedError


class Shrinking(Surviving):
    """Where gradcomp was asked for."""

    def __init__(self, job: _jobs.Job, ddp: DistributedDataParallel | None, root: torch.nn.Module,
                 named: Sequence[tuple[str, torch.nn.Parameter]], options: dict[str, Any], hook: Any):
        global _in_force
        super().__init__()
        self._job, self.group, self._ddp = job, job.world, ddp
        self._names, self._parameters = [n for n, _ in named], [p for _, p in named]
        ignored = getattr(ddp, "parameters_to_ignore", ())
        every = ddp is None or ddp.broadcast_buffers
        buffers = [b for n, b in root.named_buffers() if n not in ignored and b.numel()]
        self._buffers = _by_device(buffers)
        self._broadcasts = every and bool(buffers)
        where = self._parameters[0].device if named else torch.device("cpu")
        # What the reducer waits for; None: all is in host memory.
        self._stream = torch.cuda.Stream(where) if where.type == "cuda" else None
        self._pid, self._stats = os.getpid(), Stats()
        job._recover = lambda: self._shrink()[1]
        self._open, self._gives, self._failed = False, True, False
        self._lost: PeersLost | None = None  # to be raised when the next step begins
        self._before: list[torch.Tensor] | None = None  # buffers when the step began, as bytes, by device
        self._job._certain(lambda: _pytorch.check_orders(self.group, named))
        self._orders = _pytorch.unusual_orders(named)
        for t in [*self._parameters, *buffers]:
            self._broadcast([t])
        # A gradient's memory must be its own and dense, which that of autograd may not be.
        self._gradients = [torch.empty_like(p, requires_grad=False) for p in self._parameters]
        self._given = [False] * len(named)
        if self._stream is not None:
            options = dict(options, cuda=True, queue=self._stream.cuda_stream, memory=_pytorch.device_memory(where))
        with self._device():
            shapes = [(n, _pytorch.memory_shape(p), p.dtype) for n, p in named]
            self._reducer: _jobs.Reducer | None = job._certain(lambda: _jobs.Reducer(job.world, shapes, **options))
        self._hooks = [_after_accumulation(p, functools.partial(self._came, i)) for i, p in enumerate(self._parameters)]
        self._was = {name: getattr(ddp, name) for name in _QUIET if hasattr(ddp, name)}
        for name in self._was:
            setattr(ddp, name, _QUIET[name])
        self._hook = hook
        if hook is not None:
            hook.attachment = self
        _in_force = self

    @property
    def rank(self) -> int:
        return int(self._job.rank)

    @property
    def nranks(self) -> int:
        return int(self._job.nranks)

    @contextlib.contextmanager
    def step(self) -> Iterator[Shrinking]:
        self._begin()
        try:
            yield self
            if not self._failed:
                self._finish_step()
        except _lib.Error as e:
            if e.status != _lib.ERR_PEER_LOST or isinstance(e, PeersLost):
                raise
            self._failed = True
        finally:
            self._open = False
        if self._failed:
            self._recover()
        self._steps += 1
        _profile.settle()
        self._stepped()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self._gives = False
        try:
            yield
        finally:
            self._gives = True

    def _begin(self) -> None:
        self._present()
        if self._open:
            raise _lib.Error(_lib.ERR_STATE, "step() within step(): a step's forward and backward passes are in one")
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost
        self._failed, self._before = False, None
        self._given = [False] * len(self._given)
        before = [_bytes_of(tensors) for tensors in self._buffers]
        if self._buffers:
            self._before = before
        if self._broadcasts:
            for together in before:
                self._collective(self.group.broadcast, together)
                # The step has begun on no rank that is not in it.
                lost, self._lost = self._lost, None
                if lost is not None:
                    raise lost
            self._put_back(before)
        self._open = True

    def _another_pass(self) -> None:
        """Before a forward pass: nothing, a step may have several."""

    def _present(self) -> _jobs.Reducer:
        if self._reducer is None:
            raise _lib.Error(_lib.ERR_STATE, "this attachment has been detached; attach(model) makes another")
        return self._reducer

    def _came(self, i: int) -> None:
        """After autograd has added to the gradient of parameter i."""
        if not self._gives or self._failed:
            return
        if not self._open:
            raise _lib.Error(_lib.ERR_STATE, 'a backward pass outside of step(): with on_failure="shrink" its gradients are '
                                             "averaged within step(), or left alone within no_sync()")
        if self._given[i]:
            raise _lib.Error(_lib.ERR_STATE, f"parameter {self._names[i]} has two backward passes in one step(): put all but the "
                                             "last in no_sync()")
        self._give(i)

    @torch.no_grad()
    def _give(self, i: int) -> None:
        p, own = self._parameters[i], self._gradients[i]
        if p.grad is None:
            own.zero_()
        elif p.grad.layout != torch.strided:
            raise _unsupported(f"parameter {self._names[i]} has a sparse gradient: make it dense (to_dense()) where it is made")
        elif p.grad.data_ptr() != own.data_ptr():
            own.copy_(p.grad)
            if self._stream is not None:
                p.grad.record_stream(self._current())  # may have been made on another one
        p.grad = own
        self._given[i] = True
        try:
            self._hand_over(i, own)
        except _lib.Error as e:
            if e.status != _lib.ERR_PEER_LOST:
                raise
            self._failed = True  # told at the end of the step, when autograd is at rest

    def _hand_over(self, i: int, own: torch.Tensor) -> None:
        if self._stream is not None:
            self._stream.wait_stream(self._current())
        _profile.follow()
        self._present().ready(i, own.data_ptr())

    def _current(self) -> torch.cuda.Stream:
        """The stream that what is called now is put on. In a hook: that of this part of backward."""
        return torch.cuda.current_stream(self._parameters[0].device)

    def _device(self) -> contextlib.AbstractContextManager[Any]:
        """A reducer works on the device that is current when it is made."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.device(self._stream.device)

    def _finish_step(self) -> None:
        # As they come on the other ranks: from the last layer on.
        for i in reversed(range(len(self._given))):
            if not self._given[i] and not self._failed:
                self._give(i)
        if not self._failed:
            self._present().wait()
            if self._stream is not None:
                self._current().wait_stream(self._stream)

    def _recover(self) -> None:
        lost, found = self._shrink()
        if found.step_done:
            # Others may have begun the next step, which is void on all.
            self._lost = lost
            return
        for p in self._parameters:
            p.grad = None
        if self._before is not None:
            self._put_back(self._before)
        raise lost

    def _put_back(self, before: list[torch.Tensor]) -> None:
        for tensors, together in zip(self._buffers, before):
            _put_bytes(tensors, together)

    def _shrink(self) -> tuple[PeersLost, _jobs.Survivors]:
        if self._stream is not None:
            self._stream.synchronize()  # what the reducer waits for on the device comes, however long backward takes
        with self._device():
            found = self._job.shrink()
        self.epoch = found.epoch
        return PeersLost(found.lost, found.rank, found.nranks, found.epoch), found

    def _collective(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Between steps: what fails is void on all ranks, or done on all; then others have gone on to their next call, which is
        void on all."""
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost
        try:
            return call(*arguments)
        except _lib.Error as e:
            if e.status != _lib.ERR_PEER_LOST:
                raise
        lost, found = self._shrink()
        if not found.step_done:
            raise lost
        self._lost = lost
        return found.result

    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        """Of what is the same on all ranks from then on, when the training begins."""
        together = torch.empty(0)

        def call() -> None:
            nonlocal together
            together = _bytes_of(tensors)
            if together.numel():
                self.group.broadcast(together)

        self._job._certain(call)
        if together.numel():
            _put_bytes(tensors, together)

    def state_dict(self, in_flight: bool = False, shared: bool = False) -> dict[str, Any]:
        """As of other attachments (gradcomp.torch.Attachment). PeersLost with shared=True: this checkpoint is to be left out."""
        del in_flight
        return _pytorch.as_state(self._collective(self._present().save, shared), self._orders, owes=False)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state of either kind, on all ranks together."""
        if not _pytorch.is_empty(state):
            _pytorch.load(state, self._orders, lambda saved: self._collective(self._present().load, saved))

    def stats(self) -> Stats:
        if self._reducer is None:
            return self._stats
        counted = self._reducer.stats()
        return Stats(counted, {"all_reduce": counted})

    def detach(self) -> None:
        """Undoes attach(), on all ranks between the same steps. A DistributedDataParallel communicates itself again, for which
        no rank may have been lost."""
        global _in_force
        if self._reducer is None or self._pid != os.getpid():
            return
        for hook in self._hooks:
            hook.remove()
        for name, value in self._was.items():
            setattr(self._ddp, name, value)
        if self._hook is not None:
            self._hook.attachment = None
        self._stats, reducer, self._reducer, _in_force = self.stats(), self._reducer, None, None
        try:
            self._meet()
        finally:
            reducer.free()

    def _meet(self) -> None:
        """A rank whose last step failed needs the others, to agree on what became of it."""
        while True:
            try:
                self._collective(self.group.barrier)
                return
            except PeersLost:
                continue


def _at_exit(failed: BaseException | None) -> None:
    if failed is None:
        leave()


def leave() -> None:
    """At the end of a program that has not failed."""
    if _in_force is not None:
        try:
            _in_force.detach()
        except _lib.Error as e:  # all that was trained is done
            _log.warn(e)


class Alone(Surviving):
    """Where gradcomp was not asked for: PyTorch's own way, without a failure."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self._model = model
        of_torch = dist.is_available() and dist.is_initialized()
        self._rank, self._nranks = (dist.get_rank(), dist.get_world_size()) if of_torch else (0, 1)
        started = max([self.nranks, *(int(os.environ.get(n, 1)) for n in ("WORLD_SIZE", "SLURM_NTASKS"))])
        if started > 1 and not isinstance(model, DistributedDataParallel):
            raise _lib.Error(_lib.ERR_STATE, f"there are {started} ranks, and gradcomp was not asked for: nobody would average the "
                                             "gradients; start with --gradcomp=none or GRADCOMP=none, or give attach() a "
                                             "DistributedDataParallel")

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def nranks(self) -> int:
        return self._nranks

    def step(self) -> contextlib.AbstractContextManager[Surviving]:
        return contextlib.nullcontext(self)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        own: Any = self._model
        return own.no_sync() if isinstance(own, DistributedDataParallel) else contextlib.nullcontext()


def _after_accumulation(p: torch.Tensor, call: Callable[[], object]) -> Any:
    """call() whenever a backward pass has added to p.grad."""
    if hasattr(p, "register_post_accumulate_grad_hook"):
        return p.register_post_accumulate_grad_hook(lambda _: call())
    with torch.enable_grad():
        function: Any = p.expand_as(p).grad_fn
        node = function.next_functions[0][0]
    return _NodeHook(node, node.register_hook(lambda *_: call()))


class _NodeHook:
    """Before PyTorch 2.1: a hook of the node that accumulates, which lives while somebody holds it."""

    def __init__(self, node: Any, handle: Any):
        self._node, self._handle = node, handle

    def remove(self) -> None:
        self._handle.remove()


def _by_device(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [[t for t in tensors if t.device == where] for where in dict.fromkeys(t.device for t in tensors)]


def _bytes_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors])


@torch.no_grad()
def _put_bytes(tensors: Iterable[torch.Tensor], together: torch.Tensor) -> None:
    at = 0
    for t in tensors:
        size = t.numel() * t.element_size()
        # A copy, since a view of another type must begin where that type may.
        t.copy_(together[at:at + size].clone().view(t.dtype).reshape(t.shape))
        at += size
