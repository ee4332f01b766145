#!/bin/bash
# Ranks in rootless containers, each in one of its own: of the node they see what doc/admin/containers.md says
# that a container needs, and no more.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
real_jobs
library_program job
install -m 755 "$GRADCOMP_SRC/tests/cluster/contained" "$tmp"
as alice unshare --user --map-current-user --mount true 2> /dev/null || skip_all 'a user cannot make user namespaces here'

# box NAME DIR...: a command that runs what follows it in a container with these; \$ stands for the task's.
box () {
	printf '#!/bin/bash\nexec %s %s -- "$@"\n' "$tmp/contained" "${*:2}" > "$1"
	chmod 755 "$1"
}
# shellcheck disable=SC2016 # expanded in the task
pmix='"${PMIX_SERVER_TMPDIR:?}:rw"'
needed="$tmp/bin $tmp/lib $tmp/job $state/munge $pmix $tmp/run:rw"
box container "$needed"
# shellcheck disable=SC2016
box with_data "$needed" '"${GRADCOMP_DATA:?}"'
box without_pmix "${needed/$pmix/}"
box without_munge "${needed/$state\/munge/}"
box writable "${needed/$tmp\/lib/$tmp\/lib:rw}"
job () { on srun --mpi=pmix -D "$tmp/run" --kill-on-bad-exit=1 "$@" 2>&1; }

check '4 ranks in containers on 2 nodes' job -N2 -n4 --gradcomp=topk:density=0.1 --gradcomp-report=report.json "$tmp/container" "$tmp/job" steps
is '... one result' "$(sed -n 's/^rank . agrees on //p' <<< "$said" | sort | uniq -c | awk '{ print $1 }')" 4
check '... and a report' grep -q '"topk' run/report.json
check '... through shared memory within a node' grep -q '"shm"' run/report.json
check 'sums of 3 ranks on 3 nodes' job -N3 --gradcomp=none "$tmp/container" "$tmp/job" sums
is '... all right' "$(grep -c '^rank [0-2] of 3 right$' <<< "$said")" 3
check 'Python' job -N2 --gradcomp=none "$tmp/container" python3 -c 'import gradcomp; j = gradcomp.Job(); print("rank", j.rank, "of", j.nranks); j.free()'
is '... both ranks' "$(grep -c '^rank [01] of 2$' <<< "$said")" 2
mkdir data && seq 1000 > data/numbers && chmod -R a+rX data
# shellcheck disable=SC2016
check 'a staged dataset' job -N2 --gradcomp=none --gradcomp-stage="$tmp/data" "$tmp/with_data" sh -c 'wc -l < "$GRADCOMP_DATA/numbers"'
is '... is there on both nodes' "$(grep -cx 1000 <<< "$said")" 2

check 'without the folder of PMIx, whose server answers instead' job -N2 --gradcomp=none "$tmp/without_pmix" "$tmp/job" sums
is '... all right' "$(grep -c '^rank [01] of 2 right$' <<< "$said")" 2
said=$(job -N2 --gradcomp=none "$tmp/without_munge" "$tmp/job" sums)
like 'without the socket of munge: the job says what is missing' "$said" "Failed to access \"$state/munge/socket\""
said=$(job -N2 --gradcomp=topk "$tmp/writable" "$tmp/job" steps)
like 'plugins that are not mounted read-only: it is said' "$said" 'it must be mounted read-only, or belong to user'
all_idle 'no node is left behind'
done_testing
