"""One rank of hook.t: gradcomp.torch's branch for gradients on a GPU, with a PyTorch for processors. The
parameters say that they are on a GPU when attach() looks, streams are the fake CUDA's, and DDP's
buckets, which are host memory, are lent to the fake device while a step is under way. What backward
makes arrives on the stream of backward, late; a future comes when the stream it is completed on is done.

Prints the worst distance from the mean over ranks; with "dies" rank 1 goes in its third step. With "delayed" averages
come a step late, and are drained into weights."""

import contextlib
import ctypes
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

torch.set_num_threads(1)
fake = ctypes.CDLL("libfakecuda.so")
what, spec = sys.argv[1:3]
on = threading.local()  # .stream: the current one of this thread
DEFAULT_KIND = 4


def must(status):
    if status:
        raise RuntimeError(f"fake CUDA: {status}")


class Stream:
    def __init__(self, device):
        handle = ctypes.c_void_p()
        must(fake.cudaStreamCreateWithFlags(ctypes.byref(handle), 0))
        self.device, self.cuda_stream = device, handle.value

    def wait_stream(self, other):
        event = ctypes.c_void_p()
        must(fake.cudaEventCreateWithFlags(ctypes.byref(event), 0))
        must(fake.cudaEventRecord(event, ctypes.c_void_p(other.cuda_stream)))
        must(fake.cudaStreamWaitEvent(ctypes.c_void_p(self.cuda_stream), event, 0))
        must(fake.cudaEventDestroy(event))


@contextlib.contextmanager
def stream(s):
    on.stream = s
    try:
        yield
    finally:
        on.stream = None


def lend(tensor, bytes):
    fake.fake_cuda_lend(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(bytes))


class Future(torch.futures.Future):
    """Its value is there when the stream it was set under has done what it had then. Who looks at it is the
    host, as no CPU has streams: so it is completed then."""

    def __init__(self, *, devices=None):
        super().__init__()
        assert devices == [DEVICE], devices

    @classmethod
    def __class_getitem__(cls, _value):
        return cls

    def set_result(self, value):
        s = getattr(on, "stream", None)

        def complete():
            if s is not None:
                must(fake.cudaStreamSynchronize(ctypes.c_void_p(s.cuda_stream)))
                lend(value, 0)
            super(Future, self).set_result(value)

        threading.Thread(target=complete).start()


class Parameter(torch.nn.Parameter):
    device = property(lambda self: DEVICE)


DEVICE = torch.device("cuda", 0)
backward = Stream(DEVICE)


def late(attachment, bucket):
    """The gradients are not there yet: they come on the stream of backward."""
    buffer = bucket.buffer()
    bytes = buffer.numel() * buffer.element_size()
    made = buffer.clone()
    buffer.fill_(float("nan"))
    lend(buffer, bytes)
    fake.fake_cuda_hold(ctypes.c_void_p(backward.cuda_stream), 1)
    must(fake.cudaMemcpyAsync(ctypes.c_void_p(buffer.data_ptr()), ctypes.c_void_p(made.data_ptr()), ctypes.c_size_t(bytes),
                              DEFAULT_KIND, ctypes.c_void_p(backward.cuda_stream)))
    future = reduce(attachment, bucket)
    threading.Timer(0.01, fake.fake_cuda_hold, (ctypes.c_void_p(backward.cuda_stream), 0)).start()
    return future


taken = {}  # of PyTorch's allocator


def take(bytes, device, stream):
    """None is given where the stream is not one of the reducer's, or for "starves" after the first ones."""
    assert device == DEVICE and stream, (device, stream)
    if what == "starves" and len(taken) > 3:
        raise RuntimeError("CUDA out of memory. Tried to allocate a lot")
    p = ctypes.c_void_p()
    must(fake.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(bytes)))
    taken[p.value] = bytes
    return p.value


def give_back(address):
    del taken[address]
    must(fake.cudaFree(ctypes.c_void_p(address)))


gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.ReLU(), torch.nn.Linear(60, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))
ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.01)
reduce, gradcomp.torch.Attachment._reduce = gradcomp.torch.Attachment._reduce, late
torch.cuda.Stream, torch.cuda.stream = Stream, stream
torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete = take, give_back
torch.cuda.device, torch.cuda.current_stream = lambda device: contextlib.nullcontext(), lambda device=None: backward
for p in model.parameters():
    p.__class__ = Parameter
attachment = gradcomp.torch.attach(ddp, spec, delay=int(what == "delayed"))
torch.futures.Future = Future  # now that DDP has looked at the hook's types
for p in model.parameters():
    p.__class__ = torch.nn.Parameter


class OnGpu(torch.Tensor):
    device = property(lambda self: DEVICE)


def drain(corrections):
    """The reducer's, of tensors that say they are on a GPU and are lent to it."""
    tensors = [c.as_subclass(OnGpu) for c in corrections]
    for t in tensors:
        lend(t, t.numel() * 4)
    drains(tensors)
    must(fake.cudaStreamSynchronize(ctypes.c_void_p(attachment._stream.cuda_stream)))
    for t in tensors:
        lend(t, 0)


def train_late():
    """SGD whose averages come a step late: drained, the weights are those of SGD."""
    rate, weights = 0.01, [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(5):
        # A gradient that does not depend on the weights, so that being late changes nothing but when.
        inputs = [torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + r)) for r in range(nranks)]
        ddp.zero_grad()
        sum((p * inputs[rank].mean()).sum() for p in model.parameters()).add(0 * ddp(inputs[rank]).sum()).backward()
        optimizer.step()
        for w in weights:
            w -= rate * sum(x.mean() for x in inputs) / nranks
    attachment.drain(optimizer)
    print("worst", max((p - w).abs().max().item() for p, w in zip(model.parameters(), weights)))
    print("weights", hash(tuple(v for p in model.parameters() for v in p.flatten().tolist())))


drains, attachment._reducer.drain = attachment._reducer.drain, drain
if what == "delayed":
    train_late()
    attachment.detach()
    print("left", len(taken))
    raise SystemExit
worst = 0.0
for step in range(5):
    if what == "dies" and step == 2 and rank == 1:
        os._exit(3)
    inputs = [torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + r)) for r in range(nranks)]
    ddp.zero_grad()
    ddp(inputs[rank]).sum().backward()
    means = [torch.autograd.grad(model(x).sum(), list(model.parameters())) for x in inputs]
    for i, p in enumerate(model.parameters()):
        mean = sum(g[i] for g in means) / nranks
        off = ((p.grad - mean).abs().max() / mean.abs().max()).item()
        worst = max(worst, off) if off == off else float("inf")
print("worst", worst)
print("steps", attachment.stats()["steps"])
if what == "resumes":
    attachment.load_state_dict(attachment.state_dict())
print("blocks", len(taken))
attachment.detach()
print("left", len(taken))
