#!/bin/bash
# Four nodes of a real Slurm stage from an NFS server on their network: it is read once, it
# may go away and come back, and a node whose stager dies in the middle ends the step by
# name, with nothing published and no node drained.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
! why=$("$GRADCOMP_SRC/tests/nfs/server" missing) || skip_all "$why"
[ -e "$GRADCOMP_BUILD/lib/gradcomp/source/nfs.so" ] || skip_all 'built without libnfs'
mkdir export
for i in {10..49}; do head -c 500000 /dev/urandom > "export/$i"; done
head -c 20000000 /dev/urandom > export/large
cp -r "$GRADCOMP_SRC/include" export
# shellcheck disable=SC2094 # find leaves it out
(cd export && find . -type f ! -name SUMS -exec sha256sum {} + > SUMS)
chmod -R a+rX export
bytes=$(find export -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')

start_cluster --nodes "$nodes" --nfs "$tmp/export" --nfs-option --squash=root --nfs-option --read-only --nfs-option --fresh \
	--conf UnkillableStepTimeout=20
real required
mkdir -m 777 out
url=$("${bed[@]}" nfs url)
# Each node has a /tmp of its own.
export GRADCOMP_STAGE_CACHE_DIR=/tmp/cache
area=/tmp/cache-$(on id -u)
# shellcheck disable=SC2016 # expanded by the task
look='cd "$GRADCOMP_DATA" && sha256sum --quiet -c SUMS && echo "$(hostname) whole"'
served () { "${bed[@]}" nfs bytes; }
sent () { "${bed[@]}" bytes | awk '$1 == "nfs" { print $2 }'; }
# shellcheck disable=SC2317 # by check and refuse
stage () { on srun -N4 -n4 --kill-on-bad-exit=0 --gradcomp-stage="$url" sh -c "$look"; }
forget () {
	for ((k = 1; k <= nodes; k++)); do "${bed[@]}" node $k rm -rf "$area"; done
}
published () {
	for ((k = 1; k <= nodes; k++)); do "${bed[@]}" node $k ls -A "$area" 2> /dev/null; done | grep -cE '^[0-9a-f]{64}$'
}

before=$(served) link=$(sent)
check 'four nodes, one server' stage
is 'every node has all of it' "$(grep -c ' whole$' <<< "$said")" 4 || note "$said"
read=$(($(served) - before)) link=$(($(sent) - link))
check "the server reads $read bytes of $bytes" test $((read * 100)) -ge $((bytes * 100)) -a $((read * 100)) -le $((bytes * 102))
check "and sends $link" test $((link * 100)) -le $((bytes * 110))
before=$(served)
check 'the second step' stage
is 'has it too' "$(grep -c ' whole$' <<< "$said")" 4
check 'without a byte of a file' test $(($(served) - before)) -lt 10000
is 'on every node once' "$(published)" 4

# under_way OPTION...: a step that has begun to copy, in $srun
under_way () {
	forget
	before=$(served)
	on srun -N4 -n4 "$@" --gradcomp-stage="$url" sh -c "$look && touch $tmp/out/ran.\$(hostname)" > srun.out 2>&1 &
	srun=$!
	for _ in {1..600}; do
		[ $(($(served) - before)) -lt 1000000 ] || break
		sleep 0.02
	done
}
check 'links of 160 Mbit/s' "${bed[@]}" rate 160mbit
under_way
"${bed[@]}" nfs stop
sleep 2
is 'the server hangs in the middle: no task runs, nothing is published' "$(find out -name 'ran.*' | wc -l):$(published)" 0:0
"${bed[@]}" nfs cont
wait $srun
is 'it goes on: srun succeeds' $? 0 || note "$(cat srun.out)"
is 'it goes on: every node has all of it' "$(grep -c ' whole$' srun.out)" 4
check 'it goes on: read once all the same' test $((($(served) - before) * 100)) -le $((bytes * 104))

under_way
"${bed[@]}" nfs crash
sleep 1
"${bed[@]}" nfs again
wait $srun
is 'the server is killed and comes back: srun succeeds' $? 0 || note "$(cat srun.out)"
is 'the server is killed and comes back: every node has all of it' "$(grep -c ' whole$' srun.out)" 4

# Ranks may be lost once they are there; a copy is for all of them or for none.
rm -f out/ran.*
under_way --no-kill --kill-on-bad-exit=0 --gradcomp=none --gradcomp-on-failure=shrink
pid=$("${bed[@]}" node 3 ps -e -o pid=,args= | awk '$2 ~ /bin\/gradcomp$/ && $3 == "stage" { print $1; exit }')
"${bed[@]}" node 3 kill -KILL "$pid"
wait $srun
is 'a stager is killed in the middle: srun fails' $? 1
like 'a stager is killed in the middle: with the name of its node' "$(cat srun.out)" 'error: n3: --gradcomp-stage='
is 'a stager is killed in the middle: no task ran' "$(find out -name 'ran.*' | wc -l)" 0
is 'a stager is killed in the middle: nothing is published' "$(published)" 0
check 'the next step' stage
is 'the next step: every node has all of it' "$(grep -c ' whole$' <<< "$said")" 4 || note "$said"

chmod 600 export/33
forget
refuse 'a file that nobody may read' stage
like 'a file that nobody may read: the reason' "$said" 'cannot read 33: the NFS server 10.77.0.253 denies it to user'
is 'a file that nobody may read: nothing is published' "$(published)" 0
all_idle 'every node is idle after all that'
done_testing
