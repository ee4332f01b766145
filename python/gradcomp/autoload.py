"""Models of programs that do not know of gradcomp: `srun --gradcomp=SPEC python3 train.py`.

load() is what `import torch` calls (the entry point `gradcomp` of group torch.backends, from
PyTorch 2.5 on) or sitecustomize does. It makes DistributedDataParallel, fully_shard() and
FullyShardedDataParallel note their models. Each is attached at its first forward pass (of a replicated
one at the first that gradients follow), if by then it has neither an attachment nor a communication
hook. Nothing here raises: what fails is a line on stderr, and the model trains as it would without gradcomp.

With GRADCOMP_AUTO_ATTACH=backend no model is looked at: process groups that would be Gloo's are of the backend "gradcomp", which
carries out the policy, or the SPEC for all that data-parallel groups send.

A hook on some of the ranks would mix up what they send each other. So the ranks agree before and
after, in the store of torch.distributed, which no other traffic can be confused with.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

# What __reduce__() of a hook before forward passes returns: in its place a copy of the model, or what is saved of it, has
# one that gives the inputs back, {}.get(model, inputs), and needs no gradcomp where it is loaded.
NOTHING: Any = getattr, ({}, "get")
_OFF = ("no", "false", "off", "0")
_FIRST = (2, 6)  # PyTorch with what the backend needs
_FSDP = "torch.distributed.fsdp"
_loaded = False
_models = 0  # that this process has noted
_sharded: Any = None  # the last _Noted of each sharded module: only the outermost is attached


def register() -> None:
    """Makes "gradcomp" a backend of torch.distributed, whose module is loaded when a group of it is made."""
    import torch
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "GRADCOMP"):
        named: Any = {"devices": ["cpu", "cuda"]} if _recent(torch) else {}
        dist.Backend.register_backend("gradcomp", _create, extended_api=True, **named)


def _create(asked: Any, options: Any) -> Any:
    del options
    import torch

    if not _recent(torch):
        raise RuntimeError(f"the backend gradcomp takes PyTorch 2.6 or newer, and this is {torch.__version__}: take gloo, and attach models "
                           "(gradcomp.torch.attach)")
    from . import backend

    return backend.create(asked.store, asked.group_rank, asked.group_size, asked.timeout, asked.global_ranks_in_group, asked.group_id)


def _recent(torch: Any) -> bool:
    return bool(torch.__version__ >= _FIRST)


def load() -> None:
    """Called when torch has been imported; a second call does nothing."""
    global _loaded
    try:
        register()
    except Exception as e:
        _say(f"cannot register the backend: {_one_line(e)}")
    if _loaded or os.environ.get("GRADCOMP", "off") in ("", "off"):
        return
    if os.environ.get("GRADCOMP_AUTO_ATTACH", "yes").lower() in _OFF:
        return
    _loaded = True
    try:
        import torch.distributed as dist

        if dist.is_available():
            _look_at_groups()
            _note_models()
            if _FSDP in sys.modules:
                _note_sharded(sys.modules[_FSDP])
            else:
                sys.meta_path.insert(0, _WhenFsdpComes())
    except Exception as e:
        _say(f"cannot attach models by itself: {_one_line(e)}")


def _look_at_groups() -> None:
    from torch.distributed import distributed_c10d as c10d

    module: Any = c10d
    make = module._new_process_group_helper

    @functools.wraps(make)
    def helper(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **named: Any) -> Any:
        return make(size, rank, ranks, _instead(backend, rank, ranks), *args, **named)

    module._new_process_group_helper = helper


def _instead(backend: Any, rank: int, ranks: Any) -> Any:
    """The backend of a group in the place of the one that is asked for."""
    import torch

    text = str(backend).lower()
    if text not in ("gloo", "undefined", "cpu:gloo,cuda:nccl"):
        return backend
    if _through_backend():
        if _recent(torch):
            return "gradcomp" if text == "gloo" or not torch.cuda.is_available() else "cpu:gradcomp,cuda:nccl"
        why = f"auto_attach=backend takes PyTorch 2.6 or newer, and this is {torch.__version__}: groups stay Gloo's"
    elif _is_policy(os.environ["GRADCOMP"]):
        why = ("GRADCOMP is a policy, which process groups of the backend gradcomp carry out, and this one is Gloo's: take "
               'init_process_group("gradcomp") or GRADCOMP_AUTO_ATTACH=backend')
    else:
        return backend
    if not ranks and rank in (0, -1):
        _say(why)
    return backend


def _is_policy(text: str) -> bool:
    """Whether it is no SPEC; the library, which knows, need not be there."""
    return "/" in text.partition(":")[0]


def _through_backend() -> bool:
    named = os.environ.get("GRADCOMP_AUTO_ATTACH")
    if named is None:
        from . import _lib

        try:
            named = _lib.setting("gradcomp.auto_attach")
        except Exception:  # said where a model is attached
            return False
    return named == "backend"


def _note_models() -> None:
    from torch.nn.parallel import DistributedDataParallel

    _after_init(DistributedDataParallel, _note)


def _after_init(cls: Any, note: Callable[[Any], object]) -> None:
    make = cls.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        _try(note, self)

    cls.__init__ = __init__


def _try(note: Callable[[Any], object], model: Any) -> None:
    try:
        note(model)
    except Exception as e:
        _say(f"{_name(model)} is not attached: {_one_line(e)}")


class _WhenFsdpComes:
    """On sys.meta_path until torch.distributed.fsdp is imported, which `import torch` does not do."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _FSDP:
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec: Any = PathFinder.find_spec(name, path, target)
        run = getattr(getattr(spec, "loader", None), "exec_module", None)
        if run is None:
            return None

        def exec_module(module: Any) -> None:
            run(module)
            try:
                _note_sharded(module)
            except Exception as e:
                _say(f"cannot attach sharded models by itself: {_one_line(e)}")

        spec.loader.exec_module = exec_module
        return spec


