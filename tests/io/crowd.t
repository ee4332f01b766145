#!/bin/bash
# A hundred who want the same dataset at the same time: one copies, also when he who
# does is killed, and all have the same path in the end.
# shellcheck disable=SC2154 # tmp: of tap.sh
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
crowd=100
producer='' pids=()

# shellcheck disable=SC2317 # called by tap.sh
cleanup () {
	local pid
	for pid in $producer "${pids[@]}"; do kill -9 "$pid" 2>/dev/null; done
	wait 2>/dev/null
}
mkdir "$tmp/src" "$tmp/cache" "$tmp/who"
: > "$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache"
for i in {1..4}; do head -c 16000000 /dev/urandom > "$tmp/src/$i"; done
area=$tmp/cache/$(id -u)

# A producer that has finished one file and is stopped (it gives way until then), and a hundred behind him.
gather () {
	local i
	rm -rf "$area"
	nice -n 19 "$gradcomp" stage --workers=1 "$tmp/src" > "$tmp/out" 2> "$tmp/log" &
	producer=$!
	for ((i = 0; i < 3000; i++)); do
		[ ! -s "$(echo "$area"/*.tmp/journal)" ] || break
		sleep 0.02
	done
	kill -STOP $producer
	pids=()
	for ((i = 0; i < crowd; i++)); do
		"$gradcomp" stage "$tmp/src" > "$tmp/who/$i" 2> "$tmp/who/$i.log" &
		pids+=($!)
	done
}
# shellcheck disable=SC2317,SC2329 # called by wait_for
all_wait () { [ "$(cat "$tmp"/who/*.log | grep -c 'waiting for')" -ge "$crowd" ]; }
waiting () {
	wait_for 30 all_wait
	is "$1: all wait, and say for whom" "$(cat "$tmp"/who/*.log | grep -c "waiting for .*$producer")" $crowd
}
scatter () {
	local i failed=0
	for i in "${pids[@]}"; do wait "$i" || failed=$((failed + 1)); done
	wait $producer 2> /dev/null
	producer='' pids=()
	is "$1: none fails" $failed 0
	is "$1: one path for all" "$(cat "$tmp"/who/? "$tmp"/who/?? "$tmp/out" | sort -u | wc -l)" 1
	check "$1: to a whole copy" diff -r "$tmp/src" "$(cat "$tmp/who/0")"
	is "$1: one has copied" "$(cat "$tmp/log" "$tmp"/who/*.log | grep -c 'staged 4 files')" 1
	is "$1: nothing else stays in the cache" "$(ls -A "$area")" "$(basename "$(dirname "$(cat "$tmp/who/0")")")"
}

gather
waiting 'the copy goes on'
is 'the copy goes on: no path is printed before' "$(cat "$tmp"/who/? "$tmp"/who/??)" ''
kill -CONT $producer
scatter 'the copy goes on'

gather
sleep 0.5
is 'the one who copies is killed: no path is printed before' "$(cat "$tmp"/who/? "$tmp"/who/??)" ''
kill -9 $producer
scatter 'the one who copies is killed'
like 'what he had done is not copied again' "$(cat "$tmp"/who/*.log)" 'were there from an interrupted copy'
done_testing
