"""One rank of backend.t: the backend "gradcomp" beside Gloo, call by call. Prints `ok NAME` or `not NAME WHY` for each thing that is tried
(argv[1]: what), and ends."""

import itertools
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from rank import error_of, say
from torch.distributed import ReduceOp

import gradcomp.torch  # noqa: F401

torch.set_num_threads(1)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def numbers(dtype, shape, rank=RANK):
    draw = torch.Generator().manual_seed(rank)
    return torch.randint(1, 4, shape, generator=draw).to(dtype)


def by_gloo(call, t, *given):
    """What it makes of t; Gloo has no int16."""
    wide = t.to(torch.int32) if t.dtype == torch.int16 else t
    call(wide, *given, group=GLOO)
    return wide.to(t.dtype)


def reductions():
    """Each operation and type, as Gloo has it."""
    for dtype, op in itertools.product(FLOATS + INTEGERS, (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR,
                                                         ReduceOp.BXOR)):
        if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and dtype in FLOATS:
            continue
        name = f"{str(op).rpartition('.')[2]} {str(dtype)[6:]}"
        for shape in ((), (0,), (7,), (130, 70)):
            ours, theirs = numbers(dtype, shape), numbers(dtype, shape)
            dist.all_reduce(ours, op)
            theirs = by_gloo(dist.all_reduce, theirs, op)
            if not torch.equal(ours, theirs):
                say(False, f"all_reduce {name}", f"{shape}: {ours} for {theirs}")
                break
            root = SIZE - 1
            ours, theirs, before = numbers(dtype, shape), numbers(dtype, shape), numbers(dtype, shape)
            dist.reduce(ours, root, op)
            theirs = by_gloo(dist.reduce, theirs, root, op)
            if not torch.equal(ours, theirs if RANK == root else before):
                say(False, f"reduce {name}", f"{shape}: {ours} for {theirs}")
                break
            whole = torch.stack([numbers(dtype, shape, SIZE * RANK + r) for r in range(SIZE)])
            part = numbers(dtype, shape)
            dist.reduce_scatter(part, list(whole), op)
            whole = by_gloo(dist.all_reduce, whole, op)
            if not torch.equal(part, whole[RANK]):
                say(False, f"reduce_scatter {name}", f"{shape}: {part} for {whole[RANK]}")
                break
        else:
            say(True, name)
    truth = torch.tensor([RANK > 0, True, False, RANK == 0])
    for op, right in ((ReduceOp.SUM, [SIZE > 1, True, False, True]), (ReduceOp.PRODUCT, [False, True, False, SIZE == 1]),
                      (ReduceOp.MAX, [SIZE > 1, True, False, True]), (ReduceOp.BXOR, [SIZE % 2 == 0, SIZE % 2 == 1, False, True])):
        t = truth.clone()
        dist.all_reduce(t, op)
        say(t.tolist() == right, f"bool {op}", t)
    for dtype in FLOATS + INTEGERS[2:]:
        t = torch.full((5,), 2 * RANK, dtype=dtype)
        dist.all_reduce(t, ReduceOp.AVG)
        say(t.tolist() == [SIZE - 1] * 5, f"AVG {str(dtype)[6:]}", t)
    t = torch.ones(4)
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
    say(t.tolist() == [SIZE / 2] * 4, "a premultiplied sum", t)
    t = torch.full((3,), complex(RANK, 1))
    dist.all_reduce(t)
    say(t.tolist() == [complex(SIZE * (SIZE - 1) / 2, SIZE)] * 3, "complex numbers", t)


