#!/bin/bash
# A tree on an NFS server, staged without a mount: what it has, it has in the copy.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
server () { "$GRADCOMP_SRC/tests/nfs/server" --state "$tmp/server" "$@"; }
if why=$(server missing); then skip_all "$why"; fi
[ -e "$GRADCOMP_BUILD/lib/gradcomp/source/nfs.so" ] || skip_all 'built without libnfs'

cleanup () { server down; }
chmod 755 "$tmp"
# Other users run it as well, and the build directory may be closed to them.
cp -r "$GRADCOMP_BUILD/bin" "$GRADCOMP_BUILD/lib" "$tmp"
chmod -R go=rX "$tmp/bin" "$tmp/lib"
gradcomp=$tmp/bin/gradcomp
mkdir "$tmp/export" "$tmp/cache"
chmod 1777 "$tmp/cache"
: >"$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache" GRADCOMP_PLUGIN_PATH="$tmp/lib/gradcomp"

# stage ARGUMENTS: leaves $out, $log and $status
stage () {
	"$gradcomp" stage --quiet "$@" >"$tmp/out" 2>"$tmp/log"
	status=$?
	out=$(cat "$tmp/out") log=$(cat "$tmp/log")
}
# What is below a folder: type, mode, links, size, time and target of everything.
describe () {
	(cd "$1" && find . -printf '%P %y %m ' \( -type f -printf '%n %s %T@' -o -type l -printf '%l' -o -true \) -printf '\0' |
		sort -z | tr '\0' '\n')
}

tree=$tmp/export/tree
mkdir -p "$tree/empty/below" "$tree/odd" "$tree/many" "$tree/$(printf '%0200d' 1)/$(printf '%0200d' 2)"
for name in ' ' $'\n' $'\t' '*' '\x41' '%41' $'\xff\xfe' $'caf\xc3\xa9' '-rf' '~' '#?&=' "$(printf '%0255d' 0)" ...; do
	printf '%s' "$name" >"$tree/odd/$name"
done
for ((i = 0; i < 5000; i++)); do echo "file $i" >"$tree/many/$i"; done
head -c 20000001 /dev/urandom >"$tree/large"
head -c 65536 /dev/urandom >"$tree/64k"
head -c 65537 /dev/urandom >"$tree/64k+1"
head -c 262144 /dev/urandom >"$tree/256k"
: >"$tree/nothing"
truncate -s 50M "$tree/sparse"
for at in 0 20000000 52428799; do printf x | dd of="$tree/sparse" bs=1 seek=$at conv=notrunc status=none; done
truncate -s 5M "$tree/hole"
ln "$tree/large" "$tree/empty/second"
ln "$tree/large" "$tree/zzz"
ln -s ../large "$tree/empty/link"
ln -s nowhere "$tree/dangling"
ln -s "$(printf '%01000d' 7)" "$tree/long"
printf secret >"$tmp/export/outside"
chmod 0640 "$tree/64k"
chmod 0555 "$tree/empty"
touch -d '1960-01-01 00:00:00.5 UTC' "$tree/64k+1"
touch -d '2100-01-01' "$tree/256k"
ln "$tree/nothing" "$tmp/export/hard"

check 'a server' server up "$tmp/export" --fresh
url=$(cat "$tmp/server/url")
at () { echo "${url/\/export/\/export\/$1}"; }

stage "$(at tree)"
is 'is staged' "$status:$log" 0:
copy=$out
check 'every byte' diff -r --no-dereference "$tree" "$copy"
chmod u+w "$tree/empty"
describe "$tree" | sed 's/^nothing f 644 2/nothing f 644 1/; s/^empty d 755/empty d 555/' >"$tmp/want"
describe "$copy" >"$tmp/got"
check 'modes, times, links and targets' diff "$tmp/want" "$tmp/got"
chmod u-w "$tree/empty"
check 'holes stay holes' test "$(du -k "$copy/sparse" | cut -f1)" -lt 4096
read_before=$(server bytes)
stage --json "$(at tree)"
like 'a second time it is there' "$out" '"cached": true'
is 'and the server reads no file' "$(($(server bytes) - read_before < 100000))" 1
stage --verify "$(at tree)"
is 'its checksums are right' "$status:$out" "0:$copy"
stage "$(at tree//)"
is 'slashes do not matter' "$status:$out" "0:$copy"

