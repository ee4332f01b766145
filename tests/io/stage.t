#!/bin/sh
# gradcomp stage: what goes where, exit statuses, other users, signals, death.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
uid=61234
pid=

cleanup () {
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
}
chmod 755 "$tmp"
mkdir -p "$tmp/src/sub" "$tmp/cache"
chmod 1777 "$tmp/cache"
echo one >"$tmp/src/one"
echo two >"$tmp/src/sub/two"
: >"$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache"

# stage ARGUMENTS: leaves $out, $log and $status
stage () {
	"$gradcomp" stage "$@" >"$tmp/out" 2>"$tmp/log"
	status=$?
	out=$(cat "$tmp/out") log=$(cat "$tmp/log")
}
area=$tmp/cache/$(id -u)

stage "$tmp/src"
is 'stages' "$status" 0
is 'stdout has one line' "$(wc -l <"$tmp/out")" 1
check 'stdout is the path of a whole copy' diff -r "$tmp/src" "$out"
like 'stderr has the closing line' "$log" 'gradcomp: staged 2 files, 8 bytes in '
like 'and where it is' "$log" "/s) into $area/"
path=$out
stage --quiet "$tmp/src"
is 'a hit has the same path' "$out" "$path"
is 'and is silent when asked' "$log" ''
stage "$tmp/src/../src/."
is 'a source is known by its real path' "$out" "$path"
like 'a hit says so' "$log" "gradcomp: using cached copy of $tmp/src (2 files, 8 bytes)"

stage --label=n2 "$tmp/nothing"
is 'no source' "$status" 1
is 'says which' "$log" "gradcomp: n2: there is no directory or file $tmp/nothing to stage"
is 'and prints no path' "$out" ''
for wrong in '' --what '--workers=0 x' '--workers=2x x' '--max-bytes=-1 x' '--max-bytes=0 x' 'a:mode=half' 'a,,b' '--mode=half a' \
	'--hold=0 a' '--rendezvous --pmix a' 'a help'; do
	# shellcheck disable=SC2086
	stage $wrong
	is "usage: '$wrong'" "$status" 2
done
stage --check 'a:mode=shard,b:verify=sha' c
is 'check says what SPECs mean' "$out" 'a mode=shard verify=mtime
b mode=full verify=sha
c mode=full verify=mtime'
mkdir "$tmp/two"
echo three >"$tmp/two/three"
stage "$tmp/src,$tmp/two"
is 'two sources' "$status" 0
is 'have a line each' "$(wc -l <"$tmp/out")" 2
check 'in their order' diff -r "$tmp/two" "$(sed -n 2p "$tmp/out")"
stage --env "$tmp/src:mode=shard" -- "$tmp/two"
is 'as tasks find them' "$(sed 's|/.*/data|PATH|' "$tmp/out")" 'GRADCOMP_DATA=PATH
GRADCOMP_DATA_SHARD=0/1
GRADCOMP_DATA_1=PATH'
stage --json "$tmp/src" "$tmp/two"
check 'JSON of two' python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
assert len(r) == 2 and r[1]["files"] == 1 and r[0]["mode"] == "full", r' "$tmp/out"
stage none
is 'none is nothing' "$status:$out" 0:
GRADCOMP_RENDEZVOUS_RANKS=2 stage --rendezvous --mode=shard "$tmp/src"
like 'mode=shard without a rendezvous server' "$log" "mode=shard needs the step's nodes to stage together"
stage --max-bytes=7 "$tmp/src"
is 'too large' "$status" 1
like 'says what is allowed' "$log" 'the dataset has 8 bytes; stage.max_bytes allows 7 bytes'
printf '[gradcomp]\nlock = stage.cache_dir\n[stage]\nmax_bytes = 7\ncache_dir = %s\n' "$tmp/locked" >"$tmp/conf"
unset GRADCOMP_STAGE_CACHE_DIR
stage --max-bytes=8 "$tmp/src"
is 'more than what is locked' "$status" 1
like 'says where' "$log" "max_bytes is 8; stage.max_bytes is locked by $tmp/conf:4, where it is '7'"
stage --cache-dir="$tmp/mine" "$tmp/src"
like 'another cache than what is locked' "$log" "cache_dir is $tmp/mine; stage.cache_dir is locked by $tmp/conf:2, where it is '$tmp/locked'"
stage --max-bytes=6 "$tmp/src"
like 'less than what is locked' "$log" 'stage.max_bytes allows 6 bytes'
: >"$tmp/conf"
export GRADCOMP_STAGE_CACHE_DIR="$tmp/cache"
stage --help
like 'help' "$out" 'usage: gradcomp stage'
"$gradcomp" stage "$tmp/src" >/dev/full 2>"$tmp/log"
is 'a path that cannot be printed is a failure' $? 1

