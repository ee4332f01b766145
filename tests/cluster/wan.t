#!/bin/bash
# Links with a latency: what ping sees of it, jitter, loss and frames that overtake others, and what a stream gets through.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
command -v ping > /dev/null || skip_all 'ping is not installed (Debian: iputils-ping)'
[ -c /dev/net/tun ] || skip_all 'this kernel has no /dev/net/tun'

# Least, mean and largest round trip in us between the two nodes, and the share that was lost.
trips () {
	"${bed[@]}" node 1 ping -q -c "$1" -i "$2" -W 1 n2 |
		sed -n 's/.* \([0-9.]*\)% packet loss.*/\1/p; s,^rtt [^=]*= \([0-9.]*\)/\([0-9.]*\)/\([0-9.]*\)/.*,\1 \2 \3,p' | tr '\n' ' ' |
		awk '{ printf "%d %d %d %g\n", 1000 * $2, 1000 * $3, 1000 * $4, $1 / 100 }'
}
holds () { awk "BEGIN { exit !($1) }"; }

nodes=4
real_jobs --latency 5ms
for ms in 5 50 1 0.1; do
	[ $ms = 5 ] || check "latency ${ms}ms" "${bed[@]}" latency ${ms}ms
	read -r least mean _ lost < <(trips 150 0.01) # a busy machine may stop for a second
	check "$ms ms there and $ms ms back: $mean us, $least at least" \
		holds "$least > 1900 * $ms && $least < 2100 * $ms + $(scaled 100)"
	is "$ms ms: nothing is lost" "$lost" 0
done
check 'jitter' "${bed[@]}" latency 5ms 2ms
read -r least _ most _ < <(trips 60 0.02)
check "jitter of 2 ms: from $least to $most us" holds "$least > 5900 && $least < 9000 && $most > 10500"
check 'loss' "${bed[@]}" latency 1ms 0us 0.2
read -r _ _ _ lost < <(trips 200 0.005)
check "a fifth is lost each way: $lost" holds "$lost > 0.2 && $lost < 0.52"
check 'order' "${bed[@]}" latency 20ms 0us 0 0.5
read -r least _ most _ < <(trips 60 0.02)
check "half of them at once: from $least to $most us" holds "$least < $(scaled 100) * 100 && $most > 38000"
check 'none' "${bed[@]}" latency 0us

# Bits/s, in messages of 64 KiB.
stream () {
	"${bed[@]}" node 2 python3 -c 'import socket; s = socket.create_server(("", 7777)); c = s.accept()[0]
while c.recv(1 << 20): pass' &
	"${bed[@]}" node 1 python3 -c 'import socket, time
for i in range(100):
    try: s = socket.create_connection(("n2", 7777)); break
    except OSError: time.sleep(0.1)
data, sent, t = bytes(65536), 0, time.time()
while time.time() < t + 1: s.sendall(data); sent += len(data)
s.shutdown(socket.SHUT_WR); s.recv(1)
print("%.2f" % (sent * 8e-9 / (time.time() - t)))'
	wait $!
}
rate=$(stream)
check "a stream without latency: $rate Gbit/s" holds "$rate > 0.2"
check 'with 1 ms' "${bed[@]}" latency 1ms
rate=$(stream)
check "a stream with 1 ms: $rate Gbit/s" holds "$rate > 0.1"
check 'and a rate' "${bed[@]}" rate 100mbit
rate=$(stream)
check "a stream with 1 ms and 100 Mbit/s: $rate Gbit/s" holds "$rate < 0.101 && $rate > 0.05 * 100 / $(scaled 100)"

# auto goes all ways at once where there is a latency: an all-reduce takes one or two of it, and around the ring six.
check 'rate off' "${bed[@]}" rate off
check 'latency 20ms' "${bed[@]}" latency 20ms
check 'all-reduces' on srun -N4 --mpi=pmix --gradcomp=none "$tmp/bin/gradcomp" bench collectives --collectives auto \
	--primitives all-reduce --bytes 4096,32768 --seconds 1 --json "$tmp/run/rows"
for bytes in 4096 32768; do
	ms=$(python3 -c 'import json, sys
for r in json.load(open(sys.argv[1])):
    if r["bytes"] == int(sys.argv[2]): print("%.1f" % (1e3 * r["seconds"]))' "$tmp/run/rows" $bytes)
	# Beside a latency or two a connection takes some to open its window, and a busy machine some more.
	check "an all-reduce of $bytes bytes: $ms ms" holds "$ms > 19 && $ms < $((bytes == 4096 ? 80 : 110))"
done
for bad in 5 fast 1ms,2 -1ms; do
	refuse "latency '$bad'" "${bed[@]}" latency "$bad"
	like "latency '$bad': why" "$said" "'$bad' is no time like 5ms"
done
refuse 'a share of 2' "${bed[@]}" latency 1ms 0us 2
like 'a share of 2: why' "$said" "'2' is no share from 0 to 1"
check 'down' "${bed[@]}" down
is 'no device is left' "$(ip -o link | grep -cE '^[0-9]+: n[12]x?[@:]')" 0
done_testing
