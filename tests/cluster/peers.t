#!/bin/bash
# What happens to a job when a rank, a node or the network between them fails: all the
# others say who it was, on which host and what they were waiting for, within the limits,
# the job ends and nothing of it is left.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

nodes=2
real_jobs --conf UnkillableStepTimeout=20
mkdir -m 777 other
library_program peers
timeout=$(scaled 4) # s; who is alive has longer
export GRADCOMP_TRANSPORT_TIMEOUT=$timeout GRADCOMP_TRANSPORT_WAIT_TIMEOUT=$((timeout * 5)) GRADCOMP_LOG=error

node () { "${bed[@]}" node "$@"; }
seconds () { date +%s.%N; }
calc () { awk "BEGIN { print ($*) }"; }
# Listening ports, local sockets, shared memory and processes of both nodes.
things () {
	for k in $(seq $nodes); do
		# shellcheck disable=SC2016 # expanded over there
		node "$k" bash -c 'awk "\$4 == \"0A\" { print \"port\" }" /proc/net/tcp /proc/net/tcp6
			awk "NR > 1 && \$8 ~ /^@/ { print \"socket\" }" /proc/net/unix; ls /dev/shm; ps -eo comm= | grep -x peers' |
			sort | uniq -c | sed "s/^/n$k /"
	done
}
before=$(things)
nothing_left () {
	for _ in {1..60}; do
		after=$(things)
		[ "$after" = "$before" ] && break
		sleep 0.25
	done
	is "$1: nothing is left" "$after" "$before"
}

# begin ARG...: four ranks on two nodes, 0 and 1 on n1, that work on ARG
begin () {
	rm -f run/pid.* run/end.*
	timeout 90 "${bed[@]}" run -u alice srun --mpi=pmix -N2 -n4 --ntasks-per-node=2 -D "$tmp/run" --gradcomp=none "$tmp/peers" "$@" > out 2>&1 &
	srun=$!
	for _ in {1..300}; do
		[ "$(cat run/pid.* 2> /dev/null | wc -l)" = 4 ] && break
		sleep 0.1
	done
	sleep 0.2
	began=$(seconds)
}
# shellcheck disable=SC2317,SC2329 # called by wait_for
others_ended () {
	for r in 0 1 2 3; do [[ $r =~ ^[$who]$ ]] || [ -e "run/end.$r" ] || return; done
}
# ended NAME CULPRITS SECONDS PART...: all other ranks have ended with an error that names one
# of CULPRITS (a pattern) with its host, and one of PART, within SECONDS
ended () {
	name=$1 who=$2 limit=$3
	shift 3
	wait_for "$limit" others_ended
	limit=$(scaled "$limit")
	slowest=0 bad=
	for r in 0 1 2 3; do
		[[ $r =~ ^[$who]$ ]] && continue
		read -r at status text < run/end.$r || { bad="$bad rank $r never ended;"; continue; }
		took=$(calc "$at - $began")
		[ "$(calc "$took > $slowest")" = 0 ] || slowest=$took
		[ "$status" -lt 0 ] || bad="$bad rank $r: status $status;"
		[[ $text =~ rank\ [${culprits:-$who}]\ on\ n[12] ]] || bad="$bad rank $r names nobody;"
		like_one=0
		for part in "$@"; do [[ $text == *"$part"* ]] && like_one=1; done
		[ $like_one = 1 ] || bad="$bad rank $r does not say how;"
		[ "$(calc "$took < $limit")" = 1 ] || bad="$bad rank $r took $took s;"
	done
	is "$name: the others say who, within $limit s: $slowest s" "$bad" '' || note "$(tail -n +1 run/end.* out)"
	note "$(head -qn 1 run/end.*)"
}
over () {
	wait $srun
	status=$?
	check "$1: srun fails" test $status -gt 0
	nothing_left "$1"
}

# Closed connections: 5 s and what a loaded machine adds. Every kind of call, all transports.
for what in allreduce allgather broadcast barrier none topk:density=0.01 powersgd:rank=2 block; do
	for culprit in 3 0; do
		case $what:$culprit in allgather:0 | broadcast:0 | barrier:3 | none:0 | topk*:3 | block:3) continue ;; esac
		case $what in topk* | allgather) export GRADCOMP_TRANSPORT_ALLOW=tcp ;; esac
		begin $what
		"${bed[@]}" node $((culprit / 2 + 1)) kill -KILL "$(cat run/pid.$culprit)"
		ended "$what, rank $culprit killed" $culprit 8 'died (its connection closed)' 'closed its connection'
		over "$what, rank $culprit killed"
		unset GRADCOMP_TRANSPORT_ALLOW
	done
