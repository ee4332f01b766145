#!/bin/bash
# What goes wrong with the plugin or its line in plugstack.conf touches no job that
# does not use gradcomp, and takes no node down. First what Slurm does to a job and
# a node when a hook fails: the reason why no hook of gradcomp's ever does.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
line=$state/etc/plugstack.conf.d/gradcomp.conf

# What becomes of an srun, of a batch job and of its node.
fate () {
	rm -f ran
	timeout 60 "${bed[@]}" run srun -n1 -wn1 touch "$tmp/ran" > /dev/null 2>&1
	# Where it fails its status is 1, or what slurmctld said when it gave up first.
	echo "srun $(($? != 0)), task $([ -e ran ] && echo ran || echo did not run)"
	rm -f ran
	batch=$(as root sbatch --parsable -wn2 -o /dev/null --wrap "touch $tmp/ran")
	# Its end: it ran, it failed, or it waits for a node that was drained.
	for _ in {1..300}; do
		state_of_n2=$(as root sinfo -h -n n2 -o %T)
		[ "${state_of_n2#drain}" = "$state_of_n2" ] || break
		[ -n "$(as root squeue -h -j "$batch" 2> /dev/null)" ] || break
		sleep 0.1
	done
	echo "batch job $([ -e ran ] && echo ran || echo did not run), node $(settled)"
	as root scancel -u root 2>/dev/null
	[ "$(settled)" = idle ] || as root scontrol update nodename=n2 state=resume
	settled > /dev/null
}
expected () { is "Slurm, $1 fails" "$(fate)" "$2"; }

# The state of n2 when no job is on it.
settled () {
	for _ in {1..300}; do
		now=$(as root sinfo -h -n n2 -o %T)
		case $now in idle | drained) break ;; esac
		sleep 0.1
	done
	echo "$now"
}

hooks=
if cc -shared -fPIC -o hooks.so "$GRADCOMP_SRC/tests/cluster/hooks.c" 2> cc.log; then
	chmod 755 hooks.so
	hooks=$tmp/hooks.so
else
	skip 'what Slurm does when a hook fails' "no compiler or no spank.h: $(head -n 1 cc.log)"
fi

# slurmd looks for prologs and epilogs of plugins when it starts.
if [ -n "$hooks" ]; then
	for hook in job_prolog job_epilog; do
		echo "required $hooks $hook" > plugstack
		start_cluster --nodes "$nodes" --conf PrologFlags=Alloc --plugstack "$tmp/plugstack"
		case $hook in
		job_prolog) expected $hook 'srun 1, task did not run
batch job did not run, node drained' ;;
		job_epilog) expected $hook 'srun 0, task ran
batch job ran, node drained' ;;
		esac
		"${bed[@]}" down
	done
fi

start_cluster --nodes "$nodes" --conf PrologFlags=Alloc
if [ -n "$hooks" ]; then
	for hook in none task_exit exit; do
		echo "required $hooks $hook" > "$line"
		expected $hook 'srun 0, task ran
batch job ran, node idle'
	done
	# Before the task is forked: 22.05 reports success to the user, 24.11 does not.
	release=$(slurmd -V | sed -n 's/^[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p')
	case $release in 22.05) status=0 ;; 24.11) status=1 ;; *) status= ;; esac
	for hook in init init_post_opt user_init task_post_fork; do
		if [ -z "$status" ]; then
			skip "Slurm, $hook fails" "not measured for Slurm $release"
			continue
		fi
		echo "required $hooks $hook" > "$line"
		expected $hook "srun $status, task did not run
batch job did not run, node drained"
	done
	for hook in task_init_privileged task_init; do
		echo "required $hooks $hook" > "$line"
		expected $hook 'srun 1, task did not run
batch job did not run, node idle'
	done
	rm -f "$line"
fi

for mode in required optional; do
	plugin $mode
	all_idle "$mode: every node is idle before"
	for word in bogus helper=relative stage_timeout=soon stage_timeout=-1 conf= helper=/a\ helper=/b; do
		echo "$mode $tmp/spank_gradcomp.so $word" > "$line"
		check "$mode, argument $word: a job without gradcomp runs" on srun -N4 true
		is "$mode, argument $word: and sees nothing of it" "$(said_but_queued)" ""
		refuse "$mode, argument $word: one with it is refused" on srun -N4 --gradcomp=topk true
		like "$mode, argument $word: the reason" "$said" 'gradcomp: plugstack.conf: '
	done
	like "$mode: which argument" "$said" "'helper=/b' repeats an argument"

	plugin $mode
	sed -i "s|helper=[^ ]*|helper=$tmp/missing|" "$line"
	refuse "$mode, no helper: refused" on srun -n1 --gradcomp=topk true
	like "$mode, no helper: the reason" "$said" "gradcomp: cannot run $tmp/missing: No such file or directory"
	refuse "$mode, no helper: help says so too" on srun --gradcomp=help true
	plugin $mode
	chmod 700 stand-in
	refuse "$mode, helper not executable for the user: refused" on srun -n1 --gradcomp=topk true
	like "$mode, helper not executable for the user: the reason" "$said" 'Permission denied'
	check "$mode, helper not executable: a job without gradcomp runs" on srun -n1 true
	chmod 755 stand-in
	all_idle "$mode: every node is idle after"
done

# The object itself is gone, or is no object.
plugin optional
mv spank_gradcomp.so gone.so
check 'optional, no plugin: a job runs' on srun -N4 true
like 'optional, no plugin: the option is unknown' "$(on srun --gradcomp=topk true 2>&1)" 'unrecognized option'
echo 'not a shared object' > spank_gradcomp.so
check 'optional, no shared object: a job runs' on srun -N4 true
mv gone.so spank_gradcomp.so
plugin required
mv spank_gradcomp.so gone.so
refuse 'required, no plugin: no job runs' on srun -N4 true
mv gone.so spank_gradcomp.so
all_idle 'every node is idle'

is 'the plugin links nothing but libc' "$(readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')" libc.so.6
is 'and exports only what Slurm looks for' \
	"$(nm -D --defined-only "$so" | awk '{ print $3 }' | grep -v -x 'plugin_[a-z]*\|spank_plugin_version\|slurm_spank_[a-z_]*')" ""
done_testing