stage --cache-dir="$tmp/other" --dry-run "$tmp/src"
like 'dry run' "$log" "gradcomp: would stage 2 files, 8 bytes of $tmp/src into $tmp/other"
is 'prints no path' "$out" ''
check 'and makes nothing' test ! -e "$tmp/other"
stage --json "$tmp/src"
check 'JSON' python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
assert r["path"] == sys.argv[2] and r["cached"] and r["files"] == 2 and r["bytes"] == 8, r' "$tmp/out" "$path"

newline='a
GRADCOMP_DATA_1=etc'
mkdir "$tmp/$newline"
stage --env "$tmp/$newline:mode=link"
is 'a path with a newline: status' "$status" 1
like 'is refused where lines are printed' "$log" '/a\x0aGRADCOMP_DATA_1=etc has a newline in it'
is 'and not printed' "$out" ''
stage --json "$tmp/$newline:mode=link"
is 'JSON can say it' "$status" 0
rmdir "$tmp/$newline"

# ---- other users --------------------------------------------------------------
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	user () { setpriv --reuid=$uid --regid=$uid --clear-groups "$@"; }
	theirs=$(user "$gradcomp" stage --quiet "$tmp/src" 2>"$tmp/log")
	like 'a user has an area of his own' "$theirs" "$tmp/cache/$uid/"
	is 'that others cannot enter' "$(stat -c '%u %a' "$tmp/cache/$uid")" "$uid 700"
	echo secret >"$tmp/src/sub/secret"
	chmod 600 "$tmp/src/sub/secret"
	user "$gradcomp" stage "$tmp/src" >"$tmp/out" 2>"$tmp/log"
	is 'an unreadable file' $? 1
	like 'is named' "$(cat "$tmp/log")" 'cannot read sub/secret: Permission denied'
	is 'and nothing of it is published' "$(find "$tmp/cache/$uid" -mindepth 1 -maxdepth 1 | wc -l)" 1
	chmod 700 "$tmp/src/sub"
	user "$gradcomp" stage "$tmp/src" >"$tmp/out" 2>"$tmp/log"
	like 'an unreadable directory is named' "$(cat "$tmp/log")" 'sub: Permission denied'
	chmod 755 "$tmp/src/sub"
	rm "$tmp/src/sub/secret"

	mkdir "$tmp/sticky"
	chmod 1777 "$tmp/sticky"
	theirs=$(user "$gradcomp" stage --quiet --cache-dir="$tmp/sticky/cache" "$tmp/src")
	like 'without a cache that root made a user has one beside' "$theirs" "$tmp/sticky/cache-$uid/"
	check 'with the data' diff -r "$tmp/src" "$theirs"
	rm -r "$tmp/sticky/cache-$uid"
	ln -s "$tmp/src" "$tmp/sticky/cache-$uid"
	refuse 'a link in its place' user "$gradcomp" stage --cache-dir="$tmp/sticky/cache" "$tmp/src"
	like 'is not followed' "$said" 'is not a directory'
	ln -s "$tmp/src" "$tmp/sticky/cache"
	refuse 'nor one in place of the cache' user "$gradcomp" stage --cache-dir="$tmp/sticky/cache" "$tmp/src"
	user mkdir "$tmp/sticky/poison"
	refuse 'root does not use a cache of a user' "$gradcomp" stage --cache-dir="$tmp/sticky/poison" "$tmp/src"
	like 'and says why' "$said" "belongs to uid $uid, not to root or to you"
	mkdir "$tmp/sticky/taken"
	chown 12345 "$tmp/sticky/taken"
	theirs=$(user "$gradcomp" stage --quiet --cache-dir="$tmp/sticky/taken" "$tmp/src")
	like 'where another user has taken the name of the cache, a user has one beside' "$theirs" "$tmp/sticky/taken-$uid/"
	rm -r "$tmp/sticky/taken-$uid"
	mkdir -m 700 "$tmp/sticky/taken-$uid"
	chown 12345 "$tmp/sticky/taken-$uid"
	refuse 'where he has taken that too' user "$gradcomp" stage --cache-dir="$tmp/sticky/taken" "$tmp/src"
	like 'he is named' "$said" 'belongs to uid 12345 instead of you'
	like 'and the remedy' "$said" 'tmpfiles.d'
