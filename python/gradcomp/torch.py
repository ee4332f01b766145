"""PyTorch: the gradients of a DistributedDataParallel model through gradcomp.

    gradcomp.torch.init_process_group()
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    gradcomp.torch.attach(model)

attach() registers a DDP communication hook that hands over one parameter at a
time, so the state of a compressor belongs to parameters and survives DDP's
rebuilding of its buckets. Works with no_sync(), find_unused_parameters and
static_graph. Without --gradcomp it does nothing and the model trains over DDP's
own all-reduce. PyTorch 1.13 and 2.x; gradients in host memory.

With attach(model, delay=D) no step waits for the network unless it is D steps behind:
a gradient is this rank's own and what the average of D steps ago corrects. Ranks are then a
little apart, until drain(optimizer) makes all ranks' weights identical again: before a
checkpoint, before weights are compared or evaluated, and at the end.
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
        self._parameters, self._group, self._delay = [p for _, p in named], group, options["delay"]
        self._owes = False  # corrections of steps since the last drain
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

    def state_dict(self, in_flight=False):
        """This rank's state (error memory, warm-start factors); between steps only. With a
        delay: after drain(), since the ranks' weights differ before it; with in_flight=True
        what is owed is saved too, for those who save every rank's own weights."""
        if self._owes and not in_flight:
            raise _lib.Error(_lib.ERR_STATE, f"averages of the last {self._delay} steps are not in the weights yet: call "
                                             "drain(optimizer) first, or state_dict(in_flight=True) and save the weights "
                                             "of every rank")
        return {"gradcomp": torch.frombuffer(bytearray(self._reducer.save()), dtype=torch.uint8), "owes": self._owes}

    def load_state_dict(self, state):
        if state.get("gradcomp") is not None:
            saved = state["gradcomp"].contiguous()
            self._reducer.load(ctypes.string_at(saved.data_ptr(), saved.numel()))
            self._owes = state.get("owes", False)

    @torch.no_grad()
    def drain(self, optimizer):
        """With a delay: waits for the steps in flight, applies what they owe with the
        optimizer's learning rates, and makes weights and the optimizer's state the mean over
        ranks, the same to the bit on all. Collective, between steps. Without a delay nothing.

        That is exact for SGD, with momentum too but for what compression held back (momentum
        averages like a gradient does); other optimizers get the corrections as plain SGD
        steps, which are small beside their own."""
        if not self._delay:
            return
        rates = {p: group["lr"] * (-1 if group.get("maximize") else 1)
                 for group in optimizer.param_groups for p in group["params"]}
        owed = [torch.zeros_like(p, memory_format=torch.contiguous_format) for p in self._parameters]
        self._reducer.drain(owed)
        for p, correction in zip(self._parameters, owed):
            p.sub_(correction * rates.get(p, 0))
        self._average([t for p in self._parameters for t in [p, *_moments(optimizer.state.get(p, {}), p)]])
        self._owes = False

    def _average(self, tensors):
        """The mean over ranks, in floats, in one all-reduce."""
        together = torch.cat([t.detach().float().reshape(-1) for t in tensors])
        self._group.allreduce(together)
        together /= self._group.nranks
        for t, mean in zip(tensors, together.split([t.numel() for t in tensors])):
            t.copy_(mean.reshape(t.shape))

    def stats(self):
        return self._reducer.stats()

    def _reduce(self, bucket):
        """A future of the bucket's average. The parameters of a bucket become done
        one by one, on threads of the library; the last one fulfils the future."""
        flight = _Flight(bucket, self)
        self._owes = self._delay > 0
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


def _moments(state, parameter):
    """What an optimizer keeps for a parameter, number by number, in the order of its names."""
    return [state[k] for k in sorted(state, key=str) if torch.is_tensor(state[k]) and state[k].is_floating_point()
            and state[k].shape == parameter.shape]


def _hook(attachment: Attachment, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return attachment._reduce(bucket)


class _Detached:
    """What attach() returns when gradcomp was not asked for: an empty state."""

    def state_dict(self, in_flight=False):
        del in_flight
        return {}

    def load_state_dict(self, state):
        del state

    def drain(self, optimizer):
        del optimizer

    def stats(self):
        return {}


def attach(model, compressor=None, collective=None, bucket_bytes=0, seed=0, schedule=None, delay=0):
    """Reduces the gradients of `model`, a DistributedDataParallel, with gradcomp.

    Collective over all ranks, before the first backward pass. `compressor`,
    `collective` and `schedule` are SPECs in place of the job's; `seed` must be equal on
    all ranks. With `delay` averages may be applied up to so many steps
    late: drain() says what that asks for. Without --gradcomp and GRADCOMP: does nothing and says so once."""
    global _told
    if not _lib.requested():
        if not _told and int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0:
            print("gradcomp: not requested (no --gradcomp): DDP reduces the gradients itself", file=sys.stderr)
        _told = True
        return _Detached()
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(f"attach() takes a DistributedDataParallel, not a {type(model).__name__}")
    options = {"compressor": compressor, "collective": collective, "bucket_bytes": bucket_bytes, "seed": seed,
               "schedule": schedule, "delay": delay}
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


def group(process_group=None):
    """The library's group of a process group's ranks (None: of all), for gradcomp.Parallel and
    plain collectives. Of some ranks only: every rank of the job calls it then."""
    return _group(_join(), process_group or dist.group.WORLD)


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
            if attachment._owes and attachment._group.rank == 0:
                print("gradcomp: the program ended without drain(): its weights lack the averages of the last "
                      f"{attachment._delay} steps", file=sys.stderr)
            attachment._reducer.free()
    _attached.clear()


_jobs.at_exit(_detach)
