#!/usr/bin/python3
"""gradcomp.Coder: sums and gathers of torch tensors, errors, a state, on three ranks."""

import importlib.util
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, errors, forked_ranks as ranks, need_gloo, need_library, ok  # noqa: E402

need_gloo()
need_library()
P = 3
got = ranks(P, [os.path.join(SOURCE, "tests/python/coder.py")])
if not ok([s for s, _, _ in got] == [0] * P, f"{P} ranks code", errors(got)):
    done_testing()
said = [{line.split()[0]: line.split(" ", 1)[1] for line in out.splitlines() if not line.startswith("error")} for _, out, _ in got]
wrong = [dict(line.split(" ", 2)[1:] for line in out.splitlines() if line.startswith("error ")) for _, out, _ in got]
ok(all(s["spec"].startswith("block:bits=8,block=256") for s in said), "the SPEC in full", said)
ok(all(0 < float(s["sum"]) < 3 / 127 for s in said), "a sum within the codes' errors", said)
ok(all(s["tested"] == "True" for s in said), "what has been waited for has ended")
ok(all(0 < float(s["gathered"]) < 1 / 127 for s in said), "bfloat16 gathered in uneven blocks", said)
ok(len({s["bits"] for s in said}) == 1, "the same bits everywhere")
ok(all(s["resumed"].startswith("True") for s in said), "a state is taken up to the bit", said)
ok(all(s["stats"] == "4 1 1 True" for s in said), "counted", said)
for what, words in (("types", "types must be equal"), ("sizes", "do not fit"), ("slot", "slot -1: must be 0.."),
                    ("double", "float64"), ("device", "is on meta: this call works on host memory"), ("low", "works on matrices, of which a flat shard has none; compressors that shards can be sent with: block"),
                    ("create", "gives no code")):
    ok(all(words in w[what] for w in wrong), f"refused: {what}", wrong)
if importlib.util.find_spec("sklearn"):
    run = ranks(2, [os.path.join(SOURCE, "examples/pytorch/sharded.py"), "--steps", "40", "--width", "64"])
    ok([s for s, _, _ in run] == [0] * 2, "examples/pytorch/sharded.py ends well", errors(run))
    accuracy = re.search(r"gathers 0\.2\d\d\ntest accuracy (0\.\d+)", run[0][1])
    ok(accuracy and float(accuracy[1]) > 0.4, "... and learns, with a quarter of the bytes", run[0][1])
ok("coder 'shards' block:bits=8" in got[0][2] and "fewer bytes" in got[0][2], "the line at the end", got[0][2])
done_testing()
