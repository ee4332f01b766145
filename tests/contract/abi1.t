#!/bin/sh
# A compressor that was built against ABI 1 stays loadable for ever. It is there as it
# came out of the compiler, from tests/golden/abi1_cyclic.c:
#
#   gcc -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -ffp-contract=off -Iinclude \
#       -Wl,-z,relro,-z,now -Wl,--build-id=none -s -o abi1_cyclic.x86_64 abi1_cyclic.c -lm
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp

[ "$(uname -m)" = x86_64 ] || skip_all "the plugin was built for x86_64, this is $(uname -m)"
mkdir -p "$tmp/compressors" "$tmp/collectives"
install -m 0755 "$GRADCOMP_SRC/tests/golden/abi1_cyclic.x86_64" "$tmp/compressors/cyclic.so"
check "it is listed" env GRADCOMP_PLUGIN_PATH="$tmp" "$gradcomp" list cyclic
like "with its parameter" "$said" "every=INT (1..1000000, default 8)"
check "it can be asked for" env GRADCOMP_PLUGIN_PATH="$tmp:$GRADCOMP_BUILD/lib/gradcomp" \
	"$gradcomp" check --compressor cyclic:every=4
check "it keeps the rules" "$gradcomp" plugin-check --param every=3 "$tmp/compressors/cyclic.so"
like "and was built against ABI 1" "$said" "ABI 1"
done_testing
