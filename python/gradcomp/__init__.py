"""gradcomp: data-parallel training that communicates less.

`gradcomp.torch.attach(ddp_model)` is what a PyTorch user needs, gradcomp.data what
loads datasets; Job, Group, Reducer, Coder and Parallel are the library's objects for everything else. Importing never fails:
the library is looked for when it is first used.
"""

from ._lib import Error, __version__, requested, version
from .coder import Coder
from .job import Group, Job, Reducer
from .parallel import Parallel

__all__ = ["Coder", "Error", "Group", "Job", "Parallel", "Reducer", "__version__", "requested", "version"]