done

begin allreduce exit 2
began=$(seconds)
ended 'rank 2 exits' 2 8 'died (its connection closed)' 'closed its connection'
over 'rank 2 exits'
begin allreduce leave 1
ended 'rank 1 leaves' 1 $((timeout + 8)) 'left the job' 'has waited'
over 'rank 1 leaves'
# Those who wait in a row run out of time nearly at once, and the first one names whom it waits for.
export GRADCOMP_TRANSPORT_WAIT_TIMEOUT=$timeout
begin allreduce idle 1
culprits=0123 ended 'rank 1 takes no further part' 1 $((timeout + 8)) 'alive but takes no part'
over 'rank 1 takes no further part'
export GRADCOMP_TRANSPORT_WAIT_TIMEOUT=$((timeout * 5))

# Silence: the configured time, and again what a loaded machine adds.
for what in allreduce powersgd:rank=2; do
	begin $what
	"${bed[@]}" node 2 kill -STOP "$(cat run/pid.2)"
	ended "$what, rank 2 stopped" 2 $((timeout + 8)) "has not answered for $timeout s"
	"${bed[@]}" node 2 kill -KILL "$(cat run/pid.2)"
	over "$what, rank 2 stopped"
done
silent () {
	# A rank's heartbeats or its host's TCP are missed first.
	ended "$1, the ranks of n1" 23 $((timeout + 8)) 'has not answered ' 'closed its connection'
	ended "$1, the ranks of n2" 01 $((timeout + 8)) 'has not answered ' 'closed its connection'
}
begin allreduce
node 2 ip link set eth0 down
silent 'link down'
node 2 ip link set eth0 up
over 'link down'
begin topk:density=0.01
node 1 ip route add blackhole 10.77.0.2/32
silent 'packets lost one way'
node 1 ip route del blackhole 10.77.0.2/32
over 'packets lost one way'

# Before and while it joins. A client that dies in the middle of its hand-shake can take
# its node's PMIx server with it ("PMIX ERROR: UNREACHABLE"), and the step daemon it is
# part of; srun is not told then. That is another's fault, and tried again.
for how in dies dies-joining; do
	for _ in 1 2 3; do
		all_idle "rank 3 $how: every node is idle before"
		rm -f run/pid.* run/end.*
		began=$(seconds)
		timeout 90 "${bed[@]}" run -u alice srun --mpi=pmix -N2 -n4 --ntasks-per-node=2 -D "$tmp/run" --gradcomp=none "$tmp/peers" allreduce $how 3 > out 2>&1 &
		wait $!
		status=$? took=$(calc "$(seconds) - $began")
		if [ $status != 124 ] || ! grep -q 'PMIX ERROR: UNREACHABLE' out; then break; fi
		note "$(cat out)"
	done
	check "rank 3 $how: srun fails, in time: $took s" \
		test $status -gt 0 -a "$(calc "$took < $timeout + $(scaled 15)")" = 1
	# Who is killed by a signal has its step ended by Slurm, with the others' words or without.
	[ $how = dies-joining ] ||
		is "rank 3 $how: the others end with an error" "$(cat run/end.[012] | awk '$2 < 0' | wc -l)" 3
	nothing_left "rank 3 $how"
done

# A job whose rank is killed beside one that is well.
timeout 60 "${bed[@]}" run -u alice srun --mpi=pmix -N2 -n4 --ntasks-per-node=2 -D "$tmp/other" --gradcomp=none "$tmp/peers" mixed > well 2>&1 &
well=$!
begin allreduce
node 1 kill -KILL "$(cat run/pid.1)"
ended 'beside another job, rank 1 killed' 1 8 'died (its connection closed)' 'closed its connection'
over 'beside another job, rank 1 killed'
wait $well
is 'the other job does not notice' "$? $(awk '{ print $2, $3 }' other/end.* | sort | uniq -c | xargs)" '0 4 0 well'

# Without its daemons a node's ranks go on: nothing is wrong with them. When the rest of
# the step ends they hear of it, and end too.
begin allreduce
for daemon in slurmd slurmstepd; do
	for pid in $(node 2 ps -C $daemon -o pid=); do node 2 kill -KILL "$pid"; done
done
sleep 1
is "n2's slurmd and slurmstepd killed: its ranks go on" "$(ls run/end.* 2> /dev/null)" ''
began=$(seconds)
kill -TERM $srun
ended "n2's slurmd and slurmstepd killed, srun ended: the ranks of n2" 01 8 'died (its connection closed)' 'closed its connection'
node 2 slurmd -N n2 -f "$state/etc/slurm.conf"
over "n2's slurmd and slurmstepd killed"

done_testing
