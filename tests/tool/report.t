#!/bin/sh
# gradcomp report: a good one, and files that are none.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
cat >"$tmp/r.json" <<'END'
{"schema": 1, "gradcomp": "0.1.0", "job": "77", "step": "0", "ended": "2026-01-02T03:04:05Z", "wall_s": 12.5,
 "failure": null, "ranks": 4, "nodes": 2, "hosts": ["n1", "n1", "n2", "n2"],
 "links": [{"transport": "tcp", "connections": 1, "sent_bytes": 3000000, "received_bytes": 2000000}],
 "link_kinds": [{"transport": "shm", "pairs": 0, "why_not": "not allowed by transport.allow"},
          {"transport": "tcp", "pairs": 1, "why_not": null}],
 "link_map": [["self", "tcp"], ["tcp\u001b[2J", "self"]],
 "times": [{"rank": 0, "steps": 98, "step_s": 0.06, "computing_s": 0.03, "loading_s": 0.001, "encoding_s": 0.0012,
   "exchanging_s": 0.025, "waiting_s": 0.0281, "pauses": 0},
  {"rank": 1, "steps": 98, "step_s": 0.06, "computing_s": 0.051, "loading_s": 0, "encoding_s": 0.0013,
   "exchanging_s": 0.004, "waiting_s": 0.008, "pauses": 2}],
 "slowest": {"rank": 1, "host": "n1\u001b[2J", "kind": "slow computing", "share": 0.34,
  "evidence": "its own part of a step takes 51.0 ms, the others' 31.0 ms", "advice": "look at its clocks"},
 "reducers": [{"compressor": "powersgd:rank=4", "collective": "ring", "ranks": 4, "buckets": 2, "steps": 100,
  "nonfinite_steps": 0, "dense_bytes": 1746000000, "wire_bytes": 67000000, "ratio": 26.06, "encode_s": 0.12,
  "exchange_s": 0.81, "decode_s": 0.09, "exposed_s": 0.663, "hidden": 0.35,
  "error_mean": 0.621, "error_last": 0.5,
  "auto": {"decision": "powersgd:rank=4 over ring", "reason": "won its trial", "exposed_s": 0.0402,
   "candidates": [{"compressor": "none", "left_out": false, "predicted_s": null, "measured_s": 0.186},
                  {"compressor": "evil\u001b[2J", "left_out": true, "predicted_s": null, "measured_s": null}],
   "switches": [{"step": 5, "to": "powersgd:rank=4 over ring", "reason": "trial"}]},
  "schedule": {"asked": "mgwfbp", "plan": "wfbp, by need", "fallback": "why\u001b[2J not", "plans": 2, "lag": 1,
   "buckets": [{"tensors": 2, "numel": 65792, "position": 1}, {"tensors": 1, "numel": 1000, "position": 0}],
   "exchange": {"a": 0.00021, "b": 8.5e-9}, "predicted_s": 0.0412, "predicted_exposed_s": 0.002,
   "predicted_fixed_s": 0.0479, "step_s": 0.042},
  "tensors": [{"name": "fc1.weight", "numel": 65536, "choice": "powersgd", "error": 0.75},
              {"name": "fc1.bias\u001b[2J", "numel": 256, "choice": "dense"},
              {"name": "fc2.weight", "numel": 1000, "choice": "powersgd"}]}]}
END
"$gradcomp" report "$tmp/r.json" >"$tmp/out" 2>&1
case $(cat "$tmp/out") in *"built without jansson"*) skip_all "built without jansson" ;; esac

check "report" "$gradcomp" report "$tmp/r.json"
like "job" "$said" "job         77, step 0"
like "ranks" "$said" "ranks       4 on 2 nodes, rank 0 on n1"
like "link" "$said" "link        tcp  by 1 connection: 3.00 MB sent, 2.00 MB received"
like "kinds of link" "$said" "links       tcp   between 1 pair of ranks"
like "a kind that leads nowhere" "$said" "no links    shm   not allowed by transport.allow"
like "from whom to whom" "$said" "from 0      self  tcp"
like "where a rank's steps go" "$said" \
	"rank 0      computing 30.0, loading 1.0, encoding 1.2, exchanging 25.0, waiting 28.1, of a step's 60.0 ms"