def movements():
    t = torch.arange(6.) + RANK
    dist.broadcast(t, 1)
    say(torch.equal(t, torch.arange(6.) + 1), "broadcast", t)
    for dtype in (torch.float32, torch.complex64, torch.bool, torch.int64, torch.float8_e5m2):
        mine = numbers(torch.float32, (3, 2)).to(dtype)
        every = [torch.empty_like(mine) for _ in range(SIZE)]
        dist.all_gather(every, mine)
        right = all(torch.equal(every[r].to(torch.complex64), numbers(torch.float32, (3, 2), r).to(dtype).to(torch.complex64)) for r in range(SIZE))
        say(right, f"all_gather {dtype}", every)
    uneven = [torch.empty(r + 1) for r in range(SIZE)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)))
    say(all(t.tolist() == [r] * (r + 1) for r, t in enumerate(uneven)), "all_gather of other sizes", uneven)
    flat = torch.empty(2 * SIZE, dtype=torch.int32)
    dist.all_gather_into_tensor(flat, torch.tensor([RANK, -RANK], dtype=torch.int32))
    say(flat.tolist() == [v for r in range(SIZE) for v in (r, -r)], "all_gather_into_tensor", flat)
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2. * SIZE) * (RANK + 1))
    say(part.tolist() == [v * SIZE * (SIZE + 1) / 2 for v in (2 * RANK, 2 * RANK + 1)], "reduce_scatter_tensor", part)
    got = [torch.empty(2) for _ in range(SIZE)] if RANK == 1 else None
    dist.gather(torch.full((2,), float(RANK)), got, 1)
    say(got is None or [t[0].item() for t in got] == list(range(SIZE)), "gather", got)
    own = torch.empty(2)
    dist.scatter(own, [torch.full((2,), float(r)) for r in range(SIZE)] if RANK == 1 else None, 1)
    say(own.tolist() == [RANK] * 2, "scatter", own)
    sent = torch.cat([torch.full((RANK + to + 1,), RANK * 10 + to) for to in range(SIZE)])
    into = torch.empty(sum(r + RANK + 1 for r in range(SIZE)), dtype=sent.dtype)
    dist.all_to_all_single(into, sent, [r + RANK + 1 for r in range(SIZE)], [RANK + to + 1 for to in range(SIZE)])
    say(into.tolist() == [r * 10 + RANK for r in range(SIZE) for _ in range(r + RANK + 1)], "all_to_all_single", into)
    outs = [torch.empty(r + 1) for r in range(SIZE)]
    dist.all_to_all(outs, [torch.full((RANK + 1,), 10. * RANK + to) for to in range(SIZE)])
    say(all(t.tolist() == [10 * r + RANK] * (r + 1) for r, t in enumerate(outs)), "all_to_all", outs)
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK, "more": "x" * RANK})
    say([o["rank"] for o in objects] == list(range(SIZE)), "all_gather_object", objects)
    one = [f"of {RANK}"]
    dist.broadcast_object_list(one, 1)
    say(one == ["of 1"], "broadcast_object_list", one)
    mine = [None]
    dist.scatter_object_list(mine, list("abcdefgh"[:SIZE]) if RANK == 0 else None, 0)
    say(mine == ["abcdefgh"[RANK]], "scatter_object_list", mine)
    many = [torch.full((n,), float(RANK)) for n in (1, 5, 3)]
    with dist._coalescing_manager(async_ops=True) as together:
        for t in many:
            dist.all_reduce(t)
    together.wait()
    say(all(t.eq(SIZE * (SIZE - 1) / 2).all() for t in many), "coalesced all_reduce", many)
    outs, ins = [torch.empty(SIZE * n) for n in (1, 4)], [torch.full((n,), float(RANK)) for n in (1, 4)]
    with dist._coalescing_manager():
        for o, i in zip(outs, ins):
            dist.all_gather_into_tensor(o, i)
    say(all(o.view(SIZE, -1)[r].eq(r).all() for o in outs for r in range(SIZE)), "coalesced all_gather_into_tensor", outs)
    sparse = torch.sparse_coo_tensor([[RANK, SIZE]], [1., 2.], (SIZE + 2,))
    dist.all_reduce(sparse)
    say(sparse.to_dense().tolist() == [1.] * SIZE + [2. * SIZE, 0], "a sparse all_reduce", sparse)


