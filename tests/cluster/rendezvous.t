#!/bin/bash
# The nodes of a step stage together: they connect to the rendezvous server beside
# srun, read the source once, and fail, wait and stop together. A client without the token is refused.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
# Staging lasts longer than this many seconds below.
start_cluster --nodes "$nodes" --conf MessageTimeout=3 --conf UnkillableStepTimeout=20
real optional
mkdir -m 777 out
[ -x /usr/bin/python3 ] || skip_all "needs python3"

# Runs the real command, and keeps what it says of each copy. Where a file hold.HOST is it
# waits first, as a node does whose prolog is slow.
cat > helper <<-END
	#!/bin/bash
	for ((i = 0; i < 6000; i++)); do [ "\$1" = stage ] && [ -e $tmp/hold.\$(hostname) ] || break; sleep 0.1; done
	[ "\$1 \$2" = 'stage --env' ] || exec $tmp/bin/gradcomp "\$@"
	env | grep GRADCOMP_RENDEZVOUS > $tmp/out/env.\$(hostname)
	$tmp/bin/gradcomp stage --json "\${@:3}" > $tmp/out/json.\$(hostname) || exit
	exec /usr/bin/python3 -c '
	import json, sys
	for i, r in enumerate([r] if isinstance(r := json.load(open(sys.argv[1])), dict) else r):
	    name = "GRADCOMP_DATA" + ("_%d" % i if i else "")
	    print("%s=%s" % (name, r["path"]))
	    if r["mode"] == "shard":
	        print("%s_SHARD=%d/%d" % (name, r["node"], r["nodes"]))
	' $tmp/out/json.\$(hostname)
END
chmod 755 helper
sed -i "s|helper=[^ ]*|helper=$tmp/helper|" "$state/etc/plugstack.conf.d/gradcomp.conf"
# sum KEY: over what all nodes said last
sum () {
	/usr/bin/python3 -c '
import glob, json, sys
print(sum(r[sys.argv[1]] for f in glob.glob("out/json.*") for d in [json.load(open(f))] for r in (d if isinstance(d, list) else [d])))' "$1"
}
# running WORD: processes of the cluster with that in their command line
running () { for k in 1 2 3 4; do "${bed[@]}" node $k ps -e -o args=; done | cat - <(as root ps -e -o args=) | grep -c "$1"; }
gone () {
	for _ in {1..100}; do
		left=$(running "[b]in/gradcomp")
		[ "$left" = 0 ] && break
		sleep 0.1
	done
	is "$1" "$left" 0
}

