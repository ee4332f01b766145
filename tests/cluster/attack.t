#!/bin/bash
# Another user on the nodes of a running job, and a machine outside of it: they knock,
# repeat what they have recorded, flood, pry into its processes, and get nowhere. The
# job works on, with the right results.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

real_jobs
library_program job
program attack -Wextra
alice=$(as alice id -u)
sodium=$(sed -n 's/^HAVE_SODIUM = //p' "$GRADCOMP_BUILD/config.mk")

# 8 ranks on 4 nodes, until there is a file run/stop.
begin () {
	rm -f run/pid.* run/stop
	timeout 90 "${bed[@]}" run -u alice srun --mpi=pmix -N4 --ntasks-per-node=2 -D "$tmp/run" --gradcomp=none "$@" > out 2>&1 &
	srun=$!
	for _ in {1..150}; do
		[ "$(cat run/pid.* 2> /dev/null | wc -l)" = 8 ] && return
		sleep 0.1
	done
	note "$(cat out)"
	false
}
finish () {
	as alice touch run/stop
	wait $srun
	status=$?
	is "$1: the job ends well" "$status" 0 || note "$(tail -n 20 out)"
	is "$1: all ranks have had the right sums" "$(grep -c '^rank [0-7] of 8 right in [0-9]* rounds$' out)" 8 ||
		note "$(tail -n 20 out)"
}
# evil MACHINE DEED...: as bob. login is no node of the job.
evil () {
	if [ "$1" = login ]; then as bob "$tmp/attack" "${@:2}"; else timeout 60 "${bed[@]}" node "$1" -u bob "$tmp/attack" "${@:2}"; fi
}
# The listeners of alice's processes on a node, which everybody can list.
# shellcheck disable=SC2016
listeners () { "${bed[@]}" node "$1" -u bob awk -v uid="$alice" '$4 == "0A" && $8 == uid { split($2, a, ":"); print strtonum("0x" a[2]) }' \
	/proc/net/tcp6 /proc/net/tcp 2> /dev/null; }
# shellcheck disable=SC2016
command -v gawk > /dev/null || listeners () { # hexadecimal is beyond other awks
	"${bed[@]}" node "$1" -u bob awk -v uid="$alice" '$4 == "0A" && $8 == uid { split($2, a, ":"); print "0x" a[2] }' \
		/proc/net/tcp6 /proc/net/tcp | while read -r port; do echo $((port)); done
}

: > recording
"${bed[@]}" node 1 "$tmp/attack" record eth0 "$tmp/recorded" > recording 2>&1 &
recorder=$!
for _ in {1..50}; do grep -q recording recording && break; sleep 0.1; done
begin "$tmp/job" until-told
tap_result $? 'the job runs'
wait $recorder
like 'a hand-shake of the job was recorded on the wire' "$(cat recording)" 'recorded: rank'
port=$(sed -n 's/.*, port //p' recording)
ports=$(listeners 1)
like 'the listeners are there for all to see' "$ports" "$port"
refused () {
	said=$(evil "${@:2}" 2>&1)
	is "$1" "$?" 0 || note "$said"
}
for from in 1 3 login; do
	refused "from $from: what was recorded is worth nothing" "$from" replay 10.77.0.1 "$port" "$tmp/recorded"
done
for from in 1 login; do
	refused "from $from: garbage is dropped" "$from" garbage 10.77.0.1 "$port"
done
refused 'half a greeting is dropped after a while' 3 half 10.77.0.1 "$port"
refused 'the local sockets: another user is dropped' 1 local
for rank in 0 1 2; do
	refused "rank $rank: process, memory, descriptors and signals are closed to others" $((rank / 2 + 1)) pry \
		"$(cat run/pid.$rank)"
	[ $rank = 0 ] && like 'of which this was tried' "$said" 'its memory: refused, Operation not permitted'
