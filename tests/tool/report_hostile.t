#!/bin/bash
# gradcomp report reads files from anywhere: a thousand reports and timelines with wrong numbers, types and bytes, under
# AddressSanitizer and UBSan.
# shellcheck source=tests/tool/tool.sh
. "${GRADCOMP_SRC:?}/tests/tool/tool.sh" || exit 1
"$gradcomp" report "$tmp/none" 2>&1 | grep -q 'without jansson' && skip_all 'gradcomp was built without jansson'
value () { sed -n "s/^$1 *= *//p" "$GRADCOMP_BUILD/config.mk"; }
cc=$(value CC)
san='-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all'
echo 'int main(void) { return 0; }' > "$tmp/try.c"
# shellcheck disable=SC2086
if ! { $cc $san -o "$tmp/try" "$tmp/try.c" 2> /dev/null && "$tmp/try"; }; then skip_all "$cc has no sanitizers"; fi

cat > "$tmp/all.c" <<'C'
#include <stdio.h>
#include "tools/commands.h"
/* Each FILE of the command line as a report, in each form; as a timeline too. */
int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *tensors[] = {"report", "--tensors", argv[i], NULL};
		char *html[] = {"report", "--html", "page.html", argv[i], NULL};
		char *trace[] = {"report", "--html", "page.html", "--trace", argv[i], "good.json", NULL};

		fprintf(stderr, "file %s\n", argv[i]);
		cmd_report(3, tensors);
		cmd_report(4, html);
		cmd_report(6, trace);
	}
	return 0;
}
C
cd "$GRADCOMP_SRC" || exit 1
compile () {
	# shellcheck disable=SC2046,SC2086
	$cc -std=gnu11 -O1 -g -D_GNU_SOURCE= -include "$GRADCOMP_BUILD/gradcomp_config.h" $san -I. -Iinclude -Iruntime -o "$tmp/all" \
		"$tmp/all.c" tools/cmd_report.c tools/report_html.c tools/commands.c $(value JANSSON_CFLAGS) \
		"$GRADCOMP_BUILD/lib/check.a" "$GRADCOMP_BUILD/lib/libgradcomp.a" $(value LIB_LIBS) $(value JANSSON_LIBS) -lm -ldl -lrt -pthread
}
check 'what reads reports is built with sanitizers' compile || note "$said"
cat > "$tmp/mutants.py" <<'PY'
import copy, json, random, sys
seed = random.randrange(1 << 32)
print("# seed", seed)
random.seed(seed)
tensor = lambda i: {"name": "w%d" % i, "numel": 1000 + i, "choice": "topk" if i % 2 else "dense", "error": 0.25}
stats = {"steps": 450, "ranks": 4, "buckets": 3, "nonfinite_steps": 1, "wire_bytes": 3e8, "dense_bytes": 8e9, "ratio": 26.1, "encode_s": 0.5,
         "exchange_s": 3.5, "decode_s": 0.25, "exposed_s": 1.5, "hidden": 0.35, "delay": 2, "error_mean": 0.62, "error_last": 0.5}