else
	skip 'other users' 'needs root and setpriv'
fi

# ---- signals and death ----------------------------------------------------------
mkdir "$tmp/large"
for i in 1 2 3 4 5 6 7 8; do
	dd if=/dev/urandom of="$tmp/large/$i" bs=1M count=16 2>/dev/null
done
# Starts a copy in the background; returns when the first file is finished. The copy gives way,
# so that it is not done before this shell gets on.
begin () {
	rm -rf "$area"
	nice -n 19 "$gradcomp" stage --workers=1 "$tmp/large" >"$tmp/out" 2>"$tmp/log" &
	pid=$!
	n=0
	until [ -s "$(echo "$area"/*.tmp/journal)" ]; do
		n=$((n + 1))
		[ $n -lt 3000 ] || return 1
		sleep 0.02
	done
}
end () {
	wait "$pid" 2>/dev/null
	status=$?
	pid=
}
# Not SIGINT: a shell's background job ignores it.
for signal in TERM:143 HUP:129; do
	want=${signal#*:} signal=${signal%:*}
	begin
	is "a copy in progress for SIG$signal" $? 0
	kill -s "$signal" "$pid"
	end
	is "SIG$signal ends it with that status" $status "$want"
	is 'nothing stays' "$(ls -A "$area")" ''
	is 'no path was printed' "$(cat "$tmp/out")" ''
done

begin
is 'a copy in progress for SIGKILL' $? 0
kill -9 "$pid"
end
check 'half a copy stays' test -d "$(echo "$area"/*.tmp)"
stage --verify "$tmp/large"
is 'the next one finishes it' "$status" 0
like 'and says what was there' "$log" 'were there from an interrupted copy'
check 'it is right' diff -r "$tmp/large" "$out"
is 'and all that stays' "$(ls -A "$area")" "$(basename "$(dirname "$out")")"

# ---- two at once ---------------------------------------------------------------
begin
is 'a copy in progress' $? 0
kill -STOP "$pid"
"$gradcomp" stage "$tmp/large" >"$tmp/out2" 2>"$tmp/log2" &
second=$!
sleep 0.5
is 'a second one waits' "$(cat "$tmp/out2")" ''
check 'and lives' kill -0 $second
kill -CONT "$pid"
end
is 'the first one succeeds' $status 0
wait $second
is 'the second one too' $? 0
is 'with the same path' "$(cat "$tmp/out")" "$(cat "$tmp/out2")"
like 'the first one copied' "$(cat "$tmp/log")" 'staged 8 files'
like 'the second one did not' "$(cat "$tmp/log2")" 'using cached copy'

begin
is 'a copy in progress' $? 0
kill -STOP "$pid"
"$gradcomp" stage "$tmp/large" >"$tmp/out2" 2>"$tmp/log2" &
second=$!
sleep 0.3
kill -9 "$pid"
end
wait $second
is 'the second takes over from one that is killed' $? 0
like 'with what it had done' "$(cat "$tmp/log2")" 'were there from an interrupted copy'
check 'and the copy is right' diff -r "$tmp/large" "$(cat "$tmp/out2")"

done_testing
