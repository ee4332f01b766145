"""One rank of fsdp.t: trains sharded models with and without gradcomp. Prints `name value` lines."""

import hashlib
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard

import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
flat = init_device_mesh("cpu", (nranks,))
nodes = init_device_mesh("cpu", (2, nranks // 2), mesh_dim_names=("replicate", "shard"))
WIDTH = 96


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH + 1), nn.ReLU(), nn.Linear(WIDTH + 1, 10))


def sharded(mesh=flat, **options):
    model = network()
    for i in (0, 2, 4):
        fully_shard(model[i], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


teacher = torch.randn(32, 10, generator=torch.Generator().manual_seed(5))


def train(model, steps, first=0, parts=1, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        optimizer.zero_grad()
        for _ in range(parts):
            x = torch.randn(16, 32, generator=generator)
            loss = nn.functional.cross_entropy(model(x).float(), (x @ teacher).argmax(1))
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    last = torch.stack(losses[-10:]).mean()
    dist.all_reduce(last)
    return last.item() / nranks


def whole(model):
    return [p.full_tensor().detach().clone() for p in model.parameters()]


def digest(tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().contiguous().float().numpy().tobytes())
    return h.hexdigest()[:16]


def worst(a, b):
    return max((x - y).abs().max().item() for x, y in zip(a, b))


def unsharded(model):
    """What forward computes with."""
    found = []
    for i in (0, 2, 4):
        model[i].unshard()
        found += [p.detach().clone() for p in model[i].parameters()]
        model[i].reshard()
    return found


def refused(name, make, **options):
    try:
        gradcomp.torch.attach(make(), **options)
        print(name, "attached")
    except (gradcomp.Error, TypeError) as e:
        print(name, type(e).__name__, e)


dense = sharded()
loss_dense = train(dense, 40)
print("loss_dense", loss_dense)

# FSDP2, 8 bits both ways.
model = sharded()
hook = gradcomp.torch.attach(model)
print("loss_coded", train(model, 40))
stats = hook.stats()
for name in ("reduce_scatter", "all_gather"):
    print(f"{name}_share", stats[name]["wire_bytes"] / stats[name]["dense_bytes"])
    print(f"{name}_calls", stats[name][name + "s"])
masters, weights = whole(model), unsharded(model)
print("unsharded", digest(weights))
print("rounded", worst(weights, masters) / max(m.abs().max().item() for m in masters))
before = [p.to_local().clone() for p in model.parameters()]
train(model, 1, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
print("masters_exact", worst(before, [p.to_local() for p in model.parameters()]) == 0.0)
refused("twice", lambda: model)
hook.detach()
hook.detach()
print("after_detach", worst(unsharded(model), whole(model)))
hook = gradcomp.torch.attach(model, reduce_scatter="none", all_gather="block:bits=8")
train(model, 2)
print("again", *(hook.stats()[name]["wire_bytes"] / hook.stats()[name]["dense_bytes"] for name in ("reduce_scatter", "all_gather")))
hook.detach()

# 16 bits both ways, sums in 32.
hook = gradcomp.torch.attach(model, reduce_scatter="cast", all_gather="cast:type=fp16")
before = [p.to_local().clone() for p in model.parameters()]
train(model, 1, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
print("cast_exact", worst(before, [p.to_local() for p in model.parameters()]) == 0.0)
masters, weights = whole(model), unsharded(model)
print("cast_rounded", worst(weights, masters) / max(m.abs().max().item() for m in masters))
print("cast_shares", *(hook.stats()[name]["wire_bytes"] / hook.stats()[name]["dense_bytes"] for name in ("reduce_scatter", "all_gather")))
hook.detach()

# A state that continues to the bit; gradients with a residual.
model = sharded()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
hook = gradcomp.torch.attach(model, reduce_scatter="block:bits=4", all_gather="none", residual=True)
train(model, 5, optimizer=optimizer)
saved = {k: v.to_local().clone() for k, v in model.state_dict().items()}
momentum = [optimizer.state[p]["momentum_buffer"].to_local().clone() for p in model.parameters()]
state = hook.state_dict()
train(model, 5, first=5, optimizer=optimizer)
straight = digest(whole(model))
with torch.no_grad():
    for (name, p), m in zip(model.named_parameters(), momentum):
        p.to_local().copy_(saved[name])
        optimizer.state[p]["momentum_buffer"].to_local().copy_(m)
hook.load_state_dict(state)
train(model, 5, first=5, optimizer=optimizer)
print("resumed", straight == digest(whole(model)))
print("residual", hook.stats()["reduce_scatter"]["residual_bytes"])
hook.detach()

# Ways of training: several backward passes a step, 16-bit gathers and sums, sums divided later.
for name, options, parts in (("accumulate", {}, 3),
                             ("bf16", {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}, 1),
                             ("bf16_float_sums", {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, 1),
                             ("kept", {"reshard_after_forward": False}, 1)):
    model = sharded(**options)
    hook = gradcomp.torch.attach(model)
    loss = train(model, 20, parts=parts)
    hook.detach()
    print(f"loss_{name}", loss, train(sharded(**options), 20, parts=parts))

# Backward gathers in a smaller group what forward has gathered before: the same bits, by a coder of its own.
weights = []
for options in ({}, {"reshard_after_forward": 2}):
    model = sharded(**options)
    hook = gradcomp.torch.attach(model)
    train(model, 5)
    weights.append(digest(whole(model)))
    stats = hook.stats()
    hook.detach()
print("smaller", *weights)
print("smaller_parts", " ".join(sorted(stats.parts)))
print("smaller_calls", stats["all_gather"]["all_gathers"], stats["all_gather_of_2"]["all_gathers"])
print("smaller_bytes", stats["all_gather_of_2"]["wire_bytes"] / stats["all_gather_of_2"]["dense_bytes"])

# ZeRO++: codes in two levels, two nodes of two ranks each.
for name, codes in (("none", ("none", "none")), ("coded", ("block:bits=4", "block:bits=8"))):
    model = sharded()
    hook = gradcomp.torch.attach(model, reduce_scatter=codes[0], all_gather=codes[1], collective="hier:ranks_per_node=2")
    print(f"loss_hier_{name}", train(model, 40))
    weights = unsharded(model)
    print(f"hier_{name}_unsharded", digest(weights))
    print(f"hier_{name}_rounded", worst(weights, whole(model)))
    stats = hook.stats()
    print(f"hier_{name}_shares", *(stats[of]["wire_bytes"] / stats[of]["dense_bytes"] for of in ("reduce_scatter", "all_gather")))
    hook.detach()

# HSDP: none between nodes is FSDP's own average, others train.
model = sharded(nodes)
hook = gradcomp.torch.attach(model, compressor="none")
train(model, 10, parts=2)
own = sharded(nodes)
train(own, 10, parts=2)
print("hsdp_none", worst(whole(model), whole(own)))
hook.detach()
train(model, 1, first=10)
print("hsdp_placements", len(next(model.parameters()).placements))
model = sharded(nodes)
hook = gradcomp.torch.attach(model, compressor="powersgd:rank=2,start_step=0", reduce_scatter="block:bits=8",
                             all_gather="block:bits=8")
print("loss_hsdp", train(model, 40))
stats = hook.stats()
print("hsdp_parts", " ".join(sorted(stats.parts)))
print("hsdp_steps", stats["all_reduce"]["steps"])
print("hsdp_bytes", stats["all_reduce"]["wire_bytes"] / stats["all_reduce"]["steps"])
print("hsdp_formula", sum(4 * 2 * sum(p.to_local().shape) if p.dim() > 1 else 4 * p.to_local().numel()
                          for p in model.parameters()))
print("hsdp_unsharded", digest(unsharded(model)))
hook.detach()

# FSDP1.
def fsdp1(strategy=ShardingStrategy.FULL_SHARD, of=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FullyShardedDataParallel(of or network(), sharding_strategy=strategy, device_id=torch.device("cpu"))


model = fsdp1()
hook = gradcomp.torch.attach(model)
print("loss_fsdp1", train(model, 40))
stats = hook.stats()["reduce_scatter"]
print("fsdp1_share", stats["wire_bytes"] / stats["dense_bytes"])
hook.detach()
train(model, 1)
print("fsdp1_calls", stats["reduce_scatters"])

# What is refused.
print("torch", torch.__version__)


def nowhere():
    model = fsdp1()
    model.compute_device = torch.device("meta")
    return model


refused("ran", lambda: dense)
refused("low_rank", sharded, reduce_scatter="powersgd:rank=2")
refused("low_rank_gather", sharded, all_gather="topk:density=0.01")
refused("delayed", sharded, delay=2)
refused("unknown", sharded, reduce_scatter="blok")
refused("one_rank", sharded, all_gather="blok" if rank == 1 else "block:bits=8")
refused("different", sharded, reduce_scatter="none" if rank == 0 else "block:bits=4")
refused("no_shard", lambda: fsdp1(ShardingStrategy.NO_SHARD))
refused("fsdp1_gather", fsdp1, all_gather="block:bits=8")
refused("fsdp1_inner", lambda: nn.Sequential(fsdp1()))
refused("fsdp1_nowhere", nowhere)
refused("fsdp1_double", lambda: fsdp1(of=network().double()))
refused("double", lambda: fully_shard(nn.Linear(4, 4).double(), mesh=flat))
refused("replicas_only", sharded, bucket_bytes=1 << 20)
refused("not_sharded", lambda: nn.parallel.DistributedDataParallel(nn.Linear(4, 4)), all_gather="block:bits=8")
replica = gradcomp.torch.attach(nn.parallel.DistributedDataParallel(nn.Linear(4, 4)), compressor="topk")
try:
    replica.load_state_dict(state)
except gradcomp.Error as e:
    print("of_shards", "Error", e)
replica.detach()
older = FSDPModule.set_custom_reduce_scatter
del FSDPModule.set_custom_reduce_scatter
refused("old_torch", sharded)
FSDPModule.set_custom_reduce_scatter = older
# With one that was refused behind, another can be attached.
model = sharded()
hook = gradcomp.torch.attach(model)
train(model, 2)
print("after_errors", hook.stats()["reduce_scatter"]["reduce_scatters"])
