#!/bin/bash
# Staging from the kernel's own NFS, server and mount in one virtual machine: complete,
# root_squash, a file that changes on the server, and a server that goes away in the
# middle and comes back. nfsd is set up through /proc/fs/nfsd and its caches are filled
# by hand, so no package for NFS is needed.
# shellcheck disable=SC2154 # tmp: of tap.sh
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
here=$GRADCOMP_SRC/tests/vm

lacking=$("$here/vm" make "$GRADCOMP_BUILD/vm" 2> "$tmp/make.log") || {
	[ $? = 3 ] && skip_all "$lacking"
	note "$(cat "$tmp/make.log")"
	echo 'Bail out! the virtual machine cannot be made'
	exit 1
}
ls "$GRADCOMP_BUILD"/vm/lib/modules/*/kernel/fs/nfsd/nfsd.ko* > /dev/null 2>&1 || skip_all 'this kernel has no NFS server'

mkdir "$tmp/job"
cat > "$tmp/job/all" << END
gradcomp='$GRADCOMP_BUILD/bin/gradcomp'
END
cat >> "$tmp/job/all" << 'END'
modprobe -a nfsd nfsv4 || exit 3
mkdir -p /srv/exp /mnt/n4 /run/cache /var/lib/nfs/v4recovery
mount -t tmpfs -o mode=755 none /srv/exp
mount -t nfsd nfsd /proc/fs/nfsd
far=$(($(date +%s) + 100000))

# The server with its answers of what it exports to whom; FLAGS are the kernel's: insecure
# port, no subtree check, fsid, and root_squash (4).
server () {
	echo '-2 -3 +4 +4.1 +4.2' > /proc/fs/nfsd/versions
	echo 10 > /proc/fs/nfsd/nfsv4leasetime
	echo 10 > /proc/fs/nfsd/nfsv4gracetime
	echo 2 > /proc/fs/nfsd/threads
	echo Y > /proc/fs/nfsd/v4_end_grace
	echo "nfsd 127.0.0.1 $far us" > /proc/net/rpc/auth.unix.ip/channel
	echo "us /srv/exp $far $((2 + 0x400 + 0x2000 + $1)) 65534 65534 0" > /proc/net/rpc/nfsd.export/channel
	echo "us 1 \\x00000000 $far /srv/exp" > /proc/net/rpc/nfsd.fh/channel
}
stage () {
	"$gradcomp" stage --workers=1 --cache-dir=/run/cache "$@" > /run/out 2> /run/log &
	stager=$!
}
# What becomes of the copy that runs: NAME of the report.
report () {
	wait $stager
	{ echo $?; cat /run/log; diff -r /srv/exp "$(cat /run/out)" && echo 'all of it is right'; } > /mnt/job/$1 2>&1
}
# Starts a copy that is stopped when it has begun, long before it has read the last file.
# Without processes of its own: the machine is slow.
begin () {
	rm -rf /run/cache/*
	stage /mnt/n4
	until for temp in /run/cache/0/*.tmp; do [ -e "$temp" ]; done; do read -r -t 0.01 _ < /run/never; done
	kill -STOP $stager
}
mkfifo /run/never
exec 9<> /run/never

mkdir -p /srv/exp/sub/empty
for i in $(seq 10 59); do head -c 400000 /dev/urandom > /srv/exp/sub/$i; done
head -c 4000000 /dev/urandom > /srv/exp/large
truncate -s 5000000 /srv/exp/sparse
echo end >> /srv/exp/sparse
ln -s sub/10 /srv/exp/link
ln /srv/exp/large /srv/exp/sub/same
server 0
mount -i -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1 127.0.0.1:/ /mnt/n4 || exit 4

stage --verify /mnt/n4
report complete
stat -c '%h %b' "$(cat /run/out)/large" "$(cat /run/out)/sparse" >> /mnt/job/complete
stage /mnt/n4
report again

begin
echo another > /srv/exp/sub/59
kill -CONT $stager
report changed

begin
echo 0 > /proc/fs/nfsd/threads
kill -CONT $stager
sleep 3
{ kill -0 $stager && echo 'it waits'; ls -A /run/cache/0 | grep -cv '\.tmp$\|\.lock$\|\.lease$'; } > /mnt/job/away
server 0
report back

umount /mnt/n4
echo 0 > /proc/fs/nfsd/threads
echo secret > /srv/exp/sub/secret
chmod 600 /srv/exp/sub/secret
server 4
mount -i -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1 127.0.0.1:/ /mnt/n4 || exit 5
rm -rf /run/cache/*
stage /mnt/n4
wait $stager
{ echo $?; cat /run/log; } > /mnt/job/squash
ls -A /run/cache/0 > /mnt/job/squash-cache
umount /mnt/n4
echo 0 > /proc/fs/nfsd/threads
END
"$here/vm" run "$GRADCOMP_BUILD/vm" "$tmp/job" "$(scaled 115)" bash /mnt/job/all > "$tmp/out" 2>&1
is 'the machine runs to its end' $? 0 || note "$(tail -n 20 "$tmp/out")"
cd "$tmp/job" || exit 1

# said NAME: the exit status and what was said
copied () {
	is "$2" "$(head -n 1 "$1" 2>&1)" 0 || note "$(cat "$1")"
	like "$2: the copy is right" "$(cat "$1" 2>&1)" 'all of it is right'
}
copied complete 'a mounted directory'
like 'hard links are links' "$(cat complete)" '
2 '
check 'holes are holes' test "$(tail -n 1 complete | cut -d' ' -f2)" -lt 1000
copied again 'a second time'
like 'from the cache' "$(cat again)" 'using cached copy'
copied changed 'a file changed on the server in the middle'
like 'which is said' "$(cat changed)" 'the source changed while it was staged: sub/59 was written to; if it is none of the data, exclude=sub/59 leaves it out; starting again'
is 'a server that is away in the middle: the copy waits, nothing is published' "$(cat away 2>&1)" 'it waits
0'
copied back 'and goes on when it is back'
is 'root_squash: status' "$(head -n 1 squash 2>&1)" 1
like 'root_squash: the file is named' "$(cat squash 2>&1)" 'cannot read sub/secret: Permission denied'
is 'root_squash: nothing is published' "$(cat squash-cache)" '' || note "$(cat squash)"
done_testing
