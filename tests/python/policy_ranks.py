"""One rank of policies.t: the backend under policies. Prints `ok NAME` or `not NAME WHY` for each thing that is tried (argv[1]: what,
separated by "+"), and ends."""

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
RANK, SIZE, FOLDER = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[2]
GROUPS = 0
MANY = 1 << 15  # numbers: 128 KiB of them


def begin(backend="gradcomp", policy=None, **more):
    global GROUPS
    GROUPS += 1
    os.environ["GRADCOMP"] = policy or "off"
    dist.init_process_group(backend, init_method=f"file://{FOLDER}/{SIZE}.{GROUPS}", rank=RANK, world_size=SIZE, **more)


def end():
    """What the policy has matched meanwhile."""
    import gradcomp.backend

    dist.barrier()
    rows = gradcomp.backend.stats()
    dist.destroy_process_group()
    gradcomp.backend._policies.clear()
    return rows


def ratio(rows, **of):
    found = [row for row in rows if all(row[k] == v for k, v in of.items())]
    return sum(row["wire_bytes"] for row in found) / sum(row["dense_bytes"] for row in found) if found else None


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.third = torch.nn.Linear(64, 512), torch.nn.Linear(512, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def train(model, steps=6, batches=RANK):
    """The losses of this rank."""
    step = torch.optim.SGD(model.parameters(), lr=0.2)
    x, losses = torch.randn(16, 64, generator=torch.Generator().manual_seed(batches)), []
    for _ in range(steps):
        loss = (model(x) - x.flip(1)).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses


def sharded():
    from torch.distributed.fsdp import fully_shard

    model = Layers()
    for layer in (model.first, model.second, model.third):
        fully_shard(layer)
    return fully_shard(model)


def replicated():
    return torch.nn.parallel.DistributedDataParallel(Layers(), bucket_cap_mb=0.3)


def near(a, b, share):
    return all(abs(x - y) <= share * abs(y) for x, y in zip(a, b)) and a[-1] < a[0]


def models():
    """Losses as Gloo has them, and counted bytes."""
    losses = {}
    kinds = {"fully_shard": sharded, "DistributedDataParallel": replicated}
    for backend, policy in (("gloo", None), ("gradcomp", "any/none")):
        for name, make in kinds.items():
            begin(backend, policy)
            losses[backend, name] = train(make())
            rows = end()
    for name in kinds:
        say(losses["gradcomp", name] == losses["gloo", name], f"{name}: under none, Gloo's losses to the bit", losses)
    say(rows == [], "nothing is compressed under none", rows)
    begin(policy="dp/block:bits=8")
    got, rows = train(sharded()), end()
    say(near(got, losses["gloo", "fully_shard"], 0.01), "fully_shard: losses under 8 bits", f"{got} {losses}")
    say(0.25 < ratio(rows) <= 0.27, "fully_shard: at most 0.27 of the bytes", rows)
    say({row["operation"] for row in rows} == {"all_gather", "reduce_scatter"}, "fully_shard: both operations are told of", rows)
    # Three layers of at least 64 KiB, six steps, of which the first is not known.
    scatters = [row for row in rows if row["operation"] == "reduce_scatter"]
    say(scatters[0]["calls"] - scatters[0]["remembered"] == scatters[0]["calls"] // 6, "fully_shard: error memory from the second step on", scatters)
    begin(policy="reduce_scatter/block:bits=4")
    got, rows = train(sharded()), end()
    say(near(got, losses["gloo", "fully_shard"], 0.03) and [row["operation"] for row in rows] == ["reduce_scatter"], "an operation alone", f"{got} {rows}")
    for policy, most in (("all_reduce/block:bits=8", 0.27), ("dp/powersgd:rank=4+dp/block:bits=8", 0.7), ("dp/topk:density=0.05", 0.8)):
        begin(policy=policy)
        model = replicated()
        got = train(model)
        weights = [torch.empty_like(p) for p in model.parameters()]
        for w, p in zip(weights, model.parameters()):
            w.copy_(p.detach())
            dist.broadcast(w, 0)
        alike = all(torch.equal(w, p) for w, p in zip(weights, model.parameters()))
        rows = end()
        say(alike and got[-1] < got[0], f"DistributedDataParallel under {policy}: all ranks have the same weights", got)
        say(ratio(rows) < most and [row["operation"] for row in rows] == ["all_reduce"], "... and fewer bytes", rows)
    begin(policy="dp/powersgd:rank=4")
    model = replicated()
    train(model, 3)
    got, rows = train(model, 4), end()
    say(rows[0]["plain"] < rows[0]["calls"] and rows[0]["plain"] + rows[0]["remembered"] == rows[0]["calls"],
        "what is not known to recur goes as it is where there is no code for it", f"{rows} {got}")


def mesh():
    """FSDP by tensor parallelism: the dp dimension alone is compressed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import gradcomp.backend

    losses = {}
    for backend, policy in (("gloo", None), ("gradcomp", "any/none"), ("gradcomp", "dp/block:bits=8")):
        begin(backend, policy)
        of = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = parallelize_module(Layers(), of["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
        for layer in (model.first, model.second, model.third):
            fully_shard(layer, mesh=of["dp"])
        fully_shard(model, mesh=of["dp"])
        losses[policy], states = train(model, 4, RANK // 2), sorted(gradcomp.backend.state_dict(shared=True))
        rows = end()
        if policy == "dp/block:bits=8":
            say(states == ["default_pg", f"mesh_dp@{RANK % 2}"], "the state names the first rank of each", states)
            say(rows and {row["group"] for row in rows} == {"mesh_dp"} and ratio(rows) <= 0.27, "the groups of dp alone", rows)
    say(losses["any/none"] == losses[None], "under none, Gloo's losses to the bit", losses)
    say(near(losses["dp/block:bits=8"], losses[None], 0.01), "losses under 8 bits", losses)


def places():
    """Which calls are known: those of a step like exactly one before."""
    from gradcomp import _policy

    def step(*calls):
        got = [rounds.place((call,)) for call in calls]
        rounds.stepped()
        return got

    rounds = _policy._Rounds()
    say(step(1, 2, 2) == [-1, -1, -1] and step(1, 2, 2) == [0, 1, 2], "a step as the one before")
    say(step(1, 2, 3) == [0, 1, -1] and step(1, 2, 2) == [-1, -1, 2], "two that begin alike")
    say(step(4) == [-1] and step(4, 4) == [6, -1] and step(4) == [6], "a step of which the optimizer has made none")
    say([first for first, _ in rounds.save({1, 6})["known"]] == [0, 6], "a state has what has come twice", rounds.save({1, 6}))
    rounds = _policy._Rounds()
    say(step(5, 5) == [-1, -1] and step(5) == [0] and step(5) == [2], "the same at the beginning")
    rounds.stepped()
    say(step() == [] and step(5) == [2], "optimizers that step with nothing between")


def calls():
    places()
    draw = torch.Generator().manual_seed(RANK)
    begin(policy="dp.all_reduce.f32/block:bits=8+dp.64K/block:bits=8", timeout=timedelta(seconds=20))

    def numbers(n=MANY, dtype=torch.float32):
        return torch.randn(n, generator=draw).to(dtype)

    def summed(t, op=ReduceOp.SUM):
        exact = t.double()
        dist.all_reduce(exact, op)
        return exact

    def close(t, exact, bound=0.02):
        return (t.double() - exact).abs().max().item() <= bound * exact.abs().max().item()

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        t = numbers(dtype=dtype)
        exact = summed(t)
        dist.all_reduce(t)
        say(close(t, exact) and not torch.equal(t.double(), exact), f"all_reduce of {dtype}")
    t = numbers()
    exact = summed(t, ReduceOp.AVG)
    dist.all_reduce(t, ReduceOp.AVG)
    say(close(t, exact), "AVG")
    t = numbers()
    exact = summed(t) / 2
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
    say(close(t, exact), "a premultiplied sum")
    for name, t in (("less than 64 KiB", numbers(16383)), ("f64", numbers(dtype=torch.float64)), ("integers", torch.arange(MANY) + RANK)):
        exact = summed(t)
        dist.all_reduce(t)
        say(close(t, exact, 1e-6), f"{name}: as it is")
    t = numbers()
    exact = summed(t, ReduceOp.MAX)
    dist.all_reduce(t, ReduceOp.MAX)
    say(torch.equal(t.double(), exact), "MAX: as it is")
    table = torch.sparse_coo_tensor([[RANK, SIZE]], numbers(2 * MANY).view(2, MANY), (SIZE + 1, MANY))
    exact = summed(table.to_dense())
    dist.all_reduce(table)
    say(close(table.to_dense(), exact, 1e-6), "a sparse tensor: as it is, also where gathers are compressed")
    t = torch.randn(256, 512, generator=draw).t()
    exact = summed(t.contiguous())
    dist.all_reduce(t)
    say(close(t, exact), "a tensor that is not contiguous")
    dist.all_reduce(torch.empty(0))
    inputs = numbers(SIZE * MANY)
    before, exact, out = inputs.clone(), summed(inputs), torch.empty(MANY)
    dist.reduce_scatter_tensor(out, inputs)
    say(close(out, exact.view(SIZE, -1)[RANK]), "reduce_scatter_tensor")
    say(torch.equal(inputs, before), "... leaves its input")
    dist.reduce_scatter(out, list(inputs.view(SIZE, -1)), ReduceOp.AVG)
    say(close(out * SIZE, exact.view(SIZE, -1)[RANK]), "reduce_scatter, a mean")
    every = [torch.empty(MANY + r) for r in range(SIZE)]
    dist.all_gather(every, torch.full((MANY + RANK,), 1.0 + RANK))
    say(all(t.sub(1 + r).abs().max() < 0.02 * (1 + r) for r, t in enumerate(every)), "all_gather of other sizes")
    flat = torch.empty(SIZE, MANY)
    flat[RANK] = 1 + RANK
    dist.all_gather_into_tensor(flat.view(-1), flat[RANK])
    say(all(flat[r].sub(1 + r).abs().max() < 0.02 * (1 + r) for r in range(SIZE)), "all_gather_into_tensor, in place")
    tensors = [numbers() for _ in range(3)]
    exact = [summed(t) for t in tensors]
    with dist._coalescing_manager(async_ops=True) as together:
        for t in tensors:
            dist.all_reduce(t)
    together.wait()
    say(all(map(close, tensors, exact)), "coalesced")
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    future = dist.all_reduce(numbers(), async_op=True).get_future().then(lambda f: len(f.value()))
    say(future.wait() == 1 and all([w.wait() for w in works]) and all(w.is_success() for w in works), "works and futures")
    t = torch.ones(MANY)
    t[0] = float("nan") if RANK == 1 else 1
    dist.all_reduce(t)
    say(t.isnan().all().item(), "NaN on one rank is NaN on all")
    objects = [None] * SIZE
    dist.all_gather_object(objects, "x" * 100000)
    say(all(o == "x" * 100000 for o in objects), "objects: as they are")
    if RANK == 0:
        time.sleep(0.3)
    begun = dist.all_reduce(torch.ones(MANY), async_op=True)
    if RANK == 1:
        e = error_of(begun.wait, timedelta(seconds=0.05))
        say(e is not None and "goes on" in str(e), "wait(timeout) raises when that is over", repr(e))
    say(begun.wait(), "... and the call goes on")
    # The optimizer of one rank alone: the others know nothing of its steps.
    weight = torch.nn.Parameter(torch.ones(MANY))
    weight.grad = torch.ones(MANY)
    step = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        dist.all_reduce(weight.grad)
        if RANK == 0:
            step.step()
    say(True, "ranks that know other steps agree on no error memory")
    other, inside = dist.new_group(list(range(SIZE))), torch.ones(MANY)
    both = [(inside, None), (torch.ones(MANY), other)]
    for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in (both if RANK else reversed(both))]:
        work.wait()
    dist.destroy_process_group(other)
    say(inside.eq(SIZE).all().item(), "two groups at once")
    rows = end()
    say({row["operation"] for row in rows} == {"all_reduce", "all_gather", "reduce_scatter"} and
        all(row["calls"] > 0 and row["seconds"] > 0 and row["bytes"] for row in rows), "each operation is told of", rows)


def bad():
    for policy, text in (("dp.i32/block", "'i32' is never compressed"), ("dp.all_gather/powersgd", "works on matrices"),
                         ("dp/block+dp.all_gather/fp8", "is for nothing"), ("dp/blok", "'blok'")):
        e = error_of(begin, policy=policy)
        say(isinstance(e, RuntimeError) and text in str(e), f"refused: {policy}", repr(e))
        dist.distributed_c10d.destroy_process_group() if dist.is_initialized() else None
    e = error_of(begin, policy=f"dp/block:bits={8 if RANK != 1 else 4}")
    say(isinstance(e, RuntimeError) and "rank 1 asks for 'dp/block:bits=4" in str(e), "another policy on one rank", repr(e))
    begin(policy="ep/block:bits=8")
    if RANK == 0:
        # What is said at the end, by this rank.
        import contextlib
        import io

        with contextlib.redirect_stderr(io.StringIO()) as said:
            end()
        text = said.getvalue()
        say("ep/block:bits=8 is for no group; groups there are: default_pg (2 ranks, dp)" in text, "a role that no group has", text)
    else:
        end()
    begin(policy="dp/block:bits=8")
    group = dist.new_group(list(range(SIZE)))
    t = torch.ones(MANY)
    dist.all_reduce(t, group=group)
    if RANK == 0:
        begun = dist.all_reduce(t, group=group, async_op=True)
        group.abort()
        e = error_of(begun.wait)
        say(isinstance(e, RuntimeError) and "aborted" in str(e), "a group that is given up in flight", repr(e))
    else:
        begun = dist.all_reduce(t, group=group, async_op=True)
    e = error_of(lambda: os.fork() or os._exit(isinstance(error_of(dist.all_reduce, torch.ones(MANY)), RuntimeError)))
    say(e is None and os.waitstatus_to_exitcode(os.wait()[1]) == 1, "a call in a process that was forked")
    end()


def dead():
    """The last rank dies; the others are in a call that is compressed."""
    begin(policy="dp/block:bits=8")
    dist.all_reduce(torch.ones(MANY))
    dist.barrier()
    if RANK == SIZE - 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(MANY), async_op=True)
    begun = time.monotonic()
    e = error_of(work.wait)
    say(isinstance(e, RuntimeError) and f"rank {SIZE - 1}" in str(e), f"work.wait() raises: {time.monotonic() - begun:.2f} s", repr(e))
    e = error_of(dist.all_gather_into_tensor, torch.empty(SIZE * MANY), torch.ones(MANY))
    say(isinstance(e, RuntimeError) and f"rank {SIZE - 1}" in str(e), "and every call that follows", repr(e))
    os._exit(0)


class Program:
    """Calls of sizes that recur, between steps of an optimizer; those of a step depend on its number alone."""

    def __init__(self, *groups):
        self.groups = groups
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.weight.grad = torch.zeros(1)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)

    def step(self, number, scale=1.0, tail=True):
        """The results."""
        draw, results = torch.Generator().manual_seed(1000 * number + RANK), []
        for group in self.groups:
            for n, op in ((MANY, ReduceOp.SUM), (MANY, ReduceOp.AVG), (MANY // 2 + 5, ReduceOp.SUM))[:3 if tail else 2]:
                results.append(scale * torch.randn(n, generator=draw))
                dist.all_reduce(results[-1], op, group=group)
            results.append(torch.empty(MANY // 8))
            dist.reduce_scatter_tensor(results[-1], scale * torch.randn(dist.get_world_size(group) * MANY // 8, generator=draw), group=group)
            every = torch.empty(dist.get_world_size(group) * MANY // 8)
            dist.all_gather_into_tensor(every, results[-1], group=group)
            results.append(every)
        self.optimizer.step()
        return results


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


STATES = ("dp.all_reduce.100K/topk:density=0.05+dp.all_reduce.10K/powersgd:rank=2+dp.10K/block:bits=4,rounding=stochastic",
          "@dp_other.10K/fp8+dp.10K/block:bits=4")


def pieces(state):
    """{(group, operation, kind, entry, slot): bytes}, of a reducer without its head."""
    from gradcomp import _policy_state

    groups = {key: _policy_state._unpack(key, value) for key, value in state.items()}
    return {(key, operation, *piece): data[320:] if piece[0] == "reducer" else data for key, group in groups.items()
            for operation, lane in enumerate(group.lanes) for piece, data in lane.pieces.items()}


def numbers(data):
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def saving():
    """States of both kinds, of the first two ranks; a job that goes on from its own does so to the bit."""
    global SIZE, GROUPS
    if RANK < 2:
        SIZE = 2
        saving_on_two()
        SIZE, GROUPS = 3, 0


def saving_on_two():
    import torch.distributed.checkpoint as dcp

    import gradcomp.backend as backend

    say(backend.state_dict() == {} and "comes before" in str(error_of(backend.load_state_dict, {})), "without a process group")
    begin()
    say(backend.state_dict() == {} and error_of(backend.load_state_dict, {"a": 1}) is None, "without a policy")
    end()
    for number, policy in enumerate(STATES):
        begin(policy=policy)
        other = dist.new_group(list(range(SIZE)), group_desc="dp_other")
        program = Program(None, other)
        for i in range(3):
            program.step(i)
        own, shared = backend.state_dict(), backend.state_dict(shared=True)
        say(sorted(own) == ["default_pg", "dp_other"], "groups by name", list(own))
        dcp.save({"gradcomp": backend.shared}, checkpoint_id=f"{FOLDER}/dcp{number}")
        if RANK == 0:
            torch.save(shared, f"{FOLDER}/shared{number}")
        torch.save(own, f"{FOLDER}/own{number}.{RANK}")
        on = [program.step(i, tail=i != 3) for i in range(3, 6)]
        saved = torch.load(f"{FOLDER}/own{number}.{RANK}", weights_only=True)
        backend.load_state_dict(saved)
        say(same(on[0], program.step(3, tail=False)), f"{policy}: back to a state, to the bit")
        end()
        begin(policy=policy)
        backend.load_state_dict(saved)
        waiting = backend.state_dict()
        say(pieces(waiting) == pieces(saved), "what waits stays in a state", [k for k, v in pieces(saved).items() if pieces(waiting).get(k) != v])
        e = error_of(backend.state_dict, shared=True)
        say("dp_other" in str(e) and "waits for the group" in str(e), "... and cannot be shared", repr(e))
        # The group that waits is made now, and the last call of a step comes in the second.
        other = dist.new_group(list(range(SIZE)), group_desc="dp_other")
        program = Program(None, other)
        again = [program.step(i, tail=i != 3) for i in range(3, 6)]
        say(all(map(same, on, again)), "a new job goes on to the bit", [same(a, b) for a, b in zip(on, again)])
        if number:
            wrongs(saved)
        end()


def wrongs(saved):
    """A state that one rank cannot load changes nothing on any."""
    import gradcomp.backend as backend

    before = backend.state_dict()

    def refused(state, name, *texts):
        given = state if RANK == 1 else saved
        e = error_of(backend.load_state_dict, given)
        texts = texts if RANK == 1 else (*texts, "rank 1 on")
        say(isinstance(e, RuntimeError) and all(t in str(e) for t in texts), f"refused: {name}", repr(e))

    for at in (1, 20, 40, 3000, -1):
        damaged = {k: v.clone() for k, v in saved.items()}
        damaged["default_pg"][at] ^= 1
        refused(damaged, f"a damaged byte {at}", "group default_pg")
    refused({**saved, "default_pg": saved["default_pg"][:100]}, "bytes that are missing", "is damaged")
    refused({"dp_other": saved["dp_other"]}, "a group that is missing", "no group default_pg", "strict=False")
    refused(torch.load(f"{FOLDER}/own1.0", weights_only=True), "another rank's", "of rank 0 of 2, this is rank 1 of 2")
    refused({"gradcomp": torch.zeros(400, dtype=torch.uint8)}, "a hook's", "no state of the backend")
    refused([1], "a list", "a list is no state")
    e = error_of(backend.load_state_dict, None if RANK == 1 else saved)
    say("either all" in str(e), "refused: none on one rank", repr(e))
    refused(torch.load(f"{FOLDER}/own0.{RANK}", weights_only=True), "another policy", "is of the policy 'dp.all_reduce.100K/topk")
    say(pieces(backend.state_dict()) == pieces(before), "nothing has changed")


def loading():
    """The state that two ranks share, on as many as there are now."""
    import torch.distributed.checkpoint as dcp

    import gradcomp.backend as backend

    for number, policy in enumerate(STATES):
        begin(policy=policy)
        other = dist.new_group(list(range(SIZE)), group_desc="dp_other")
        shared = torch.load(f"{FOLDER}/shared{number}", weights_only=True)
        e = error_of(backend.load_state_dict, torch.load(f"{FOLDER}/own{number}.0", weights_only=True))
        say("state_dict(shared=True)" in str(e), "a rank's own is refused", repr(e))
        dcp.load({"gradcomp": backend.shared}, checkpoint_id=f"{FOLDER}/dcp{number}")
        of_dcp = pieces(backend.state_dict())
        backend.load_state_dict(shared)
        say(of_dcp == pieces(backend.state_dict()), "torch.distributed.checkpoint has the same")
        had = {k: v for k, v in pieces(shared).items() if k[1] == 0}
        have = pieces(backend.state_dict(shared=True))
        off = [(numbers(have[k]) - numbers(v)).abs().max().item() / numbers(v).abs().max().item() for k, v in had.items() if k in have]
        say(had and sorted(had) == sorted(have) and max(off) < 1e-6, f"{policy}: what is owed in all is the same", f"{off} {list(had)} {list(have)}")
        # Zeros bring it, all of it in the end: what an all-gather loses is beside that.
        program, calls = Program(None, other), {k: numbers(v)[:MANY] for k, v in had.items() if k[4] < 2}
        came = [sum(t.double() for t in each) for each in zip(*[program.step(0, 0.0) for _ in range(25)])]
        off = [(came[5 * (k[0] == "dp_other") + k[4]] - v).norm() / v.norm() for k, v in calls.items()]
        say(len(calls) == 4 and all(o < (0.1 if k[2] == "slot" else 1e-5) for k, o in zip(calls, off)), "... and comes", f"{off} {list(calls)}")
        end()


for each in sys.argv[1].split("+"):
    {f.__name__: f for f in (models, mesh, calls, bad, dead, saving, loading)}[each]()
