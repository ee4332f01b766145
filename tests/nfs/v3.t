#!/bin/bash
# NFSv3: the mount service, portmapper or ports in the URL. In namespaces of its own,
# because a server of NFSv3 wants the machine's one rpcbind.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2317
if [ "${1-}" != inside ]; then
	if ! unshare -nm true 2>/dev/null; then
		echo '1..0 # SKIP needs root and namespaces'
		exit 0
	fi
	exec unshare -nm -- "$0" inside
fi
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
if why=$("$GRADCOMP_SRC/tests/nfs/server" missing); then skip_all "$why"; fi
[ -e "$GRADCOMP_BUILD/lib/gradcomp/source/nfs.so" ] || skip_all 'built without libnfs'
command -v rpcbind >/dev/null || skip_all 'rpcbind is not installed'
pids=

cleanup () {
	for p in $pids; do kill "$p" 2>/dev/null; done
	for p in $pids; do wait "$p" 2>/dev/null; done
}
ip link set lo up
mount -t tmpfs none /run || skip_all 'no /run of its own'
rpcbind -f -w &
pids=$!
mkdir -p "$tmp/recovery" "$tmp/cache" "$tmp/export/tree/sub"
cat >"$tmp/ganesha" <<END
NFS_CORE_PARAM { Protocols = 3, 4; NFS_Port = 28049; MNT_Port = 28050; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = true; $("$GRADCOMP_SRC/tests/nfs/server" core) }
NFSV4 { Graceless = true; RecoveryBackend = fs; RecoveryRoot = "$tmp/recovery"; }
EXPORT { Export_Id = 1; Path = "$tmp/export"; Pseudo = "/export"; Access_Type = RO; Squash = Root_Squash;
	Protocols = 3, 4; Transports = TCP; SecType = sys; FSAL { Name = VFS; } }
END
tree=$tmp/export/tree
head -c 3000001 /dev/urandom >"$tree/large"
for ((i = 0; i < 2000; i++)); do echo "file $i" >"$tree/sub/$i"; done
printf x >"$tree/"$'odd\n\xff'
mkdir "$tree/empty"
ln "$tree/large" "$tree/sub/second"
ln -s ../large "$tree/sub/link"
mkdir "$tmp/export/closed"
(umask 077 && echo x >"$tmp/export/closed/file")
chmod 755 "$tmp"

export PATH=$PATH:/usr/sbin
ganesha.nfsd -F -f "$tmp/ganesha" -L "$tmp/log" -p "$tmp/pid" >/dev/null 2>&1 &
pids="$pids $!"
for ((i = 0; i < 300; i++)); do grep -q 'NFS SERVER INITIALIZED' "$tmp/log" 2>/dev/null && break; sleep 0.1; done
grep -q 'NFS SERVER INITIALIZED' "$tmp/log" 2>/dev/null || skip_all 'ganesha does not start for NFSv3 here'

: >"$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache" GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp"
stage () {
	"$gradcomp" stage --quiet "$@" >"$tmp/out" 2>"$tmp/said"
	status=$?
	out=$(cat "$tmp/out") said=$(cat "$tmp/said")
}
stage 'nfs://127.0.0.1/export/tree?version=3'
is 'ports from the portmapper' "$status:$said" 0:
check 'every byte' diff -r --no-dereference "$tree" "$out"
is 'hard links' "$(stat -c %h "$out/large")" 2
copy=$out
stage 'nfs://127.0.0.1/export/tree?version=3'
is 'a second time it is there' "$status:$out" "0:$copy"
stage 'nfs://127.0.0.1/export/tree?version=3&nfsport=28049&mountport=28050'
is 'ports from the URL' "$status:$said" 0:
check 'the same bytes' diff -r --no-dereference "$tree" "$out"
stage 'nfs://127.0.0.1/export/tree/large?version=3'
is 'a file' "$status" 0
check 'and its bytes' cmp "$tree/large" "$out"
stage 'nfs://127.0.0.1/export/missing?version=3'
like 'what is not there' "$status:$said" 'No such file or directory'
stage 'nfs://127.0.0.1/other/tree?version=3'
like 'what is not exported' "$status:$said" 'does not export nfs://127.0.0.1/other/tree to this node'
stage 'nfs://127.0.0.1/export/tree/sub/link?version=3'
like 'a symbolic link' "$status:$said" 'is a symbolic link, which is not followed'
stage 'nfs://127.0.0.1/export/closed?version=3'
like 'root is nobody' "$status:$said" 'cannot read file: the NFS server 127.0.0.1 denies it to user 0'
stage 'nfs://127.0.0.1/export/tree?version=3&mountport=1'
like 'a mount service that is not there' "$status:$said" 'cannot be reached: Connection refused'
done_testing
