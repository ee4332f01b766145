#!/bin/bash
# Staging from a server whose files change meanwhile, from servers that talk nonsense,
# through a proxy that mangles what a real one says, and from URLs that are none; in a
# network namespace of its own, with a link that leaves time to disturb. What a server
# refuses is in tree.t, one that goes away in away.t.
# shellcheck disable=SC2154 # tmp: of tap.sh
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
server_script=$GRADCOMP_SRC/tests/nfs/server
if [ "${1-}" != inside ] && ! "$server_script" missing > /dev/null && unshare --net true 2> /dev/null; then
	exec unshare --net "$0" inside
fi
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
[ "${1-}" = inside ] || skip_all "$("$server_script" missing || echo 'no new network namespace can be made here')"
[ -e "$GRADCOMP_BUILD/lib/gradcomp/source/nfs.so" ] || skip_all 'built without libnfs'
# ganesha looks up addresses of those kinds only that a machine has beside lo's own.
ip link set lo up
ip addr add 10.78.0.1/32 dev lo
tc qdisc add dev lo root tbf rate 400mbit burst 256kb latency 50ms 2> /dev/null || skip_all 'no traffic control (sch_tbf)'

gradcomp=$GRADCOMP_BUILD/bin/gradcomp
stager='' liar=''
server () { "$server_script" --state "$tmp/server" "$@"; }
# shellcheck disable=SC2317 # called by tap.sh
cleanup () {
	for pid in $stager $liar; do kill -9 "$pid" 2> /dev/null; done
	server down
}
chmod 755 "$tmp"
mkdir -m 1777 "$tmp/cache"
mkdir -p "$tmp/export/sub/empty"
: > "$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache" GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp"
area=$tmp/cache/$(id -u)
for i in {10..49}; do head -c 800000 /dev/urandom > "$tmp/export/sub/$i"; done
head -c 9000000 /dev/urandom > "$tmp/export/large"
truncate -s 5000000 "$tmp/export/sparse"
echo end >> "$tmp/export/sparse"
ln -s sub/10 "$tmp/export/link"
ln "$tmp/export/large" "$tmp/export/sub/same"
echo odd > "$tmp/export/"$'odd\n\\name \xff%3f?#'

# stage ARGUMENTS: leaves $out, $log, $status and $took
stage () {
	took=$SECONDS
	"$gradcomp" stage "$@" > "$tmp/out" 2> "$tmp/log"
	status=$? took=$((SECONDS - took))
	out=$(cat "$tmp/out") log=$(cat "$tmp/log")
}
published () { find "$area" -mindepth 1 -maxdepth 1 2> /dev/null | grep -cv '\.lease$'; }
right () {
	is "$1: status" "$status" 0 || note "$log"
	check "$1: the copy is right" diff -r --no-dereference "$tmp/export" "$out"
}
# refused NAME WORDS: status 1, the reason, nothing published, no path
refused () {
	is "$1: status" "$status" 1
	like "$1: the reason" "$log" "$2"
	is "$1: nothing is published" "$(published)" 0
	is "$1: no path is printed" "$out" ''
}

