#!/usr/bin/python3
"""gradcomp.torch with parameters on a GPU, by a fake device and a fake NCCL: see hook.py."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests/python"))
from tap import BUILD, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok, skip_all  # noqa: E402

need_gloo()
need_library()
HOOK = os.path.join(SOURCE, "tests/fake/hook.py")
lib = os.path.join(BUILD, "tests/fake/lib")
made = subprocess.run([os.path.join(SOURCE, "tests/fake/compile"), lib], capture_output=True, text=True,
                      env=dict(os.environ, GRADCOMP_SRC=SOURCE, GRADCOMP_BUILD=BUILD))
more = {"LD_LIBRARY_PATH": lib, "GRADCOMP_PLUGIN_PATH": f"{lib}/gradcomp:{BUILD}/lib/gradcomp"}
if ranks(1, ["-c", "import torch; raise SystemExit(torch.version.cuda is not None)"], **more)[0][0]:
    skip_all("this PyTorch has a CUDA runtime of its own, which would be taken for the fake's")
ok(made.returncode == 0, "the device's code compiles against the fake", made.stderr)


def said(got, word):
    return [line.split()[1] for _, out, _ in got for line in out.splitlines() if line.startswith(word)]


for spec, within in ("none", 1e-5), ("cast:type=bf16", 0.02), ("powersgd:rank=4,start_step=0", 1), ("topk:density=1", 1e-5):
    got = ranks(2, [HOOK, "trains", spec], GRADCOMP="none", **more)
    if ok([s for s, _, _ in got] == [0, 0], f"{spec}: two ranks train", errors(got)):
        ok(max(map(float, said(got, "worst"))) < within, f"{spec}: gradients are the average", said(got, "worst"))
        ok(all(int(n) > 3 for n in said(got, "blocks")) and said(got, "left") == ["0", "0"],
           f"{spec}: memory is PyTorch's, and goes back to it", said(got, "blocks"), said(got, "left"))
        ok(said(got, "steps") == ["5", "5"], f"{spec}: every step was counted", said(got, "steps"))
got = ranks(2, [HOOK, "delayed", "none"], GRADCOMP="none", **more)
if ok([s for s, _, _ in got] == [0, 0], "two ranks train with averages that come a step late", errors(got)):
    ok(max(map(float, said(got, "worst"))) < 1e-5 and len(set(said(got, "weights"))) == 1,
       "... drained, their weights are those of SGD, the same on both", said(got, "worst"), said(got, "weights"))
    ok(said(got, "left") == ["0", "0"], "... and all memory goes back to PyTorch", said(got, "left"))
got = ranks(2, [HOOK, "resumes", "topk:density=0.1"], GRADCOMP="none", **more)
ok([s for s, _, _ in got] == [0, 0], "a state is saved and taken up", errors(got))
got = ranks(2, [HOOK, "starves", "topk:density=0.1"], GRADCOMP="none", **more)
ok(all(s for s, _, _ in got) and any("gradcomp: CUDA out of memory" in err and "no CUDA memory for" in err for _, _, err in got),
   "where PyTorch has none left its words are told", errors(got))
got = ranks(2, [HOOK, "half", "none"], GRADCOMP="none", **more)
said_half = [line for _, out, _ in got for line in out.splitlines() if line.startswith("refused")]
ok([s for s, _, _ in got] == [0, 0] and len(said_half) == 2 and all("parameter 4." in line and "is on cpu" in line for line in said_half),
   "a model half in host memory is refused by a parameter's name", said_half, errors(got))
got = ranks(2, [HOOK, "dies", "none"], GRADCOMP="none", **more)
ok(got[1][0] == 3 and got[0][0] not in (0, None) and "rank 1" in got[0][2], "a rank that dies is named by backward()", errors(got))
got = ranks(2, [os.path.join(SOURCE, "tests/fake/coder.py")], GRADCOMP="none", **more)
if ok([s for s, _, _ in got] == [0, 0], "a Coder takes tensors on a GPU and returns before the device has begun; so do a group's "
                                        "collectives, which wait", errors(got)):
    ok(said(got, "alike") == ["3", "3"], "... and gives what one in host memory does, to the bit", said(got, "alike"))
    ok(all(int(n) > 3 for n in said(got, "blocks")) and said(got, "left") == ["0", "0"],
       "... its memory is the program's, and goes back to it", said(got, "blocks"), said(got, "left"))
    ok(said(got, "refused") == ["a", "a"], "... a tensor in host memory is refused", said(got, "refused"))
    unlike = [line for _, out, _ in got for line in out.splitlines() if line.startswith("unlike")]
    ok(len(unlike) == 4 and "made by .cuda()" in unlike[0] and "cuda:0 and cuda:1" in unlike[1],
       "... a call's buffers are in one place", unlike)
for spec, *options in ("none",), ("block:bits=8", "fragments=2", "delay=1"):
    got = ranks(2, [os.path.join(SOURCE, "tests/fake/local_sgd.py"), "same", spec, *options], GRADCOMP="none", **more)
    name = f"{'DiLoCo' if options else 'LocalSGD'}, {spec}"
    if ok([s for s, _, _ in got] == [0, 0], f"{name}: two ranks train, and resume, on a GPU", errors(got)):
        ok(max(map(float, said(got, "off"))) < (1e-4 if options else 1e-6) and len(set(said(got, "digest"))) == 1,
           "... weights and buffers are those of host memory, the same on both", said(got, "off"), said(got, "digest"))
        ok(said(got, "calls") == ["allreduce,broadcast,broadcast"] * 2 and all(int(n) > 3 for n in said(got, "blocks")) and said(got, "left") == ["0", "0"],
           "... nothing goes through host memory, and memory is PyTorch's", got)
got = ranks(2, [os.path.join(SOURCE, "tests/fake/local_sgd.py"), "dies", "none"], GRADCOMP="none", **more)
ok(got[1][0] == 3 and got[0][0] not in (0, None) and "rank 1" in got[0][2], "LocalSGD on a GPU: a rank that dies is named", errors(got))

SHRINK = os.path.join(SOURCE, "tests/fake/shrink.py")
for what, n, kill, arguments, aborted, live in (
        ("rank 0, in backward", 3, "0:4:backward", ["ddp", "topk:density=0.25", "nccl", "bn"], 2, 2),
        ("another as they recover", 4, "3:3:after,1:any:recovery", ["module", "none", "nccl"], 2, 1),
        ("through host memory", 3, "1:4:after", ["module", "none", "ring"], 1, 0)):
    got = ranks(n, [SHRINK, *arguments], timeout=90, GRADCOMP="none", SHRINK_KILL=kill, **more)
    dead = {int(k.split(":")[0]) for k in kill.split(",")}
    left = [r for r in range(n) if r not in dead]
    if not ok(all(got[r][0] == (-9 if r in dead else 0) for r in range(n)), f"on_failure=shrink on a GPU, {what}: those that live "
              "train to the end", errors(got)):
        continue
    have = [dict((line.split(" ", 1) + [""])[:2] for line in got[r][1].splitlines()) for r in left]
    raised = f"{kill.split(':')[1]}:{'+'.join(map(str, sorted(dead)))}"
    ok({h["raised"] for h in have} == {raised}, f"... all raise PeersLost once ({raised})", have)
    ok(len({h["weights"] for h in have}) == 1 and all(float(h.get("off", 0)) < 1e-5 for h in have),
       "... with equal weights, of a training in which nobody was lost", have)
    ok({h["touched"] for h in have} == {"0"}, "... and the step that is void leaves error memory, gradients and buffers as they were", have)
    ok({h["launches"] for h in have} == {"1"} and {h["device"] for h in have} == {"True"},
       "... every step has as many launches, and the reducer is made anew on the model's device", have)
    # That of the reducer and that of the group (for broadcasts); anew when they are used.
    counts = [[int(c) for c in h["communicators"].split()] for h in have]
    ok(all(c[2] == live and (c[1] == aborted or (c[1] > aborted and len(dead) > 1)) for c in counts),
       f"... {aborted} communicators are aborted, and {live} live in the end", have)
    ok({h["left"] for h in have} == {"0"} and all(int(h["blocks"]) > 3 for h in have), "... memory goes back to PyTorch", have)
got = ranks(1, [SHRINK, "refused"], GRADCOMP="none", **more)
heard = [line for _, out, _ in got for line in out.splitlines()]
ok([line.split(" on_failure")[0] for line in heard] == ["refused nccl 0", "refused cpu:gloo,cuda:nccl 0", "refused nccl 1",
                                                        "taken cpu:nccl,cuda:gloo 0", "taken nccl 1", "refused before 2.2",
                                                        "taken before 2.2", "taken default",
                                                        "refused default", "refused two"]
   and "whose watchdog ends this process" in heard[0] and "TORCH_NCCL_ENABLE_MONITORING=0" in heard[0]
   and heard[5].endswith("or start with NCCL_ASYNC_ERROR_HANDLING=0") and "was given a device_id, has communicators of NCCL" in heard[-2]
   and "0.weight is on cuda:1, 2.weight is on cuda:0" in heard[-1],
   "refused: communicators of PyTorch's own, unless their watchdog lets the process live, and two GPUs", heard, errors(got))
done_testing()