good = {"schema": 1, "gradcomp": "0.1.0", "job": "77", "step": "0", "ended": "x", "wall_s": 12.5, "failure": "bad", "ranks": 4, "nodes": 2,
        "hosts": ["n1", "n1", "n2", "n2"],
        "links": [{"transport": "tcp", "connections": 2, "sent_bytes": 3000000000, "received_bytes": 4}],
        "link_kinds": [{"transport": "tcp", "pairs": 4, "why_not": None}, {"transport": "shm", "pairs": 0, "why_not": "none"}],
        "link_map": [["self", "tcp"], ["tcp", "self"]],
        "networks": [{"network": "10.2.0.0/24", "interface": "eth1", "driver_mbit": 10000, "measured_mbit": 9400, "used": True}],
        "reducers": [dict(stats, asked="auto", compressor="topk", collective="ring", tensors=[tensor(i) for i in range(4)],
                          schedule={"asked": "mgwfbp", "plan": "x", "fallback": "y", "plans": 2, "predicted_s": 0.04, "predicted_fixed_s": 0.05,
                                    "step_s": 0.041, "exchange": {"a": 1e-3, "b": 1e-9},
                                    "buckets": [{"tensors": 3, "numel": 500, "position": 1}, {"tensors": 1, "numel": 20, "position": 0}]},
                          auto={"decision": "x", "reason": "y", "exposed_s": 0.01,
                                "candidates": [{"compressor": "topk", "predicted_s": 0.1, "measured_s": 0.2, "left_out": True}],
                                "switches": [{"step": 10, "to": "topk", "reason": "faster"}]})],
        "coders": [{"name": "g", "asked": "block", "compressor": "block", "collective": "ring", "ranks": 4, "reduce_scatters": 12,
                    "all_gathers": 3, "nonfinite": 0, "dense_bytes": 1e9, "wire_bytes": 2e8, "ratio": 5, "convert_s": 1, "exchange_s": 2,
                    "exposed_s": 0.5, "slots": 3, "residual_bytes": 4000}]}
timeline = {"traceEvents": [{"name": "step", "ph": "X", "pid": r % 3, "tid": 1, "ts": 1000.0 * s, "dur": 900.0, "args": {"step": s}}
                            for r in range(3) for s in range(5)] +
                           [{"name": n, "cat": n, "ph": "X", "pid": r, "tid": 2, "ts": 1000.0 * s + 10, "dur": 300.0, "args": {"bucket": 1, "step": s}}
                            for n in ("encode", "exchange", "decode", "wait") for r in range(3) for s in range(5)]}
json.dump(good, open("good.json", "w"))
numbers = [2**63 - 1, -2**63, 2**53 + 1, 2**62, -1, 0, 1, 2**31, -2**31 - 1, 2**32, 1e308, -1e308, 5e-324, -0.0, 1e19, 1.8e19, 9.3e18, 1e-9]
others = [None, True, False, "", "x" * 3000, "\x1b]0;x\x07", [], {}, [[[]]], {"a": 1}]
def places(v, path=()):
    for k, w in (v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ()):
        yield path + (k,)
        yield from places(w, path + (k,))
def put(root, path, value):
    at = root
    for k in path[:-1]:
        at = at[k]
    at[path[-1]] = copy.deepcopy(value)
names, n = [], 0
def write(text):
    global n
    names.append("m%05d.json" % n)
    n += 1
    open(names[-1], "w").write(text)
for base in (good, timeline):
    every = list(places(base))
    for path in random.sample(every, min(len(every), 200)):  # a place: the ends of what a number can be, and others
        for value in numbers[:2] + random.sample(numbers[2:], 1) + random.sample(others, 1):
            m = copy.deepcopy(base)
            put(m, path, value)
            write(json.dumps(m))
    for _ in range(100):                   # several places at once
        m = copy.deepcopy(base)
        for _ in range(random.randrange(2, 30)):
            try:
                put(m, random.choice(every), random.choice(numbers + others))
            except (KeyError, IndexError, TypeError):
                pass
        write(json.dumps(m))
    m = copy.deepcopy(base)                # sums of many
    for row in m.get("reducers", []):
        row["tensors"] = [dict(tensor(i), numel=2**63 - 1) for i in range(3000)]
    write(json.dumps(m))
    text = json.dumps(base)
    for _ in range(60):                   # bytes
        b = bytearray(text.encode())
        for _ in range(random.randrange(1, 6)):
            b[random.randrange(len(b))] = random.randrange(1, 127)
        write(b.decode())
print("\n".join(names))
PY
cd "$tmp" || exit 1
mutants () { python3 mutants.py > names; }
check 'reports with wrong numbers' mutants || note "$said"
grep '^#' names
grep -v '^#' names > files
tried "$(wc -l < files)" 'mutated reports'
ASAN_OPTIONS=detect_leaks=0 xargs -n 500 ./all < files > /dev/null 2> log
is 'none overflows, or is read where nothing is' $? 0 || note "$(grep -v '^file' log | head -20; grep '^file' log | tail -1)"
done_testing