cp -r "$GRADCOMP_SRC/include" "$GRADCOMP_SRC/runtime" .
mkdir data more
mv include runtime data
head -c 20000000 /dev/urandom > data/large
echo label > more/labels
# shellcheck disable=SC2094 # find leaves it out
(cd data && find . -type f ! -name SUMS -exec sha256sum {} + > SUMS)
chmod -R a+rX data more
bytes=$(find data more -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')

# shellcheck disable=SC2016 # expanded by the task
look='cd "$GRADCOMP_DATA" && sha256sum --quiet -c SUMS && cat "$GRADCOMP_DATA_1/labels" && echo "$(hostname) whole" && env'
check 'two sources on 4 nodes' on srun -N4 -n4 --gradcomp-stage="$tmp/data,more" -D "$tmp" sh -c "$look"
is 'every node has all of both' "$(grep -c ' whole$' <<< "$said"):$(grep -c '^label$' <<< "$said")" 4:4
unlike 'tasks do not get its variables' "$said" GRADCOMP_RENDEZVOUS
is 'the staging commands do' "$(cat out/env.* | cut -d= -f1 | sort | uniq -c | tr -s ' ')" " 4 GRADCOMP_RENDEZVOUS
 4 GRADCOMP_RENDEZVOUS_RANK
 4 GRADCOMP_RENDEZVOUS_RANKS
 4 GRADCOMP_RENDEZVOUS_TOKEN"
if [ "$(sed -n 's/^HAVE_MUNGE = //p' "$GRADCOMP_BUILD/config.mk")" = yes ]; then
	is 'the token is sealed' "$(grep -c 'GRADCOMP_RENDEZVOUS_TOKEN=munge=MUNGE:' out/env.n1)" 1
	sealed=$(sed -n 's/^GRADCOMP_RENDEZVOUS_TOKEN=munge=//p' out/env.n1)
	like 'for its user alone' "$("${bed[@]}" node 2 -u bob unmunge -S "$state/munge/socket" <<< "$sealed" 2>&1)" 'Unauthorized'
else
	skip 'the token is sealed' 'built without munge'
fi
note "of $bytes bytes $(sum read_bytes) were read from the source, $(sum received_bytes) came from other nodes"
is 'the source is read once' "$(sum read_bytes)" "$bytes"
is 'and passed on' "$(sum received_bytes)" $((3 * bytes))
gone 'nothing is left of it'
check 'the next step' on srun -N4 -n4 --gradcomp-stage="$tmp/data,more" -D "$tmp" sh -c "$look"
is 'reads nothing' "$(sum read_bytes):$(grep -c ' whole$' <<< "$said")" 0:4
gone 'and leaves nothing'

# shellcheck disable=SC2016 # expanded by the task
check 'parts, whatever the tasks inherit' on srun -N4 -n4 --export=PATH,LD_LIBRARY_PATH,GRADCOMP_PLUGIN_PATH,GRADCOMP_SECURITY_SECRET --gradcomp-stage="$tmp/data:mode=shard" sh -c \
	'echo "part $GRADCOMP_DATA_SHARD"; cd "$GRADCOMP_DATA" && find . -type f | sed "s/^/file /"'
is 'each node has its own' "$(grep '^part' <<< "$said" | sort)" 'part 0/4
part 1/4
part 2/4
part 3/4'
is 'all together have all' "$(grep '^file' <<< "$said" | sort)" "$(cd data && find . -type f | sed 's/^/file /' | sort)"

rm -rf "$state"/n?/var/tmp/gradcomp-[0-9]*
GRADCOMP_STAGE_TOGETHER=no check 'not together' on srun -N4 -n4 --gradcomp-stage="$tmp/data,more" -D "$tmp" sh -c "$look"
is 'each node reads all of it' "$(sum read_bytes)" $((4 * bytes))
is 'there was no rendezvous server' "$(grep -c 'GRADCOMP_RENDEZVOUS=' out/env.*)" "$(printf 'out/env.n%s:0\n' 1 2 3 4)"

# With PMIx Slurm 22.05's srun can hang at the end of such a step (tasks.t).
check 'components' on srun --mpi=none -N2 -n2 --gradcomp-stage="$tmp/more" printenv GRADCOMP_DATA : \
	--mpi=none -N2 -n2 --gradcomp-stage="$tmp/more" printenv GRADCOMP_DATA
is 'of a heterogeneous step have copies' "$(grep -c '^/var/tmp/gradcomp' <<< "$said")" 4
like 'each node made its own' "$said" 'components of a heterogeneous step do not stage together'

# shellcheck disable=SC2016 # expanded by the job
check 'sbatch' on sbatch --wait -N4 -n4 -o "$state/home/alice/out" -D "$tmp" --gradcomp-stage=more \
	--wrap 'srun sh -c "cat \$GRADCOMP_DATA/labels"; srun sh -c "cat \$GRADCOMP_DATA/labels"'
is 'sbatch: both its sruns stage' "$(grep -c '^label$' "$state/home/alice/out")" 8

# One node cannot: the first says it for all.
for k in 1 2 4; do mkdir -m 755 "$state/n$k/tmp/here"; done
refuse 'a source that n3 has not' on srun -N4 -n4 --kill-on-bad-exit --gradcomp-stage=/tmp/here touch "$tmp/out/ran"
like 'the first node says who cannot, and why' "$said" 'n1: node 2 (n3): there is no directory or file /tmp/here to stage'
is 'the others are silent' "$(grep -c '^gradcomp: n[24]:' <<< "$said")" 0

# A step that hangs fails its checks, not the whole test.
patience=$(scaled 60)

# ---- one node is late ------------------------------------------------------------
# late ARG...: a step in the background, whose other nodes wait for n4 at the rendezvous server
late () {
	rm -rf "$state"/n?/var/tmp/gradcomp-[0-9]* out/env.*
	touch hold.n4
	began=$(date +%s)
	timeout "$patience" "${bed[@]}" run -u alice srun -N4 -n4 "$@" > srun.out 2>&1 &
	srun=$!
	wait_for 10 test -e out/env.n1 -a -e out/env.n2 -a -e out/env.n3
}
late --gradcomp-stage="$tmp/data,$tmp/more" sh -c "$look"
port=$(as root ss -Hltnp | sed -n 's/.*:\([0-9]*\) .*"gradcomp".*/\1/p' | head -n 1)
check 'there is a server beside srun' test -n "$port"
refuse 'another user cannot read the token' as bob sh -c 'grep -a GRADCOMP_RENDEZVOUS /proc/[0-9]*/environ 2>/dev/null'
refuse 'nor on a node' "${bed[@]}" node 2 -u bob sh -c 'grep -a GRADCOMP_RENDEZVOUS /proc/[0-9]*/environ 2>/dev/null'
# shellcheck disable=SC2016
guess='GRADCOMP_RENDEZVOUS=10.77.0.254/24@$0 GRADCOMP_RENDEZVOUS_TOKEN=plain=$(printf %064d 7) GRADCOMP_RENDEZVOUS_RANK=3 GRADCOMP_RENDEZVOUS_RANKS=4 \
	GRADCOMP_STAGE_RENDEZVOUS_TIMEOUT=1 exec '"$tmp/bin/gradcomp stage --rendezvous $tmp/more"
refuse 'nor connect with another one' "${bed[@]}" node 2 -u bob sh -c "$guess" "$port"
like 'and gets an error' "$said" "does not have the step's token"
"${bed[@]}" node 2 -u bob /usr/bin/python3 -c '
import socket, sys, time
held = []
for i in range(400):
    s = socket.create_connection(("10.77.0.254", int(sys.argv[1])))
    s.send(b"GCM3" + b"\0" * (i % 60))
    held.append(s)
time.sleep(5)' "$port" &
flood=$!
sleep 4 # longer than MessageTimeout
rm hold.n4
wait $srun
check 'the others wait for a node that is late, in a flood' test $? = 0
is 'and all have all' "$(grep -c ' whole$' srun.out)" 4
is 'read once all the same' "$(sum read_bytes)" "$bytes"
wait $flood 2>/dev/null

# Long enough for the three that come.
limit=$(scaled 2)
GRADCOMP_STAGE_RENDEZVOUS_TIMEOUT=$limit late --gradcomp-stage="$tmp/more" touch "$tmp/out/ran"
wait_for $((limit + 10)) grep -q rendezvous_timeout srun.out
like 'who never comes is named' "$(cat srun.out)" "1 of the step's 4 nodes did not connect within $limit s (stage.rendezvous_timeout): node 3"
rm hold.n4
wait $srun
check 'and the step fails' test $? -gt 0

# A stager is killed while the nodes copy: all of them stop.
mkdir large
for i in 1 2 3 4; do head -c 150M /dev/zero > large/$i; done
rm -rf "$state"/n?/var/tmp/gradcomp-[0-9]* out/env.*
timeout "$patience" "${bed[@]}" run -u alice srun -N4 -n4 --gradcomp-stage="$tmp/large" touch "$tmp/out/ran" > srun.out 2>&1 &
srun=$!
for _ in {1..400}; do
	ls -d "$state"/n3/var/tmp/gradcomp-[0-9]*/*.tmp > /dev/null 2>&1 && break
	sleep 0.02
done
pid=$("${bed[@]}" node 3 ps -e -o pid=,args= | awk '$2 ~ /bin\/gradcomp$/ && $3 == "stage" { print $1 }')
began=$(date +%s)
"${bed[@]}" node 3 kill -KILL "$pid"
wait $srun
check 'killed while it copies: srun fails' test $? -gt 0
check 'killed while it copies: in time' test $(($(date +%s) - began)) -lt "$(scaled 30)"
like 'killed while it copies: with the name of the node' "$(cat srun.out)" "error: n3: --gradcomp-stage=$tmp/large failed"
like 'killed while it copies: the first node knows it, too' "$(grep '^gradcomp: n1' srun.out)" 'n3'
gone 'killed while it copies: nothing is left'
rm -r large

for how in scancel interrupt kill; do
	late --gradcomp-stage="$tmp/more" touch "$tmp/out/ran"
	began=$(date +%s)
	case $how in
	scancel) cancel_jobs ;;
	interrupt) kill -TERM $srun ;;
	kill) # the node's stager, that waits for the others
		for _ in {1..100}; do
			pid=$("${bed[@]}" node 2 ps -e -o pid=,args= | awk '$2 ~ /bin\/gradcomp$/ && $3 == "stage" { print $1 }')
			[ -z "$pid" ] || break
			sleep 0.1
		done
		"${bed[@]}" node 2 kill -KILL "$pid"
		rm hold.n4
		;;
	esac
	wait $srun
	check "$how: srun fails" test $? -gt 0
	check "$how: in time" test $(($(date +%s) - began)) -lt "$(scaled 30)"
	[ $how != kill ] || like "$how: with the node's name" "$(cat srun.out)" "error: n2: --gradcomp-stage=$tmp/more failed"
	rm -f hold.n4
	gone "$how: nothing is left"
done
check 'no task ran' test ! -e out/ran
all_idle 'every node is idle after all that'
done_testing