like "who is slowest" "$said" "slowest     rank 1 on n1"
like "and what it costs" "$said" " costs 34 % of a step by slow computing: its own part of a step takes 51.0 ms, the others' 31.0 ms;"
like "and what to do" "$said" "            look at its clocks"
like "reducer" "$said" "powersgd:rank=4 over ring"
like "bytes" "$said" "sent      0.670 MB a step, dense 17.460 MB, ratio 26.1"
like "times" "$said" "exchange  8.10 ms"
like "hidden" "$said" "waited    6.63 ms, 35 % hidden"
like "error" "$said" "error     62.1 % of what was to be sent stayed back, 50.0 % in the last step"
like "choices" "$said" "powersgd  2 tensors, 66536 elements"
like "what auto decided" "$said" "auto      powersgd:rank=4 over ring: won its trial; 40.20 ms a step were exposed"
like "its candidates" "$said" "none                         measured 186.00 ms"
like "one that was left out" "$said" " left out"
unlike "nothing for the terminal in its name" "$said" "$(printf '\033')"
like "its switches" "$said" "step 5        powersgd:rank=4 over ring: trial"
like "the schedule" "$said" \
	"schedule  mgwfbp (wfbp, by need): 2 messages, predicted 41.2 ms a step (fixed: 47.9 ms), measured 42.0 ms, 2 plans"
like "why it is another" "$said" "            why"
unlike "no single tensor" "$said" "fc1.weight"
check "report --tensors" "$gradcomp" report --tensors "$tmp/r.json"
like "every tensor" "$said" "fc1.weight                                      65536  powersgd, error 75.0 %"
unlike "control characters stay away from the terminal" "$said" "$(printf '\033')"
if command -v python3 >/dev/null; then
	"$gradcomp" report --json "$tmp/r.json" >"$tmp/again.json"
	check "report --json is the report" python3 -c '
import json, sys
assert json.load(open(sys.argv[1])) == json.load(open(sys.argv[2]))' "$tmp/r.json" "$tmp/again.json"
else
	skip "report --json is the report" "python3 is not installed"
fi

bad () {
	refuse "$1" "$gradcomp" report "$2"
	like "$1: says so" "$said" "$3"
}
bad "a missing file" "$tmp/nothing" "nothing: No such file or directory"
echo '{"schema": 1, "ranks": ' >"$tmp/half"
bad "half a file" "$tmp/half" "this is no report: "
echo '[1, 2]' >"$tmp/array"
bad "other JSON" "$tmp/array" "is JSON, but no report of gradcomp"
echo '{"schema": 2}' >"$tmp/newer"
bad "a newer schema" "$tmp/newer" "is a report of schema 2; this command reads schema 1"
echo '{"schema": 1, "hosts": 7, "reducers": [3, {"steps": "x", "tensors": {"a": 1}}], "links": "y",
 "times": [7, {"rank": "x", "step_s": []}], "slowest": {"rank": [], "share": "y", "kind": 3}}' >"$tmp/odd"
check "members of other types do no harm" "$gradcomp" report "$tmp/odd"
head -c 100000 /dev/zero | tr '\0' '[' >"$tmp/deep"
bad "a deep nest" "$tmp/deep" "this is no report: maximum parsing depth reached"
"$gradcomp" report >"$tmp/out" 2>&1
is "no file: usage" $? 2

# The page for browsers, from names that would be markup, and numbers that would leave a plot.
cat > "$tmp/hostile.py" << 'END'
import json, sys
r = json.load(open(sys.argv[1]))
evil = '"><script>document.title="taken"</script></text></svg><h1 onclick=\'x\'>&amp;\u202e\u0001\uffff'
r["job"] = r["failure"] = r["ended"] = evil
r["reducers"][0]["compressor"] = r["reducers"][0]["auto"]["decision"] = r["reducers"][0]["tensors"][0]["name"] = evil
r["reducers"][0]["exchange_s"], r["reducers"][0]["decode_s"] = 1e308, -5
r["reducers"][0]["tensors"] += [{"name": "t%d" % i, "numel": 1, "choice": "x", "error": 0.001 * i} for i in range(100)]
json.dump(r, open(sys.argv[2], "w"))
step = lambda rank, n: [
    {"name": "step", "cat": "steps", "ph": "X", "ts": n * 1e4, "dur": 5e3 + n, "pid": rank, "tid": 1, "args": {"step": n}}] + [
    {"name": name, "cat": lane, "ph": "X", "ts": n * 1e4 + 1e3 * k, "dur": 900, "pid": rank, "tid": 2, "args": {"step": n}}
    for k, (name, lane) in enumerate([("encode", "compute"), ("exchange", "exchange"), ("decode", "compute"),
                                      ("wait", "application"), (evil, "compute")])]
json.dump({"traceEvents": [e for rank in range(3) for n in range(9) for e in step(rank, n)] + [
    {"name": "wait", "cat": "application", "ph": "X", "ts": 1e300, "dur": -1e300, "pid": 10**15, "args": {"step": 1}}, 7, None]},
    open(sys.argv[3], "w"))
