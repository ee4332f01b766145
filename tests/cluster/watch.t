#!/bin/bash
# gradcomp watch: a job on four nodes while it runs, until it ends; and jobs that cannot be watched.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
real_jobs
bench=("$tmp/bin/gradcomp" bench reduce --tensors 256x256 --iters 1000000)
watch () { on "$tmp/bin/gradcomp" watch "$@"; }
"$tmp/bin/gradcomp" watch --help > /dev/null 2>&1 || skip_all 'no gradcomp watch'
"$tmp/bin/gradcomp" watch --once --here 2>&1 | grep -q 'without jansson' && skip_all 'gradcomp was built without jansson'

# submit NAME COMMAND: a job of alice's that runs it; its number is in $job
submit () {
	printf '%s\n' '#!/bin/bash' "$2" > "$1.sh"
	chmod 755 "$1.sh"
	job=$(on sbatch --parsable -N4 -D "$tmp/run" -o "$tmp/run/$1.out" "$tmp/$1.sh")
}
state () { on squeue -h -t all -j "$job" -o %T; }
in_state () { [ "$(state)" = "$1" ]; }
steps_taken () { watch --once --json --interval 0.1 "$job" 2> watch.err | grep -q '"steps":[1-9]'; }

refuse 'a job that is not there' watch 4711
is 'is told so' "$said" 'gradcomp: job 4711 is not known to Slurm, or has ended a while ago'

submit train "srun --mpi=pmix --exact -N2 -r2 sleep 600 & srun --mpi=pmix -N4 --overlap --gradcomp=powersgd:rank=2 ${bench[*]}
wait"
check 'a job of two steps takes steps' wait_for 60 steps_taken || note "$(cat watch.err run/train.out)"
check 'it is watched once' watch --once "$job"
is 'one line' "$(wc -l <<< "$said")" 1
# On a busy machine an interval may end before a step does.
timed () { watch --once "$@" "$job" > line 2> watch.err && grep -Eq ' ms a step|"step_s":[0-9]' line; }
check 'with the time of a step' wait_for 60 timed || note "$(cat line watch.err)"
# Slurm gives a step another number when its creation has to be tried again.
step=$(on squeue -h -s -j "$job" -o '%i %j' | sed -n 's/ gradcomp$//p')
check 'Slurm knows the step that uses gradcomp' test -n "$step"
check 'and all there is to know' grep -Eq "^${step/./\\.} on n[1-4]: powersgd:rank=2 over ring, 4 ranks of 4 nodes, [0-9]+ steps, [0-9.]+ ms a step, [0-9.]+x fewer bytes \([0-9.]+ of [0-9.]+ MB a step\), [0-9]+ % hidden, error [0-9.]+ %$" line
note "$(cat line)"
check 'for machines, too' wait_for 60 timed --json || note "$(cat line watch.err)"
check 'has it all' python3 -c '
import json, sys
r = json.loads(sys.argv[1])
assert r["asked"] == "powersgd:rank=2" and r["compressor"].startswith("powersgd:") and r["ranks"] == 4 and r["failure"] is None
assert r["steps"] > 0 and r["step_s"] > 0 and r["wire_bytes"] < r["dense_bytes"], r' "$(cat line)"
check 'a row is not so long that Slurm would break it' test "$(wc -c < line)" -lt 1000

refuse 'by somebody else' as bob "$tmp/bin/gradcomp" watch --once "$job"
like 'is told whose it is' "$said" "job $job is not yours: gradcomp watch shows jobs to who runs them; this one is of alice"
refuse 'by root' as root "$tmp/bin/gradcomp" watch --once "$job"
like 'the same' "$said" "job $job is not yours"
for user in bob root; do
	refuse "$user on the node of rank 0" "${bed[@]}" node 1 -u $user "$tmp/bin/gradcomp" watch --here --once
	like "$user there sees none" "$said" 'nothing here uses gradcomp'
done
is 'but the user does' "$("${bed[@]}" node 1 -u alice "$tmp/bin/gradcomp" watch --here --once 2>&1 | grep -c "^$job\\.")" 1

timeout 120 "${bed[@]}" run -u alice "$tmp/bin/gradcomp" watch --interval 0.2 "$job" > lines 2> ended &
watcher=$!
several () { [ "$(wc -l < lines)" -ge 3 ]; }
check 'a line a refresh' wait_for 30 several || note "$(cat lines ended)"
on scancel "$job"
wait $watcher
is 'it ends with the job' $? 0
is 'and says so' "$(cat ended)" "gradcomp: job $job has ended"
is 'no escape codes in a file' "$(tr -d '\n' < lines | tr -d '[:print:]' | wc -c)" 0
is 'no line is of anything else' "$(grep -cv "^$job\." lines)" 0
check 'the steps grow' test "$(sed -n '1s/.* \([0-9]*\) steps.*/\1/p' lines)" -lt "$(sed -n '$s/.* \([0-9]*\) steps.*/\1/p' lines)"
wait_for 30 in_state CANCELLED
refuse 'a job that has ended' watch "$job"
is 'is told so, with its state' "$said" "gradcomp: job $job has ended: its state is CANCELLED"

submit sleeper 'sleep 600'
check 'a job without gradcomp' wait_for 30 in_state RUNNING
refuse 'is nothing to watch' watch --once "$job"
is 'and is told so' "$said" "gradcomp: job $job runs, but nothing in it uses gradcomp now"
on scancel "$job"
all_idle 'every node is idle'
submit waiting 'true'
on scancel "$job"
job=$(on sbatch --parsable -N4 --begin=now+1hour "$tmp/waiting.sh")
refuse 'a job that has not begun' watch "$job"
is 'is told so, with its state' "$said" "gradcomp: job $job does not run: its state is PENDING"
on scancel "$job"

printf '[report]\nlive = no\n' > quiet.conf
GRADCOMP_CONF=$tmp/quiet.conf submit quiet "srun --mpi=pmix -N4 --gradcomp=none ${bench[*]}"
alive () { on squeue -h -s -j "$job" -o %i | grep -q "$job.0"; }
check 'a job that does not want to be watched' wait_for 30 alive
refuse 'is not' watch --once "$job"
like 'as if there were none' "$said" 'nothing in it uses gradcomp now'
cancel_jobs
all_idle 'every node is idle'
done_testing
