#!/bin/bash
# slurmd looks for prologs and epilogs of plugins when it starts. Where it has not seen this
# one's, a job that stages and a health check say so.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
nodes=1
start_cluster --nodes $nodes
real required "conf=$tmp/conf"
records=/var/tmp/gradcomp-records
"${bed[@]}" node 1 sh -c "rm -r $records; mkdir -m 1777 /var/tmp/cache"
printf '[stage]\ncache_dir = /var/tmp/cache\n' > conf
mkdir data
echo two > data/two
chmod -R a+rX data
# shellcheck disable=SC2317,SC2329 # called by check, refuse and wait_for
staged () { on srun --gradcomp-stage="$tmp/data" printenv GRADCOMP_DATA; }
# The command of a health check, on the node.
# shellcheck disable=SC2317,SC2329
health () { "${bed[@]}" node 1 env LD_LIBRARY_PATH="$tmp/lib" "$tmp/bin/gradcomp" prolog --check --records "$records"; }
missing='slurmd on this node runs neither prolog nor epilog of gradcomp'
leases () { "${bed[@]}" node 1 sh -c 'find /var/tmp/cache -path "*.lease/*"'; }

check 'the plugin is there, slurmd was started before: a health check' health
like 'has nothing to say yet' "$said" 'no job has run'
check 'a job that does not stage' on srun true
is 'says nothing' "$(said_but_queued)" ''
check 'one that stages' staged
like 'says that slurmd has to be restarted' "$said" "$missing"
refuse 'the health check' health
like 'says the same' "$said" "$missing"
check 'a job after it' staged
unlike 'does not say it again' "$said" "$missing"
like 'slurmd has it in its log' "$(cat "$state/log/slurmd-n1.log")" "$missing"

restart () {
	# shellcheck disable=SC2016 # expanded on the node
	"${bed[@]}" node 1 sh -c 'kill "$(cat "$1")"; while [ -e "$1" ]; do sleep 0.05; done; exec slurmd -N n1' - "$state/n1/slurmd.pid"
}
restart
all_idle 'slurmd has been restarted'
check 'a job' staged
unlike 'says nothing' "$said" "$missing"
check 'nor does the health check' health
like 'which is content' "$said" 'runs the prologs and epilogs'
# A lease of a step ends with its slurmstepd. On Slurm 24.11 that may outlive the epilog of its
# job, and then the next job's removes it.
# shellcheck disable=SC2317,SC2329
none_left () {
	wait_for 20 some_idle
	[ -z "$(leases)" ] || { staged > stages && false; }
}
wait_for 20 none_left
is 'and the epilogs have given back all leases' "$(leases)" ''
done_testing
