"""gradcomp: data-parallel training that communicates less.

`gradcomp.torch.attach(ddp_model)` is what a PyTorch user needs, gradcomp.data what
loads datasets; Job, Group, Reducer, Coder and Parallel are the library's objects for everything else. Importing never fails:
the library is looked for when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._lib import Error, PeersLost, __version__, requested, version
    from .coder import Coder
    from .job import Group, Job, Reducer
    from .parallel import Parallel

__all__ = ["Coder", "Error", "Group", "Job", "Parallel", "PeersLost", "Reducer", "__version__", "requested", "version"]

_OF = {"Coder": "coder", "Group": "job", "Job": "job", "Parallel": "parallel", "Reducer": "job"}


def __getattr__(name: str) -> Any:
    """Modules are imported when they are asked for: `import torch` imports this one for gradcomp.autoload alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_OF.get(name, '_lib')}", __name__), name)
