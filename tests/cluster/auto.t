#!/bin/bash
# --gradcomp=auto on four nodes: at 200 Mbit/s it sends fewer bytes, and its report says what
# it tried; unshaped it comes to a decision too. Nothing of that depends on how long anything takes. Then one node's
# link alone is slow, and the report says which.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

real_jobs
check 'the trainer is there' cp "$GRADCOMP_BUILD/bench/trainer" "$tmp/trainer"
# trains NAME STEPS: what auto says goes to $heard, its report to run/$1.json
trains () {
	heard=$(on srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=auto "--gradcomp-report=$1.json" "$tmp/trainer" --layers 12 \
		--numbers 131072 --forward 0.01 --backward 0.02 --warm 0 --steps "$2" 2>&1)
	is "$1: the job ends well" $? 0
	note "$(grep '^gradcomp: auto' <<< "$heard")"
}
# of NAME EXPRESSION: python, with r the report's row and a what auto says of itself
# shellcheck disable=SC2317 # called by check
of () {
	python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))["reducers"][0]
a = r["auto"]
sys.exit(not ('"$2"'))' "$tmp/run/$1.json"
}
"${bed[@]}" rate 200mbit
trains slow 40
like 'slow: says what it decided' "$heard" 'ms a step against'
check 'slow: a decision for compression' of slow 'not a["decision"].startswith("none") and a["reason"] == "won its trial"'
check 'slow: fewer bytes, dense steps included' of slow 'r["wire_bytes"] < r["dense_bytes"] / 2 and r["steps"] == 40'
check 'slow: candidates were predicted, and two or three measured' of slow \
	'sum(c["predicted_s"] is not None for c in a["candidates"]) > 4 and 2 <= sum(c["measured_s"] is not None for c in a["candidates"]) <= 3'
check 'slow: its switches are told' of slow 'a["switches"] and a["switches"][0]["reason"] == "trial"'
check 'slow: gradcomp report shows it' "$tmp/bin/gradcomp" report run/slow.json
like 'slow: with the decision' "$said" 'won its trial'
GRADCOMP_AUTO_CANDIDATES='none, nosuch, cast:type=bf16' trains lists 12
is 'lists: a candidate that no rank can use is told by one of them' "$(grep -c "'nosuch' is left out: compressor 'nosuch' is not installed" <<< "$heard")" 1
"${bed[@]}" rate off
trains fast 30
check 'fast: a decision, and no more bytes than dense' of fast 'a["reason"] and r["wire_bytes"] < 1.1 * r["dense_bytes"]'
check 'the link of one node is slow' "${bed[@]}" node 3 tc qdisc replace dev eth0 root tbf rate 100mbit burst 64kb latency 10ms
on srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=none --gradcomp-report=link.json "$tmp/trainer" --layers 4 --numbers 131072 \
	--forward 0.005 --backward 0.01 --warm 0 --steps 24 > link.out 2>&1
is 'a job over it ends well' $? 0
check 'it is shown' "$tmp/bin/gradcomp" report run/link.json
note "$(grep -A1 -E '^(rank|slowest)' <<< "$said")"
# What comes back through a slow port is late as well, so the rank before it may seem slower still.
check 'its report names the link' python3 -c 'import json, sys
s = json.load(open(sys.argv[1]))["slowest"]
sys.exit(not (s and s["kind"] == "slow link" and (s["rank"] == 2 or "to rank 2 " in s["evidence"])))' "$tmp/run/link.json"
like 'so does the line at the end' "$(cat link.out)" ' % of a step by slow link: its link to rank '
"${bed[@]}" rate off
all_idle 'every node is idle'
done_testing
