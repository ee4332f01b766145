#!/usr/bin/python3
"""What a call of torch.distributed takes through the backend "gradcomp" and through Gloo, in turn in the same processes, from Python as users
call it. Processes are on this machine, and PyTorch is that of tests/python/current.

    bench/backend.py [--ranks N] [--runs N] [--calls CALL,...] [--least BYTES] [--most BYTES] [--json FILE]

Needs a build of gradcomp in build/ or $GRADCOMP_BUILD. Each figure is the median over runs of the mean time of a call within a run, on
the slowest rank; each run times both, in turns."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/python"))
from tap import SOURCE, environment, free_port  # noqa: E402

CALLS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single", "send_recv", "barrier")


def rank(told):
    import torch
    import torch.distributed as dist

    import gradcomp.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gradcomp")
    groups = {"gradcomp": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    own, n = dist.get_rank(), dist.get_world_size()

    def calls(count, group):
        part, whole = torch.ones(max(1, count // n)), torch.ones(max(1, count // n) * n)
        t, other = torch.ones(count), torch.empty(count)
        to, source = (own + 1) % n, (own - 1) % n

        def send_recv():
            work = dist.isend(t, to, group=group)
            dist.recv(other, source, group=group)
            work.wait()

        return {"all_reduce": lambda: dist.all_reduce(t, group=group), "broadcast": lambda: dist.broadcast(t, 0, group=group),
                "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part, group=group),
                "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
                "all_to_all_single": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group), "send_recv": send_recv,
                "barrier": lambda: dist.barrier(group=group)}

    def timed(call, times):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - begun) / times

    for name in told["calls"]:
        size = told["least"]
        while size <= told["most"]:
            each = {who: calls(size // 4, group)[name] for who, group in groups.items()}
            taken = {who: [] for who in each}
            # Some 30 ms a run: as many times on all ranks.
            once = torch.tensor([max(timed(call, 3) for call in each.values())])
            dist.all_reduce(once, dist.ReduceOp.MAX)
            times = int(min(500, max(3, 0.03 / once.item())))
            for _ in range(told["runs"]):
                for who, call in each.items():
                    taken[who].append(timed(call, times))
            slowest = torch.tensor([taken[who] for who in each], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if own == 0:
                print(json.dumps({"call": name, "bytes": size, **{who: s.median().item() for who, s in zip(each, slowest)}}), flush=True)
            size = size * 4 if name != "barrier" else told["most"] + 1
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--runs", type=int, default=11)
    p.add_argument("--calls", default="all_reduce", help=f"of {','.join(CALLS)}; default all_reduce")
    p.add_argument("--least", type=int, default=64)
    p.add_argument("--most", type=int, default=16 << 20)
    p.add_argument("--json", metavar="FILE", help="write the rows there")
    args = p.parse_args()
    python = subprocess.run([os.path.join(SOURCE, "tests/python/current"), "torch", "600"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    told = json.dumps({"calls": args.calls.split(","), "runs": args.runs, "least": args.least, "most": args.most})
    port = str(free_port())
    ranks = [subprocess.Popen([python, __file__, told], stdout=subprocess.PIPE if r == 0 else None, text=True,
                              env=environment(RANK=str(r), WORLD_SIZE=str(args.ranks), LOCAL_RANK=str(r), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                              BENCH_BACKEND_RANK="yes", PYTHONDONTWRITEBYTECODE=None)) for r in range(args.ranks)]
    rows = []
    for line in ranks[0].stdout:
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        rows.append({"bench": f"{row['call']} through PyTorch, {args.ranks} ranks", "case": f"{row['bytes']} bytes", "value": row["gradcomp"] * 1e6,
                     "unit": "us", "peer": "Gloo", "peer_value": row["gloo"] * 1e6, "ratio": row["gradcomp"] / row["gloo"]})
        last = rows[-1]
        print(f"{row['call']:<24} {row['bytes']:>10} bytes  gradcomp {last['value']:10.1f} us  Gloo {last['peer_value']:10.1f} us  {last['ratio']:.2f}", flush=True)
    failed = [r for r, p in enumerate(ranks) if p.wait()]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    if rows:
        print(f"{statistics.geometric_mean(r['ratio'] for r in rows):.2f} in the geometric mean")
    sys.exit(f"ranks {failed} failed" if failed else 0)


if __name__ == "__main__":
    if "BENCH_BACKEND_RANK" in os.environ:
        rank(json.loads(sys.argv[1]))
    else:
        main()
