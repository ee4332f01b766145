#!/bin/bash
# The test bed itself: it comes up, does what it says, and leaves nothing.
# shellcheck source-path=SCRIPTDIR disable=SC2317
. "$(dirname "$0")/common.sh"
other=("$GRADCOMP_SRC/tests/cluster/cluster" --name "u$$")
cleanup () { "${bed[@]}" down; "${other[@]}" down; }

# What of a cluster is still there: processes by its state directory, and that.
left () {
	pgrep -fc -- "--state /var/tmp/gradcomp-cluster-[tu]${$} "
	ls -d /var/tmp/gradcomp-cluster-[tu]$$ 2>/dev/null
}
gone () {
	for _ in {1..40}; do
		[ "$(left)" = 0 ] && break
		sleep 0.1
	done
	is "$1: nothing is left" "$(left)" 0
}
# What a cluster might leave on this host, on which others may mount and unmount meanwhile.
host () { ip -o link | grep -cE '^[0-9]+: (br0|eth0@|login|nfs|n[0-9]+)[@:]'; ls /run/netns 2>/dev/null; grep -c "gradcomp-cluster-[tu]$$" /proc/mounts; cksum < /etc/passwd; }
before=$(host)

check 'up' "${bed[@]}" up --nodes 3 --cpus 2
mkdir -m 700 closed
mkdir closed/open
echo shared > closed/open/file
echo secret > closed/file
chmod 644 closed/file
check 'another one beside it' "${other[@]}" up --nodes 2 --share "$tmp/closed/open"
check 'two clusters leave traces while they are up' test "$(left)" != 0
is 'three nodes' "$("${bed[@]}" run srun -N3 hostname | sort | tr '\n' ' ')" 'n1 n2 n3 '
is 'two nodes' "$("${other[@]}" run srun -N2 hostname | sort | tr '\n' ' ')" 'n1 n2 '
is 'CPUs' "$("${bed[@]}" run sinfo -h -o %c)" 2
is 'users' "$("${bed[@]}" run -u alice srun -N3 id -un | sort -u; "${bed[@]}" node 2 -u bob id -un)" 'alice
bob'
is 'a home that is theirs' "$("${bed[@]}" run -u bob sh -c 'echo x > ~/f && srun -N1 cat ~/f')" x
"${bed[@]}" node 1 touch /tmp/mine /var/tmp/mine /dev/shm/mine
refuse 'no other node sees a /tmp' "${bed[@]}" node 2 ls /tmp/mine
refuse 'no other node sees a /var/tmp' "${bed[@]}" node 2 ls /var/tmp/mine
refuse 'no other node sees a /dev/shm' "${bed[@]}" node 2 ls /dev/shm/mine
check 'all see the source' "${bed[@]}" node 3 test -x "$GRADCOMP_SRC/tests/cluster/cluster"
check 'status' "${bed[@]}" status
like 'status says where' "$said" "up: 3 nodes, state in $state"
for where in run 'node 1'; do
	# shellcheck disable=SC2086
	is "$where: users see what is shared below a closed folder" "$("${other[@]}" $where -u alice cat "$tmp/closed/open/file" 2>&1)" shared
	# shellcheck disable=SC2086
	refuse "$where: and nothing else of it" "${other[@]}" $where -u alice cat "$tmp/closed/file"
done
mkdir -p clone/tests/cluster
cp "$GRADCOMP_SRC/tests/cluster/cluster" clone/tests/cluster
chmod 700 clone
refuse 'a source tree that users cannot read' clone/tests/cluster/cluster --name "v$$" up
like 'a source tree that users cannot read: what to type' "$said" "users cannot read $tmp/clone: chmod -R go+rX it"
refuse 'up twice' "${bed[@]}" up
like 'up twice: the reason' "$said" 'is up already'
refuse 'an exit status arrives' "${bed[@]}" run sh -c 'exit 3'
is 'an exit status arrives whole' "$tap_status" 3

