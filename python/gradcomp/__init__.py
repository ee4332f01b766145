"""gradcomp: data-parallel training that communicates less.

`gradcomp.torch.attach(ddp_model)` is what a PyTorch user needs, gradcomp.data what
loads datasets; Job, Group and Reducer are the library's objects for everything else. Importing never fails:
the library is looked for when it is first used.
"""

from ._lib import Error, requested, version
from .job import Group, Job, Reducer

__all__ = ["Error", "Group", "Job", "Reducer", "requested", "version"]
