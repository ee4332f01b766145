#!/bin/sh
# gradcomp cache: what is printed, exit statuses, leases of jobs, other users, what all
# users share.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2012,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
uid=61234
pid=

cleanup () {
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
}
chmod 755 "$tmp"
mkdir -p "$tmp/one/sub" "$tmp/two" "$tmp/cache"
chmod 1777 "$tmp/cache"
echo one >"$tmp/one/a"
echo two >"$tmp/one/sub/b"
echo three >"$tmp/two/c"
: >"$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache"

# cache ARGUMENTS: leaves $out, $log and $status
cache () {
	"$gradcomp" cache "$@" >"$tmp/out" 2>"$tmp/log"
	status=$?
	out=$(cat "$tmp/out") log=$(cat "$tmp/log")
}
# member NAME: an expression on the last output as JSON
member () {
	python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$tmp/out" "$1"
}
key_of () {
	basename "$(dirname "$("$gradcomp" stage --quiet "$1")")"
}

cache list
is 'an empty cache' "$status $out" '0 nothing'
one=$(key_of "$tmp/one")
two=$(key_of "$tmp/two")
cache list
is 'list' "$status" 0
like 'has a line for each copy' "$out" "$(echo "$one" | cut -c1-12)"
like 'with its source' "$out" "$tmp/two"
cache list --json
is 'as JSON: copies' "$(member 'sorted(e["key"] for e in j["entries"]) == sorted(["'"$one"'", "'"$two"'"])')" True
is 'as JSON: files' "$(member '[e["files"] for e in j["entries"] if e["key"] == "'"$one"'"]')" '[2]'
cache list --json "$tmp/one"
is 'one of them' "$(member '[e["source"] for e in j["entries"]]')" "['$tmp/one']"
cache du
like 'du' "$out" 'in 2 copies of the '
cache du --json
is 'as JSON' "$(member 'j["copies"], j["bytes"] > 0, j["budget"] > j["high_mark"] > j["low_mark"], j["quota"]')" \
	'(2, True, True, None)'

cache verify
is 'verify' "$status $out" '0 '
chmod u+w "$tmp/cache/$(id -u)/$one/data/a"
printf ONE >"$tmp/cache/$(id -u)/$one/data/a"
cache verify "$tmp/one" "$tmp/two"
is 'a damaged file' "$status" 1
like 'is named' "$out" "$(echo "$one" | cut -c1-12): a does not have its size and checksum"
cache verify --json
is 'in JSON too' "$(member '[(d["key"], d["file"]) for d in j["damaged"]]')" "[('$one', 'a')]"
is 'with the reason' "$(member '"1 file is damaged" in j["error"]')" True

cache pin "$tmp/two"
is 'pin' "$status" 0
cache evict "$tmp/two"
is 'what is pinned is not evicted' "$status" 1
like 'and why is said' "$log" 'it is pinned'
cache clear --dry-run
like 'a dry run says what would go' "$out" 'would remove copy'
is 'and changes nothing' "$(cd "$tmp/cache/$(id -u)" && ls -d ./????????????????????????????????????????????????????????????????  | wc -l)" 2
cache clear
is 'clear' "$status" 0
like 'says what stays' "$log" '1 copy stays'
cache list --json
is 'that one' "$(member '[(e["key"], e["pinned"]) for e in j["entries"]]')" "[('$two', True)]"
cache evict --force "$(echo "$two" | cut -c1-10)"
is 'by force it goes' "$status" 0
cache list
is 'and nothing is left' "$out" nothing
is 'at all' "$(ls -A "$tmp/cache/$(id -u)")" ''

for wrong in '' what 'list --what' 'pin' 'evict' 'lease x' 'lease --job=0 x' 'lease --job=1x x' 'list --job=1' 'du x' 'gc x' \
	'pin --force x' 'pin --all-users x' 'list --shared --all-users' 'gc --job -1' 'gc --holder x' \
	'list --live-jobs 1' 'gc --live-jobs 1,x' 'gc --live-jobs -1' 'gc --live-jobs 0' 'gc --job 1 --live-jobs 2'; do
	# shellcheck disable=SC2086
	cache $wrong
	is "usage: '$wrong'" "$status" 2
done
cache evict "$tmp/nothing"
is 'no such copy' "$status" 1
like 'is said' "$log" "there is no copy of $tmp/nothing in "
cache list --cache-dir relative
is 'a relative cache' "$status" 1
cache --help
is 'help' "$status" 0

# Leases of processes and jobs.
sleep 1000 &
pid=$!
"$gradcomp" stage --quiet --hold "$pid" --holder 'job 7.0' "$tmp/one" >/dev/null
cache list
like 'a lease of a process is listed' "$out" 'leased by job 7.0'
cache evict --force "$tmp/one"
is 'what is leased is never evicted' "$status" 1
like 'and by whom is said' "$log" 'leased by job 7.0'
kill "$pid"
wait "$pid" 2>/dev/null
pid=
cache gc --dry-run
like 'gc' "$out" 'would remove lease of job 7.0'
cache gc
like 'removes the lease of the dead' "$out" 'removed lease of job 7.0'
cache lease --job 12 --holder 'prolog of job 12' "$tmp/one"
is 'a job leases' "$status" 0
cache list --json
is 'and is listed' "$(member '[(l["job"], l["holder"], l["alive"]) for e in j["entries"] for l in e["leases"]]')" \
	"[(12, 'prolog of job 12', True)]"
