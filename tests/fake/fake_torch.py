"""What stands for torch.cuda where PyTorch has no GPU: streams of the fake CUDA, and host memory that is lent to
the fake device while it works."""

import contextlib
import ctypes
import threading

import torch

fake = ctypes.CDLL("libfakecuda.so")
DEVICE = torch.device("cuda", 0)
DEFAULT_KIND = 4
on = threading.local()  # .stream: the current one of this thread
taken = {}  # of PyTorch's allocator


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

    def hold(self, is_held):
        fake.fake_cuda_hold(ctypes.c_void_p(self.cuda_stream), int(is_held))

    def synchronize(self):
        must(fake.cudaStreamSynchronize(ctypes.c_void_p(self.cuda_stream)))


@contextlib.contextmanager
def stream(s):
    on.stream = s
    try:
        yield
    finally:
        on.stream = None


def lend(tensor, is_lent=True):
    fake.fake_cuda_lend(ctypes.c_void_p(tensor.data_ptr()),
                        ctypes.c_size_t(tensor.numel() * tensor.element_size() if is_lent else 0))


def comes_late(tensor, s):
    """The tensor's numbers are not there yet: they come on the stream, which stands still until hold(False)."""
    made = tensor.clone()
    tensor.fill_(float("nan") if tensor.is_floating_point() else 99)
    s.hold(True)
    must(fake.cudaMemcpyAsync(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(made.data_ptr()),
                              ctypes.c_size_t(tensor.numel() * tensor.element_size()), DEFAULT_KIND,
                              ctypes.c_void_p(s.cuda_stream)))


def go_on(s):
    threading.Timer(0.01, s.hold, (False,)).start()


def take(bytes, device, s):
    assert device == DEVICE and s, (device, s)  # the stream is one of a reducer's or a coder's
    p = ctypes.c_void_p()
    must(fake.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(bytes)))
    taken[p.value] = bytes
    return p.value


def give_back(address):
    del taken[address]
    must(fake.cudaFree(ctypes.c_void_p(address)))


def stand_in(current, alloc=take):
    """torch.cuda is the fake's from now on, and `current` the current stream."""
    torch.cuda.Stream, torch.cuda.stream = Stream, stream
    torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete = alloc, give_back
    torch.cuda.get_device_name = lambda device=None: "a GPU in host memory"
    torch.cuda.device, torch.cuda.current_stream = lambda device: contextlib.nullcontext(), lambda device=None: current
