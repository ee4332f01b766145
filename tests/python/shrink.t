#!/usr/bin/python3
"""attach(on_failure="shrink"): ranks that are killed anywhere in a step, the first too, and others during recovery; those that
live train on, with equal weights and the loss of a run in which nobody was lost. Of seven moments three or four, others every day;
in check-long all of them, and a module alone with a current PyTorch."""

import os
import re
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, WHOLE, done_testing, environment, errors, forked_ranks as ranks, in_part, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
PROGRAM = os.path.join(SOURCE, "tests/python/shrinking.py")


def run(how, kill="", n=4, gradcomp="none", python=sys.executable, **more):
    got = ranks(n, [PROGRAM, *how.split()], timeout=90, python=python, GRADCOMP=gradcomp, SHRINK_KILL=kill, **more)
    said = [dict((line.split(" ", 1) + [""])[:2] for line in out.splitlines()) for _, out, _ in got]
    return got, said


def killed(kill):
    return {int(k.split(":")[0]) for k in kill.split(",")}


def survives(how, kill, undisturbed, what, gradcomp="none", near=1e-4, python=sys.executable):
    got, said = run(how, kill, gradcomp=gradcomp, python=python)
    left = [r for r in range(4) if r not in killed(kill)]
    alive = [got[r][0] == 0 for r in left] + [got[r][0] == -9 for r in killed(kill)]
    if not ok(all(alive), f"{what}: those that live end well", errors(got)):
        return
    ok(len({said[r]["weights"] for r in left}) == 1, f"{what}: their weights are equal to the bit", said)
    ok([said[r]["ranks"].split() for r in left] == [[str(i), str(len(left))] for i in range(len(left))], f"{what}: they are "
       "numbered anew", said)
    ok(all(abs(float(said[r]["loss"]) - undisturbed) <= near * undisturbed for r in left), f"{what}: the loss is that of an "
       f"undisturbed run, {undisturbed}", said)
    last = [said[r]["raised"] for r in left]
    ok(len(set(last)) == 1 and last[0], f"{what}: all raise PeersLost, in the same steps ({last[0]})", said)


MOMENTS = {"before backward, first step": "3:0:before", "rank 0, in backward": "0:4:backward", "after backward": "1:6:after",
           "in the second step, where DDP rebuilds its buckets": "1:1:before", "in the optimizer": "3:5:optimizer",
           "between steps": "0:3:between", "one after the other": "1:2:backward,3:7:between"}
newer = subprocess.run([os.path.join(SOURCE, "tests/python/current"), "torch"], capture_output=True, text=True, check=False)
pythons = {"": sys.executable}
if newer.returncode == 0:
    pythons["current PyTorch, "] = newer.stdout.strip()
for version, python in pythons.items():
    for how in ("ddp", "module"):
        if version and how == "module" and not WHOLE:
            continue
        got, said = run(how, python=python)
        if not ok([s for s, _, _ in got] == [0] * 4 and not any(s["raised"] for s in said), f"{version}{how}: four ranks", errors(got)):
            continue
        loss = float(said[0]["loss"])
        few = version or how == "module"
        always = ("rank 0, in backward",) if version else ("rank 0, in backward", "between steps")
        for i, moment in enumerate(MOMENTS):
            if moment not in always and (few or not in_part(i, 3)):
                continue
            survives(how, MOMENTS[moment], loss, f"{version}{how}: {moment}", python=python)
        if few:
            continue
        # At once: the rank that dies as it recovers and the one before it.
        got, said = run(how, "3:5:backward,1:any:recovery")
        ok([got[r][0] for r in (0, 2)] == [0, 0] and len({said[r].get("weights") for r in (0, 2)}) == 1
           and all(abs(float(said[r]["loss"]) - loss) <= 1e-4 * loss for r in (0, 2)), "a second one during recovery", errors(got))
got, said = run("ddp bn")
if ok([s for s, _, _ in got] == [0] * 4, "buffers: four ranks", errors(got)):
    got, said = run("ddp bn", "0:4:after")
    left = [1, 2, 3]
    ok([got[r][0] for r in left] == [0] * 3, "buffers: rank 0, whose count, is lost", errors(got))
got, said = run("module", gradcomp="topk:density=0.25")
if ok([s for s, _, _ in got] == [0] * 4, "topk: four ranks", errors(got)):
    survives("module", "2:6:backward", float(said[0]["loss"]), "topk", "topk:density=0.25", near=1.0)

got, said = run("module", "2:4:before", GRADCOMP_MIN_RANKS="4")
ok(all(got[r][0] == 1 and "3 ranks are left, gradcomp.min_ranks is 4" in got[r][2] for r in (0, 1, 3)), "fewer than min_ranks: all "
   "end, and say so", errors(got))
got, said = run("module", "1:4:before", n=2)
ok(got[0][0] == 0 and said[0]["ranks"] == "0 1", "of two, rank 0 goes on alone", errors(got))
got, said = run("ddp", n=2, gradcomp="off")
ok([s for s, _, _ in got] == [0, 0] and len({s["ranks"] for s in said}) == 2, "without gradcomp the loop trains as it is", errors(got))
got, said = run("module", n=2, gradcomp="off")
ok(all(s == 1 and "gradcomp was not asked for" in err for s, _, err in got), "a module alone needs gradcomp", errors(got))