cache evict "$tmp/one"
is 'it holds without a process' "$status" 1
cache gc
is 'gc leaves it' "$out" ''
cache gc --job 13
is 'as that of another job does' "$status $out" '0 '
cache gc --job 12
like 'its own removes it' "$out" 'removed lease of prolog of job 12'
cache gc --job 12
is 'twice is fine' "$status $out" '0 '
cache lease --job 12 "$tmp/one"
cache lease --job 13 "$tmp/one"
cache gc --live-jobs '14
12, 15'
is 'the lease of a job that is gone goes, that of one that lives stays' "$status $(echo "$out" | wc -l)" '0 1'
like 'which is the right one' "$out" 'removed lease of job 13'
cache gc --live-jobs ''
like 'without a job none stays' "$out" 'removed lease of job 12'
# shellcheck disable=SC2016 # expanded by that shell
later=$(sh -c 'sleep 0.2; "$1" cache lease --job 16 "$2" >/dev/null && exec "$1" cache gc --live-jobs ""' - "$GRADCOMP_BUILD/bin/gradcomp" "$tmp/one")
is 'what a job has leased since the list was asked for stays' "$later" ''
cache gc --live-jobs ''
like 'until the next list' "$out" 'removed lease of job 16'
cache gc --json
is 'in JSON' "$(member 'j["removed"], j["error"]')" '([], None)'

# A budget that two datasets do not fit: the one used longest ago goes for a third.
cache clear
head -c 300000 /dev/urandom >"$tmp/one/big"
head -c 300000 /dev/urandom >"$tmp/two/big"
mkdir "$tmp/three"
head -c 300000 /dev/urandom >"$tmp/three/big"
export GRADCOMP_STAGE_CACHE_BYTES=800K
one=$(key_of "$tmp/one")
two=$(key_of "$tmp/two")
touch -d '1 hour ago' "$tmp/cache/$(id -u)/$one/used"
three=$(key_of "$tmp/three")
is 'with a budget the least recently used goes' "$(cd "$tmp/cache/$(id -u)" && ls -d "$one" "$two" "$three" 2>/dev/null | sort)" \
	"$(printf '%s\n' "$two" "$three" | sort)"
cache pin "$tmp/two" "$tmp/three"
refuse 'when all are pinned a third is refused' "$gradcomp" stage "$tmp/one"
like 'with the numbers' "$said" 'that stage.cache_bytes allows'
like 'and what stays' "$said" 'pinned'
cache unpin "$tmp/two" "$tmp/three"
is 'unpin' "$status" 0
unset GRADCOMP_STAGE_CACHE_BYTES

refuse_json () {
	cache "$@"
	is "$* as JSON when it fails" "$status $(member 'j["error"] is not None')" '1 True'
}
chmod 755 "$tmp/cache/$(id -u)"
refuse_json list --json
refuse_json gc --json
refuse_json clear --json
chmod 700 "$tmp/cache/$(id -u)"

if [ "$(id -u)" != 0 ] || ! command -v setpriv >/dev/null; then
	refuse 'only root sees all users' "$gradcomp" cache list --all-users
	skip 'other users' 'needs root and setpriv'
	done_testing
fi
user () { setpriv --reuid=$uid --regid=$uid --clear-groups "$@"; }

# A user's area that was there before root made the cache.
mkdir -m 1777 "$tmp/later"
export GRADCOMP_STAGE_CACHE_DIR="$tmp/later/cache"
before=$(user "$gradcomp" stage --quiet "$tmp/one")
like 'a cache beside the one that root has not made' "$before" "$tmp/later/cache-$uid/"
mkdir -m 1777 "$tmp/later/cache"
is 'is used when root has made it' "$(user "$gradcomp" stage --quiet "$tmp/one")" "$before"
is '... and nothing is staged twice' "$(find "$tmp/later/cache" -mindepth 1)" ''
like '... is listed' "$(user "$gradcomp" cache list)" "$tmp/one"
cache list --all-users
like '... for root, too' "$out" "$tmp/one"
cache clear --all-users
is '... and cleared' "$(find "$tmp/later/cache-$uid" -mindepth 1 -name '[0-9a-f]*' ! -name '*.lock')" ''
rm -rf "$tmp/later/cache-$uid"
like 'a user without one is in the cache' "$(user "$gradcomp" stage --quiet "$tmp/one")" "$tmp/later/cache/$uid/"
mkdir "$tmp/later/cache-$uid"
like 'what another has made beside it changes nothing' "$(user "$gradcomp" stage --quiet "$tmp/one")" "$tmp/later/cache/$uid/"
export GRADCOMP_STAGE_CACHE_DIR="$tmp/cache"
user "$gradcomp" stage --quiet "$tmp/two" >/dev/null
mkdir "$tmp/cache/61235" "$tmp/elsewhere"
ln -s "$tmp/elsewhere" "$tmp/cache/61236"
cache list --all-users --json
is 'root lists all users' "$(member 'sorted(u["user"] for u in j)')" "['$uid', 'root']"
like 'and passes over what is not a user'\''s' "$log" '61235 is not the area of the user it is named after'
like 'or is a link' "$log" '61236 is not the area'
cache du --all-users
like 'du for all users' "$out" "$uid: "
ln -s /etc "$tmp/cache/$uid/$one"
cache clear --all-users
is 'clear for all users' "$status" 0
is 'leaves what is not ours' "$(ls "$tmp/cache/$uid")" "$one"
check 'and follows no link' test -f /etc/passwd
refuse 'a user sees his own only' user "$gradcomp" cache list --all-users
user mv "$tmp/cache/$uid/$one" "$tmp/cache/$uid/x" 2>/dev/null || rm "$tmp/cache/$uid/$one"