def _note_sharded(fsdp: Any) -> None:
    import weakref

    global _sharded
    _sharded = weakref.WeakKeyDictionary()
    shard = getattr(fsdp, "fully_shard", None)
    if shard is not None:
        @functools.wraps(shard)
        def fully_shard(module: Any, *args: Any, **named: Any) -> Any:
            made = shard(module, *args, **named)
            if hasattr(module, "register_forward_pre_hook"):  # else of a list of modules: they are in one that is sharded, too
                _try(_note_outermost, module)
            return made

        fsdp.fully_shard = fully_shard
    _after_init(fsdp.FullyShardedDataParallel, _note_outermost)


def _note_outermost(model: Any) -> None:
    for module in model.modules():
        if module in _sharded:
            _sharded.pop(module).handle.remove()
    _note(model)


class _Noted:
    """A model from its construction to the first forward pass (that gradients follow)."""

    def __init__(self, model: Any, sharded: bool, rank: int, nranks: int, store: Any):
        self.sharded, self.rank, self.nranks, self.store = sharded, rank, nranks, store
        self.__name__ = self.__qualname__ = "gradcomp"  # tools list hooks by these
        self.store.add("here", 1)
        # Before FSDP's own, which settles what it communicates with.
        self.handle = model.register_forward_pre_hook(self, **({"prepend": True} if hasattr(model, "_get_fsdp_state") else {}))

    def __call__(self, model: Any, inputs: Any) -> None:
        del inputs
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None:
            self.begin(model)
        else:
            dynamo.disable(self.begin)(model)

    def __reduce__(self) -> Any:  # of a model that is copied or saved: the copy is not noted
        return NOTHING

    def begin(self, model: Any) -> None:
        import torch

        if not self.sharded and not (torch.is_grad_enabled() and model.require_backward_grad_sync):
            return  # the other ranks need not be here
        self.handle.remove()
        try:
            _attach(self, model)
        except Exception as e:
            _say(f"{_name(model)} trains as without gradcomp: {_one_line(e)}")


