"""The local work of compressors: multiples of a memcpy of the same 2^24 numbers, and
beside what PyTorch and LAPACK take for the same."""

import json
import os
import sys

from testbed import SOURCE, environment, run

# SPEC, which part of a step, the most memcpys it may take.
LIMITS = [("cast:type=bf16", "encode", 1.3), ("cast:type=fp16", "encode", 1.3), ("signsgd", "encode", 1.5),
          ("onebit", "encode", 1.5), ("terngrad", "encode", 5), ("qsgd", "encode", 5), ("block:bits=8", "encode", 3),
          ("block:bits=8", "decode", 2), ("topk:density=0.001", "both", 5), ("mstopk:density=0.001", "both", 6),
          ("powersgd:rank=4", "both", 9), ("zfp:rate=8", "encode", None)]
SPECS = sorted({spec for spec, _, _ in LIMITS})


def gradients(folder, env):
    """Real ones: those of the digits example."""
    path = os.path.join(folder, "gradients.f32")
    run([sys.executable, os.path.join(SOURCE, "examples/pytorch/digits.py"), "--gradients", path], env, 600)
    return path


def table(folder, env, prefix, path, runs):
    result = os.path.join(folder, "compressors.json")
    run([os.path.join(prefix, "bin/gradcomp"), "bench", "compressors", "--compressors", ",".join(SPECS), "--runs",
         str(2 * runs + 1), "--gradients", path, "--json", result], env, 1800)
    with open(result, encoding="utf-8") as f:
        return {(r["compressor"], r["input"]): r for r in json.load(f)}


def orthonormalise(folder, env):
    """Seconds for 65536 x 4, of the best table of this processor."""
    result = os.path.join(folder, "operators.json")
    program = os.path.join(os.environ.get("GRADCOMP_BUILD", os.path.join(SOURCE, "build")), "bench/operators")
    run([program, "--quick", "--json", result], env, 900)
    with open(result, encoding="utf-8") as f:
        times = [r["ms"] for r in json.load(f) if r["operator"] == "orthonormalise" and r["size"].startswith("65536x4 ")]
    return min(times) / 1e3


def against(case, seconds, peer, peer_seconds, limit):
    return {"bench": "local work, one thread", "case": case, "value": seconds * 1e3, "unit": "ms", "peer": peer,
            "peer_value": peer_seconds * 1e3, "ratio": seconds / peer_seconds, "limit": limit}


def compressors(args, folder):
    env = environment(args.prefix)
    path = gradients(folder, env)
    rows = table(folder, env, args.prefix, path, args.runs)
    for spec, part, limit in LIMITS:
        for kind in ("gaussian", "heavy", "file"):
            r = rows[spec, kind]
            yield {"bench": "local work, one thread", "case": f"{spec}, {part}, {kind}",
                   "value": r[part] * r["memcpy_s"] * 1e3, "unit": "ms", "peer": "memcpy",
                   "peer_value": r["memcpy_s"] * 1e3, "ratio": r[part], "limit": limit}
    block, zfp = (rows[s, "file"] for s in ("block:bits=8", "zfp:rate=8"))
    yield {"bench": "error at 8 bits, real gradients", "case": "block:bits=8", "value": block["relative_error"],
           "unit": "", "peer": "zfp:rate=8", "peer_value": zfp["relative_error"],
           "ratio": block["relative_error"] / zfp["relative_error"], "limit": 1}
    yield against("block:bits=8, both, file", block["both"] * block["memcpy_s"], "zfp:rate=8",
                  zfp["both"] * zfp["memcpy_s"], 1)
    peers = json.loads(run([sys.executable, os.path.join(SOURCE, "bench/peers/local.py"), path], env, 600))
    topk, low_rank = rows["topk:density=0.001", "file"], rows["powersgd:rank=4", "file"]
    yield against("topk:density=0.001, both", topk["both"] * topk["memcpy_s"], "torch.topk", peers["torch_topk"], 1 / 8)
    yield against("powersgd:rank=4, both", low_rank["both"] * low_rank["memcpy_s"], "torch powerSGD_hook",
                  peers["torch_powersgd_4"], 1 / 2)
    yield against("orthonormalise 65536x4", orthonormalise(folder, env), "LAPACK QR", peers["lapack_qr"], 1)
