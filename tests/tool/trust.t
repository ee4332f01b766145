#!/bin/bash
# Whose files are trusted: beside root's and the user's own, those of whoever installed gradcomp, in
# the prefix that it was installed to; and in a user namespace without root, what is mounted read-only.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"

[ "$(id -u)" = 0 ] || skip_all 'other users need root'
[ -e "$GRADCOMP_BUILD/bin/gradcomp" ] || skip_all 'no gradcomp command was built'
user=64201 service=64202 mallory=64203
chmod 755 "$tmp"
unset GRADCOMP GRADCOMP_PLUGIN_PATH
export GRADCOMP_CONF=$tmp/empty.conf
: > "$tmp/empty.conf"

# prefix NAME OWNER: gradcomp installed to $tmp/NAME
prefix () {
	mkdir -p "$tmp/$1/lib"
	cp -r "$GRADCOMP_BUILD/bin" "$tmp/$1"
	cp -r "$GRADCOMP_BUILD/lib/gradcomp" "$tmp/$1/lib"
	chmod -R go=rX "$tmp/$1"
	chown -R "$2" "$tmp/$1"
}
# asked PREFIX PLUGINS CMD...: PREFIX's command resolves a compressor of PLUGINS, as the user and below CMD
# shellcheck disable=SC2329,SC2317 # called by check and refuse
asked () {
	setpriv --reuid "$user" --regid "$user" --clear-groups "${@:3}" env GRADCOMP_PLUGIN_PATH="$tmp/$2/lib/gradcomp" \
		"$tmp/$1/bin/gradcomp" check --compressor topk:density=0.1
}
distrusted () { refuse "$1" "${@:2}"; like "$1: it is said" "$said" 'is not trusted'; }

prefix own $service
prefix other $service
prefix system root
prefix theirs $mallory
check "a service account's installation is trusted by others" asked own own
check 'root as ever' asked system system
distrusted 'what the account has elsewhere is not' asked own other
distrusted 'nor is it by an installation of root' asked system own
distrusted "nor what is another user's" asked own theirs
chown $mallory "$tmp/own/lib/gradcomp/compressors/topk.so"
distrusted "another user's file in the prefix" asked own own
chown $service "$tmp/own/lib/gradcomp/compressors/topk.so"
chmod g+w "$tmp/own/lib/gradcomp/compressors"
distrusted 'a folder of the prefix that a group can write' asked own own
like 'it is said what mends the installation' "$said" "mend it with: chmod -R go-w $tmp/own (umask 022 "
chmod g-w "$tmp/own/lib/gradcomp/compressors"
# As pip makes it with umask 002, in an environment whose folders are alike: one command mends it.
mkdir -p "$tmp/venv/lib/packages"
: > "$tmp/venv/pyvenv.cfg"
cp -r "$tmp/own" "$tmp/venv/lib/packages"
chown -R $user:$user "$tmp/venv"
chmod -R g+w "$tmp/venv"
distrusted 'an environment made with umask 002' asked venv/lib/packages/own venv/lib/packages/own
like 'it is said what mends all of it' "$said" "mend it with: chmod -R go-w $tmp/venv (umask 022 "
chmod -R go-w "$tmp/venv"
check 'and it does' asked venv/lib/packages/own venv/lib/packages/own

# With everything mounted read-only, as containers have it.
sealed () {
	# shellcheck disable=SC2016 # expanded over there
	unshare --mount bash -c 'mount --make-rprivate / && for at in / "$(findmnt -nro TARGET -T "$1")"; do
			mount -o remount,bind,ro "$at" || exit 1
		done
		shift
		eval "$1"
		"${@:2}"' - "$tmp" "$(declare -p tmp user; declare -f asked)" "$@"
}
# In a namespace that knows this user alone, root shows as the overflow id.
rootless=(unshare --user --map-current-user)
if ! setpriv --reuid "$user" --regid "$user" --clear-groups "${rootless[@]}" true 2> /dev/null; then
	skip 'user namespaces' 'this user cannot make them'
elif ! sealed true 2> /dev/null; then
	skip 'user namespaces' 'nothing can be mounted here'
else
	distrusted 'no root, and somebody outside could write' asked system system "${rootless[@]}"
	like 'no root: why not' "$said" 'a user that this user namespace does not know'
	distrusted 'nobody has a number: the same' asked system system unshare --user
	check 'no root, but all is read-only' sealed asked system system "${rootless[@]}"
	chmod o+w "$tmp/system/lib/gradcomp/compressors/topk.so"
	distrusted 'read-only, but everybody could write it outside' sealed asked system system "${rootless[@]}"
	distrusted "read-only does not make another user's trusted outside of a namespace" sealed asked system theirs env
fi
done_testing