def _note(model: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    global _models
    nranks = dist.get_world_size()
    sharded = not hasattr(model, "_get_ddp_logging_data")
    size, first = _ranks_of(model) if sharded else (dist.get_world_size(model.process_group),
                                                    dist.get_rank(model.process_group) == 0)
    if size < nranks:
        if first and not _is_policy(os.environ.get("GRADCOMP", "")):
            _say(f"{_name(model)} is on {size} of {nranks} ranks: it is left alone, "
                 "gradcomp.torch.attach() would attach it")
        return
    # All ranks of the world make this model now, so they count alike.
    store = dist.PrefixStore(f"gradcomp/noted/{_models}", _get_default_store())
    _models += 1
    noted = _Noted(model, sharded, dist.get_rank(), nranks, store)
    if sharded:
        _sharded[model] = noted


def _ranks_of(model: Any) -> tuple[int, bool]:
    """How many a sharded model is on, and whether this one is their first."""
    import torch.distributed as dist

    if hasattr(model, "_get_fsdp_state"):
        # Of tensor-parallel parameters the mesh has those dimensions, too.
        meshes = [p.sharded_param.device_mesh.mesh for group in _param_groups(model) for p in group.fsdp_params]
        ranks = max(meshes, key=lambda m: m.numel()).flatten().tolist() if meshes else []
    elif isinstance(model.process_group, tuple):  # within nodes and between them
        ranks = range(dist.get_world_size())
    else:
        ranks = dist.get_process_group_ranks(model.process_group)
    return len(ranks), dist.get_rank() in ranks[:1]


def _param_groups(model: Any) -> list[Any]:
    """The FSDPParamGroups within a model."""
    from . import _pytorch

    return [group for _, groups in _pytorch.sharded(model) for group in groups]


def _attach(noted: _Noted, model: Any) -> None:
    refusal = _refusal(model)
    word = _agree(noted, "may", refusal, _OTHERS)
    if word != "yes":
        _left(noted, model, word)
        return
    from . import torch as gradcomp_torch

    attachment: Any = None
    refusal = None
    try:
        attachment = gradcomp_torch.attach(model)
        attachment.automatic = True  # gives way to one of the program's
    except Exception as e:
        refusal = _one_line(e)
    word = _agree(noted, "has", refusal)
    if word != "yes":
        if attachment is not None:
            attachment.detach()
        _left(noted, model, word)
    elif noted.rank == 0:
        spec = attachment._group.job.setting("gradcomp.compressor")
        if noted.sharded:
            ways = ", ".join(n for n in ("reduce_scatter", "all_gather", "all_reduce") if n in attachment._parts)
            _say(f"attached {_name(model)}, sharded ({ways or 'as without gradcomp'}): {spec}", warn=False)
        else:
            numbers = sum(p.numel() for p in attachment._parameters)
            _say(f"attached {_name(model)}, {numbers} parameters in {len(attachment._parameters)} tensors: {spec}", warn=False)


_QUIET = "-"  # no word to the user
_OTHERS = 30  # s after which a rank that has not made the model, which all make together, has no gradcomp


def _left(noted: _Noted, model: Any, word: str) -> None:
    """All ranks have the same word for why not; one says it."""
    if noted.rank == 0 and word != _QUIET:
        _say(f"{_name(model)} trains as without gradcomp: {word}")


def _refusal(model: Any) -> str | None:
    """Why this rank cannot attach the model; None where it can."""
    from . import _lib

    if "gradcomp.torch" in sys.modules and _attached_by_program(model):
        return _QUIET
    try:
        if _lib.setting("gradcomp.auto_attach") in (*_OFF, "backend") or _is_policy(_lib.setting("gradcomp.compressor") or ""):
            return _QUIET
        if hasattr(model, "_get_ddp_logging_data"):
            hook = model._get_ddp_logging_data().get("comm_hook")
        else:
            hook = _own_collective(model)
        if hook:
            return f"it has a communication hook of its own ({hook})"
        if hasattr(model, "_join_config") and model._join_config.enable:
            return "its first pass is within join(); call gradcomp.torch.attach() before that"
    except Exception as e:
        return _one_line(e)
    return None


_COLLECTIVES = ("_reduce_scatter_comm", "_all_gather_comm")  # of an FSDPParamGroup


def _attached_by_program(model: Any) -> bool:
    from . import _fsdp
    from . import torch as ours

    # What is around a sharded module may have been attached with it.
    return (model in ours._hooks or any(m in _fsdp._in_force for m in model.modules())
            or any(_fsdp.attached(g) for g in _param_groups(model)))


def _own_collective(model: Any) -> str | None:
    """The name of what a program has put in the place of a collective of FSDP2's. (A hook in a place where FSDP
    has none, attach() refuses.)"""
    for group in _param_groups(model):
        for name in _COLLECTIVES:
            own = getattr(group, name, None)
            if own is not None and not type(own).__module__.startswith("torch."):
                return type(own).__name__
    return None


def _agree(noted: _Noted, what: str, refusal: str | None, patience: float | None = None) -> str:
    """What all ranks say: "yes", or a refusal. The first word that is written down counts for all."""
    import datetime
    import time

    store = noted.store

    def write(word: str) -> None:
        # A rank that waits is woken by set() alone.
        store.set(what, store.compare_set(what + "/first", "", word))

    if refusal is not None:
        write(_told(noted, refusal))
    elif store.add(what + "/yes", 1) == noted.nranks:
        write("yes")
    if patience is not None:
        until = time.monotonic() + patience
        while store.add("here", 0) < noted.nranks and time.monotonic() < until:
            time.sleep(0.05)
        here = store.add("here", 0)
        if here < noted.nranks:
            write(f"{noted.nranks - here} of {noted.nranks} ranks have no gradcomp that attaches models: is it installed "
                  "on all nodes?")
    # As long as DDP itself would wait for a rank that is late.
    store.wait([what], datetime.timedelta(minutes=30))
    return str(store.get(what).decode())


def _told(noted: _Noted, refusal: str) -> str:
    return refusal if refusal == _QUIET or noted.nranks == 1 else f"rank {noted.rank}: {refusal}"


def _name(model: Any) -> str:
    return f"{type(model).__name__}({type(model.module).__name__})" if hasattr(model, "process_group") else type(model).__name__


def _one_line(e: BaseException) -> str:
    return " ".join(str(e).split()) or type(e).__name__


def _say(text: str, warn: bool = True) -> None:
    from . import _log

    (_log.warn if warn else _log.tell)(text)
