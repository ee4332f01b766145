# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # said, tmp: of tap.sh
# What the cluster tests share: a cluster of this test's own, and the plugin in it
# with a stand-in for the gradcomp command, copied to where every user can read.
#
#   start_cluster ARG...   up, with $tmp seen by all nodes
#   plugin MODE ARG...     load the plugin: MODE required or optional, ARG for its line
#   real MODE ARG...       the same with this build's own gradcomp command
#   real_jobs ARG...       a cluster for jobs of the real library, and a folder run all users write
#   program NAME ARG...    compiles tests/cluster/NAME.c, with ARGs behind it
#   library_program NAME   the same against the library
#   on / as USER CMD...    run on the login node, as alice / USER; at most 120 s
#   all_idle NAME          every node is idle: none drained, none stuck
#   cancel_jobs            of alice, whatever else is still leaving its nodes
#   submitted              number of the last job ever submitted
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"

bed=("$GRADCOMP_SRC/tests/cluster/cluster" --name "t$$")
state=/var/tmp/gradcomp-cluster-t$$
so=$GRADCOMP_BUILD/lib/slurm/spank_gradcomp.so
nodes=4

[ "$(id -u)" = 0 ] || skip_all "a cluster needs root"
for command in slurmctld slurmd srun munged ip tc nsenter; do
	command -v $command > /dev/null || skip_all "$command is not installed"
done
unshare --mount --pid --net --fork true 2>/dev/null || skip_all "no new namespaces can be made here"

# shellcheck disable=SC2329 # called by tap.sh
cleanup () { "${bed[@]}" down; }
chmod 755 "$tmp"
cd "$tmp" || exit 1

start_cluster () {
	"${bed[@]}" up --share "$tmp" "$@" > "$tmp/up.log" 2>&1 && return
	note "$(cat "$tmp/up.log")"
	echo "Bail out! no cluster"
	exit 1
}

plugin () {
	[ -e "$so" ] || skip_all "no SPANK plugin was built"
	[ -e "$tmp/spank_gradcomp.so" ] || install -m 755 "$so" "$GRADCOMP_SRC/tests/cluster/stand-in" "$tmp"
	mkdir -p "$tmp/python"
	echo "$1 $tmp/spank_gradcomp.so helper=$tmp/stand-in python=$tmp/python records=/var/tmp/gradcomp-records ${*:2}" > "$state/etc/plugstack.conf.d/gradcomp.conf"
	# The slurmds were started without it, which the first job to stage would be told.
	for records in "$state"/n[0-9]*/var/tmp; do
		install -d -m 755 "$records/gradcomp-records" && : > "$records/gradcomp-records/prolog"
	done
}

real () {
	[ -e "$GRADCOMP_BUILD/bin/gradcomp" ] || skip_all 'no gradcomp command was built'
	if [ ! -e "$tmp/bin" ]; then # the build directory may be closed to users
		cp -r "$GRADCOMP_BUILD/bin" "$GRADCOMP_BUILD/lib" "$tmp"
		chmod -R go=rX "$tmp/bin" "$tmp/lib"
	fi
	export GRADCOMP_PLUGIN_PATH=$tmp/lib/gradcomp LD_LIBRARY_PATH=$tmp/lib
	plugin "$@"
	sed -i "s|helper=[^ ]*|helper=$tmp/bin/gradcomp|;s|python=[^ ]*|python=$tmp/lib/gradcomp/python|" "$state/etc/plugstack.conf.d/gradcomp.conf"
}

# shellcheck disable=SC2120 # most have none
real_jobs () {
	[ -e "$GRADCOMP_BUILD/lib/gradcomp/bootstrap/pmix.so" ] || skip_all 'no PMIx module was built'
	mkdir -m 777 run
	start_cluster --nodes "$nodes" "$@"
	on srun --mpi=list 2>&1 | grep -q pmix || skip_all 'this Slurm has no PMIx'
	real required
}

program () {
	cc -std=gnu11 -O2 -Wall -o "$1" "$GRADCOMP_SRC/tests/cluster/$1.c" "${@:2}" 2> cc.log && return
	note "$(cat cc.log)"
	skip_all 'no C compiler'
}
library_program () { program "$1" -I"$GRADCOMP_SRC/include" -L"$tmp/lib" -lgradcomp -lm; }

as () { timeout 120 "${bed[@]}" run -u "$@"; }
on () { as alice "$@"; }

cancel_jobs () { as root scancel --user=alice; }

submitted () { as root scontrol show config | sed -n 's/^NEXT_JOB_ID *= //p'; }

some_idle () {
	idle=$(as root sinfo -h -o '%n %t %E' | grep -c ' idle none$')
	[ "$idle" = "$nodes" ]
}
# A job that has just ended takes a moment to leave its node.
all_idle () {
	wait_for 20 some_idle
	is "$1" "$idle" "$nodes" || note "$(as root sinfo -h -o '%n %t %E'; as root squeue)"
}

# $said without what srun says while a node is still busy with the job before.
# shellcheck disable=SC2154 # check sets it
said_but_queued () { grep -vE '^srun: job [0-9]+ (queued|has been)' <<< "$said" || :; }
