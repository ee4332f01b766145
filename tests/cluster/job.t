#!/bin/bash
# Jobs of the real library on four nodes: they start, they agree, and when a rank
# dies or stops the others say which one.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

real_jobs
library_program job
job () { on srun --mpi=pmix -D "$tmp/run" "$@" 2>&1; }

check '4 ranks on 4 nodes' job -N4 --gradcomp=none "$tmp/job" sums
is '4 ranks on 4 nodes: all right' "$(grep -c '^rank [0-3] of 4 right$' <<< "$said")" 4
check '8 ranks on 4 nodes' job -N4 -n8 --gradcomp=none "$tmp/job" sums
is '8 ranks on 4 nodes: all right' "$(grep -c '^rank [0-7] of 8 right$' <<< "$said")" 8
check 'two jobs at once' sh -c "
	\"\$@\" --gradcomp=none $tmp/job sums > first & \"\$@\" --gradcomp=none $tmp/job sums > second && wait \$!" - \
	timeout 60 "${bed[@]}" run -u alice srun --mpi=pmix -N4 -D "$tmp/run"
is 'two jobs at once: all right' "$(cat first second | grep -c 'of 4 right$')" 8
# Steps on some of an allocation's nodes.
cat > some <<'SOME'
#!/bin/bash
step () { srun --mpi=pmix --gradcomp=none "$@" 2>&1; }
step --exact -N2 -n2 "$1" sums & step --exact -N2 -n2 "$1" sums
wait $!
step -N2 -n2 -r1 "$1" sums
step -N3 -n3 -w n4,n2,n3 "$1" sums
step -N2 -n2 -r2 sh -c 'echo "$SLURM_JOB_NODELIST $SLURM_STEP_NODELIST $SLURM_JOB_NUM_NODES"'
SOME
chmod 755 some
said=$(on salloc -Q -N4 "$tmp/some" "$tmp/job")
is 'steps of an allocation: two at once, -r1, -w n4,n2,n3' "$(grep -o ' of . right' <<< "$said" | sort | uniq -c | tr -s ' ' | tr '\n' ',')" \
	' 6 of 2 right, 3 of 3 right,'
is 'their tasks see all its nodes' "$(grep '^n\[' <<< "$said" | sort -u)" 'n[1-4] n[3-4] 4'
for spec in none cast:type=bf16 topk:density=0.1 powersgd:rank=2; do
	check "steps with $spec" job -N4 --gradcomp=$spec "$tmp/job" steps
	is "steps with $spec: one result" "$(sed -n 's/^rank . agrees on //p' <<< "$said" | sort | uniq -c | awk '{ print $1 }')" 4
done
check 'a report' job -N4 --gradcomp=powersgd --gradcomp-report=report.json "$tmp/job" steps
check 'a report: is JSON that names the compressor' grep -q powersgd run/report.json
is 'a report: belongs to the user' "$(stat -c %u run/report.json)" "$(as alice id -u)"
mkdir -m 1733 metrics
printf '[report]\nmetrics = %s\n' "$tmp/metrics" > metrics.conf
GRADCOMP_CONF=$tmp/metrics.conf check 'figures for the site' job -N4 --gradcomp=powersgd "$tmp/job" steps
is 'figures for the site: one file, of the user' "$(find metrics -type f -name '*.usage' -printf '%U\n')" "$(as alice id -u)"
check 'figures for the site: root sums them up' bin/gradcomp metrics --dir metrics --output metrics.prom
check 'figures for the site: in the totals' grep -qx 'gradcomp_jobs_total{compressor="powersgd"} 1' metrics.prom
is 'figures for the site: and gone' "$(find metrics -mindepth 1)" ''
refuse 'no such parameter' job -N4 --gradcomp=topk:densty=0.1 "$tmp/job" steps
like 'no such parameter: what there is' "$said" 'density'

said=$(job -N4 --mpi=none --gradcomp=none "$tmp/job" sums)
is '--mpi=pmix forgotten: every task says what to type' "$(grep -c 'type srun --mpi=pmix' <<< "$said")" 4

said=$(job -N4 --kill-on-bad-exit=1 --gradcomp=none "$tmp/job" steps topk)
like 'ranks that differ are named' "$said" 'rank 1'
like 'ranks that differ: by what' "$said" topk
said=$(job -N4 --kill-on-bad-exit=0 --gradcomp=none "$tmp/job" steps topk)
is 'ranks that differ: all hear in what' "$(grep -c "^rank . reducer: rank 1 on n2 asks for 'topk" <<< "$said")" 4

