#!/bin/bash
# Two levels on two nodes of three ranks: what top-k sends between nodes, counted on their
# interfaces. A node receives 2 density d (m - 1) words a step, 1/n of what a flat
# all-gather brings it; what the formula does not have is told: heads, the news of NaN,
# packets.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
[ -e "$GRADCOMP_BUILD/lib/gradcomp/collectives/hier.so" ] || skip_all 'hier was not built'

nodes=2
real_jobs
library_program train

numbers=$((64 * 48 + 48)) density=0.25
received () { "${bed[@]}" bytes | awk '$1 == "n2" { print $3 }'; }
# train COLLECTIVE STEPS: bytes that node 2 received go to $bytes
train () {
	local before
	before=$(received)
	heard=$(on srun --mpi=pmix -N2 --ntasks-per-node=3 -D "$tmp/run" "--gradcomp=topk:density=$density" \
		"--gradcomp-collective=$1" "$tmp/train" "$2" 0.002 2>&1)
	status=$?
	bytes=$(($(received) - before))
}
# per_step COLLECTIVE: bytes of a step, without those of starting and ending
per_step () {
	train "$1" 50
	check "$1: 50 steps" test $status = 0 || note "$heard"
	is "$1: six ranks, one result" "$(sed -n 's/^rank [0-5] agrees on \([0-9a-f]*\),.*/\1/p' <<< "$heard" | sort | uniq -c | awk '{ print $1 }')" 6
	few=$bytes
	train "$1" 1050
	check "$1: 1050 steps" test $status = 0 || note "$heard"
	step=$(((bytes - few) / 1000))
}
per_step hier
hier=$step
per_step ring
words=$(awk -v n=$numbers -v d=$density 'BEGIN { printf "%d", 2 * d * n * 4 }')
note "node 2 receives $hier bytes a step over hier, $step over ring; 2 density d words are $words"
check 'hier: no less than the formula, and a fifth more at most' test "$hier" -ge "$words" -a "$hier" -le $((words * 12 / 10))
check 'ring: three times the formula at least' test "$step" -ge $((words * 3))
all_idle 'every node is idle'
done_testing