def messages():
    other, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for n in (0, 1, 1000, 1 << 20):
        into = torch.empty(n)
        work = [dist.isend(torch.full((n,), float(RANK)), other), dist.irecv(into, left)]
        for w in work:
            w.wait()
        say(into.eq(left).all(), f"isend and irecv of {n}", into[:4])
    into = torch.empty(3)
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(RANK)), other), dist.P2POp(dist.irecv, into, left)]):
        w.wait()
    say(into.eq(left).all(), "batch_isend_irecv", into)
    if RANK == 0:
        seen = []
        for _ in range(SIZE - 1):
            t = torch.empty(1)
            seen.append((dist.recv(t, tag=7), t.item()))
        say(sorted(seen) == [(r, float(r)) for r in range(1, SIZE)], "recv from whoever has sent", seen)
    else:
        dist.send(torch.tensor([float(RANK)]), 0, tag=7)
    if RANK == 0:
        dist.send(torch.tensor([1.]), 1, tag=1)
        dist.send(torch.tensor([2.]), 1, tag=2)
    elif RANK == 1:
        first, second = torch.empty(1), torch.empty(1)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        say((first.item(), second.item()) == (1, 2), "tags", (first, second))
    work = dist.irecv(torch.empty(1), left, tag=9)
    say("timed out" in str(error_of(work.wait, timedelta(seconds=0.05))), "wait(timeout)")
    dist.barrier()
    dist.isend(torch.zeros(1), other, tag=9).wait()
    say(work.wait() and work.is_success(), "... and the receive goes on")
    if RANK == 0:
        dist.send(torch.zeros(2), 1)
    elif RANK == 1:
        say("8 bytes for a tensor of 12" in str(error_of(dist.recv, torch.zeros(3), 0)), "a message that is too short")


def asynchronous():
    work = [dist.all_reduce(torch.full((n,), float(RANK)), async_op=True) for n in (1, 100000, 10)]
    work.append(dist.barrier(async_op=True))
    for w in reversed(work):
        w.wait()
    say(all(w.is_completed() and w.is_success() and w.exception() is None for w in work), "works that are waited for backwards")
    t = torch.full((4,), float(RANK))
    future = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    say(future.wait().eq(SIZE * (SIZE - 1)).all(), "a future", t)
    futures = [dist.all_reduce(torch.ones(10), async_op=True).get_future() for _ in range(50)]
    say(all(f.wait()[0].eq(SIZE).all() for f in futures), "fifty of them")
    within = [torch.ones(4) for _ in range(3)]

    def another(f):
        return dist.all_reduce(within.pop(), async_op=True).get_future().then(another).wait() if within else f.value()[0]

    future = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(another)
    say(future.wait().eq(SIZE).all(), "futures that are waited for in callbacks of others", future.value())
    own = torch.zeros(2)
    future = dist.irecv(own, (RANK - 1) % SIZE).get_future()
    dist.send(torch.ones(2), (RANK + 1) % SIZE)
    say(future.wait()[0].eq(1).all(), "the future of a receive")
    kept = torch.full((200000,), 1.)
    dist.all_reduce(kept, async_op=True)  # nobody keeps the work
    dist.all_reduce(torch.ones(1))
    say(kept.eq(SIZE).all(), "a work that nobody keeps", kept)


def groups():
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for i in range(int(sys.argv[2])):
        pair = dist.new_group([0, 1 + i % (SIZE - 1)])
        if dist.get_rank(pair) >= 0:
            t = torch.ones(3)
            dist.all_reduce(t, group=pair)
            if not t.eq(2).all():
                say(False, "groups", t)
        dist.destroy_process_group(pair)
    after = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    say(after[0] <= before[0] + 8 and after[1] <= before[1] + 4, f"{sys.argv[2]} groups, made and destroyed", f"{before} {after}")
    local = dist.new_group([r for r in range(SIZE) if r % 2 == RANK % 2], use_local_synchronization=True)
    t = torch.tensor([float(RANK)])
    dist.all_reduce(t, group=local)
    say(t.item() == sum(r for r in range(SIZE) if r % 2 == RANK % 2), "use_local_synchronization", t)
    if SIZE == 4:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        whole = torch.arange(64.).view(8, 8)
        shard = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        say(torch.equal((shard @ shard).redistribute(mesh, [Replicate(), Replicate()]).to_local(), whole @ whole), "DTensor on a mesh")
    import torch.distributed._functional_collectives as functional

    t = torch.full((2 * SIZE,), float(RANK))
    say(functional.wait_tensor(functional.all_reduce(t, "sum", dist.group.WORLD)).eq(SIZE * (SIZE - 1) / 2).all(), "functional all_reduce")
    say(functional.wait_tensor(functional.all_gather_tensor(t, 0, dist.group.WORLD)).view(SIZE, -1)[:, 0].tolist() == list(range(SIZE)),
        "functional all_gather_tensor")
    say(functional.wait_tensor(functional.reduce_scatter_tensor(t, "avg", 0, dist.group.WORLD)).eq((SIZE - 1) / 2).all(),
        "functional reduce_scatter_tensor")
    say(functional.wait_tensor(functional.all_to_all_single(t, None, None, dist.group.WORLD))[::2].tolist() == list(range(SIZE)),
        "functional all_to_all_single")
    for life in range(5):
        dist.destroy_process_group()
        dist.init_process_group("gradcomp", init_method=f"file://{sys.argv[3]}/{life}", rank=RANK, world_size=SIZE)
        dist.all_reduce(torch.ones(1))
    say(True, "the default group, made again five times")


