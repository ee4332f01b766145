"""One rank of coder.t: gradcomp.Coder on torch tensors."""

import torch

import gradcomp
import gradcomp.torch

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
world = gradcomp.torch.group()
rank, P = world.rank, world.nranks
N = 1000


def given(w, n, k=0):
    torch.manual_seed(100 * w + k)
    return torch.randn(n)


coder = gradcomp.Coder(world, "block:bits=8", name="shards")
print("spec", coder.spec, coder.collective.split(":")[0])
parts, out = given(rank, P * N), torch.full((N,), float("nan"))
want = sum(given(w, P * N).double() for w in range(P))[rank * N:(rank + 1) * N] / P
coder.reduce_scatter(parts, out, scale=1 / P).wait()
print("sum", float((out - want).abs().max() / want.abs().max()))

# Uneven blocks, a rank without one, 16 bits, both ways at once.
counts = [0, 501, 33][:P]
full = torch.full((sum(counts),), float("nan"), dtype=torch.bfloat16)
mine = given(rank, counts[rank]).bfloat16()
scattered = torch.zeros(counts[rank], dtype=torch.bfloat16)
requests = [coder.all_gather(mine, full, counts),
            coder.reduce_scatter(given(rank, sum(counts)).bfloat16(), scattered, counts, slot=0)]
for r in reversed(requests):
    r.wait()
    r.wait()
print("tested", all(r.test() for r in requests))
want = torch.cat([given(w, n).bfloat16() for w, n in enumerate(counts)]).float()
print("gathered", float((full.float() - want).abs().max() / want.abs().max()))
print("bits", hash(full.view(torch.int16).numpy().tobytes()) if P == 1 else sum(full.view(torch.int16).tolist()))

# To be resumed to the bit.
state = coder.save()
twice = []
for _ in range(2):
    got = torch.zeros(counts[rank], dtype=torch.bfloat16)
    coder.reduce_scatter(given(rank, sum(counts), 5).bfloat16(), got, counts, slot=0).wait()
    twice.append(got)
    coder.load(state)
print("resumed", torch.equal(*twice), len(state))
stats = coder.stats()
print("stats", stats["reduce_scatters"], stats["all_gathers"], stats["slots"], 0 < stats["wire_bytes"] < stats["dense_bytes"])

for what, call in (("types", lambda: coder.all_gather(mine, full.float(), counts)),
                   ("sizes", lambda: coder.all_gather(mine, full, [9] * P)),
                   ("slot", lambda: coder.reduce_scatter(full.clone(), scattered, counts, slot=-1)),
                   ("double", lambda: coder.all_gather(torch.zeros(1).double(), torch.zeros(P).double())),
                   ("device", lambda: coder.all_gather(torch.empty(counts[rank], device="meta"), full, counts)),
                   ("low rank", lambda: gradcomp.Coder.check("powersgd")),
                   ("create", lambda: gradcomp.Coder(world, "topk"))):
    try:
        call()
        print("error", what, "was taken")
    except gradcomp.Error as e:
        print("error", what, e)
coder.reduce_scatter(given(rank, P * N), out)  # forgotten
coder.free()
gradcomp.Coder.check("block", "direct")
