#!/bin/bash
# Trees as they lie about: each is refused as it is, and the options that the refusals print are enough to stage it.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
writer=
cleanup () { [ -z "$writer" ] || kill "$writer" 2>/dev/null; }
chmod 755 "$tmp"
mkdir "$tmp/cache" "$tmp/t"
chmod 1777 "$tmp/cache"
: > "$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache"
cd "$tmp/t" || exit 1

# What one may not read is only there for who is not root.
as=()
[ "$(id -u)" != 0 ] || as=(setpriv --reuid 61234 --regid 61234 --clear-groups)

# stage SPEC: leaves $status, $said, and in $copy where it is
stage () {
	copy=$("${as[@]}" "$gradcomp" stage "$@" 2> "$tmp/log") && status=0 || status=$?
	said=$(cat "$tmp/log")
}

# advised TREE NTH...: stages with what the refusals advise, the NTH of each, until it is done
advised () {
	local tree=$1 nth=$2 spec=$1 round advice
	for round in 1 2 3 4 5 6 7 8; do
		stage "$spec"
		[ "$status" != 0 ] || break
		advice=$(grep -oE '(exclude|links|unreadable)=[^ ;,]+' <<< "$said" | sed -n "${nth}p")
		[ -n "$advice" ] || advice=$(grep -oE '(exclude|links|unreadable)=[^ ;,]+' <<< "$said" | tail -n 1)
		[ -n "$advice" ] || break
		[ "$round" = 1 ] && spec=$spec:$advice || spec=$spec,$advice
	done
	is "$tree, as advised: $spec" "$status" 0 || note "$said"
	[ "$spec" != "$tree" ] || ok_not "$tree is refused as it is"
}
ok_not () { tap_result 1 "$1"; }
tap_files () { (cd "$1" && find . -mindepth 1 | LC_ALL=C sort | tr '\n' ' '); }

# ---- seven trees
mkdir -p hub/blobs hub/snapshots/ab12/data
echo one > hub/blobs/b1
echo two > hub/blobs/b2
ln -s ../../blobs/b1 hub/snapshots/ab12/config.json
ln -s ../../../blobs/b2 hub/snapshots/ab12/data/train.parquet
advised hub/snapshots/ab12 1
is 'a snapshot of Hugging Face: files in the place of links' "$(cat "$copy/config.json" "$copy/data/train.parquet"; find "$copy" -type l)" 'one
two'

mkdir -p absolute/v1
echo x > absolute/v1/x
ln -s "$tmp/t/absolute/v1" absolute/current
ln -s "$tmp/t/absolute/v1/x" absolute/v1/y
ln -s "$tmp/t" here
ln -s "$tmp/t/here/absolute/v1/x" absolute/z
advised absolute 1
is 'absolute links into the tree are relative' "$(readlink "$copy/current" "$copy/v1/y" "$copy/z" | tr '\n' ' ')" 'v1 ../v1/x v1/x '
is '... and lead to the copy' "$(cat "$copy/current/y" "$copy/z")" "$(echo x; echo x)"

mkdir -p nfsroot/lost+found nfsroot/data
echo x > nfsroot/data/x
chmod 700 nfsroot/lost+found
advised nfsroot 1
is 'a file system with its lost+found' "$(tap_files "$copy")" './data ./data/x '
is '... a list says what was left out' "$(cat "$copy/../left-out")" 'unreadable lost+found'
like '... and a line' "$said" '1 entry was left out: lost+found (unreadable)'
advised nfsroot 2
is '... or by name' "$(tap_files "$copy")" './data ./data/x '

mkdir -p private/sub
echo a > private/a
echo b > private/b
ln private/b private/sub/b2
echo "c,d" > 'private/odd,name\here'
chmod 000 private/b 'private/odd,name\here'
advised private 1
is 'files of others' "$(tap_files "$copy")" './a ./sub '
is '... are all listed' "$(LC_ALL=C sort "$copy/../left-out")" 'unreadable b
unreadable odd,name\x5chere
unreadable sub/b2'
stage --json private:unreadable=skip
like '... and counted' "$copy" '"left_out": 3'
stage 'private:exclude=b*,exclude=odd*,unreadable=refuse'
is '... or leave them out by a list' "$status: $(tap_files "$copy")" '0: ./a ./sub '

mkdir -p run/logs
echo data > run/data
head -c 3000000 /dev/zero > run/logs/big
perl -e 'open F, ">>", "run/logs/train.log"; for (;;) { syswrite F, "line\n"; select undef, undef, undef, 0.0005 }' &
writer=$!
advised run 1
is 'a log that is being written' "$(tap_files "$copy")" './data ./logs ./logs/big '
stage 'run:exclude=logs/'
is '... or its folder' "$status: $(tap_files "$copy")" '0: ./data '
kill "$writer"
wait "$writer" 2>/dev/null
writer=

mkdir -p service
echo x > service/x
mkfifo service/control 'service/a,b c'
advised service 1
is 'a FIFO, and one with an odd name' "$(tap_files "$copy")" './x '

mkdir -p checkout/.git checkout/deep/er
echo x > checkout/x
ln -s /nonexistent/else checkout/deep/er/dangling
ln -s ../../../outside checkout/deep/out
mkfifo checkout/.git/fsmonitor
advised checkout 2
like 'a checkout with links to elsewhere' "$(tap_files "$copy")" './x '

# ---- what is hostile
mkdir -p loop/a/b
echo x > loop/a/x
ln -s .. loop/a/b/up
stage loop:links=follow
is 'a circle of links ends' "$status" 1
like '... by name' "$said" 'a/b/up/b/up leads to a directory, below another such link'
mkdir -p evil secret
echo x > evil/x
echo secret > secret/key
chmod 600 secret/key
ln -s ../secret/key evil/key
ln -s /dev/zero evil/zero
[ "${#as[@]}" = 0 ] || {
	stage evil:links=follow,exclude=zero
	like 'a link to what one may not read' "$status: $said" 'gradcomp: evil: cannot read key: Permission denied; unreadable=skip or exclude=key leaves it out'
	stage evil:links=follow,exclude=zero,unreadable=skip
	is '... is not copied' "$status: $(tap_files "$copy")" '0: ./x '
}
stage evil:links=follow,exclude=key
like 'a link to a device' "$status: $said" 'a character device'
stage --shared evil:links=follow
is 'a copy for all users does not follow links' "$status" 1

# ---- how SPECs are written
mkdir 'c,d' 'e\f'
echo x > 'c,d/x'
echo x > 'e\f/x'
stage 'c,d'
like 'a comma is explained where it is met' "$said" "a comma separates sources, one in a path is written '\\,'"
stage 'c\,d'
is '... and as explained it is one' "$status" 0
stage 'e\f'
like 'so is a backslash' "$said" "one that is part of a path is written \\\\"
stage 'e\\f'
is '... and as explained it is one' "$status" 0
stage 'run:mode=link'
is 'where nothing is copied nothing is in the way' "$status" 0
stage 'service:mode=link'
is '... not a FIFO either' "$status" 0
for wrong in 'run:exclude=' 'run:links=copy' 'run:unreadable=no' 'run:links=follow,links=rewrite'; do
	stage "$wrong"
	is "usage: $wrong" "$status" 2
done
stage --check 'run:exclude=logs/*.log,exclude=*.tmp,links=rewrite,unreadable=skip'
is 'what it means' "$copy" 'run mode=full verify=mtime links=rewrite unreadable=skip exclude=logs/*.log exclude=*.tmp'
done_testing