done
evil login flood 10.77.0.1 "$port" 4 > flood.1 2>&1 &
flood1=$!
evil 2 flood 10.77.0.1 "$port" 4 > flood.2 2>&1 &
flood2=$!
refused 'garbage while two others flood' 3 garbage 10.77.0.1 "$port"
wait $flood1
tap_result $? "a flood: $(cat flood.1)"
wait $flood2
tap_result $? "another: $(cat flood.2)"
finish 'after all that'
like 'the log tells of it' "$(cat out)" 'dropped a connection from '
like 'and why' "$(cat out)" "it does not have the job's secret"
check 'but not too much of it' test "$(grep -c 'dropped a connection' out)" -lt 60
like 'and of how many it does not tell' "$(cat out)" 'more unauthenticated connections'

# What PMIx has, somebody on the node who says he is alice gets: where the ranks meet. Neither the secret nor its credential is
# there, whatever the secret is.
munge=$(sed -n 's/^HAVE_MUNGE = //p' "$GRADCOMP_BUILD/config.mk")
# The job's environment on rank 3, with which a process there asks PMIx.
# shellcheck disable=SC2016
tell_env='env | grep "^PMIX.*=." > env.$SLURM_PROCID; chmod 644 env.*'
ask_pmix () {
	readarray -t vars < run/env.3
	said=$(timeout 20 "${bed[@]}" node 2 -u bob env "${vars[@]}" CLAIM_UID="$alice" LD_PRELOAD="$tmp/claim.so" "$tmp/spy" 2>&1)
}
spy () {
	# shellcheck disable=SC2016
	begin sh -c "$tell_env"'; exec "$0" until-told' "$tmp/job"
	ask_pmix
}
# crowd_munged: munged is stopped, and all places of its queue are bob's. serve: it is no longer so.
munged () { "${bed[@]}" run kill "-$1" "$(cat "$state/munge/pid")"; }
crowded () { grep -q 'no place left' crowd; }
crowd_munged () {
	rm -f run/serve
	munged STOP
	# shellcheck disable=SC2094 # written by one, then read by another
	evil login crowd "$state/munge/socket" "$tmp/run/serve" > crowd &
	crowd=$!
	wait_for 10 crowded
}
serve () {
	touch run/serve
	wait $crowd
	munged CONT
}
said_by () { [ "$(grep -c "$2" out)" = "$1" ]; }
# shellcheck disable=SC2046
if ! cc -o spy "$GRADCOMP_SRC/tests/cluster/spy.c" $(pkg-config --cflags --libs pmix 2> /dev/null) 2> cc.log ||
	! cc -shared -fPIC -DCLAIM -o claim.so "$GRADCOMP_SRC/tests/cluster/spy.c" 2>> cc.log; then
	skip 'what PMIx tells others' "$(head -n 1 cc.log)"
elif [ "$munge" = yes ]; then
	for secret in munge:"$state/munge/socket" pmix; do
		export GRADCOMP_SECURITY_SECRET=$secret
		spy
		is "${secret%%:*}: PMIx tells another user where the ranks meet, and no more" \
			"$(grep -c '^step: 1 [0-9a-f]\{64\} [0-9,]* [0-9a-f.:/@,]*$' <<< "$said")" 1 || note "$said"
		finish "${secret%%:*}"
	done
	unset GRADCOMP_SECURITY_SECRET

	# Somebody who keeps munged busy gets no weaker secret by it. Slurm needs munged, too: the
	# ranks are there before he comes. munged is back when all of them have been turned away.
	rm -f run/pid.* run/at.* run/go run/stop
	# shellcheck disable=SC2016
	timeout 120 "${bed[@]}" run -u alice srun --mpi=pmix -N4 --ntasks-per-node=2 -D "$tmp/run" --gradcomp=none sh -c \
		"$tell_env"'; touch at.$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done; exec "$0" until-told' "$tmp/job" > out 2>&1 &
	srun=$!
	all_at () { [ "$(printf '%s\n' run/at.* | wc -l)" = "$1" ]; }
	wait_for 20 all_at 8
	crowd_munged
	tap_result $? "munged is crowded: $(cat crowd)"
	touch run/go
	wait_for 20 said_by 8 'munged does not serve: .*; trying again for'
	tap_result $? 'all ranks say that munged does not serve, and go on asking' || note "$(cat out)"
	serve
	all_have_pids () { [ "$(cat run/pid.* 2> /dev/null | wc -l)" = 8 ]; }
	wait_for 30 all_have_pids
	tap_result $? 'then the job runs' || note "$(cat out)"
	finish 'munged was crowded'

	rm -f run/at.* run/go
	# shellcheck disable=SC2016
	GRADCOMP_TRANSPORT_TIMEOUT=4 timeout 120 "${bed[@]}" run -u alice srun --mpi=pmix -N1 -n2 -D "$tmp/run" --gradcomp=none sh -c \
		'touch at.$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done; exec "$0" sums' "$tmp/job" > out 2>&1 &
	srun=$!
	wait_for 20 all_at 2
	crowd_munged
	touch run/go
	wait_for 40 said_by 2 'munge cannot seal the job.s secret: .*; security.secret=auto wants munge in a Slurm step'
	tap_result $? 'munged serves nobody: every rank says so' || note "$(cat out)"
	serve
	wait $srun
	check 'and the job fails' test $? = 3
	is 'rather than run with less' "$(grep -c ' right' out)" 0
	export GRADCOMP_SECURITY_SECRET=auto:/nowhere/munged
	check 'a rank alone needs no munged' on srun --mpi=pmix -n1 -D "$tmp/run" --gradcomp=none "$tmp/job" sums
	unset GRADCOMP_SECURITY_SECRET