END
cat > "$tmp/page.py" << 'END'
import sys, xml.dom.minidom
page = xml.dom.minidom.parse(sys.argv[1])
names = {e.tagName for e in page.getElementsByTagName("*")}
assert not names & {"script", "img", "link", "iframe", "object", "foreignObject"} and len(page.getElementsByTagName("h1")) == 1, names
assert not [a for e in page.getElementsByTagName("*") for a in e.attributes.keys() if a.startswith("on") or a in ("src", "href")]
for e in page.getElementsByTagName("rect"):
    x, width = float(e.getAttribute("x")), float(e.getAttribute("width"))
    assert x >= 0 and width >= 0 and x + width <= 901, e.toxml()
print(len(page.getElementsByTagName("svg")), len(page.getElementsByTagName("rect")))
END
cat > "$tmp/colours.py" << 'END'
"""Which colours a screenshot has: 8 bits a sample, RGB or RGBA."""
import collections, struct, sys, zlib
data, at, packed = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    n, kind = struct.unpack(">I4s", data[at:at + 8])
    if kind == b"IHDR":
        width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
    packed += data[at + 8:at + 8 + n] if kind == b"IDAT" else b""
    at += n + 12
step = {2: 3, 6: 4}[colour]
raw, above, seen = zlib.decompress(packed), bytearray(width * step), collections.Counter()
for y in range(height):
    how, line = raw[y * (width * step + 1)], bytearray(raw[y * (width * step + 1) + 1:(y + 1) * (width * step + 1)])
    for i in range(len(line) if how else 0):
        a, b, c = (line[i - step] if i >= step else 0), above[i], (above[i - step] if i >= step else 0)
        p = a + b - c
        paeth = a if abs(p - a) <= abs(p - b) and abs(p - a) <= abs(p - c) else b if abs(p - b) <= abs(p - c) else c
        line[i] = line[i] + (0, a, b, (a + b) // 2, paeth)[how] & 255
    above = line
    seen.update(bytes(line[i:i + 3]).hex() for i in range(0, len(line), step))
missing = [c for c in sys.argv[2:] if seen[c] < 100]
assert not missing, (missing, seen.most_common(12))
END
if command -v python3 > /dev/null; then
	python3 "$tmp/hostile.py" "$tmp/r.json" "$tmp/h.json" "$tmp/trace.json"
	check "report --html" "$gradcomp" report --html "$tmp/page.html" --trace "$tmp/trace.json" "$tmp/h.json"
	check "the page is well-formed, and names are text in it" python3 "$tmp/page.py" "$tmp/page.html"
	is "with plots: ranks, times, bytes, hidden, residuals, messages, auto, steps, timeline" "$said" "9 $((2 * 3 + 6 + 2 + 2 + 40 + 2 + 1 + 15))"
	like "the step that took as long as the median" "$(cat "$tmp/page.html")" "Timeline of step 4"
	check "a page without a timeline" "$gradcomp" report --html "$tmp/short.html" "$tmp/r.json"
	check "is well-formed" python3 "$tmp/page.py" "$tmp/short.html"
	like "and says what is missing" "$(cat "$tmp/short.html")" "GRADCOMP_TRACE"
	if command -v chromium > /dev/null; then
		timeout 300 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=0.5 \
			--user-data-dir="$tmp/browser" --window-size=1000,3000 --dump-dom --screenshot="$tmp/page.png" \
			"file://$tmp/page.html" > "$tmp/dom" 2> "$tmp/browser.log"
		like "a browser reads it to its end" "$(cat "$tmp/dom")" "Timeline of step 4"
		unlike "and runs nothing" "$(cat "$tmp/dom")" '<title>taken'
		check "shows its plots in their colours" python3 "$tmp/colours.py" "$tmp/page.png" 4477aa ee8866 44a27a cc3355 98a2ae
	else
		skip "a browser shows the page" "chromium is not installed"
	fi
else
	skip "report --html" "python3 is not installed"
fi
refuse "a timeline that is none" "$gradcomp" report --html "$tmp/none.html" --trace "$tmp/r.json" "$tmp/r.json"
like "is named" "$said" "r.json is JSON, but no timeline (it has no traceEvents)"
refuse "a page that cannot be written" "$gradcomp" report --html "$tmp/no/page.html" "$tmp/r.json"
like "is named, too" "$said" "page $tmp/no/page.html cannot be written"
refuse "a timeline for no page" "$gradcomp" report --trace "$tmp/trace.json" "$tmp/r.json"
like "is said" "$said" "--trace is for --html"
done_testing