stage "$(at tree/odd)"
is 'a part of it' "$status" 0
part=$out

stage "$(at tree/large)"
is 'a file' "$status" 0
is 'is the path' "${out##*/}" large
check 'with its bytes' cmp "$tree/large" "$out"
is 'alone' "$(ls -A "${out%/large}")" large

# ---- what cannot be staged ----

# refuses NAME PATH WORDS
refuses () {
	stage "$(at "$2")"
	is "$1" "$status" 1
	like "$1: says so" "$log" "$3"
}
refuses 'a path that is not there' missing 'No such file or directory'
refuses 'a path through a file' tree/large/x 'Not a directory'
stage "${url/export/wrong}"
is 'an export that is none' "$status" 1
like 'is named' "$log" "does not give nfs://127.0.0.1"
like 'with the path' "$log" "/wrong: No such file or directory"
ln -s tree "$tmp/export/other"
refuses 'a symbolic link as source' other 'other in nfs://127.0.0.1'
refuses 'or on the way' other/odd 'is a symbolic link, which is not followed'
mkdir "$tmp/export/bad" "$tmp/export/out" "$tmp/export/root" "$tmp/export/fifo"
ln -s ../outside "$tmp/export/out/l"
refuses 'a link to outside' out 'the symbolic link l leads out of the tree'
ln -s /etc/passwd "$tmp/export/root/l"
refuses 'an absolute link' root 'the symbolic link l leads out of the tree'
mkfifo "$tmp/export/fifo/pipe"
refuses 'a FIFO' fifo 'pipe is a FIFO'
refuses 'and as source' fifo/pipe 'pipe in nfs://127.0.0.1'
echo x >"$tmp/export/bad/closed"
chmod 0 "$tmp/export/bad/closed"
chown 61235 "$tmp/export/bad/closed"
for who in 61234 61235; do
	mkdir -p "$tmp/cache/$who"
	chown "$who" "$tmp/cache/$who"
	chmod 700 "$tmp/cache/$who"
done
setpriv --reuid=61234 --regid=61234 --clear-groups "$gradcomp" stage --quiet "$(at bad)" >"$tmp/out" 2>"$tmp/log"
is 'a file the user cannot read' $? 1
like 'is named' "$(cat "$tmp/log")" 'cannot read closed: the NFS server 127.0.0.1 denies it to user 61234'
is 'nothing is in his cache' "$(ls -A "$tmp/cache/61234")" ''
chmod 0400 "$tmp/export/bad/closed"
setpriv --reuid=61235 --regid=61235 --clear-groups "$gradcomp" stage --quiet "$(at bad)" >"$tmp/out" 2>"$tmp/log"
is 'who can read it' "$?:$(cat "$tmp/log")" 0:
check 'has it' cmp "$tmp/export/bad/closed" "$(cat "$tmp/out")/closed"
setpriv --reuid=61235 --regid=61235 --clear-groups "$gradcomp" stage --quiet "$(at bad)&uid=0" >"$tmp/out" 2>"$tmp/log"
is 'as somebody else he does not read' $? 1
like 'and is told' "$(cat "$tmp/log")" 'only root can read as somebody else'
# A server trusts what it has listed for a while, so the tree changes while there is none.
port=${url##*nfsport=}
server down
rm "$tree/odd/~"
check 'the server with root_squash' server up "$tmp/export" --fresh --squash=root --port="$port"
stage "$(at tree/odd)"
is 'with a file less' "$status:$log" 0:
check 'it is another copy' test "$out" != "$part" -a ! -e "$out/~" -a -e "$out/..."
refuses 'root is nobody there' bad 'cannot read closed: the NFS server 127.0.0.1 denies it to user 0; it may treat root as nobody (root_squash)'
stage "$(at bad)&uid=61235&gid=61235"
is 'root reads as its owner' "$status:$log" 0:
check 'the server goes' server down
stage "$(at bad)"
is 'no server' "$status" 1
like 'is named' "$log" 'the NFS server 127.0.0.1 cannot be reached: Connection refused'
done_testing