url=$(server up "$tmp/export" --read-only --fresh)
at=127.0.0.1:${url##*=}
base=$(server bytes)
stage "$url"
right 'from a server that only reads'
read=$(($(server bytes) - base)) size=$(du -sb --apparent-size "$tmp/export" | cut -f1)
check "each byte is read once: $read of $size" test $((read * 100)) -lt $((size * 102))
stage "$url"
like 'a second time: from the cache' "$log" "using cached copy of nfs://$at/export"

# When the copy has some files and not yet others, one of these is written to.
rm -rf "$area"
"$gradcomp" stage --workers=1 "$url" > "$tmp/out" 2> "$tmp/log" &
stager=$!
for _ in {1..1000}; do
	[ "$(cat "$area"/*.tmp/journal 2> /dev/null | wc -l)" -lt 3 ] || break
	sleep 0.01
done
server stop
check 'changed: a copy is under way' test ! -s "$tmp/out"
head -c 800000 /dev/urandom > "$tmp/export/sub/49"
server cont
wait $stager
status=$? stager='' out=$(cat "$tmp/out") log=$(cat "$tmp/log")
right 'changed'
like 'changed: which is said' "$log" 'the source changed while it was staged: sub/49'

# ---- servers that are none ----------------------------------------------------------
cat > "$tmp/liar.py" <<'END'
import os, socket, struct, sys, threading, time
how = sys.argv[1]
s = socket.socket()
s.bind(('127.0.0.1', 0))
s.listen(64)
def serve(c):
    try:
        if how == 'closes':
            return c.close()
        if how == 'sends':
            while True:
                c.sendall(os.urandom(65536))
        while True:
            head = c.recv(4096)
            if not head:
                return
            xid = head[4:8]
            if how == 'nonsense':
                c.sendall(b'HTTP/1.1 400 Bad Request\r\n\r\n')
            elif how == 'enormous': # a record of 2 GiB
                c.sendall(struct.pack('>I', 0xffffffff) + xid + bytes(1000))
            elif how == 'empty': # accepted, and nothing in it
                c.sendall(struct.pack('>I', 0x80000018) + xid + struct.pack('>IIIII', 1, 0, 0, 0, 0))
            elif how == 'denies':
                c.sendall(struct.pack('>I', 0x80000014) + xid + struct.pack('>IIII', 1, 1, 1, 5))
            elif how == 'counts': # success with lists that have no end
                body = xid + struct.pack('>IIIIIIII', 1, 0, 0, 0, 0, 0, 0, 0xffffffff) + bytes(200)
                c.sendall(struct.pack('>I', 0x80000000 | len(body)) + body)
            elif how == 'another': # the answer to another question
                body = b'\0\0\0\1' + struct.pack('>IIIIII', 1, 0, 0, 0, 0, 0) + bytes(40)
                c.sendall(struct.pack('>I', 0x80000000 | len(body)) + body)
    except OSError:
        pass
print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
END
rm -rf "$area"
export GRADCOMP_STAGE_SOURCE_TIMEOUT=1
for how in silent closes sends nonsense enormous empty denies counts another; do
	coproc python3 "$tmp/liar.py" $how
	liar=$COPROC_PID
	read -r -u "${COPROC[0]}" port
	stage "nfs://127.0.0.1/export?version=4&nfsport=$port"
	refused "a server that $how" '127.0.0.1'
	check "a server that $how: within seconds ($took)" test "$took" -lt "$(scaled 12)"
	kill -9 "$liar" 2> /dev/null
	wait "$liar" 2> /dev/null
	liar=''
done

# ---- answers that are mangled on their way -------------------------------------------
# Every tenth has wrong counts, is cut off or has bytes that it should not have. Nothing
# proves contents on the way from a server, so a copy may be made; but nobody crashes.
cat > "$tmp/mangle.py" <<'END'
import random, socket, struct, sys, threading
rnd = random.Random(int(sys.argv[2]))
s = socket.socket()
s.bind(('127.0.0.1', 0))
s.listen(64)
def whole(c, n):
    d = b''
    while len(d) < n:
        p = c.recv(n - len(d))
        if not p:
            raise OSError
        d += p
    return d
def there(c, t):
    try:
        while d := c.recv(65536):
            t.sendall(d)
        t.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def back(t, c):
    try:
        while True:
            body = bytearray(whole(t, struct.unpack('>I', whole(t, 4))[0] & 0x7fffffff))
            for _ in range(rnd.choice((1, 1, 4)) if rnd.random() < 0.1 else 0):
                at = rnd.randrange(4, min(len(body), 400))
                word = at & ~3
                how = rnd.randrange(4)
                if how == 0:
                    body[at] = rnd.randrange(256)
                elif how == 1:
                    body[word:word + 4] = struct.pack('>I', rnd.choice((0, 1, 1 << 16, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 4, (1 << 32) - 1)))
                elif how == 2:
                    body[at:at] = rnd.randbytes(4)
                else:
                    del body[max(at, 8):]
            c.sendall(struct.pack('>I', 0x80000000 | len(body)) + body)
    except OSError:
        c.close()
print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    t = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    threading.Thread(target=there, args=(c, t), daemon=True).start()
    threading.Thread(target=back, args=(t, c), daemon=True).start()
END
mkdir "$tmp/export/few"
for i in {1..6}; do echo "$i" > "$tmp/export/few/$i"; done
endings=''
for seed in {1..6}; do
	coproc python3 "$tmp/mangle.py" "${url##*=}" "$seed"
	liar=$COPROC_PID
	read -r -u "${COPROC[0]}" port
	rm -rf "$area"
	stage "nfs://127.0.0.1/export/few?version=4&nfsport=$port"
	endings="$endings $status"
	[ "$status" = 0 ] || [ "$(published)" = 0 ] || endings="$endings published"
	kill -9 "$liar" 2> /dev/null
	wait "$liar" 2> /dev/null
	liar=''
done
is "mangled answers, $(tr -dc 0 <<< "$endings" | wc -c) copies of 6" "$(tr -d '01 ' <<< "$endings")" ''
server down

# ---- names that are none ------------------------------------------------------------
while read -r words wrong; do
	stage --quiet "$wrong"
	check "$wrong: status $status" test "$status" = 1 -o "$status" = 2
	like "$wrong" "$log" "${words//_/ }"
done <<'END'
no_server nfs://
no_server nfs:///x
no_path nfs://h
no_path nfs://h?version=4
port nfs://h:0/x
port nfs://h:65536/x
port nfs://h:2049x/x
argument nfs://h/x?version=5
argument nfs://h/x?nfsport=-1
argument nfs://h/x?what=1
argument nfs://h/x?uid
two_ports nfs://h:1/x?nfsport=2
must_be_written_%XX nfs://h/a%0
must_be_written_%XX nfs://h/a%zz
%00 nfs://h/a%00b
component_._or_.. nfs://h/a/../b
component_._or_.. nfs://h/%2e%2e/b
user_before_the_server nfs://root@h/x
character nfs://h$(id)/x
begins_with nfs://-oProxy/x
']' nfs://[::1/x
address nfs://[h]/x
is_not_known nfs://no.such.host.invalid/x
END
done_testing
