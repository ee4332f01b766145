# shellcheck shell=bash
# shellcheck disable=SC2154 # bed, tmp: of common.sh
# Jobs one after another in one step: what joins.t has and, longer, tests/long/joins.t. Needs real_jobs and the
# program job.
#
#   join_often NODES N SHELL NAME   NODES tasks of alice on as many nodes run SHELL, in which each joins N jobs; every sum of
#                                   every rank is right

join_often () {
	local began
	began=$(date +%s%N)
	timeout 580 "${bed[@]}" run -u alice srun --mpi=pmix -N"$1" -D "$tmp/run" --gradcomp=none sh -c "$3" "$tmp/job" > out 2>&1
	is "$1 nodes, $4: $2 joins in $((($(date +%s%N) - began) / 1000000)) ms" "$(grep -c "^rank . of $1 right" out)" $(($1 * $2)) ||
		note "$(grep -v ' right$' out | tail -n 12)"
}

in_a_row () { printf 'i=0; while [ $i -lt %s ]; do "$0" sums; i=$((i+1)); done' "$1"; }