def train(models, steps):
    for step in range(steps):
        torch.manual_seed(10 * step + RANK)
        batch = torch.randn(8, 20)
        for m in models:
            m.zero_grad()
            m(batch).square().mean().backward()
            with torch.no_grad():
                for p in m.parameters():
                    p -= 0.1 * p.grad


def models():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 3))
    import copy

    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    each = [torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=g, bucket_cap_mb=0.001) for g in (None, GLOO)]

    def apart():
        return max((a - b).abs().max().item() for a, b in zip(each[0].parameters(), each[1].parameters()))

    train(each, 5)
    say(apart() == 0 if SIZE == 2 else apart() < 1e-5, "DistributedDataParallel trains as over Gloo", apart())
    # Over Gloo it does not end: two buckets keep its two threads, which wait for what comes after.
    each[0].register_comm_hook(powersgd.PowerSGDState(None, 2, 2, min_compression_rate=1), powersgd.powerSGD_hook)
    train(each[:1], 4)
    own = torch.cat([p.detach().flatten() for p in each[0].parameters()])
    every = [torch.empty_like(own) for _ in range(SIZE)]
    dist.all_gather(every, own)
    say(all(e.equal(own) for e in every) and own.isfinite().all(), "... and with PyTorch's PowerSGD hook")
    if torch.__version__ < (2, 7):  # whose fully_shard() has streams on a CPU, too, which have no events
        return
    from torch.distributed.fsdp import fully_shard

    whole, shards = copy.deepcopy(model[0]), fully_shard(copy.deepcopy(model[0]))
    torch.manual_seed(RANK)
    batch = torch.randn(8, 20)
    shards(batch).square().mean().backward()
    whole(batch).square().mean().backward()
    dist.all_reduce(whole.weight.grad, group=GLOO)
    say((shards.weight.grad.full_tensor() - whole.weight.grad / SIZE).abs().max() < 1e-6, "fully_shard")
    compiled = torch.compile(lambda t: dist._functional_collectives.all_reduce(t * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
    say(compiled(torch.ones(3)).eq(2 * SIZE + 1).all(), "torch.compile")


def bad():
    rows = torch.arange(12.).view(3, 4)
    t = rows.t().contiguous().t()
    dist.all_reduce(t)
    say(not t.is_contiguous() and torch.equal(t, rows * SIZE), "a tensor that is not contiguous", t)
    every = torch.zeros(4, SIZE).t()
    dist.all_gather(list(every), torch.full((4,), float(RANK)))
    say(all(every[r].eq(r).all() for r in range(SIZE)), "outputs that are not contiguous", every)
    dist.all_reduce(torch.empty(0))
    say(True, "no elements")
    for name, call, text in (
            ("meta", lambda: dist.all_reduce(torch.empty(3, device="meta")), "on meta"),
            ("a float and BAND", lambda: dist.all_reduce(torch.ones(3), ReduceOp.BAND), "all_reduce"),
            ("uint16", lambda: dist.all_reduce(torch.ones(3).to(torch.uint16)), "uint16 cannot be reduced"),
            ("splits", lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [9] * SIZE, [1] * SIZE), "plit sizes"),
            ("too small", lambda: dist.all_gather_into_tensor(torch.empty(1), torch.empty(3)), "4 bytes"),
            ("too few", lambda: dist.all_gather([torch.empty(1)], torch.empty(1)), "1 output tensors"),
            ("sparse", lambda: dist.broadcast(torch.eye(3).to_sparse(), 0), "dense")):
        e = error_of(call)
        say(isinstance(e, RuntimeError) and text in str(e), f"refused: {name}", repr(e))
    dist.barrier()
    say(True, "... and nothing has happened")
    group = dist.new_group(list(range(SIZE)))
    if RANK == 0:
        begun = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        group.abort()
        e = error_of(begun.wait)
        say(isinstance(e, RuntimeError) and "aborted" in str(e), "a group that is given up in flight", repr(e))
    else:
        e = error_of(dist.all_reduce, torch.ones(3), group=group)
        say(isinstance(e, RuntimeError) and "from rank " in str(e), "... by another rank", repr(e))
    dist.destroy_process_group(group)
    e = error_of(group.allreduce, [torch.ones(1)])
    ended = "destroyed" in str(e) or e is not None and torch.__version__ < (2, 7)  # which leaves that to who has the group
    say(ended, "a group that has been destroyed", repr(e))
    dist.all_reduce(torch.ones(1))
    late = dist.new_group(list(range(SIZE)), timeout=timedelta(seconds=0.5))
    if RANK == 0:
        begun = time.monotonic()
        e = error_of(dist.all_reduce, torch.ones(1), group=late)
        say(isinstance(e, RuntimeError) and "timeout" in str(e) and 0.4 < time.monotonic() - begun < 10, "a group's timeout", repr(e))
    dist.barrier()
    barrier = error_of(dist.monitored_barrier, timeout=timedelta(seconds=30))
    say(barrier is None, "monitored_barrier", repr(barrier))
    if RANK != 1:
        e = error_of(dist.monitored_barrier, timeout=timedelta(seconds=0.3))
        say(("Rank 1 failed" if RANK == 0 else "rank 0") in str(e), "... without one rank", repr(e))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        e = error_of(dist.all_reduce, torch.ones(1))
        os.write(write, repr(e).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 4096).decode()
    say("fork" in said, "after fork()", said)
    dist.barrier()


def dead():
    """The last rank dies; the others are in a call."""
    t, other = torch.ones(4), SIZE - 1
    calls = {
        "all_reduce": lambda: dist.all_reduce(t), "reduce": lambda: dist.reduce(t, 0), "broadcast": lambda: dist.broadcast(t, other),
        "all_gather": lambda: dist.all_gather([t.clone() for _ in range(SIZE)], t), "barrier": dist.barrier,
        "gather": lambda: dist.gather(t, [t.clone() for _ in range(SIZE)] if RANK == 0 else None, 0), "scatter": lambda: dist.scatter(t, None, other),
        "reduce_scatter": lambda: dist.reduce_scatter(t, [t.clone() for _ in range(SIZE)]),
        "all_to_all": lambda: dist.all_to_all([t.clone() for _ in range(SIZE)], [t] * SIZE), "recv": lambda: dist.recv(t, other),
        "recv from any": lambda: dist.recv(t), "send": lambda: dist.send(torch.ones(1 << 20), other),
        "a work": lambda: dist.all_reduce(t, async_op=True).wait(), "a future": lambda: dist.all_reduce(t, async_op=True).get_future().wait()}
    dist.barrier()
    if RANK == other:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    name = sys.argv[2]
    e = error_of(calls[name])
    # What is not for this rank to know it does not: a root that gathers alone waits.
    if e is None and name in ("reduce", "gather", "broadcast", "scatter"):
        e = error_of(dist.barrier)
    say(isinstance(e, RuntimeError) and f"rank {other}" in str(e), f"{name}: {time.monotonic() - begun:.2f} s", repr(e))
    os._exit(0)


dist.init_process_group("gradcomp")
GLOO = dist.new_group(backend="gloo") if sys.argv[1] in ("reductions", "models") else None
{f.__name__: f for f in (reductions, movements, messages, asynchronous, groups, models, bad, dead)}[sys.argv[1]]()
if sys.argv[1] != "models":
    dist.destroy_process_group()
