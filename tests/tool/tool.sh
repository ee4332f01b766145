# shellcheck shell=sh disable=SC2034
# For the tests of the gradcomp command: the command of the build, the fixtures as
# its plugins, no settings but its own. plugins/ is a copy to be damaged.
. "$GRADCOMP_SRC/tests/support/tap.sh"
umask 022
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
fixtures=$GRADCOMP_BUILD/tests/plugins
for tool_variable in $(env | sed -n 's/^\(GRADCOMP[A-Z_]*\)=.*/\1/p'); do
	case $tool_variable in GRADCOMP_BUILD | GRADCOMP_SRC) ;; *) unset "$tool_variable" ;; esac
done
: >"$tmp/conf"
mkdir -p "$tmp/plugins/compressors" "$tmp/plugins/collectives"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_PLUGIN_PATH="$fixtures"