def example(n, steps, checkpoint, **more):
    """examples/pytorch/shrink.py under gradcomp run, started."""
    command = [os.path.join(BUILD, "bin/gradcomp"), "run", "-n", str(n), "--gradcomp=topk:density=0.1", sys.executable,
               os.path.join(SOURCE, "examples/pytorch/shrink.py"), checkpoint, str(steps)]
    return subprocess.Popen(command, env=environment(GRADCOMP_ON_FAILURE="shrink", **more), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def ends(said, n, step):
    """The ranks of n that have ended at the step, and their weights. Lines of several processes may stand in one."""
    got = re.findall(rf"rank (\d) of {n} ends at step {step}, weights (-?\d+\.\d{{6}})", said)
    return sorted(rank for rank, _ in got), len({weights for _, weights in got})


with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "state.pt")
    p = example(3, 60, file, EXAMPLE_PAUSE="0.02")
    said = []
    for line in p.stdout:
        said.append(line)
        for pid in re.findall(r"rank 1 of 3 is process (\d+),", line):
            os.kill(int(pid), signal.SIGKILL)
    err = p.stderr.read()
    ok(p.wait() == 0 and "ended by signal 9 (Killed); the others go on" in err, "gradcomp run: the exit status is that of the others", err)
    ok(ends("".join(said), 2, 60) == (["0", "1"], 1),
       "gradcomp run: a process is killed with SIGKILL, the others train on", "".join(said), err)
    p = example(4, 80, file)
    out, err = p.communicate()
    ok(p.returncode == 0 and out.count("begins at step 49") == 4 and ends(out, 4, 80) == (["0", "1", "2", "3"], 1),
       "more ranks begin at its checkpoint, and take up what was kept", out, err)

REFUSED = """
import torch, gradcomp.torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
gradcomp.torch.init_process_group()
def refused(*a, **k):
    try:
        gradcomp.torch.attach(*a, **k)
    except (gradcomp.Error, TypeError) as e:
        print(e)
refused(nn.Linear(2, 2), on_failure="stop")
refused(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), on_failure="shrink")
refused(nn.Linear(2, 2), on_failure="shrink", delay=1)
refused(nn.Sequential(nn.Linear(2, 2), DDP(nn.Linear(2, 2))), on_failure="shrink")
refused(nn.Linear(2, 2, device="meta"), on_failure="shrink")
model = DDP(nn.Linear(2, 2))
shared = gradcomp.torch.attach(model, on_failure="shrink")
refused(nn.Linear(2, 2), on_failure="shrink")
def wrong(call):
    try:
        call()
    except gradcomp.Error as e:
        print(e)
wrong(lambda: model(torch.ones(1, 2)).sum().backward())
def twice():
    with shared.step():
        model(torch.ones(1, 2)).sum().backward()
        with shared.step():
            pass
wrong(twice)
"""
got = ranks(1, ["-c", REFUSED], GRADCOMP="none")
for words in ("must be 'abort' or 'shrink'", "module 1 is a SyncBatchNorm", "(delay=)", "module 1 is a DistributedDataParallel within",
              "is on meta", "attached with on_failure=\"shrink\" already", "a backward pass outside of step()", "step() within step()"):
    ok(words in got[0][1], f"refused: {words}", errors(got), got[0][1])

# Of one shape, whatever the order: only what is asked of each other shows it.
ORDERS = """
import os, torch, gradcomp.torch
from torch import nn
formats = torch.contiguous_format, torch.channels_last
model = nn.Conv2d(3, 3, 3).to(memory_format=formats[int(os.environ["RANK"])])
try:
    gradcomp.torch.attach(model, on_failure="shrink")
except gradcomp.Error as e:
    print(e)
"""
got = ranks(2, ["-c", "import gradcomp.torch; gradcomp.torch.init_process_group()" + ORDERS], GRADCOMP="none")
ok(all("parameter weight lies in memory in another order on rank 1 than on rank 0" in out for _, out, _ in got),
   "refused: parameters that lie otherwise on another rank", errors(got), [out for _, out, _ in got])

SHARDED = """
import torch, gradcomp.torch
from torch.distributed.fsdp import fully_shard
gradcomp.torch.init_process_group()
model = fully_shard(torch.nn.Linear(2, 2))
try:
    gradcomp.torch.attach(model, on_failure="shrink")
except gradcomp.Error as e:
    print(e)
"""
for python in list(pythons.values())[1:]:
    got = ranks(1, ["-c", SHARDED], python=python, GRADCOMP="none")
    ok("a sharded model (FSDP) has parameters that only the lost rank had" in got[0][1], "refused: FSDP", errors(got), got[0][1])

ACCUMULATES = """
import sys, torch, gradcomp.torch
from torch import nn
torch.manual_seed(1)
gradcomp.torch.init_process_group()
model = nn.Linear(4, 3)
shared = gradcomp.torch.attach(model, on_failure="shrink")
x = torch.randn(8, 4, generator=torch.Generator().manual_seed(shared.rank))
with shared.step():
    with shared.no_sync():
        model(x[:4]).square().sum().backward()
    model(x[4:]).square().sum().backward()
print(*model.weight.grad.flatten().tolist())
every = [torch.randn(8, 4, generator=torch.Generator().manual_seed(r)) for r in range(2)]
model.zero_grad()
shared.detach()
model(torch.cat(every)).square().sum().div(2).backward()
print(*model.weight.grad.flatten().tolist())
print(shared.stats()["steps"])
"""
got = ranks(2, ["-c", ACCUMULATES], GRADCOMP="none")
if ok([s for s, _, _ in got] == [0, 0], "no_sync(), detach()", errors(got)):
    for _, out, _ in got:
        sums = [[float(v) for v in line.split()] for line in out.splitlines()]
        ok(all(abs(a - b) < 1e-3 for a, b in zip(sums[0], sums[1])) and sums[2] == [1.0], "two passes of a step are one gradient", out)
done_testing()
