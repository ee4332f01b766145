"""PyTorch: the gradients of a DistributedDataParallel model through gradcomp.

    gradcomp.torch.init_process_group()
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    gradcomp.torch.attach(model)

attach() registers a DDP communication hook that hands over one parameter at a
time, so the state of a compressor belongs to parameters and survives DDP's
rebuilding of its buckets. Works with no_sync(), find_unused_parameters and
static_graph. Without --gradcomp it does nothing and the model trains over DDP's
own all-reduce. PyTorch 1.13 and 2.x; gradients in host memory.
"""

import ctypes
import os
import sys
import threading

import torch
import torch.distributed as dist

from . import _lib, launch
from . import job as _jobs
from .job import Reducer

init_process_group = launch.init_process_group

_attached = []
_told = False


class Attachment:
    """What attach() returns: the state to put in a checkpoint, and counters.
    Every rank has a state of its own and must save and load its own."""

    def __init__(self, model, group, options):
        named = [(n, p) for n, p in model.module.named_parameters()
                 if p.requires_grad and n not in model.parameters_to_ignore]
        where = named[0][1].device if named else torch.device("cpu")
        for name, p in named:
            if p.device != where or where.type not in ("cpu", "cuda"):
                raise _lib.Error(_lib.ERR_UNSUPPORTED, f"parameter {name} is on {p.device}; all gradients must be in "
                                                       "host memory, or all on one CUDA device")
        # What the reducer waits for: it follows whatever stream backward runs on.
        self._stream = torch.cuda.Stream(where) if where.type == "cuda" else None
        self._index = {p: i for i, (_, p) in enumerate(named)}
        self._names = [n for n, _ in named]
        self._pid = os.getpid()  # a forked child owns none of this
        self._lock = threading.Lock()
        self._bucket_of = [None] * len(named)
        tensors = [(n, tuple(p.shape), p.dtype) for n, p in named]
        if self._stream is None:
            self._reducer = Reducer(group, tensors, self._done, **options)
        else:
            with torch.cuda.device(where):
                self._reducer = Reducer(group, tensors, self._done, cuda=True, queue=self._stream.cuda_stream,
                                        **options)

    def state_dict(self):
        """This rank's state (error memory, warm-start factors); between steps only."""
        return {"gradcomp": torch.frombuffer(bytearray(self._reducer.save()), dtype=torch.uint8)}

    def load_state_dict(self, state):
        if state.get("gradcomp") is not None:
            saved = state["gradcomp"].contiguous()
            self._reducer.load(ctypes.string_at(saved.data_ptr(), saved.numel()))

    def stats(self):
        return self._reducer.stats()

    def _reduce(self, bucket):
        """A future of the bucket's average. The parameters of a bucket become done
        one by one, on threads of the library; the last one fulfils the future."""
        flight = _Flight(bucket, self)
        for i in flight.indices:
            self._bucket_of[i] = flight
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for i, gradient in zip(flight.indices, flight.gradients):
            try:
                self._reducer.ready(i, gradient.data_ptr())
            except _lib.Error as e:
                self._done(i, e)
        return flight.future

    def _done(self, index, error):
        with self._lock:
            flight, self._bucket_of[index] = self._bucket_of[index], None
            if flight is None:  # refused by ready() and failed with the step
                return
            flight.left -= 1
            flight.error = flight.error or error
            last = flight.left == 0
        if last:
            flight.raw.set_result(flight.buffer)


class _Flight:
    """A DDP bucket on its way. Holds the gradients' memory until it is done."""

    def __init__(self, bucket, attachment):
        self.buffer = bucket.buffer()
        if self.buffer.is_sparse:
            raise _lib.Error(_lib.ERR_UNSUPPORTED, "sparse gradients (Embedding(sparse=True)) cannot be reduced")
        self.gradients = bucket.gradients()
        self.indices = [attachment._index[p] for p in bucket.parameters()]
        self.left = len(self.indices)
        self.error = None
        # DDP looks at the future from C++, where only the failure of a
        # continuation shows as one.
        self.raw = torch.futures.Future()
        self.future = self.raw.then(self._finish)

    def _finish(self, raw):
        if self.error is not None:
            raise self.error
        return raw.value()


def _hook(attachment: Attachment, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return attachment._reduce(bucket)


class _Detached:
    """What attach() returns when gradcomp was not asked for: an empty state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        del state

    def stats(self):
        return {}


def attach(model, compressor=None, collective=None, bucket_bytes=0, seed=0):
    """Reduces the gradients of `model`, a DistributedDataParallel, with gradcomp.

    Collective over all ranks, before the first backward pass. `compressor` and
    `collective` are SPECs in place of the job's; `seed` must be equal on all
    ranks. Without --gradcomp and GRADCOMP: does nothing and says so once."""
    global _told
    if not _lib.requested():
        if not _told and int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0:
            print("gradcomp: not requested (no --gradcomp): DDP reduces the gradients itself", file=sys.stderr)
        _told = True
        return _Detached()
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(f"attach() takes a DistributedDataParallel, not a {type(model).__name__}")
    options = {"compressor": compressor, "collective": collective, "bucket_bytes": bucket_bytes, "seed": seed}
    attachment = Attachment(model, _group(_join(), model.process_group), options)
    model.register_comm_hook(attachment, _hook)
    _attached.append(attachment)
    return attachment


def _join():
    """The job that all models of this process share."""
    job = _jobs.join(launch.TorchStore)
    if (job.rank, job.nranks) != (dist.get_rank(), dist.get_world_size()):
        raise _lib.Error(_lib.ERR_MISMATCH, f"rank {job.rank} of {job.nranks} in the job is rank {dist.get_rank()} of "
                                            f"{dist.get_world_size()} in torch.distributed; give both the same ranks "
                                            "(gradcomp.torch.init_process_group() does)")
    return job


def _group(job, process_group):
    """The job's group for a DDP process group. A subgroup is split off, so every
    rank of the job must attach a model then."""
    ranks = launch.global_ranks(process_group)
    if len(ranks) == job.nranks:
        return job.world
    return job.world.split(min(ranks), ranks.index(job.rank))


def _detach(failed):
    if failed:
        return
    for attachment in _attached:
        if attachment._pid == os.getpid():
            attachment._reducer.free()
    _attached.clear()


_jobs.at_exit(_detach)
