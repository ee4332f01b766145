"""Models of programs that do not know of gradcomp: `srun --gradcomp=SPEC python3 train.py`.

load() is what `import torch` calls (the entry point `gradcomp` of group torch.backends, from
PyTorch 2.5 on) or sitecustomize does. It makes DistributedDataParallel note its models, and each
is attached at the first forward pass that gradients follow, if by then it has neither an
attachment nor a communication hook. Nothing here raises: what fails is a line on stderr, and the
model trains as it would without gradcomp.

A hook on some of the ranks would mix up what they send each other. So the ranks agree before and
after, in the store of torch.distributed, which no other traffic can be confused with.
"""

import os
import sys

_OFF = ("no", "false", "off", "0")
_loaded = False
_models = 0  # that this process has noted


def load():
    """Called when torch has been imported; a second call does nothing."""
    global _loaded
    if _loaded or os.environ.get("GRADCOMP", "off") in ("", "off"):
        return
    if os.environ.get("GRADCOMP_AUTO_ATTACH", "yes").lower() in _OFF:
        return
    _loaded = True
    try:
        import torch.distributed as dist

        if dist.is_available():
            _note_models()
    except Exception as e:
        _say(f"cannot attach models by itself: {_one_line(e)}")


def _note_models():
    from torch.nn.parallel import DistributedDataParallel

    make = DistributedDataParallel.__init__

    def __init__(self, *args, **named):
        make(self, *args, **named)
        try:
            _note(self)
        except Exception as e:
            _say(f"{_name(self)} is not attached: {_one_line(e)}")

    __init__.__doc__, __init__.__wrapped__ = make.__doc__, make
    DistributedDataParallel.__init__ = __init__


class _Noted:
    """A model from its construction to the first forward pass that gradients follow."""

    def __init__(self, model, rank, nranks, store):
        self.rank, self.nranks, self.store = rank, nranks, store
        self.store.add("here", 1)
        self.handle = model.register_forward_pre_hook(self)

    def __call__(self, model, inputs):
        del inputs
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None:
            self.begin(model)
        else:
            dynamo.disable(self.begin)(model)

    def __reduce__(self):  # of a model that is copied or saved: the copy is not noted
        return _none, ()

    def begin(self, model):
        import torch

        if not torch.is_grad_enabled() or not model.require_backward_grad_sync:
            return  # the other ranks need not be here
        self.handle.remove()
        try:
            _attach(self, model)
        except Exception as e:
            _say(f"{_name(model)} trains as without gradcomp: {_one_line(e)}")


def _none():
    return _nothing


def _nothing(model, inputs):
    """In place of a _Noted in what was copied or saved."""


def _note(model):
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    global _models
    nranks = dist.get_world_size()
    if dist.get_world_size(model.process_group) < nranks:
        if dist.get_rank(model.process_group) == 0:
            _say(f"{_name(model)} is on {dist.get_world_size(model.process_group)} of {nranks} ranks: it is left alone, "
                 "gradcomp.torch.attach() would attach it")
        return
    # All ranks of the world make this model now, so they count alike.
    store = dist.PrefixStore(f"gradcomp/noted/{_models}", _get_default_store())
    _models += 1
    _Noted(model, dist.get_rank(), nranks, store)


def _attach(noted, model):
    refusal = _refusal(model)
    word = _agree(noted, "may", refusal, _OTHERS)
    if word != "yes":
        return _left(noted, model, word)
    from . import torch as gradcomp_torch

    attachment = refusal = None
    try:
        attachment = gradcomp_torch.attach(model)
        attachment.automatic = True  # gives way to one of the program's
    except Exception as e:
        refusal = _one_line(e)
    word = _agree(noted, "has", refusal)
    if word != "yes":
        if attachment is not None:
            attachment.detach()
        return _left(noted, model, word)
    if noted.rank == 0:
        numbers = sum(p.numel() for p in attachment._parameters)
        _say(f"attached {_name(model)}, {numbers} parameters in {len(attachment._parameters)} tensors: "
             f"{attachment._group.job.setting('gradcomp.compressor')}")
    return None


_QUIET = "-"  # no word to the user
_OTHERS = 30  # s after which a rank that has not made the model, which all make together, has no gradcomp


def _left(noted, model, word):
    """All ranks have the same word for why not; one says it."""
    if noted.rank == 0 and word != _QUIET:
        _say(f"{_name(model)} trains as without gradcomp: {word}")


def _refusal(model):
    """Why this rank cannot attach the model; None where it can."""
    from . import _lib

    ours = sys.modules.get("gradcomp.torch")
    if ours is not None and model in ours._hooks:
        return _QUIET  # the program has attached it
    try:
        if _lib.setting("gradcomp.auto_attach") in _OFF:
            return _QUIET
        hook = model._get_ddp_logging_data().get("comm_hook")
        if hook:
            return f"it has a communication hook of its own ({hook})"
        if model._join_config.enable:
            return "its first pass is within join(); call gradcomp.torch.attach() before that"
    except Exception as e:
        return _one_line(e)
    return None


def _agree(noted, what, refusal, patience=None):
    """What all ranks say: "yes", or a refusal. The first word that is written down counts for all."""
    import datetime
    import time

    store = noted.store

    def write(word):
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
    return store.get(what).decode()


def _told(noted, refusal):
    return refusal if refusal == _QUIET or noted.nranks == 1 else f"rank {noted.rank}: {refusal}"


def _name(model):
    return f"{type(model).__name__}({type(model.module).__name__})"


def _one_line(e):
    return " ".join(str(e).split()) or type(e).__name__


def _say(text):
    print(f"gradcomp: {text}", file=sys.stderr, flush=True)