cp "$tmp/lib/gradcomp/compressors/topk.so" other.so
printf x >> other.so
"${bed[@]}" node 2 mount --bind "$tmp/other.so" "$tmp/lib/gradcomp/compressors/topk.so"
said=$(job -N4 --gradcomp=topk "$tmp/job" sums)
is 'a plugin of another file on one node: all hear where' \
	"$(grep -c '^rank . join: rank 1 on n2 has the plugins topk .*, rank 0 on n1 has topk .*: all nodes must have the same files$' <<< "$said")" 4
"${bed[@]}" node 2 umount "$tmp/lib/gradcomp/compressors/topk.so"

# begin SRUN_ARG...: a job that goes on until something happens to it
begin () {
	rm -f run/pid.*
	timeout 60 "${bed[@]}" run -u alice srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=none "$@" "$tmp/job" until-failure > out 2>&1 &
	srun=$!
	for _ in {1..300}; do
		[ "$(cat run/pid.* 2> /dev/null | wc -l)" = 4 ] && return
		sleep 0.1
	done
	note "$(cat out)"
	false
}
milliseconds () { echo $(($(date +%s%N) / 1000000)); }
# hurt SIGNAL RANK: sends it to the rank on its node, and waits for srun; $took in ms
hurt () {
	began=$(milliseconds)
	"${bed[@]}" node $(($2 + 1)) kill "-$1" "$(cat "run/pid.$2")"
	wait $srun
	status=$?
	took=$(($(milliseconds) - began))
}
for culprit in 2 0; do
	# The others pass the signal by with which Slurm ends a step: it may come before they have had a processor.
	# shellcheck disable=SC2016 # for the shell of the task
	begin sh -c 'trap "" TERM; exec "$0" "$@"'
	tap_result $? "rank $culprit killed: the job was running"
	hurt KILL $culprit
	# 5 s is the limit for the ranks; srun adds to it.
	check "rank $culprit killed: srun ends soon: $took ms" test $took -lt "$(scaled 12000)"
	check "rank $culprit killed: srun fails" test $status -gt 0
	for other in 0 1 2 3; do
		[ $other = $culprit ] || like "rank $culprit killed: rank $other names it and its host" \
			"$(grep "^rank $other stopped: .*rank $culprit.*n$((culprit + 1))" out)" stopped
	done
done
timeout=$(scaled 3)
export GRADCOMP_TRANSPORT_TIMEOUT=$timeout
begin --kill-on-bad-exit=1
hurt STOP 1
check "rank 1 stopped: srun ends soon after the timeout: $took ms" test $took -lt $((timeout * 1000 + $(scaled 12000)))
check "rank 1 stopped: not before" test $took -gt $((timeout * 1000 - 500))
check 'rank 1 stopped: srun fails' test $status -gt 0
like 'rank 1 stopped: it is named' "$(grep '^rank [023] stopped: ' out)" 'rank 1'
unset GRADCOMP_TRANSPORT_TIMEOUT

# The other ranks pass the signal by, so that rank 0 does not hear of their end first.
# shellcheck disable=SC2016 # for the shell of the task
begin --gradcomp-report=end.json sh -c '[ "$SLURM_PROCID" = 0 ] || trap "" TERM; exec "$0" "$@"'
tap_result $? 'scancel: the job was running'
cancel_jobs
wait $srun
check 'scancel: srun fails' test $? -gt 0
check 'scancel: there is a report' "$tmp/bin/gradcomp" report run/end.json
like 'scancel: it says why the job ended' "$(grep failure run/end.json)" 'ended by signal 15 after step 0'

# A job that outlives a rank; shrink.t has more of it. Here, since this runs with other releases of Slurm, too.
# shellcheck source=tests/cluster/shrink.sh
. "$GRADCOMP_SRC/tests/cluster/shrink.sh"
library_program shrink
GRADCOMP_LOG=error train 3:KILL:FIRST:0.2
judge
is 'a rank is killed: seven train on' "$lost $left$problem" '1 7' || note "$(tail -n +1 out run/end.*)"

all_idle 'every node is idle'
done_testing