# 4 MB through a link of 40 Mbit/s take 0.8 s; unshaped a few ms.
send () {
	"${bed[@]}" node 2 python3 -c 'import socket; s = socket.create_server(("", 7777)); c = s.accept()[0]
while c.recv(65536): pass' &
	"${bed[@]}" node 1 python3 -c 'import socket, time
for i in range(50):
    try: s = socket.create_connection(("n2", 7777)); break
    except OSError: time.sleep(0.1)
t = time.time(); s.sendall(bytes(4000000)); s.shutdown(socket.SHUT_WR); s.recv(1)
print(int(1000 * (time.time() - t)))'
	wait $!
}
check 'rate' "${bed[@]}" rate 40mbit
sent=$("${bed[@]}" bytes | awk '$1 == "n1" { print $2 }')
ms=$(send)
check "rate: 4 MB in $ms ms" test "$ms" -gt 600 -a "$ms" -lt "$(scaled 1600)"
sent=$(($("${bed[@]}" bytes | awk '$1 == "n1" { print $2 }') - sent))
check "bytes: $sent sent" test "$sent" -gt 4000000 -a "$sent" -lt 4400000
check 'rate off' "${bed[@]}" off
ms=$(send)
check "rate off: 4 MB in $ms ms" test "$ms" -lt "$(scaled 400)"
refuse 'a rate that is none' "${bed[@]}" rate fast
like 'a rate that is none: the reason' "$said" "rate 'fast' is neither off nor like 1gbit"

check 'down' "${bed[@]}" down
refuse 'down: status says so' "${bed[@]}" status
check 'down: the other goes on' "${other[@]}" run srun -N2 true
check 'down twice' "${bed[@]}" down
check 'down, the other one' "${other[@]}" down
gone 'down'

refuse 'a line Slurm does not know' "${bed[@]}" up --conf Nonsense=1
like 'a line Slurm does not know: the reason' "$said" 'unrecognized key: Nonsense'
gone 'a line Slurm does not know'
refuse 'a name that is none' "$GRADCOMP_SRC/tests/cluster/cluster" --name ../x up
refuse 'no nodes' "${bed[@]}" up --nodes 0
mkdir foreign
touch foreign/precious
refuse "somebody's directory" "$GRADCOMP_SRC/tests/cluster/cluster" --state "$tmp/foreign" up
check "somebody's directory: kept" test -e foreign/precious
refuse "somebody's directory: not removed either" "$GRADCOMP_SRC/tests/cluster/cluster" --state "$tmp/foreign" down
check "somebody's directory: still kept" test -e foreign/precious

for after in 0.05 0.15 0.25; do
	setsid "${bed[@]}" up > /dev/null 2>&1 &
	sleep $after
	kill -TERM $!
	wait $! 2>/dev/null
	gone "interrupted after $after s"
	setsid "${bed[@]}" up > /dev/null 2>&1 &
	sleep $after
	kill -KILL $!
	wait $! 2>/dev/null
	"${bed[@]}" down
	gone "killed after $after s, then down"
done
setsid "${bed[@]}" up --nodes 1 > /dev/null 2>&1 &
sleep 0.1
kill -KILL $!
wait $! 2>/dev/null
check 'up after a killed up' "${bed[@]}" up --nodes 1
"${bed[@]}" run srun -n1 sleep 100 > /dev/null 2>&1 &
sleep 0.5
check 'down while a job runs' "${bed[@]}" down
wait $! 2> /dev/null
gone 'down while a job runs'

# The host, here a folder that is /etc for this test alone, replaces its files as adduser does, and apt beside a test.
# shellcheck disable=SC2016 # of that shell
replaced () {
	unshare --mount bash -c 'cp -a /etc "$1/etc" && mount --bind "$1/etc" /etc && shift && "$@" up --nodes 1 || exit
		for f in passwd group hosts; do cp -p /etc/$f /etc/$f.new && mv /etc/$f.new /etc/$f; done
		"$@" run -u alice srun -n1 sh -c "id -un; getent hosts n1"; status=$?
		"$@" down; exit $status' - "$tmp" "${bed[@]}"
}
mkdir over
if unshare --mount mount -t overlay -o "ro,lowerdir=$tmp/over:/etc" overlay /etc 2> /dev/null; then
	check 'a job when the host has replaced its own passwd' replaced
	like '... has the users of the bed' "$said" alice
	like '... and its hosts' "$said" 10.77.0.1
	gone 'a host that replaces its passwd'
else
	skip 'a host that replaces its own passwd' 'no overlay can be mounted here'
fi
is 'the host is as it was' "$(host)" "$before"
done_testing
