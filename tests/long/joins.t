#!/bin/bash
# A thousand joins of the ranks of a step, in one process and in programs one after another; joins.t has some of them.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../cluster/common.sh"
. "$GRADCOMP_SRC/tests/cluster/joins.sh"

real_jobs
library_program job
# shellcheck disable=SC2016 # of the tasks' shells
for n in 4 2; do
	join_often $n 500 'exec "$0" joins 500' 'one process'
	join_often $n 300 "$(in_a_row 300)" 'programs in a row'
	join_often $n 200 'i=0; while [ $i -lt 40 ]; do "$0" joins 5; i=$((i + 1)); done' 'programs of 5 jobs in a row'
done
all_idle 'every node is idle'
done_testing