else
	skip 'what PMIx tells others' 'built without munge'
fi

# A secret of the job's own, which does not go through PMIx.
install -d -o "$alice" -m 755 alice
for name in secret other; do
	as alice sh -c "umask 077; head -c 32 /dev/urandom > alice/$name"
done
export GRADCOMP_SECURITY_SECRET=file:$tmp/alice/secret
begin "$tmp/job" until-told
tap_result $? 'a secret in a file: the job runs'
refused 'a secret in a file: nobody else reads it' 1 read "$tmp/alice/secret"
finish 'a secret in a file'
as alice chmod 644 alice/secret
said=$(on srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=none "$tmp/job" sums 2>&1)
like 'a file that others can read is refused' "$said" "secret $tmp/alice/secret is open to others (mode 0644)"
as alice chmod 600 alice/secret
export GRADCOMP_TRANSPORT_TIMEOUT=4
# shellcheck disable=SC2016
said=$(on srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=none sh -c \
	'[ "$SLURM_PROCID" != 3 ] || export GRADCOMP_SECURITY_SECRET=file:'"$tmp"'/alice/other; exec '"$tmp/job sums" 2>&1)
is 'a rank with another secret: nobody gets anywhere' "$(grep -c ' right' <<< "$said")" 0
like 'a rank with another secret: it says why' "$said" "does not have the job's secret"
like 'a rank with another secret: the others say who did not come' "$said" 'rank 3 on n4 did not join'
unset GRADCOMP_TRANSPORT_TIMEOUT GRADCOMP_SECURITY_SECRET

if [ "$sodium" = yes ]; then
	for frames in mac encrypt; do
		check "frames=$frames: 8 ranks on 4 nodes" env GRADCOMP_SECURITY_FRAMES=$frames timeout 60 "${bed[@]}" run -u alice \
			srun --mpi=pmix -N4 -n8 -D "$tmp/run" --gradcomp=none "$tmp/job" sums
		is "frames=$frames: all right" "$(grep -c ' of 8 right$' <<< "$said")" 8
	done
	# shellcheck disable=SC2016
	said=$(on srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=none sh -c \
		'[ "$SLURM_PROCID" = 2 ] || export GRADCOMP_SECURITY_FRAMES=mac; exec '"$tmp/job sums" 2>&1)
	# Whoever looks first says it, and ends all others.
	is 'frames: a rank with another setting is named' \
		"$(grep -cE 'rank 2 on n3 has security.frames=none, rank [013] has mac|rank [013] on n[124] has security.frames=mac, rank 2 has none' \
			<<< "$said" | sed 's/[1-9].*/named/')" named || note "$said"
else
	skip 'security.frames' 'built without libsodium'
fi
all_idle 'every node is idle'
done_testing
