"""One rank of hook.t: gradcomp.Coder and collectives of a gradcomp.Group with tensors on a GPU, the fake's. They lie in
host memory that is lent to the device while it works; what a call reads arrives on the caller's stream, late."""

import ctypes

import torch
import torch.distributed as dist

import fake_torch
import gradcomp
import gradcomp.torch
from fake_torch import DEVICE, fake, must, taken

N = 5003


class Tensor:
    """A tensor of PyTorch's that says it is on a GPU."""

    def __init__(self, numel):
        self.host = torch.zeros(numel)
        self.device, self.dtype = DEVICE, self.host.dtype
        self.data_ptr, self.numel, self.is_contiguous = self.host.data_ptr, self.host.numel, self.host.is_contiguous

    def lend(self, on):
        fake.fake_cuda_lend(ctypes.c_void_p(self.data_ptr()), ctypes.c_size_t(4 * self.numel() if on else 0))


gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
queue = ctypes.c_void_p()
must(fake.cudaStreamCreateWithFlags(ctypes.byref(queue), 0))
group = gradcomp.torch.group()
coder = gradcomp.Coder(group, "block:bits=8", cuda=True, queue=queue.value,
                       memory=(lambda bytes, stream: fake_torch.take(bytes, DEVICE, stream), fake_torch.give_back))
on_host = gradcomp.Coder(group, "block:bits=8", "direct")
try:
    coder.all_gather(torch.zeros(N), torch.zeros(N * nranks))
    raise SystemExit("a tensor in host memory was taken")
except gradcomp.Error as e:
    print("refused", e)
for step in range(3):
    full, part = Tensor(N * nranks), Tensor(N)
    made = torch.randn(N * nranks, generator=torch.Generator().manual_seed(10 * step + rank))
    want_full, want_part = made.clone(), torch.zeros(N)
    on_host.reduce_scatter(want_full, want_part, scale=1 / nranks, slot=1).wait()
    on_host.all_gather(want_part, want_full).wait()
    full.lend(True)
    part.lend(True)
    fake.fake_cuda_hold(queue, int(step > 0))  # in the first one memory grows, for which the device is waited for
    must(fake.cudaMemcpyAsync(ctypes.c_void_p(full.data_ptr()), ctypes.c_void_p(made.data_ptr()), ctypes.c_size_t(4 * full.numel()),
                              4, queue))
    coder.reduce_scatter(full, part, scale=1 / nranks, slot=1).wait()  # the device has not begun
    coder.all_gather(part, full).wait()
    fake.fake_cuda_hold(queue, 0)
    must(fake.cudaStreamSynchronize(queue))
    full.lend(False)
    part.lend(False)
    assert torch.equal(part.host, want_part) and torch.equal(full.host, want_full), f"step {step}"
print("alike", step + 1)
print("blocks", len(taken))
coder.free()
print("left", len(taken))
on_host.free()


def refused(call, *arguments):
    try:
        call(*arguments)
    except gradcomp.Error as e:
        print("unlike", e)


def on_gpu(values):
    """A tensor whose numbers come late, on the current stream."""
    t = Tensor(values.numel())
    t.host.copy_(values)
    t.lend(True)
    fake_torch.comes_late(t.host, current)
    fake_torch.go_on(current)
    return t


current = fake_torch.Stream(DEVICE)
fake_torch.stand_in(current)
counts = [N + r for r in range(nranks)]
mine, everything = torch.arange(float(counts[rank])), torch.cat([torch.arange(float(n)) + i for i, n in enumerate(counts)])
summed, part = on_gpu(everything + rank), Tensor(counts[rank])
part.lend(True)
group.allreduce(summed)
assert torch.equal(summed.host, sum(everything + r for r in range(nranks))), "allreduce"
gathered, own = on_gpu(torch.zeros(sum(counts))), on_gpu(mine + rank)
group.allgather(own, gathered, counts)
assert torch.equal(gathered.host, everything), "allgather"
parts = on_gpu(everything)
group.reduce_scatter(parts, part, counts)
assert torch.equal(part.host, nranks * (mine + rank)), "reduce_scatter"
first = on_gpu(mine[:N] + rank)
group.broadcast(first, root=1)
assert torch.equal(first.host, torch.arange(float(N)) + 1), "broadcast"
refused(group.allgather, torch.zeros(counts[rank]), gathered, counts)
other = Tensor(counts[rank])
other.device = torch.device("cuda", 1)
refused(group.reduce_scatter, parts, other, counts)

pieces, made = [Tensor(N), Tensor(N + 1)], [torch.randn(N + i, generator=torch.Generator().manual_seed(i)) for i in range(2)]
for piece in pieces:
    piece.lend(True)
parallel = gradcomp.Parallel(group, pieces)


def work(i):
    must(fake.cudaMemcpyAsync(ctypes.c_void_p(pieces[i].data_ptr()), ctypes.c_void_p(made[i].data_ptr()),
                              ctypes.c_size_t(4 * pieces[i].numel()), 4, ctypes.c_void_p(parallel._stream.cuda_stream)))


for _ in range(6):
    for piece in pieces:
        piece.host.zero_()
    parallel.apply(work)
    current.synchronize()  # it comes after the pieces
    assert all(torch.equal(piece.host, m) for piece, m in zip(pieces, made)), "parallel"
assert "ms to gather" in parallel.reason, parallel.reason
parallel.free()
