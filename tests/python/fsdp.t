#!/usr/bin/python3
"""Sharded models on four ranks: fully_shard() with codes both ways, on a mesh with replicas, and
FullyShardedDataParallel: losses, bits, bytes, checkpoints, and what is refused."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, current_torch, done_testing, errors, forked_ranks as ranks, need_library, ok  # noqa: E402

need_library()
PYTHON = current_torch()
P = 4
got = ranks(P, [os.path.join(SOURCE, "tests/python/fsdp.py")], timeout=240, python=PYTHON, GRADCOMP="block:bits=8")
if not ok([s for s, _, _ in got] == [0] * P, f"{P} ranks do everything", errors(got)):
    done_testing()
each = [dict(line.split(" ", 1) for line in out.splitlines() if " " in line and not line.startswith("[")) for _, out, _ in got]
said = each[0]


def number(name):
    return float(said[name])


def near(name, other, noise=0.05):
    ok(abs(number(name) - other) < noise * other, f"{name}: {number(name):.4f}, dense {other:.4f}", said)


dense = number("loss_dense")
near("loss_coded", dense)
for name in ("reduce_scatter_share", "all_gather_share", "fsdp1_share"):
    # block: 8 bits a number and 4 bytes for every 256; a few words beside.
    ok(0.25 < number(name) < 0.29, f"{name}: {number(name):.4f} of what dense sends", said)
ok(said["reduce_scatter_calls"] == "120", "a reduce-scatter for each layer and step", said)
ok(len({e["unsharded"] for e in each}) == 1, "unsharded parameters are the same bits on all ranks", each)
ok(0 < number("rounded") < 1 / 127, "and rounded", said)
ok(all(e["masters_exact"] == "True" for e in each), "the shards themselves are not", each)
ok(number("after_detach") == 0, "after detach() FSDP gathers by itself", said)
exact, coded = map(float, said["again"].split())
ok(1 <= exact < 1.03 and coded < 0.29, f"and the model can be attached again, one way with none: {exact:.4f}, {coded:.4f}", said)
halves = [float(share) for share in said["cast_shares"].split()]
ok(all(0.5 <= share < 0.55 for share in halves), f"cast sends 16 bits both ways: {halves}", said)
ok(0 < number("cast_rounded") <= 2**-11 and all(e["cast_exact"] == "True" for e in each), "of shards that stay exact", each)
ok(all(e["resumed"] == "True" for e in each), "a saved state continues to the bit", each)
ok(int(said["residual"]) > 0, "with a residual", said)
for name in ("accumulate", "bf16", "bf16_float_sums", "kept"):
    ours, theirs = map(float, said["loss_" + name].split())
    ok(abs(ours - theirs) < 0.05 * theirs, f"{name}: a loss of {ours:.4f}, FSDP's own {theirs:.4f}")
without, smaller = said["smaller"].split()
ok(without == smaller, "what backward gathers in a smaller group has the bits of the whole one's", said)
# Five steps of three layers, whose parameters forward and backward gather.
ok(said["smaller_parts"] == "all_gather all_gather_of_2 reduce_scatter" and said["smaller_calls"] == "15 15", "... by a coder of its own", said)
ok(1 <= number("smaller_bytes") < 1.03, "... as they are", said)
ok(abs(number("loss_hier_none") - dense) < 1e-4, "two levels: none is FSDP's own training", said)
near("loss_hier_coded", dense)
ok(len({e["hier_coded_unsharded"] for e in each}) == 1, "... weights are the same bits on all ranks", each)
ok(float(said["hier_coded_rounded"]) > 0 and float(said["hier_none_rounded"]) == 0, "... and rounded", said)
for i, (name, least) in enumerate((("reduce-scatter", 0.125), ("all-gather", 0.25))):
    # Shares are of 3/4 of all numbers, what a rank of a ring sends. Between two nodes each number goes once; within them nothing is coded.
    none, coded = (sum(float(e[f"hier_{how}_shares"].split()[i]) for e in each) for how in ("none", "coded"))
    between = 1 - 0.75 * (none - coded)
    ok(least < between < 1.1 * least, f"... {name}: {between:.4f} of the bytes between nodes", each)
ok(number("hsdp_none") < 1e-6, "replicas: none is FSDP's own average", said)
ok(said["hsdp_placements"] == "2", "parameters stay on the mesh of two dimensions", said)
near("loss_hsdp", dense, 0.3)  # two columns of each matrix, forty steps
ok(said["hsdp_parts"] == "all_gather all_reduce reduce_scatter" and said["hsdp_steps"] == "40", "coded within a node too", said)
ok(abs(number("hsdp_bytes") - number("hsdp_formula")) < 0.03 * number("hsdp_formula"),
   f"{number('hsdp_bytes'):.0f} bytes a step between nodes, by formula {number('hsdp_formula'):.0f}", said)
ok(len({e["hsdp_unsharded"] for e in each}) == 1, "all replicas hold the same bits", each)
near("loss_fsdp1", dense)
for name, kind, *texts in (
        ("twice", "Error", "attached already", "detach()"),
        ("ran", "Error", "has run already", "before its first forward pass"),
        ("low_rank", "Error", "powersgd", "block"),
        ("low_rank_gather", "Error", "topk", "block"),
        ("delayed", "Error", "delay"),
        ("unknown", "Error", "blok"),
        ("one_rank", "Error", "compressor 'blok'"),
        ("different", "Error", "rank 1 on", "makes a coder of 'block:bits=4", "rank 0 of 'none"),
        ("of_shards", "Error", "a dict with all_gather, reduce_scatter is no state", "DistributedDataParallel"),
        ("no_shard", "TypeError", "NO_SHARD", "DistributedDataParallel"),
        ("fsdp1_gather", "Error", "fully_shard()"),
        ("fsdp1_inner", "TypeError", "attach(model.0)"),
        ("double", "Error", "parameter weight is float64", "convert it"),
        ("replicas_only", "TypeError", "bucket_bytes"),
        ("not_sharded", "TypeError", "all_gather", "DistributedDataParallel"),
        ("fsdp1_nowhere", "Error", "used on meta", "one CUDA device"),
        ("fsdp1_double", "Error", "is float64", "convert it"),
        ("old_torch", "TypeError", "PyTorch 2.9", f"this is {said['torch']}:")):
    ok(all(e[name].startswith(kind + " ") and all(t in e[name] for t in texts) for e in each),
       f"{name}: refused, with what to do", [e[name] for e in each])
ok(said["after_errors"] == "6", "and the job goes on", said)
ok("fewer bytes" in got[0][2], "counted in the last line", got[0][2][-2000:])

got = ranks(P, [os.path.join(SOURCE, "tests/python/dying.py"), "hsdp"], python=PYTHON, GRADCOMP="powersgd:rank=2")
ok([s for s, _, _ in got] == [1, -9, 1, 1] and all("gradcomp._lib.Error: rank 1 on " in err for r, (_, _, err) in enumerate(got) if r != 1),
   "replicas: a rank that dies is named by its shard's ranks and by the others", errors(got))
done_testing()
