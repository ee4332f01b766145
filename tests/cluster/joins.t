#!/bin/bash
# The ranks of a step join again and again, in one process and in programs one after another.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
. "$GRADCOMP_SRC/tests/cluster/joins.sh"

real_jobs
library_program job
# shellcheck disable=SC2016 # of the tasks' shells
{
	join_often 4 20 'exec "$0" joins 20' 'one process'
	join_often 4 5 "$(in_a_row 5)" 'programs in a row'
	join_often 2 20 'exec "$0" joins 20' 'one process'
	join_often 2 5 "$(in_a_row 5)" 'programs in a row'

	# Ranks that have joined different numbers of times: rank 0, and then another one, are alone at first.
	alone='if [ $SLURM_PROCID = %s ]; then GRADCOMP_TRANSPORT_TIMEOUT=1 "$0" sums; else sleep 3; fi; exec "$0" joins 3'
	join_often 4 3 "${alone/\%s/0}" 'rank 0 has been there alone'
	like 'which it was told' "$(cat out)" 'pmix: rank 1 on n2, rank 2 on n3, rank 3 on n4 did not join within 1 s'
	# It published where the ranks meet, and is not there when they ask.
	join_often 4 3 'if [ $SLURM_PROCID = 0 ]; then GRADCOMP_TRANSPORT_TIMEOUT=1 "$0" sums; sleep 3; else sleep 2; fi; exec "$0" joins 3' 'rank 0 has gone again'
	join_often 4 3 "${alone/\%s/2}" 'rank 2 has been there alone'
	like 'which it was told, too' "$(cat out)" 'pmix: rank 0 on n1 did not join within 1 s'
	# One whose program was killed before it could join, and one that ends while the others wait.
	join_often 4 3 '[ $SLURM_PROCID != 1 ] || { "$0" sums & kill -KILL $!; wait; }; exec "$0" joins 3' 'a program was killed'
}

# Settings with which PMIx never answers, or refuses.
began=$(date +%s%N)
for setting in gds=ds21 gds=ds12 gds=nonsense psec=none psec=munge bfrops=nonsense; do
	on env GRADCOMP_TRANSPORT_TIMEOUT=3 PMIX_MCA_$setting srun --mpi=pmix -N2 --overcommit -D "$tmp/run" --gradcomp=none \
		"$tmp/job" sums > "out.$setting" 2>&1 &
done
wait
took=$((($(date +%s%N) - began) / 1000000000))
check "six broken settings of PMIx take $took s" test $took -le "$(scaled 8)"
for setting in gds=ds21 gds=ds12 gds=nonsense psec=none psec=munge bfrops=nonsense; do
	is "both ranks blame $setting" "$(grep -c "^rank . join: pmix: no answer from the PMIx server (.*): the environment has PMIX_MCA_$setting, which " \
		"out.$setting")" 2 || note "$(cat "out.$setting")"
done
all_idle 'every node is idle'
done_testing
