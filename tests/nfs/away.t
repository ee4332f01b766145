#!/bin/bash
# An NFS server that stops in mid-copy: it comes back, it comes back as another process,
# it does not come back; and the user who does not want to wait.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
server () { "$GRADCOMP_SRC/tests/nfs/server" --state "$tmp/server" "$@"; }
if why=$(server missing); then skip_all "$why"; fi
[ -e "$GRADCOMP_BUILD/lib/gradcomp/source/nfs.so" ] || skip_all 'built without libnfs'
pid=

cleanup () {
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
	server down
}
mkdir "$tmp/export" "$tmp/cache"
: >"$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache" GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp"
# Long to read, quick to write: a server of NFSv4.0 sends the zeroes.
truncate -s 512M "$tmp/export/zeroes"
for at in 0 300000000 536870911; do printf x | dd of="$tmp/export/zeroes" bs=1 seek=$at conv=notrunc status=none; done
for ((i = 0; i < 300; i++)); do echo "file $i" >"$tmp/export/$i"; done

check 'a server' server up "$tmp/export"
url=$(cat "$tmp/server/url")

# Begins to stage and returns when the server has read some of it.
begin () {
	rm -rf "$tmp/cache"/*
	GRADCOMP_STAGE_SOURCE_TIMEOUT=$1 "$gradcomp" stage "$url" >"$tmp/out" 2>"$tmp/log" &
	pid=$!
	for ((i = 0; i < 400; i++)); do
		[ "$(server bytes)" -gt "$((before + 20000000))" ] && return
		sleep 0.02
	done
	note 'nothing is read'
}
# The exit status of what was begun.
finish () {
	wait "$pid"
	status=$?
	pid=
	log=$(cat "$tmp/log")
}
is_whole () {
	is "$1" "$status" 0
	check "$1: whole" diff -r "$tmp/export" "$(cat "$tmp/out")"
}

before=0
begin 60
server stop
wait_for 20 grep -q 'waiting for it' "$tmp/log"
is 'a server that stopped leaves the stager waiting' "$(kill -0 "$pid" 2>&1 && grep -c 'copy.*staged\|cannot' "$tmp/log")" 0
like 'who says so' "$(cat "$tmp/log")" "the server of nfs://127.0.0.1"
like 'and how long it has been' "$(cat "$tmp/log")" 's; waiting for it (setting stage.source_timeout)'
server cont
finish
is_whole 'the copy goes on when it does'
like 'which is said' "$log" 'answers again'

before=$(server bytes)
begin 60
server crash
sleep 1
server again
finish
is_whole 'the copy goes on with a new server'

before=0
begin 2
server stop
start=$SECONDS
finish
is 'a server that stays away' "$status" 1
like 'is named' "$log" 'the NFS server 127.0.0.1 does not answer for '
like 'with the setting' "$log" '(setting stage.source_timeout)'
check "in time: $((SECONDS - start)) s" test $((SECONDS - start)) -le "$(scaled 20)"
is 'nothing stays' "$(find "$tmp/cache" -name '*.tmp' | wc -l)" 0
server cont

before=$(server bytes)
begin 3600
server stop
sleep 0.5
kill -TERM "$pid"
start=$SECONDS
finish
is 'who waits can be stopped' "$status" 143
check "soon: $((SECONDS - start)) s" test $((SECONDS - start)) -le "$(scaled 10)"
is 'and leaves nothing' "$(find "$tmp/cache" -name '*.tmp' | wc -l)" 0
server cont

before=$(server bytes)
begin 2
server crash
start=$SECONDS
finish
is 'a server that died' "$status" 1
like 'is named too' "$log" 'the NFS server 127.0.0.1 does not answer for '
like 'with the reason' "$log" 'Connection refused'

# A listener that never says a word.
python3 -c 'import socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(120)' >"$tmp/port" &
pid=$!
wait_for 20 test -s "$tmp/port"
GRADCOMP_STAGE_SOURCE_TIMEOUT=1 timeout 60 "$gradcomp" stage "nfs://127.0.0.1:$(cat "$tmp/port")/x" >"$tmp/out" 2>"$tmp/log"
is 'a mute server' $? 1
like 'is named' "$(cat "$tmp/log")" 'the NFS server 127.0.0.1 does not answer for '
GRADCOMP_STAGE_SOURCE_TIMEOUT=100 timeout -s INT 1 "$gradcomp" stage "nfs://127.0.0.1:$(cat "$tmp/port")/x" >"$tmp/out" 2>"$tmp/log"
is 'and can be left' $? 124
done_testing
