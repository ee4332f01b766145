"""Is a file the timeline of all ranks and steps? trace_check.py FILE RANKS STEPS BUCKETS ROUNDS
LEAST_STEP: steps LEAST_STEP..STEPS-1, every task of every bucket; prints what is wrong."""

import json
import sys

path, ranks, steps, buckets, rounds, least = sys.argv[1], *map(int, sys.argv[2:7])
with open(path) as f:
    trace = json.load(f)
events = trace["traceEvents"]
slices = [e for e in events if e["ph"] == "X"]
wrong = []


def expect(so, text):
    if not so and len(wrong) < 10:
        wrong.append(text)


names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
expect(sorted(names) == list(range(ranks)), f"ranks {sorted(names)}")
expect(all(names[r].startswith(f"rank {r} on ") for r in names), f"names {names}")
threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
expect(sorted(set(threads.values())) == ["application", "compute", "exchange", "steps"], f"threads {set(threads.values())}")
labels = {e["pid"] for e in events if e["name"] == "process_labels"}
expect(len(labels) == (ranks if least else 0), f"ranks with dropped events: {sorted(labels)}")

# Every task of every rank and step, once, on its thread.
seen = {}
for e in slices:
    where = threads.get((e["pid"], e["tid"]))
    expect(where == e["cat"], f"{e['name']} is on {where}")
    a = e["args"]
    key = (e["pid"], a["step"], e["name"], a.get("bucket"), a.get("round"))
    if "bucket" in a or e["name"] == "step":
        expect(key not in seen, f"{key} is there twice")
        seen[key] = e
want = set()
for r in range(ranks):
    for s in range(least, steps):
        want.add((r, s, "step", None, None))
        for b in range(buckets):
            want |= {(r, s, "begin", b, 0), (r, s, "finish", b, 0)}
            want |= {(r, s, name, b, k) for name in ("encode", "exchange", "decode") for k in range(rounds)}
for key in sorted(want - set(seen), key=str)[:3]:
    expect(False, f"{key} is missing")
for key in sorted(set(seen) - want, key=str)[:3]:
    expect(False, f"{key} is too much")
ready = [e for e in events if e["name"] == "ready"]
expect(len(ready) == ranks * (steps - least) * buckets and all(e["ph"] == "i" for e in ready), f"{len(ready)} gradients")
expect(all(seen[k]["args"]["bytes"] > 0 for k in want & set(seen) if k[2] == "exchange"), "an exchange sends nothing")

# A thread does one thing at a time.
by_thread = {}
for e in slices:
    by_thread.setdefault((e["pid"], e["tid"]), []).append(e)
for tid, es in by_thread.items():
    es.sort(key=lambda e: e["ts"])
    for a, b in zip(es, es[1:]):
        expect(a["ts"] + a["dur"] <= b["ts"] + 0.002, f"{threads[tid]} of rank {tid[0]}: {a['name']} and {b['name']} overlap")

# One clock: nobody leaves an exchange of all before the last has come to it. The clocks are
# hours apart; on a machine with far too much to do they cannot be compared closely.
NEAR = 500000
for key in want & set(seen):
    if key[2] == "exchange":
        es = [seen.get((r, *key[1:])) for r in range(ranks)]
        if all(es):
            came, left = max(e["ts"] for e in es), min(e["ts"] + e["dur"] for e in es)
            expect(came <= left + NEAR, f"{key[1:]}: a rank leaves {came - left:.1f} us before another comes")

# The ranks' exchanges go in one order.
order = {r: [k[1:] for k, e in sorted(((k, e) for k, e in seen.items() if k[0] == r and k[2] == "exchange"),
                                      key=lambda x: x[1]["ts"])] for r in range(ranks)}
expect(all(order[r] == order[0] for r in order), "ranks exchange in different orders")

for text in wrong:
    print("#", text)
sys.exit(bool(wrong))