# What all users share.
printf '[stage]\nshared = %s\nshared_user = root\n' "$tmp/one" >"$tmp/conf"
refuse 'a user does not stage for all' user "$gradcomp" stage --shared "$tmp/one"
refuse 'what is not declared is not staged for all' "$gradcomp" stage --shared "$tmp/two"
check 'root does' "$gradcomp" stage --shared "$tmp/one"
user "$gradcomp" stage "$tmp/one" >"$tmp/out" 2>"$tmp/log"
like 'and a user gets that copy' "$(cat "$tmp/out")" "$tmp/cache/shared/"
check 'which he can read' user cmp "$tmp/one/big" "$(cat "$tmp/out")/big"
cache list --shared
like 'it is listed' "$out" "$tmp/one"
refuse 'a user cannot clear it' user "$gradcomp" cache clear --shared
check 'a user can verify it' user "$gradcomp" cache verify --shared
cache lease --shared --job 12 "$tmp/one"
cache evict --shared "$tmp/one"
is 'a lease of a job holds it' "$status" 1
cache gc --all-users --job 12
is 'which gc for all users removes' "$status" 0
printf '[stage]\nshared = nfs://127.0.0.1/x\nshared_user = root\n' >"$tmp/conf"
refuse 'root asks no server' "$gradcomp" stage --shared nfs://127.0.0.1/x
refuse 'root asks no server, however its scheme is written' "$gradcomp" stage --shared NFS://127.0.0.1/x
like '... and says who may' "$said" 'name another account in stage.shared_user'
# A user stops the child that has become him, in an area that takes a while.
# shellcheck disable=SC2016 # expanded by the user's shell
user sh -c 'cd "$1" && seq 20000 | xargs touch' - "$tmp/cache/$uid"
"$gradcomp" cache gc --all-users >/dev/null 2>"$tmp/log" &
pid=$!
# shellcheck disable=SC2016 # expanded by the user's shell
user sh -c 'child=
	while [ -d "/proc/$1" ] && ! kill -STOP "$child"; do
		read -r child _ <"/proc/$1/task/$1/children" || :
	done' - "$pid" 2>/dev/null
wait "$pid"
is 'a user who stops the child that works as him' "$?" 1
pid=
like 'does not hold up root' "$(cat "$tmp/log")" 'was stopped, which that user can do'
# shellcheck disable=SC2016 # expanded by the user's shell
user sh -c 'cd "$1" && seq 20000 | xargs rm' - "$tmp/cache/$uid"
cache evict --shared "$tmp/one"
is 'then it can be evicted' "$status" 0
is 'without a rest' "$(ls -A "$tmp/cache/shared")" ''

printf '[stage]\nshared = %s\n' "$tmp/one" >"$tmp/conf"
refuse 'an area of the former owner' "$gradcomp" stage --shared "$tmp/one"
rmdir "$tmp/cache/shared"
check 'root becomes nobody where no account is named' "$gradcomp" stage --shared "$tmp/one"
is 'and its copy belongs to that' "$(stat -c %U "$tmp/cache/shared")" nobody
user "$gradcomp" stage "$tmp/one" >"$tmp/out" 2>"$tmp/log"
like 'users get it' "$(cat "$tmp/out")" "$tmp/cache/shared/"
cache clear --shared
is 'and root clears it as that account' "$status $(ls -A "$tmp/cache/shared")" '0 '
# An account may read a source as a member of a group, here with a list of groups of this test's own.
{ cat /etc/group; echo 'datasets:x:61300:nobody'; } >"$tmp/group"
chgrp 61300 "$tmp/one" && chmod 750 "$tmp/one"
# shellcheck disable=SC2016 # expanded by that shell
in_group () { unshare --mount --propagation=private sh -c 'mount --bind "$1" /etc/group && shift && exec "$@"' - "$tmp/group" "$@"; }
if in_group true 2>/dev/null; then
	check 'what only a group can read' in_group "$gradcomp" stage --shared "$tmp/one"
	cache clear --shared
else
	skip 'what only a group can read' 'no mount namespaces'
fi
done_testing
